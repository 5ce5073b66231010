"""Threads that compute for an event loop, with one wake-up of a thread and one of the loop per piece of work."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from ..runtime.process import process

Done = Callable[[Any, "BaseException | None"], None]


class Workers:
    """Some threads, which end with ``close`` or the process. ``run_in_executor`` would make two futures per call."""

    def __init__(self, count: int, name: str, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._count = count
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        for i in range(count):
            threading.Thread(target=self._run, name=f"{name}_{i}", daemon=True).start()

    def start(self, compute: Callable[[], Any], done: Done) -> None:
        """Calls ``compute`` on a thread, and then, on the event loop's, ``done`` with its result or its error, and None."""
        self._work.put((compute, done))

    def close(self) -> None:
        """The threads end when they have finished what was started. Does not wait for them."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            compute, done = work
            result, error = None, None
            try:
                with process.in_call():  # which the end of the program waits for
                    result = compute()
            except BaseException as problem:
                error = problem
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the result
                self._loop.call_soon_threadsafe(done, result, error)
            del work, compute, done, result, error  # a thread that waits for work keeps no request alive
