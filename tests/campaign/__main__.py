"""Hostile surroundings, all of them: kills, full disks, malformed calls and files, threads, interrupts, lost processes.

    python -m tests.campaign --minutes 3               # a short form of every part
    python -m tests.campaign                           # the long form: until every part has reached its count
    python -m tests.campaign --only kills --seed 7     # one part, with other random numbers

Prints one table. The exit status is 1 where anything failed.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module

from . import children
from .report import MOST_SHOWN, Budget, Part, Report, table


def _of(module: str) -> Callable[[Budget], Report]:
    return lambda budget: import_module(f"tests.campaign.{module}").run(budget)


PARTS = [
    Part("kills", _of("saving"), 500, 4, "kills"),
    Part("disk", _of("disk"), 2_000, 2, "errors"),
    Part("calls", _of("malformed"), 10_000, 2, "calls"),
    Part("files", _of("damaged"), 5_000, 2, "files"),
    Part("threads", _of("threads"), 10**9, 2, "calls", longest=600.0),
    Part("interrupts", _of("interrupts"), 300, 2, "interrupts"),
    Part("steps", _of("asynchronous"), 100_000, 2, "steps"),
    Part("processes", _of("lost"), 40, 4, "runs"),
]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="for all parts together; without it, until each has reached its count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="PART", choices=[p.name for p in PARTS], help="these parts alone")
    options = parser.parse_args(arguments)
    children.isolate()
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)
    chosen = [part for part in PARTS if options.only is None or part.name in options.only]
    left, rows = sum(part.share for part in chosen), []
    end = time.monotonic() + 60 * options.minutes if options.minutes is not None else None
    for part in chosen:
        seconds = part.longest if end is None else max(end - time.monotonic(), 0.0) * part.share / left
        left -= part.share
        report = _report(part, Budget(options.seed, part.count, seconds))
        rows.append((part.name, report, part.unit))
        print(f"{part.name}: {report.runs:,} {part.unit}, {len(report.failures)} failures, {report.seconds:.0f} s", flush=True)
        for failure in report.failures[:MOST_SHOWN]:
            print(f"  {failure}", flush=True)
        if report.failures:
            again = f"python -m tests.campaign --only {part.name} --seed {options.seed}"
            print(f"  again: {again}{'' if end is None else f' --minutes {seconds / 60:.2g}'}", flush=True)
    print(f"\n{table(rows)}")
    return 1 if any(report.failures for _, report, _ in rows) else 0


def _report(part: Part, budget: Budget) -> Report:
    begun = time.monotonic()
    try:
        report = part.run(budget)
        if not report.runs and not report.failures:
            report.fail(f"there were no {part.unit}")
    except Exception:
        report = Report(failures=[traceback.format_exc()])
    report.seconds = time.monotonic() - begun
    return report


if __name__ == "__main__":
    sys.exit(main())
