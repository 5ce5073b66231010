"""What a call gives back: a future."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ResultError
from ..graph.graph import Watch

if TYPE_CHECKING:
    from .dispatch import Dispatcher


_UNSET: Any = object()


# Waiting for the device happens in C++, where Ctrl-C is not seen; calls that take longer are waited for in small naps
INTERRUPTIBLE_FROM_SECONDS = 0.3
_SHORTEST_NAP, _LONGEST_NAP = 0.00005, 0.002


@dataclass(slots=True, eq=False)
class Delivery:
    """What all results of one job have in common.

    ``convert`` makes the value of a call of its fetched device arrays. ``seconds`` is what the last call took that was
    waited for; infinite before the first. ``window`` is how many calls the compiled job can bear in flight.
    """

    job_name: str
    dispatcher: Dispatcher
    convert: Callable[[Any], Any]
    watches: tuple[Watch, ...]
    seconds: float = float("inf")
    window: int = 32


class Result:
    """One call of a job that was submitted: a future.

    ``result(timeout)`` (``get()``) waits and gives the value; ``async_get(cb)`` (for ``-> Callback[T]`` jobs: calling the
    result) has ``cb(value)`` run once on the delivery thread, in the order of calls; ``done()``, ``add_done_callback`` and
    ``await`` are what ``concurrent.futures`` and ``asyncio`` users expect.
    """

    __slots__ = (
        "_delivery", "_arrays", "_watched", "_value", "_error", "_callback", "_listeners", "_registered", "passed", "sequence",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, arrays: tuple[Any, ...], watched: tuple[Any, ...], sequence: int):
        self._delivery = delivery
        self._arrays = arrays
        self._watched = watched
        self._value = _UNSET
        self._error: BaseException | None = None
        self._callback: Callable[[Any], None] | None = None
        self._listeners: list[Callable[[Result], None]] | None = None
        self._registered = False
        self.passed = False
        self.sequence = sequence

    @property
    def job_name(self) -> str:
        """The job that was called."""
        return self._delivery.job_name

    # --- the caller's side

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the call and gives its value.

        Args:
          timeout: seconds; None waits as long as it takes.
        Raises:
          TimeoutError: the value is not there after ``timeout`` seconds; the call goes on.
          CallbackError: a ``watch`` handler of this call failed.
        """
        if timeout is not None:
            self._wait(timeout)
        if self._watched and not self.passed:
            self._delivery.dispatcher.wait_for(self)
        if self._error is not None:
            self._delivery.dispatcher.raise_as_callback_error(self._error, self.job_name)
        arrays = self._arrays  # before the look at _value: another thread may be setting both
        if self._value is _UNSET:
            delivery = self._delivery
            start = time.perf_counter()
            if delivery.seconds > INTERRUPTIBLE_FROM_SECONDS and not self.passed:
                wait_interruptibly(flat(arrays))
            self._value = delivery.convert(arrays)
            delivery.seconds = time.perf_counter() - start
            self._arrays = ()
        return self._value

    get = result

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = 0.0001
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the call of job {self.job_name!r} has not finished after {timeout} s")
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.01)

    def done(self) -> bool:
        """Whether ``result()`` would give the value at once."""
        if self._value is not _UNSET or self._error is not None or self.passed:
            return True
        return not self._watched and all(a.is_ready() for a in flat(self._arrays))

    def async_get(self, callback: Callable[[Any], None]) -> None:
        """Has ``callback(value)`` run once on the delivery thread, after the callbacks of earlier calls.

        Raises:
          ResultError: this result has a callback already.
        """
        if not callable(callback):
            raise ResultError(f"the callback of job {self.job_name!r} must be callable, got {callback!r}")
        if self._registered:
            raise ResultError(f"this call of job {self.job_name!r} has a callback already; each result takes one")
        self._registered = True
        self._callback = callback
        if self.passed:  # too late for its turn
            self._delivery.dispatcher.late(self)

    __call__ = async_get

    def add_done_callback(self, function: Callable[[Result], None]) -> None:
        """Has ``function(result)`` run on the delivery thread when the call has finished."""
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(function)
        if self.passed:
            self._delivery.dispatcher.late(self)

    def running(self) -> bool:
        """Whether the call is still under way."""
        return not self.done()

    def cancel(self) -> bool:
        """False: a submitted call is a step that happens."""
        return False

    def cancelled(self) -> bool:
        """False, always."""
        return False

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of this call, None where it succeeded."""
        try:
            self.result(timeout)
        except TimeoutError:
            raise
        except BaseException as error:
            return error
        return None

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def passed(_: Result) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(wake)

        self.add_done_callback(passed)
        yield from future.__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Result of job {self.job_name!r}, {'done' if self.done() else 'running'}>"

    # --- the delivery thread's side

    def wait(self) -> None:
        """Waits for the device. Never raises; keeps the error."""
        try:
            for array in self._arrays:
                if type(array) is tuple:  # a tensor list
                    for inner in flat(array):
                        inner.block_until_ready()
                else:
                    array.block_until_ready()
        except BaseException as error:
            self._error = error
            self._report(error)

    def settle(self) -> None:
        """Waits for the device; an error is left to the delivery."""
        with contextlib.suppress(Exception):
            for array in flat(self._arrays):
                array.block_until_ready()

    def finish(self) -> None:
        """Runs the watch handlers, once, waiting for their values. Never raises; keeps the error."""
        if self.passed:
            return
        if self._watched:
            try:
                for watch, array in zip(self._delivery.watches, self._watched, strict=True):
                    watch.deliver(array)
            except BaseException as error:
                self._error = error
                self._report(error)
        self.passed = True

    def run_callbacks(self) -> None:
        """Runs what was registered, each once."""
        callback = self._callback
        if callback is not None:
            self._callback = None
            if self._error is None:  # else there is no value to deliver, and it was reported
                try:
                    arrays = self._arrays
                    if self._value is _UNSET:
                        self._value = self._delivery.convert(arrays)
                        self._arrays = ()
                    callback(self._value)
                except BaseException as error:
                    self._report(error)
        while self._listeners:
            try:
                self._listeners.pop(0)(self)
            except BaseException as error:
                self._report(error)

    def _report(self, error: BaseException) -> None:
        self._delivery.dispatcher.report(error, self.job_name)


def wait_interruptibly(arrays: list[Any]) -> None:
    """Waits until the arrays are there; Ctrl-C ends the wait."""
    nap = _SHORTEST_NAP
    while not all(array.is_ready() for array in arrays):
        time.sleep(nap)
        nap = min(nap * 2, _LONGEST_NAP)


def flat(arrays: Any) -> list[Any]:
    return [x for a in arrays for x in (flat(a) if isinstance(a, tuple) else (a,))]
