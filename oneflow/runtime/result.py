"""What a call gives back: a future."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ..errors import ResultError

if TYPE_CHECKING:
    from .dispatch import Dispatcher


_UNSET: Any = object()


class Result:
    """One call of a job that was submitted: a future.

    ``result(timeout)`` (``get()``) waits and gives the value; ``async_get(cb)`` (for ``-> Callback[T]`` jobs: calling the
    result) has ``cb(value)`` run once on the delivery thread, in the order of calls; ``done()``, ``add_done_callback`` and
    ``await`` are what ``concurrent.futures`` and ``asyncio`` users expect.
    """

    __slots__ = ("job_name", "_dispatcher", "_arrays", "_convert", "_watched", "_value", "_error", "_callbacks", "_registered", "passed", "sequence", "__weakref__")  # fmt: skip

    def __init__(self, job_name: str, dispatcher: Dispatcher, arrays: tuple[Any, ...], convert: Callable[[Any], Any], watched: Any):
        self.job_name = job_name
        self._dispatcher = dispatcher
        self._arrays = arrays
        self._convert = convert
        self._watched = watched
        self._value = _UNSET
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._registered = False
        self.passed = False
        self.sequence = 0

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
            self._dispatcher.wait_for(self)
        if self._error is not None:
            raise self._error
        arrays = self._arrays  # before the look at _value: another thread may be setting both
        if self._value is _UNSET:
            self._value = self._convert(arrays)
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
            raise ResultError(f"this call of job {self.job_name!r} has a callback already; each result takes one (add_done_callback takes any number)")
        self._registered = True
        self._register(lambda: callback(self.result()))

    __call__ = async_get

    def add_done_callback(self, function: Callable[[Result], None]) -> None:
        """Has ``function(result)`` run on the delivery thread when the call has finished."""
        self._register(lambda: function(self))

    def _register(self, run: Callable[[], None]) -> None:
        self._callbacks.append(run)
        if self.passed:
            self._dispatcher.late(self)

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

        self.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
        yield from future.__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Result of job {self.job_name!r}, {'done' if self.done() else 'running'}>"

    # --- the delivery thread's side

    def finish(self) -> None:
        """Waits for the device, then runs the watch handlers, once. Never raises; keeps the error."""
        if self.passed:
            return
        try:
            for array in flat(self._arrays):
                array.block_until_ready()
            if self._watched:
                for deliver, array in self._watched:
                    deliver(array)
        except BaseException as error:
            self._error = error
            self._dispatcher.report(error, self.job_name)
        self.passed = True

    def run_callbacks(self) -> None:
        """Runs what was registered, each once."""
        while self._callbacks:
            callback = self._callbacks.pop(0)
            if self._error is not None and self._registered:
                continue  # reported already; there is no value to deliver
            try:
                callback()
            except BaseException as error:
                self._dispatcher.report(error, self.job_name)


def flat(arrays: Any) -> list[Any]:
    """The device arrays, those inside tensor lists too."""
    if not any(isinstance(a, tuple) for a in arrays):
        return list(arrays)
    return [x for a in arrays for x in (a if isinstance(a, tuple) else (a,))]
