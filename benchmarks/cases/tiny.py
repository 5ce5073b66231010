"""A job of one tiny op against the bare jitted call with its result fetched: what a call itself costs."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender
from ..race import race
from ..report import Check, Section

OURS, OURS_ASYNC, OURS_DISPATCHED = "ours, synchronous call", "ours, submission and callback", "ours, dispatched"
JAX, JAX_DISPATCHED = "bare jitted call and np.asarray", "bare jitted call, dispatched"


def measure(effort: Effort, data: Path) -> list[Section]:
    contenders = [
        Contender(OURS, "benchmarks.ours.tiny"),
        Contender(JAX, "benchmarks.handwritten.tiny_jax"),
        Contender(OURS_ASYNC, "benchmarks.ours.tiny", {"asynchronous": True}),
        Contender(OURS_DISPATCHED, "benchmarks.ours.tiny", {"asynchronous": True, "callback": False}),
        Contender(JAX_DISPATCHED, "benchmarks.handwritten.tiny_jax", {"asynchronous": True}),
    ]
    result = race(contenders, rounds=effort.rounds * 2, seconds=effort.seconds, data=None)
    made = Section(
        "One tiny op", "Microseconds a call.", ["", "median", "quartiles", "best"],
        failures=result.failures, quiet=result.quiet(), raw={"seconds": result.seconds},
    )  # fmt: skip
    for label in result.seconds:
        s = result.spread(label).scaled(1e6)
        made.rows.append([label, f"{s.median:.1f}", f"{s.low:.1f} .. {s.high:.1f}", f"{s.least:.1f}"])
    for label, other, bound in ((OURS, JAX, 2.0), (OURS_ASYNC, JAX, 2.5), (OURS_DISPATCHED, JAX_DISPATCHED, 1.5)):
        ratio = result.ratio(label, other)
        if ratio is not None:
            made.checks.append(Check(f"time of {label} / {other}", ratio, bound, at_least=False))
    return [made]
