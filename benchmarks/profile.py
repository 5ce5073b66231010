"""``python -m benchmarks.profile MODEL train|predict BATCH [STEPS]``: where a step's time goes, op by op.

Times are of XLA's own trace, summed over layers. Two ops may run at the same time, and one op on all cores: the sums are no
parts of the step's time, but say where it is spent.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
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


def traced(run: Any, steps: int) -> Counter[str]:
    """Nanoseconds of each of XLA's ops."""
    options = ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 3
    spent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        run(steps)
        jax.profiler.stop_trace()
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in ProfileData.from_file(str(file)).planes:
                for event in (event for line in plane.lines for event in line.events):
                    op = dict(event.stats).get("hlo_op")
                    if op is not None:
                        spent[str(op)] += event.duration_ns
    return spent


def main() -> int:
    if len(sys.argv) not in (4, 5):
        print(__doc__)
        return 2
    model, mode, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 10
    run, _ = in_oneflow.make(model, mode, batch)
    run(5)
    wall, cpu = time.perf_counter(), time.process_time()
    run(steps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    names = named(run.job._executable.hlo())
    sums: Counter[str] = Counter()
    for op, nanoseconds in traced(run, steps).items():
        sums[names.get(op, op)] += nanoseconds
    print(f"{model}, {mode}, batch of {batch}: {wall / steps * 1e3:.2f} ms a step, {cpu / steps * 1e3:.2f} ms of CPU time")
    for label, nanoseconds in sums.most_common(ROWS):
        print(f"{nanoseconds / steps / 1e6:9.2f} ms  {label}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
