"""A job of one tiny op, and one that trains a small layer, against bare jitted calls: what a call itself costs."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender
from ..race import race
from ..report import Check, Section

OURS, OURS_ASYNC, OURS_DISPATCHED = "ours, synchronous call", "ours, submission and callback", "ours, dispatched"
JAX, JAX_DISPATCHED = "bare jitted call and np.asarray", "bare jitted call, dispatched"
OURS_STEP, JAX_STEP = "ours, a training step", "jitted training step and np.asarray"


def measure(effort: Effort, data: Path) -> list[Section]:
    contenders = [
        Contender(OURS, "benchmarks.ours.tiny"),
        Contender(JAX, "benchmarks.handwritten.tiny_jax"),
        Contender(OURS_ASYNC, "benchmarks.ours.tiny", {"asynchronous": True}),
        Contender(OURS_DISPATCHED, "benchmarks.ours.tiny", {"asynchronous": True, "callback": False}),
        Contender(JAX_DISPATCHED, "benchmarks.handwritten.tiny_jax", {"asynchronous": True}),
        Contender(OURS_STEP, "benchmarks.ours.tiny", {"trains": True}),
        Contender(JAX_STEP, "benchmarks.handwritten.tiny_jax", {"trains": True}),
    ]
    result = race(contenders, rounds=effort.rounds * 2, seconds=effort.seconds, data=None)
    made = Section(
        "One tiny op, one small training step", "Microseconds a call.", ["", "median", "quartiles", "best"],
        failures=result.failures, quiet=result.quiet(), raw={"seconds": result.seconds},
    )  # fmt: skip
    for label in result.seconds:
        s = result.spread(label).scaled(1e6)
        made.rows.append([label, f"{s.median:.1f}", f"{s.low:.1f} .. {s.high:.1f}", f"{s.least:.1f}"])
    compared = [(OURS, JAX, 1.25), (OURS_ASYNC, JAX, 2.5), (OURS_DISPATCHED, JAX_DISPATCHED, 1.5), (OURS_STEP, JAX_STEP, 1.25)]
    for label, other, bound in compared:
        ratio = result.ratio(label, other)
        if ratio is not None:
            made.checks.append(Check(f"time of {label} / {other}", ratio, bound, at_least=False))
    return [made]
