"""Writes events on a thread of its own, so that a step waits for no conversion, compression or disk."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .._base.extras import need
from ..errors import ModeError, OneFlowError
from ..runtime.process import process

FLUSH_SECONDS = 5.0
_COLLECT_SECONDS = 0.02  # events are written some at a time: a thread that wakes for each takes the core from the step
MOST_WAITING_BYTES = 256 << 20

MakeEvent = Callable[[], tuple[Any, int]]  # returns a Summary message and its step


def proto(name: str) -> Any:
    """A module of TensorBoard's protobuf messages."""
    return need(f"tensorboardX.proto.{name}_pb2", "flow.summary")


class EventWriter:
    """One event file. ``put`` returns at once; events are written in the order of its calls.

    Args:
      directory: is made where it does not exist.
    """

    def __init__(self, directory: str):
        events_writer = need("tensorboardX.event_file_writer", "flow.summary").EventsWriter
        os.makedirs(directory, exist_ok=True)
        self.directory = directory
        # of two files of one second the later one would replace the other
        self._file = events_writer(os.path.join(directory, "events"), f".{os.getpid()}.{time.time_ns()}")
        self._event = proto("event").Event
        self._changed = threading.Condition()
        self._waiting: deque[tuple[MakeEvent, float, int]] = deque()
        self._bytes = 0
        self._is_busy = self._is_closed = False
        self._hurry = threading.Event()  # somebody waits
        self._thread = threading.Thread(target=self._run, name="oneflow-summary", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    @property
    def is_there(self) -> bool:
        """Whether its file still exists."""
        return os.path.exists(self._file._file_name)

    def put(self, make: MakeEvent, size: int) -> None:
        """Queues an event.

        Args:
          make: makes the message, on the writer's thread.
          size: the bytes that ``make`` holds on to. Where very many are waiting, ``put`` waits for the writer.
        """
        now = time.time()
        with self._changed:
            while self._bytes > MOST_WAITING_BYTES and not self._is_closed:
                self._hurry.set()
                self._changed.wait()
            if not self._is_closed:
                self._waiting.append((make, now, size))
                self._bytes += size
                if not self._is_busy:
                    self._is_busy = True
                    self._changed.notify_all()
                return
        self._write(make, now)  # at the program's end
        self._file.flush()

    def flush(self) -> None:
        """Waits until everything queued so far is on disk."""
        self.wait()
        self._file.flush()

    def wait(self) -> None:
        """Waits until everything queued so far is written, or has failed."""
        if not self._thread.is_alive():  # in a forked child
            return
        self._hurry.set()
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (self._waiting or self._is_busy))

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
        self._hurry.set()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._file.flush()

    def _at_exit(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            process.delivery.drain()  # calls that were submitted write summaries, too
            self.close()

    def _run(self) -> None:
        next_flush = time.monotonic() + FLUSH_SECONDS
        while True:
            with self._changed:
                self._is_busy = bool(self._waiting)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed, max(next_flush - time.monotonic(), 0.0))
                if self._is_closed and not self._waiting:
                    return
            if self._waiting:
                self._hurry.wait(_COLLECT_SECONDS)
                self._hurry.clear()
                self._write_waiting()
            if time.monotonic() >= next_flush:
                with self._keeping_errors():
                    self._file.flush()
                next_flush = time.monotonic() + FLUSH_SECONDS

    def _write_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            make, now, size = self._waiting.popleft()
            self._write(make, now)
            del make  # and the arrays it held
            with self._changed:
                self._bytes -= size
                if size and self._bytes + size > MOST_WAITING_BYTES:
                    self._changed.notify_all()

    def _write(self, make: MakeEvent, now: float) -> None:
        with self._keeping_errors():
            summary, step = make()
            self._file.write_event(self._event(wall_time=now, step=step, summary=summary))

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """Errors inside are raised by the next call of a job: the thread goes on."""
        try:
            yield
        except OneFlowError as error:
            process.delivery.keep(error)
        except Exception as error:
            kept = ModeError(f"a summary could not be written to {self.directory}: {type(error).__name__}: {error}")
            kept.__cause__ = error
            process.delivery.keep(kept)


def open_writer(directory: str) -> None:
    """Makes the process's writer write to this directory; goes on with its file where that is what it does already."""
    writer: EventWriter | None = process.summary_writer
    if writer is not None and writer.directory == directory and writer.is_there:
        return
    if writer is not None:
        writer.close()
    process.summary_writer = EventWriter(directory)


def the_writer(what: str) -> EventWriter:
    """The process's writer. Raises ModeError where there is none."""
    writer: EventWriter | None = process.summary_writer
    if writer is None:
        raise ModeError(
            f"{what} has no writer\n  try        call a job whose body calls flow.summary.create_summary_writer(logdir) first"
        )
    return writer
