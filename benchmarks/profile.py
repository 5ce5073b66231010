"""``python -m benchmarks.profile MODEL train|predict BATCH [STEPS] [mixed]``: where a step's time goes, op by op.

Times are of XLA's own trace, medians over steps, summed over layers. Two ops may run at the same time, and one op on all
cores: the sums are not parts of the step's time, but say where it is spent. A trace disturbs what it watches, in some
processes by half: of several runs the one with the least sums says most.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax
from jax.profiler import ProfileData, ProfileOptions

from .models import in_oneflow

ROWS = 25


def named(hlo: str) -> dict[str, str]:
    """From XLA's names of ops to what they compute: a kind of native call, or an op of the job, its layer's number cut."""
    kinds = {"0": "forward", "1": "data", "2": "weights"}
    found = {}
    for line in hlo.splitlines():
        name = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line)
        if name is None:
            continue
        call = re.search(r'custom_call_target="oneflow_(\w+?)_\d+"', line)
        if call is not None:
            kind = re.search(r"spec = dense<\[(\d)", line)
            what = kinds.get(kind.group(1), "") if kind is not None and call.group(1) == "conv" else ""
            found[name.group(1)] = f"native {call.group(1)} {what}".strip()
            continue
        op = re.search(r'op_name="(?:jit\(\w+\)/)*([^"]*)"', line)
        label = re.sub(r"\d+", "", op.group(1)) if op is not None else ""
        found[name.group(1)] = f"{re.sub(r'[.0-9]+$', '', name.group(1))}  {label}"
    return found


def traced(run: Any, steps: int) -> dict[str, float]:
    """Milliseconds a step of each of XLA's ops: medians, since a trace's first step takes longer."""
    options = ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 3
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        run(steps)
        jax.profiler.stop_trace()
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in ProfileData.from_file(str(file)).planes:
                for event in (event for line in plane.lines for event in line.events):
                    op = dict(event.stats).get("hlo_op")
                    if op is not None:
                        spent.setdefault(str(op), []).append(event.duration_ns / 1e6)
    return {op: median(times) * len(times) / steps for op, times in spent.items()}


def main() -> int:
    mixed = sys.argv[-1] == "mixed"
    arguments = sys.argv[1:-1] if mixed else sys.argv[1:]
    if len(arguments) not in (3, 4):
        print(__doc__)
        return 2
    model, mode, batch = arguments[0], arguments[1], int(arguments[2])
    steps = int(arguments[3]) if len(arguments) > 3 else 10
    run, _ = in_oneflow.make(model, mode, batch, precision="bfloat16" if mixed else "")
    run(5)
    wall, cpu = time.perf_counter(), time.process_time()
    run(steps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    names = named(run.job.executables[-1][1].hlo())
    sums: dict[str, float] = {}
    for op, milliseconds in traced(run, steps).items():
        sums[names.get(op, op)] = sums.get(names.get(op, op), 0.0) + milliseconds
    what = f"{model}, {mode}{', mixed precision' if mixed else ''}, batch of {batch}"
    print(f"{what}: {wall / steps * 1e3:.2f} ms a step, {cpu / steps * 1e3:.2f} ms of CPU time")
    for label, milliseconds in sorted(sums.items(), key=lambda item: -item[1])[:ROWS]:
        print(f"{milliseconds:9.2f} ms  {label}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
