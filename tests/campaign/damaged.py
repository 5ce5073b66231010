"""Damaged files of every format (``files.py``), under 2 GB of memory and 10 seconds of processor time each."""

from __future__ import annotations

import subprocess
import sys

from .children import PATIENCE, ROOT
from .report import Budget, Report

_FORMATS = 13


def run(budget: Budget) -> Report:
    """In a process of its own, which forks one for each file."""
    report = Report()
    seconds = max(budget.left, 5.0)
    command = [sys.executable, "-m", "tests.campaign.files", "--count", str(-(-budget.count // _FORMATS))]
    command += ["--seed", str(budget.seed), "--seconds", f"{seconds:.0f}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds + PATIENCE)
    rows = [line.split() for line in done.stdout.splitlines()]
    header = next((i for i, row in enumerate(rows) if row[:2] == ["format", "cases"]), None)
    if header is None:
        raise RuntimeError(f"tests.campaign.files ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    read = refused = peak = 0
    for _, *cells in rows[header + 1 :]:
        numbers = [float(cell) for cell in cells]
        report.runs += int(numbers[0])
        read, refused, peak = read + int(numbers[1]), refused + int(numbers[2]), max(peak, int(numbers[6]))
        report.took(numbers[7])
    if done.returncode != 0:
        report.fail("\n".join(done.stdout.splitlines()[:header])[-4000:] or done.stderr[-2000:])
    report.notes = (
        f"{read} read, {refused} refused, at most {peak} MB, formats: {', '.join(row[0] for row in rows[header + 1 :])}"
    )
    return report
