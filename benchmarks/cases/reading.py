"""Training that reads its own data while it computes, against the same step fed from memory."""

from __future__ import annotations

import os
from pathlib import Path

from oneflow.data import samples

from ..data import BATCH, BATCHES
from ..effort import Effort
from ..process import Contender
from ..race import race
from ..report import Check, Section, milliseconds

PARTS = 4
MEMORY, READING, ALONE = "fed from memory", "reads its own parts", "reading alone, no step"
SOURCES = {MEMORY: "memory", READING: "parts", ALONE: "reading alone"}


def measure(effort: Effort, data: Path) -> list[Section]:
    folder = data.parent / "digits"
    samples.digits(folder, BATCH * BATCHES, PARTS)
    options = {"folder": str(folder), "parts": PARTS}
    contenders = [Contender(label, "benchmarks.ours.reading", {**options, "source": s}) for label, s in SOURCES.items()]
    result = race(contenders, rounds=effort.rounds, seconds=4 * effort.seconds, data=data)
    made = Section(
        "Reading while computing: LeNet on digits as PNG in part files", "",
        ["", "median, ms per step", "quartiles", "best", "CPU time"], failures=result.failures, quiet=result.quiet(),
        raw={"seconds": result.seconds, "cpu": result.cpu},
    )  # fmt: skip
    cpu = {label: sorted(values)[len(values) // 2] for label, values in result.cpu.items()}
    for label in result.seconds:
        made.rows.append([label, *milliseconds(result.spread(label)), f"{cpu[label] * 1e3:.1f}"])
    if SOURCES.keys() - result.seconds.keys():
        return [made]
    step, alone = (result.spread(label).median for label in (MEMORY, ALONE))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fits = cpu[MEMORY] + cpu[ALONE] <= cores * step
    made.note = (
        f"Batches of {BATCH}. Reading alone takes {alone / step:.0%} of the step's time; step and reading together keep "
        f"{(cpu[MEMORY] + cpu[ALONE]) / (cores * step):.0%} of {cores} cores busy"
        + ("." if fits else ", so that they cannot overlap wholly.")
    )
    ratio = result.ratio(MEMORY, READING)
    if ratio is not None:
        made.checks.append(Check(f"speed of {READING} / {MEMORY}", ratio, 0.95 if fits and alone <= step / 2 else None))
    return [made]
