"""Threads for work that does not keep Python's lock: reading, digests, random numbers. What a thread waits for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from . import cores

_MOST = 8

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


class AutoResetEvent:
    """An event for one thread that waits: ``set`` ends its wait, or else its next one.

    Not a ``queue.SimpleQueue``: before Python 3.13 its ``get(timeout)`` may wait for ever, where the timeout passes at a certain
    moment. Not a ``threading.Event``: Ctrl-C inside its ``set`` leaves a lock held.
    """

    def __init__(self) -> None:
        self._is_clear = threading.Lock()
        self._is_clear.acquire()

    def set(self) -> None:
        """Ends a wait. From any thread, also inside another ``set`` of the same thread."""
        if self._is_clear.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._is_clear.release()

    def wait(self, timeout: float = -1) -> None:
        """Waits for ``set``, at most ``timeout`` seconds; -1 as long as it takes."""
        self._is_clear.acquire(timeout=timeout)


def most_threads() -> int:
    """As many as there are cores, within reason."""
    return min(_MOST, cores.allowed())


class Pool:
    """As many threads as there are cores, within reason, started as work comes.

    A ThreadPoolExecutor takes no more work once the main thread has ended. A save must go on then: in the background, on
    another thread of the program, or in a function that runs at exit.
    """

    def __init__(self) -> None:
        self._most = most_threads()
        self._threads: list[threading.Thread] = []
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., _Found], *args: Any) -> Future[_Found]:
        """Runs ``function(*args)`` on a thread; on this one where the system starts none."""
        task: Future[_Found] = Future()
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="oneflow-helper", daemon=True)
            with suppress(RuntimeError):  # too many threads, or the interpreter is about to end
                thread.start()
                self._threads.append(thread)
        if self._threads:
            self._tasks.put((task, function, args))
        else:
            _run(task, function, args)
        return task

    def close(self) -> None:
        """Ends the threads; work that has not begun is cancelled."""
        with suppress(queue.Empty):
            while (waiting := self._tasks.get_nowait()) is not None:
                waiting[0].cancel()
        self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (next_one := self._tasks.get()) is not None:
            _run(*next_one)
            del next_one  # the data is not kept until more comes
        self._tasks.put(None)  # for the next thread, also one that Ctrl-C kept from the list while it was started


def _run(task: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not task.set_running_or_notify_cancel():
        return
    try:
        task.set_result(function(*args))
    except BaseException as error:
        task.set_exception(error)


class _StoppedError(BaseException):
    """Nobody waits for this piece of work. Never leaves this module."""


class _Worker(threading.local):
    shared: _Shared[Any, Any] | None = None  # whose items it works on


_worker = _Worker()


def on_threads(function: Callable[[_Item], _Found], items: Iterable[_Item]) -> list[_Found]:
    """``map`` on several threads, of which the caller's is one; on this one alone inside another such call.

    Raises the error of the first item that has one. After an error or an interrupt no further item is begun, and none is left
    running.
    """
    listed = list(items)
    most = min(most_threads(), len(listed))
    if most < 2 or _worker.shared is not None:
        return [function(item) for item in listed]
    shared = _Shared(function, listed)
    helpers: list[_Helper] = []
    try:
        for _ in range(most - 1):
            helpers.append(_Helper(shared.work))
            with suppress(RuntimeError):  # too many threads, or the interpreter is about to end
                helpers[-1].start()
        shared.work()
        for helper in helpers:
            helper.wait()  # after an interrupt in here, once more below
    except BaseException:
        shared.is_abandoned = True
        raise
    finally:
        shared.stop()
        for helper in helpers:
            helper.wait()
    return shared.results()


def end_if_abandoned() -> None:
    """For long work of ``on_threads``, now and then: ends it where Ctrl-C has come meanwhile."""
    if _worker.shared is not None and _worker.shared.is_abandoned:
        raise _StoppedError


class _Helper(threading.Thread):
    """A thread to wait for even after an interrupt: Python takes one whose ``join`` was interrupted for ended."""

    def __init__(self, work: Callable[[], None]):
        super().__init__(name="oneflow-helper", daemon=True)
        self._work = work
        self._has_worked = threading.Event()

    def run(self) -> None:
        """Works; never raises."""
        try:
            self._work()
        finally:
            self._has_worked.set()

    def wait(self) -> None:
        """Until it has ended, where it was started."""
        if self.ident is not None:
            self._has_worked.wait()
            self.join()


class _Shared(Generic[_Item, _Found]):
    """Items that threads take one after the other."""

    def __init__(self, function: Callable[[_Item], _Found], items: list[_Item]):
        self._function = function
        self._items = items
        self._next = 0
        self._lock = threading.Lock()
        self._found: dict[int, _Found] = {}
        self._errors: dict[int, BaseException] = {}
        self.is_abandoned = False  # by an interrupt

    def work(self) -> None:
        """Until no item is left."""
        try:
            _worker.shared = self
            while (number := self._take()) is not None:
                try:
                    self._found[number] = self._function(self._items[number])
                except BaseException as error:  # raised by ``results``, when no thread is at work any more
                    if not isinstance(error, _StoppedError):
                        self._errors[number] = error
                    self.is_abandoned |= not isinstance(error, Exception)
                    self.stop()
        finally:
            _worker.shared = None

    def _take(self) -> int | None:
        with self._lock:
            number = self._next
            self._next += 1
        return number if number < len(self._items) else None

    def stop(self) -> None:
        """No further item is taken."""
        with self._lock:
            self._next = len(self._items)

    def results(self) -> list[_Found]:
        """Of all items, in order. Raises an interrupt, or the error of the first item that has one: they are begun in order."""
        for number in sorted(self._errors, key=lambda number: (isinstance(self._errors[number], Exception), number)):
            raise self._errors.pop(number)
        return [self._found[number] for number in range(len(self._items))]
