"""Compiles the op table's rows for a GPU and a TPU that are not there: which ops compile, forward and backward.

PYTHONPATH=. python scripts/compile_ops.py [--all] [--targets h100:1 tpu-v5e:1x1] [--write]

Of each op the first row is taken, with --all every row. ``--write`` puts the table into docs/devices.md. It needs the extras
plan-gpu and plan-tpu.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ops"), str(ROOT / "tests" / "onnx")]

import numpy as np  # noqa: E402
from running import OTHERWISE, ROWS, arrays_of, dtypes_of, first_rows, job_of  # noqa: E402

import oneflow as flow  # noqa: E402
from benchmarks.report import write_between  # noqa: E402
from oneflow._targets.process import WorkerProcess  # noqa: E402
from oneflow.job.planning import plan_for  # noqa: E402

PAGE = ROOT / "docs" / "devices.md"
BEGIN, END = "<!-- compile_ops: begin -->", "<!-- compile_ops: end -->"


def trained(row: Any, arrays: list[np.ndarray]) -> Any:
    """A train job: the row's floating inputs depend on variables, and the sum of its floating results is the loss."""

    def build(*xs: Any) -> Any:
        zero = flow.zeros_initializer()
        moved = [
            x + flow.get_variable(f"v{i}", shape=x.shape, dtype=x.dtype, initializer=zero) if x.dtype is flow.float32 else x
            for i, x in enumerate(xs)
        ]
        made = row.build(*moved)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        found = [flow.math.reduce_sum(m) for m in made if m.dtype is flow.float32]
        loss = found[0]
        for other in found[1:]:
            loss = loss + other
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    job = job_of(build, arrays, "trained")
    job.config.job_type = "train"
    function = job._declaration.function
    return flow.global_function(type="train")(function)


def result(job: Any, target: str, worker: WorkerProcess) -> str:
    """ "" where it compiles, else the first line of the error."""
    try:
        plan_for(job._declaration, target, worker)
    except flow.errors.OneFlowError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", default=["h100:1", "tpu-v5e:1x1"])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    first = first_rows()
    rows = [row for _, row in ROWS if options.all or row.name in first]
    counts: dict[str, list[int]] = {t: [0, 0, 0, 0] for t in options.targets}  # forward: all, good; backward: all, good
    lines: list[tuple[str, str, str, str]] = []
    for target in options.targets:
        with WorkerProcess(flow.Target(target)) as worker:
            for row in rows:
                if row.name in OTHERWISE:  # they need a job of their own
                    continue
                arrays = arrays_of(row, dtypes_of(row)[0])
                flow.clear_default_session()
                problem = result(job_of(row.build, arrays), target, worker)
                if problem.startswith("ModeError") and "runs on the host" in problem:
                    continue
                count = counts[target]
                count[0] += 1
                count[1] += not problem
                if problem:
                    lines.append((row.name, target, "forward", problem))
                elif row.grad and row.train and any(a.dtype == np.float32 for a in arrays):
                    flow.clear_default_session()
                    try:
                        job = trained(row, arrays)
                        job.build()
                    except Exception:  # a row that cannot be trained: it has no gradient there, on any device
                        continue
                    problem = result(job, target, worker)
                    count[2] += 1
                    count[3] += not problem
                    if problem:
                        lines.append((row.name, target, "backward", problem))
                print(f"{target} {row.name}: {problem or 'compiles'}", flush=True)
    table = [f"- `{t}`: {c[1]} of {c[0]} ops compile forward, {c[3]} of {c[2]} backward." for t, c in counts.items()]
    if lines:
        table += ["", "| op | target | pass | why not |", "|---|---|---|---|"]
        table += [f"| {name} | {target} | {which} | {_cell(why)} |" for name, target, which, why in lines]
    print("\n".join(table))
    if options.write:
        write_between(PAGE, (BEGIN, END), "\n".join(table))


def _cell(text: str) -> str:
    short = re.sub(r"^CompileError: job 'row' cannot be planned for [\w:.-]+: ", "", re.sub(r"\s+", " ", text))
    return short.replace("|", "\\|")[:200]


if __name__ == "__main__":
    main()
