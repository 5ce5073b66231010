"""Work that goes on while its caller does, such as writing a checkpoint: one task at a time, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Background:
    """At most one task, on a thread of its own.

    ``turn`` is held from waiting for the previous task until the next one has begun. A thread that waits for it waits for tasks
    alone, never for calls of jobs or their callbacks.

    Attributes:
      error: of a task of several processes, which all of them raise at the next place where they meet, or each in ``sync``.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._has_stopped = False

    def start(self, task: Future[Any], work: Callable[[], Any], name: str) -> None:
        """Runs ``work``, whose outcome becomes that of ``task``. Called with ``turn`` held, after ``wait``."""
        task.set_running_or_notify_cancel()
        if self._has_stopped:
            _run(task, work)
            return
        thread = threading.Thread(target=_run, args=(task, work), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """From now on tasks run on their callers' threads: the program ends."""
        self._has_stopped = True

    def is_idle(self) -> bool:
        """Whether nothing is left to be done."""
        return self._thread is None or not self._thread.is_alive()

    def raise_error(self) -> None:
        """Raises the error of a task of several processes in this one alone: where no call of a job is left out thereby."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Waits until what was started is done, successfully or not. Ctrl-C ends the wait."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # not only until the task has its outcome: the thread must not run JAX's destructors during exit


def _run(task: Future[Any], work: Callable[[], Any]) -> None:
    time.sleep(0.0005)  # lets the caller go on: it would get Python's lock back only after some milliseconds
    try:
        task.set_result(work())
    except BaseException as error:
        task.set_exception(error)
