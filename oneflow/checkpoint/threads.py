"""Threads for reading and for digests: neither keeps Python's lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from .._base import cores

_MOST = 8

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


class Pool:
    """As many threads as there are cores, within reason, started as work comes.

    A ThreadPoolExecutor takes no more work once the main thread has ended. A save must go on then: in the background, on
    another thread of the program, or in a function that runs at exit.
    """

    def __init__(self) -> None:
        self._most = min(_MOST, cores.allowed())
        self._threads: list[threading.Thread] = []
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()

    def submit(self, function: Callable[..., _Found], *args: Any) -> Future[_Found]:
        """Runs ``function(*args)`` on a thread; on this one where the system starts none."""
        task: Future[_Found] = Future()
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="oneflow-checkpoint", daemon=True)
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


def on_threads(function: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
    """``map`` on several threads, in order; on this one where there is only one item."""
    listed = list(items)
    if len(listed) < 2:
        yield from map(function, listed)
        return
    pool = Pool()
    try:
        for task in [pool.submit(function, item) for item in listed]:
            yield task.result()
    finally:
        pool.close()
