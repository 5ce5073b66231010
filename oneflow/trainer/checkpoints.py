"""Checkpoints of a training: those of ``flow.checkpoint``, with one entry more, which holds the trainer's state as JSON.

The one place that writes and reads them.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np

from ..checkpoint import atomic
from ..checkpoint.api import CheckPoint
from ..checkpoint.format import DONE, Checkpoint
from ..errors import CheckpointError
from ..runtime import processes
from ..runtime.session import default_session

STATE = "System-Trainer-State"  # programs without a trainer ignore entries of that beginning
_NEW, _OLD = ".new", ".old"  # beside a checkpoint that is being replaced


def snapshot(state: dict[str, Any] | None) -> Callable[[str], None]:
    """The variables of this moment, and a function that writes them, and the trainer's state, to a path that does not exist."""
    session = default_session()
    session.build_all()
    values, random_state = session.snapshot(list(session.variables()))
    if state is not None:
        text = json.dumps({"version": 1, **state}, allow_nan=False)
        values[STATE] = np.frombuffer(text.encode(), np.uint8)
    return lambda path: processes.on_rank_zero("a save", lambda: atomic.write(path, values, {"random": random_state}))


def replacing(path: str, write: Callable[[str], None]) -> None:
    """Writes a checkpoint where one may be. Killed half-way, it leaves one that ``found`` finds."""
    if not os.path.exists(path):
        write(path)
        return
    processes.on_rank_zero("clearing a place for a checkpoint", lambda: _clear(path))
    write(path + _NEW)

    def swap() -> None:
        os.rename(path, path + _OLD)
        os.rename(path + _NEW, path)
        shutil.rmtree(path + _OLD, ignore_errors=True)

    processes.on_rank_zero("replacing a checkpoint", swap)


def _clear(path: str) -> None:
    for leftover in (path + _NEW, path + _OLD):
        shutil.rmtree(leftover, ignore_errors=True)


def found(path: str) -> str | None:
    """Where the checkpoint of that path is: it may be beside it where a program was killed. None where there is none."""
    return next((p for p in (path, path + _NEW, path + _OLD) if os.path.isfile(os.path.join(p, DONE))), None)


def remove(path: str) -> None:
    """Deletes a checkpoint. What is half deleted is no checkpoint any more."""

    def delete() -> None:
        with_mark = os.path.join(path, DONE)
        if os.path.isfile(with_mark):
            os.unlink(with_mark)
        shutil.rmtree(path, ignore_errors=True)

    processes.on_rank_zero("removing a checkpoint", delete)


def load(path: str) -> dict[str, Any] | None:
    """Gives all variables their values, and returns the trainer's state as it was saved; None where there is none."""
    stored = Checkpoint(path)
    state = None
    if STATE in stored:
        try:
            state = json.loads(stored[STATE].numpy().tobytes())
        except ValueError as error:
            raise CheckpointError(f"checkpoint {path!r}: the state of its training is damaged: {error}") from error
        if not isinstance(state, dict) or state.get("version") != 1:
            raise CheckpointError(f"checkpoint {path!r}: the state of its training is of another version")
    CheckPoint().load(path)
    return state


class Writer:
    """A thread that writes checkpoints in the order in which they were asked for, while training goes on."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._unfinished = 0
        self._error: Exception | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Queues a task, after the one before it has ended: at most one copy of the variables waits. Raises its error."""
        self.wait()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oneflow-checkpoints", daemon=True)
            self._thread.start()
        with self._changed:
            self._unfinished += 1
        self._tasks.put(task)

    def wait(self) -> None:
        """Waits until all is written. Raises the error of a task that failed."""
        with self._changed:
            while self._unfinished:
                self._changed.wait(1.0)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """``wait``, and ends the thread."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._tasks.put(None)
                self._thread = None

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self._error = error
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()
