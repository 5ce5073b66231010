"""The threads that the host pipelines of a session share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from .._base import cores
from ..config import Resource


def thread_count() -> int:
    """The setting, or the number of cores that this process may use."""
    if Resource.compute_thread_pool_size is not None:
        return Resource.compute_thread_pool_size
    return cores.allowed()


class Pool:
    """Threads that run what is submitted, in that order. Work must not raise, and must not wait for other work of the pool.

    ``concurrent.futures``'s pool makes a future of each piece of work, and its threads keep the interpreter from ending.
    """

    def __init__(self, count: int):
        self.count = count
        self._stopping = False
        self._dropping = False
        self._running = 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"oneflow-host-{i}", daemon=True) for i in range(count)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Queues ``work``. Work that running work submits after ``stop`` is still run."""
        with self._lock:
            self._running += 1
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            if not self._dropping:
                work()
            del work  # holds a batch
            with self._lock:
                self._running -= 1
                last = self._stopping and not self._running
            if last:
                self._release()

    def stop(self, drop: bool = False) -> None:
        """Ends the threads after what was submitted, or (``drop``) without it; does not wait."""
        with self._lock:
            self._stopping, self._dropping = True, drop
            idle = not self._running
        if idle:
            self._release()

    def _release(self) -> None:
        for _ in self._threads:
            self._work.put(None)

    def join(self, deadline: float | None = None) -> bool:
        """Waits for the threads to end, at most until ``deadline`` (``time.monotonic``). Returns whether they have."""
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)
