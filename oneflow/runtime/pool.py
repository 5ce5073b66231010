"""The threads that the host stages of all jobs share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

from ..config import Resource
from .dispatch import dispatcher

_STOP_SECONDS = 5.0


def thread_count() -> int:
    """The setting, or the number of cores that this process may use."""
    if Resource.compute_thread_pool_size is not None:
        return Resource.compute_thread_pool_size
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Threads that run what is submitted, in that order. Work must not raise, and must not wait for other work of the pool."""

    def __init__(self, count: int):
        self.count = count
        self._dropping = False
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"oneflow-host-{i}", daemon=True) for i in range(count)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            if not self._dropping:
                work()
            del work  # holds a batch

    def stop(self, drop: bool = False) -> None:
        """Ends the threads after what was submitted, or (``drop``) without it; does not wait."""
        self._dropping = drop
        for _ in self._threads:
            self._work.put(None)

    def join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))


_pool: Pool | None = None
_lock = threading.Lock()
users: WeakSet[Any] = WeakSet()  # what submits work by itself and has a method ``stop``


def pool() -> Pool:
    """The pool, of the size that the settings say."""
    global _pool
    count = thread_count()
    with _lock:
        if _pool is None or _pool.count != count:
            if _pool is not None:
                _pool.stop()
            else:
                dispatcher.start()
                dispatcher.at_stop(_stop)
            _pool = Pool(count)
        return _pool


def _stop() -> None:
    """The end of the process: a thread that is in C++ code while the interpreter goes away would abort it."""
    global _pool
    for user in list(users):
        user.stop(wait=False)
    with _lock:
        ending, _pool = _pool, None
    if ending is not None:
        ending.stop(drop=True)
        ending.join(time.monotonic() + _STOP_SECONDS)


def _forget() -> None:  # in a forked child: its parent's threads are not there
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
