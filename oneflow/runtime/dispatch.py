"""The delivery thread: results in the order of calls, callbacks exactly once, a bounded number of calls in flight.

The rules are written out in docs/architecture.md, "Protocol".
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

from ..errors import CallbackError
from .result import Delivery, Result

MIN_WINDOW, MAX_WINDOW = 4, 32
_IDLE_NAPS = 20
_NAP = 0.0001


class Dispatcher:
    """One a process. ``submit`` is called by whoever dispatched a call, in call order."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.error_job = ""
        self._pending: deque[Result] = deque()
        self._late: deque[Result] = deque()
        self._submitted = 0
        self._delivered = 0
        self._window = MIN_WINDOW
        self._progress = threading.Condition()
        self._waiting = 0
        self._asleep = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._wake_guard = threading.Lock()
        self._thread: threading.Thread | None = None

    # --- callers

    def start(self) -> None:
        """Starts the thread; not before JAX is imported, whose own exit hook must run after ours."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oneflow-delivery", daemon=True)
            self._thread.start()
            atexit.register(self._at_exit)

    def on_delivery_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def wait_for_slot(self) -> None:
        """Waits, outside any lock, until a further call may be in flight. The delivery thread never waits."""
        if self._submitted - self._delivered < self._window or self.on_delivery_thread():
            return
        start, goal = time.perf_counter(), self._window // 2
        waited_for = self._submitted - self._delivered - goal
        self._wait(lambda: self._submitted - self._delivered <= goal)
        each = (time.perf_counter() - start) / max(waited_for, 1)
        # short steps: fewer thread switches a call; long steps: little lag
        self._window = min(self._window * 2, MAX_WINDOW) if each < 0.0005 else MIN_WINDOW if each > 0.002 else self._window

    def submit(self, delivery: Delivery, outputs: Any) -> Result:
        """Queues a dispatched call for delivery. Called with the store's lock held, so that the order is that of calls."""
        self._submitted = sequence = self._submitted + 1
        result = Result(delivery, outputs[1] or outputs[3], outputs[2], sequence)
        self._pending.append(result)
        if self._asleep:
            self._rouse()
        return result

    def late(self, result: Result) -> None:
        """Queues callbacks that were registered after their call was delivered."""
        self._late.append(result)
        if self._asleep:
            self._rouse()

    def wait_for(self, result: Result) -> None:
        """Waits until the call's watch handlers have run; on the delivery thread, runs them."""
        if self.on_delivery_thread():
            result.finish()
        else:
            self._wait(lambda: result.passed)

    def drain(self) -> None:
        """Waits until everything submitted so far is delivered. On the delivery thread there is nothing to wait for."""
        if self._thread is None or self.on_delivery_thread():
            return
        goal = self._submitted
        self._wait(lambda: self._delivered >= goal and not self._late)

    def raise_error(self) -> None:
        """Raises the oldest error of a callback that was not raised yet, once."""
        error, self.error = self.error, None
        if error is not None:
            raise CallbackError(
                f"a callback or watch handler of job {self.error_job!r} raised {type(error).__name__}: {error}\n"
                f"  its traceback was printed when it happened; later callbacks went on, and the session works"
            ) from error

    def report(self, error: BaseException, job_name: str) -> None:
        """Prints a callback's traceback and keeps the error for the next call, ``sync`` or exit."""
        print(f"Exception in a callback of job {job_name!r}:", file=sys.stderr)
        traceback.print_exception(error)
        if self.error is None:
            self.error_job = job_name
            self.error = error

    # --- the thread

    def _wait(self, condition: object) -> None:
        with self._progress:
            self._waiting += 1
            try:
                while not condition():  # type: ignore[operator]
                    self._progress.wait()
            finally:
                self._waiting -= 1

    def _rouse(self) -> None:
        with self._wake_guard:
            if self._asleep:
                self._asleep = False
                self._wake.release()

    def _run(self) -> None:
        naps = 0
        while True:
            if self._step():
                naps = 0
            elif naps < _IDLE_NAPS:
                # a busy caller need not wake this thread call by call
                naps += 1
                time.sleep(_NAP)
            else:
                self._asleep = True
                if self._pending or self._late:  # came in before the flag was up
                    self._rouse()
                self._wake.acquire()
                naps = 0

    def _step(self) -> bool:
        """Delivers one call, and the late callbacks that are due before its own."""
        if not self._pending:
            return self._run_late()
        result = self._pending.popleft()
        result.finish()
        self._run_late()
        result.run_callbacks()
        self._delivered += 1
        if self._waiting:
            with self._progress:
                self._progress.notify_all()
        return True

    def _run_late(self) -> bool:
        if not self._late:
            return False
        due = []
        while self._late:
            due.append(self._late.popleft())
        for result in sorted(due, key=lambda r: r.sequence):
            result.run_callbacks()
        if self._waiting:
            with self._progress:
                self._progress.notify_all()
        return True

    # --- the end of the process

    def _at_exit(self) -> None:
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            return  # Ctrl-C leaves promptly
        try:
            self.drain()
        except KeyboardInterrupt:
            return
        if self.error is not None:
            print(f"oneflow: a callback of job {self.error_job!r} failed; leaving with status 1", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            logging.shutdown()
            os._exit(1)  # SystemExit inside an exit hook leaves status 0


dispatcher = Dispatcher()
