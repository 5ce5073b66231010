"""``python -m benchmarks``: runs the cases, prints tables, writes them into the docs where asked to."""

from __future__ import annotations

import argparse
import compileall
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import data
from .busy import Busy, told
from .cases import (
    building,
    checkpoint,
    devices,
    first_step,
    input_bound,
    memory,
    mixed,
    models,
    reading,
    records,
    serving,
    tiny,
    trainer,
    training,
)
from .effort import FULL, QUICK, Effort
from .process import ROOT
from .report import Section, as_text, machine, write_docs

CASES: dict[str, Callable[[Effort, Path], list[Section]]] = {
    "training": training.measure,
    "trainer": trainer.measure,
    "models": models.measure,
    "mixed": mixed.measure,
    "tiny": tiny.measure,
    "first-step": first_step.measure,
    "building": building.measure,
    "input-bound": input_bound.measure,
    "memory": memory.measure,
    "records": records.measure,
    "reading": reading.measure,
    "checkpoint": checkpoint.measure,
    "devices": devices.measure,
    "serving": serving.measure,
}


ON_DEMAND = ("models", "mixed")  # take half an hour and some minutes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="more rounds, torch.compile, 1000 layers, 100,000 steps: 15 minutes (else 2)"
    )
    parser.add_argument("--only", metavar="CASE", nargs="+", choices=CASES, help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="keep the raw numbers")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into the docs")
    options = parser.parse_args()
    effort = FULL if options.full else QUICK
    print("\n".join(machine()))
    sections: list[Section] = []
    with tempfile.TemporaryDirectory() as folder:
        batches = data.write(Path(folder))
        compileall.compile_dir(ROOT / "oneflow", quiet=2)  # as pip does with what it installs, JAX for one
        for name in options.only or [case for case in CASES if case not in ON_DEMAND]:
            begin, busy = time.perf_counter(), Busy()
            made = CASES[name](effort, batches)
            sections += made
            quiet = told(busy.share(), "meanwhile")
            for section in made:
                section.quiet = section.quiet or quiet
            print("\n".join(map(as_text, made)), flush=True)
            print(f"\n({name}: {time.perf_counter() - begin:.0f} s)", flush=True)
    if options.json:
        raw = {s.title: {"failures": s.failures, "quiet": s.quiet, **s.raw} for s in sections}
        options.json.write_text(json.dumps({"machine": machine(), "effort": effort.name, "cases": raw}, indent=1))
    if options.write_docs:
        whole = [s for s in sections if s.page == "performance"]
        performance = "performance-avx2" if "AVX2" in machine()[0] else "performance"
        for page, chosen in ((performance, whole), ("benchmarks", [s for s in sections if s not in whole])):
            if chosen:
                write_docs(ROOT / "docs" / f"{page}.md", chosen, effort.name)
    missed = [check.text for section in sections for check in section.checks if check.holds is False]
    if missed:
        print("\nmissed: " + "; ".join(missed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
