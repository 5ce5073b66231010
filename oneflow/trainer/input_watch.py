"""A training that waits for its data says so, once."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .._base.log import notice
from ..job import JobFunction
from ..runtime.throughput import Meter, Throughput

_SECONDS = 2.0  # that are measured, from the first step
_STEPS = 20


class InputWatch:
    """Measures the first seconds of a training. After that, steps cost what they cost without it."""

    def __init__(self, jobs: list[JobFunction[..., Any]]):
        self._jobs = jobs
        self._meter: Meter | None = None

    def __enter__(self) -> None:
        if len(self._jobs) == 1 and not self._jobs[0].is_measured:  # several take turns on the device
            self._meter = self._jobs[0].measure(self._is_enough)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.stop()

    def pause(self) -> None:
        """The device is idle on purpose until the next step."""
        if self._meter is not None:
            self._meter.pause()

    def _is_enough(self, found: Throughput) -> bool:
        if found.steps < _STEPS or found.seconds < _SECONDS:
            return False
        if found.verdict == "input-bound":
            notice(
                f"oneflow: input-bound: the device waited {found.waited_for_data:.0%} of the time for data, in the first "
                f"{found.steps} steps of job {found.job!r}; flow.data.ArrayLoader(..., num_workers=) prepares batches ahead"
            )
        return True
