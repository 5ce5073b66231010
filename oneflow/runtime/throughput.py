"""How fast calls of a job follow each other, and what the device waits for between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from .._base.jax import jax
from .calling import Launch
from .delivery import MAX_WINDOW
from .gate import NoRoomError, StaleExecutableError
from .process import process
from .result import Delivery, Result

_JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """What ``job.throughput()`` has measured; print it. Times are in seconds, shares from 0 to 1.

    Attributes:
      steps: calls that were made; ``seconds`` from the first call to the end of the last one, pauses left out.
      waited_for_data: the share of time in which the device had nothing to do because the next call had not come, or its
        readers had no batch.
      waited_for_delivery: the share in which it had nothing to do because the window of undelivered calls was full: callbacks and
        handlers took longer than steps.
      window: the mean number of earlier calls that were undelivered when a call was made, and the largest, of at most 32.
      delivery_lag: the mean time from the end of a step to its delivery, and the longest.
    """

    job: str
    steps: int
    seconds: float
    waited_for_data: float
    waited_for_delivery: float
    window: tuple[float, int]
    delivery_lag: tuple[float, float]

    @property
    def steps_per_second(self) -> float:
        """Calls per second; 0 without calls."""
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """What limits the speed: "input-bound", "delivery-bound" or "device-bound"."""
        data, delivery = self.waited_for_data, self.waited_for_delivery
        if max(data, delivery) < _BOUND:
            return "device-bound"
        return "input-bound" if data >= delivery else "delivery-bound"

    def __str__(self) -> str:
        rows = [
            ("steps per second", f"{self.steps_per_second:.1f}"),
            ("device waited for data", f"{self.waited_for_data:.0%} of the time"),
            ("device waited for delivery", f"{self.waited_for_delivery:.0%} of the time"),
            ("undelivered calls", f"{self.window[0]:.1f} on average, {self.window[1]} at most (of {MAX_WINDOW})"),
            ("delivery lag", f"{self.delivery_lag[0] * 1e3:.2f} ms on average, {self.delivery_lag[1] * 1e3:.2f} ms at most"),
        ]
        title = f"job {self.job!r}: {self.steps} steps in {self.seconds:.2f} s, {self.verdict}"
        return "\n".join([title, *(f"  {what:<26}  {value}" for what, value in rows)])

    __repr__ = __str__


_BOUND = 0.2  # of the time; below that the device is busy


@dataclass(slots=True, eq=False)
class _Call:
    """One call: when its step was handed to the device, how long it had waited for room, and when the step was over."""

    results: Any
    started: float
    blocked: float
    undelivered: int
    follows_pause: bool
    ended: float = 0.0


class Meter:
    """Measures the calls of one job, on a thread of its own, until ``stop``. Calls that are not measured cost nothing."""

    def __init__(self, job: str, enough: Callable[[Throughput], bool] | None = None):
        """``enough`` is asked after each step, on the meter's thread: once it returns True, nothing more is measured."""
        self.is_over = False
        self._job = job
        self._enough = enough
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._paused = False
        self._first = self._last = 0.0
        self._steps = self._most = self._undelivered = 0
        self._idle = self._blocked = self._pauses = 0.0
        self._delivered: dict[int, float] = {}  # when, by the identity of a call's results
        self._ended: dict[int, float] = {}
        self._lags = self._lag = self._longest = 0.0
        self._thread = threading.Thread(target=self._run, name=f"oneflow-throughput-{job}", daemon=True)
        self._thread.start()

    # --- the callers' side

    def metered(self, launch: Launch) -> Launch:
        """``launch``, with its calls measured."""
        local, undelivered = self._local, process.delivery.undelivered

        def measured(feeds: tuple[Any, ...], delivery: Delivery | None) -> Any:
            if self.is_over:
                raise StaleExecutableError  # the job prepares its calls anew, without this
            called = local.began = perf_counter()
            before = undelivered()
            try:
                made = launch(feeds, delivery)
            except NoRoomError:
                if getattr(local, "full", 0.0) == 0.0:
                    local.full = called
                raise
            full, local.full = getattr(local, "full", 0.0), 0.0
            results = made._results if isinstance(made, Result) else made
            follows, self._paused = self._paused, False
            self._calls.put(_Call(results, local.began, called - full if full else 0.0, before, follows))
            return made

        return measured

    def has_data(self) -> None:
        """The readers of the call that is being made have given their batch."""
        self._local.began = perf_counter()

    def finished(self, then: Callable[..., None]) -> Callable[..., None]:
        """``Delivery.finished``, with the time of it noted."""

        def noted(*calls: Any) -> None:
            for results in calls:
                self._noted(self._delivered, self._ended, results, perf_counter())
            then(*calls)

        return noted

    def _noted(self, mine: dict[int, float], other: dict[int, float], results: Any, now: float) -> None:
        key = id(results)
        with self._lock:
            there = other.pop(key, None)
            if there is None:
                mine[key] = now
                return
            lag = max(now - there if mine is self._delivered else there - now, 0.0)
            self._lags += 1
            self._lag += lag
            self._longest = max(self._longest, lag)

    def pause(self) -> None:
        """The time until the next call does not count: something else is done on purpose."""
        self._paused = True

    def stop(self) -> Throughput:
        """Ends the measurement, after the calls that were made."""
        self.is_over = True
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)
        return self.result()

    # --- the meter's thread

    def _run(self) -> None:
        last = 0.0
        while (call := self._calls.get()) is not None:
            try:
                jax.block_until_ready(call.results[0] or call.results[2])
            except Exception:  # noqa: S110 - the call itself raises it
                pass
            call.ended = perf_counter()
            self._noted(self._ended, self._delivered, call.results, call.ended)
            self._count(call, last)
            last = call.ended
            if self._enough is not None and not self.is_over and self._enough(self.result()):
                self.is_over = True

    def _count(self, call: _Call, last: float) -> None:
        with self._lock:
            if not self._steps:
                self._first = call.started
            elif call.follows_pause:
                self._pauses += max(call.started - last, 0.0)
            else:
                idle = max(call.started - last, 0.0)
                blocked = min(idle, call.blocked)
                self._blocked += blocked
                self._idle += idle - blocked
            self._last = call.ended
            self._steps += 1
            self._undelivered += call.undelivered
            self._most = max(self._most, call.undelivered)

    def result(self) -> Throughput:
        """What has been measured so far."""
        with self._lock:
            seconds = max(self._last - self._first - self._pauses, 0.0)
            total, steps = seconds or 1.0, self._steps
            return Throughput(
                self._job, steps, seconds, min(self._idle / total, 1.0), min(self._blocked / total, 1.0),
                (self._undelivered / max(steps, 1), self._most), (self._lag / max(self._lags, 1.0), self._longest),
            )  # fmt: skip


class MeteredPipeline:
    """A host pipeline that tells a meter when a call has its batch."""

    def __init__(self, pipeline: Any, meter: Meter):
        self._pipeline = pipeline
        self._meter = meter
        self.lock = pipeline.lock

    def take(self, inputs: Sequence[Any]) -> Any:
        """As the pipeline's own."""
        taken = self._pipeline.take(inputs)
        self._meter.has_data()
        return taken

    @property
    def turn(self) -> object:
        """As the pipeline's own."""
        return self._pipeline.turn

    def advance(self, taken: Any = None) -> None:
        """As the pipeline's own."""
        self._pipeline.advance(taken)
