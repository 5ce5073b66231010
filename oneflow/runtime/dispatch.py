"""The delivery thread: results in the order of calls, callbacks exactly once, a bounded number of calls in flight.

The rules are written out in docs/architecture.md, "Protocol".
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NoReturn

from ..errors import CallbackError
from . import processes
from .result import Delivery, Result

MIN_WINDOW, MAX_WINDOW = 4, 32
_IDLE_NAPS = 20
_NAP = 0.0001
_STOP_SECONDS = 1.0


class Dispatcher:
    """One a process. ``submit`` is called by whoever dispatched a call, in call order.

    Ctrl-C may come between any two lines on the main thread, so a call is queued by one ``append`` and nothing is counted:
    what is in flight is what is in the queue, and the one call that is being delivered.
    """

    def __init__(self) -> None:
        self._reset()
        self._at_exit_is_registered = False
        self._failed = False
        self._ends: list[Callable[[], None]] = []

    def _reset(self) -> None:
        self.error: BaseException | None = None
        self.error_job = ""
        self._pending: deque[Result] = deque()
        self._late: deque[Result] = deque()
        self._busy = False  # a call, or late callbacks, are being delivered
        self._on_device = False  # the thread is in C++ code of JAX
        self._last_delivered = 0
        self._window = MIN_WINDOW
        self._progress = threading.Condition()
        self._waiting = 0
        self._asleep = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._sequence = itertools.count(1)
        self._apart: set[threading.Thread] = set()

    # --- callers

    def start(self) -> None:
        """Starts the thread; not before JAX is imported, whose own exit hook must run after ours."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oneflow-delivery", daemon=True)
            self._thread.start()
            if not self._at_exit_is_registered:
                self._at_exit_is_registered = True
                atexit.register(self._at_exit)
                os.register_at_fork(after_in_child=self._reset)  # the child has no delivery thread

    def at_stop(self, end: Callable[[], None]) -> None:
        """Has ``end()`` called at the end of the process, when everything submitted was delivered."""
        if end not in self._ends:
            self._ends.append(end)

    def on_delivery_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _in_flight(self) -> int:
        return len(self._pending) + self._busy

    def wait_for_slot(self, most: int = MAX_WINDOW) -> None:
        """Waits, outside any lock, until a further call may be in flight; ``most`` is what its job can bear.

        The delivery thread never waits for deliveries, only, where the job bears few calls, for the devices.
        """
        if self._thread is None:
            self.start()
        window = min(self._window, most)
        if len(self._pending) + self._busy < window:
            return
        if self.on_delivery_thread():
            if most < MAX_WINDOW:
                for result in list(self._pending):
                    result.settle()
            return
        start, goal = time.perf_counter(), window // 2
        waited_for = self._in_flight() - goal
        self._wait(lambda: self._in_flight() <= goal)
        each = (time.perf_counter() - start) / max(waited_for, 1)
        # short steps: fewer thread switches a call; long steps: little lag
        self._window = min(self._window * 2, MAX_WINDOW) if each < 0.0005 else MIN_WINDOW if each > 0.002 else self._window

    def apart(self, work: Callable[[], Any]) -> Any:
        """Runs ``work`` on a thread of its own and waits for it: Ctrl-C, which the main thread alone gets, tears nothing."""
        box: list[Any] = []

        def run() -> None:
            try:
                box.append((work(), None))
            except BaseException as error:
                box.append((None, error))

        thread = threading.Thread(target=run, name="oneflow-apart", daemon=True)
        self._apart.add(thread)
        thread.start()
        thread.join()
        self._apart.discard(thread)
        value, error = box[0]
        if error is not None:
            raise error
        return value

    def submit(self, delivery: Delivery, outputs: Any) -> Result:
        """Queues a dispatched call for delivery. Called with the store's lock held, so that the order is that of calls."""
        result = Result(delivery, outputs[1] or outputs[3], outputs[2], next(self._sequence))
        self._pending.append(result)
        if self._asleep:
            self._wakes.put(None)
        return result

    def late(self, result: Result) -> None:
        """Queues callbacks that were registered after their call was delivered."""
        self._late.append(result)
        if self._asleep:
            self._wakes.put(None)

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
        try:
            goal = self._pending[-1].sequence
        except IndexError:
            self._wait(lambda: not self._busy and not self._late)
        else:
            self._wait(lambda: self._last_delivered >= goal and not self._late)

    def raise_error(self) -> None:
        """Raises the oldest error of a callback that was not raised yet, once."""
        if self.error is not None:
            self.raise_as_callback_error(self.error, self.error_job)

    def raise_as_callback_error(self, error: BaseException, job_name: str) -> NoReturn:
        """Raises an error of a callback, handler or step; where it was still to be raised by the next call, that is done."""
        if self.error is error:
            self.error = None
        raise CallbackError(
            f"a callback, a watch handler or the step itself of job {job_name!r} raised {type(error).__name__}: {error}\n"
            f"  its traceback was printed when it happened; later callbacks went on, and the session works"
        ) from error

    def report(self, error: BaseException, job_name: str) -> None:
        """Prints a callback's traceback and keeps the error for the next call, ``sync`` or exit."""
        print(f"Exception in a callback of job {job_name!r}:", file=sys.stderr)
        traceback.print_exception(error)
        if self.error is None:
            self.error_job = job_name
            self.error = error

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._wakes.put(None)  # a wake-up that Ctrl-C kept from being sent
        with self._progress:
            self._waiting += 1
            try:
                while not condition():
                    self._progress.wait(1.0)
            finally:
                self._waiting -= 1

    # --- the thread

    def _run(self) -> None:
        naps = 0
        while not self._stopping:
            if self._step():
                naps = 0
            elif naps < _IDLE_NAPS:
                # a busy caller need not wake this thread call by call
                naps += 1
                time.sleep(_NAP)
            else:
                self._asleep = True
                if not self._pending and not self._late:  # else they came in before the flag was up
                    self._wakes.get()
                self._asleep = False
                naps = 0

    def _step(self) -> bool:
        """Delivers one call, and the late callbacks that are due before its own."""
        if not self._pending and not self._late:
            return False
        self._busy = True
        if self._pending:
            result = self._pending.popleft()
            self._on_device = True
            result.wait()
            self._on_device = False
            processes.returned()
            result.finish()
            if self._late:
                self._run_late()
            result.run_callbacks()
            self._last_delivered = result.sequence
        else:
            self._run_late()
        self._busy = False
        if self._waiting:
            with self._progress:
                self._progress.notify_all()
        return True

    def _run_late(self) -> None:
        due = []
        while self._late:
            due.append(self._late.popleft())
        for result in sorted(due, key=lambda r: r.sequence):
            result.run_callbacks()

    # --- the end of the process

    def _at_exit(self) -> None:
        interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
        if not interrupted:  # Ctrl-C leaves promptly
            try:
                while self._in_flight() or self._late:  # callbacks may submit more
                    self.drain()
            except KeyboardInterrupt:
                interrupted = True
                self._fail("interrupted while callbacks were still to come; leaving with an error status")
        for end in self._ends:
            with contextlib.suppress(KeyboardInterrupt):
                end()
        self._stop()
        if self.error is not None and not interrupted:
            self._fail(f"a callback of job {self.error_job!r} failed; leaving with an error status")

    def _stop(self) -> None:
        """Ends the thread: one that is in JAX's C++ code while the interpreter goes away would abort the process."""
        self._stopping = True
        self._wakes.put(None)
        deadline = time.monotonic() + _STOP_SECONDS
        in_a_callback = self._busy and not self._on_device  # Python code, which may go on for long and does no harm
        threads = [*self._apart, *([self._thread] if self._thread is not None and not in_a_callback else [])]
        with contextlib.suppress(KeyboardInterrupt):
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), _NAP))
        if any(thread.is_alive() for thread in threads):
            sys.stdout.flush()
            sys.stderr.flush()
            logging.shutdown()
            os._exit(130)

    def _fail(self, why: str) -> None:
        print(f"oneflow: {why}", file=sys.stderr)
        if not self._failed:
            self._failed = True
            sys.stdout = _FailingAtTheEnd(sys.stdout, why)


class _FailingAtTheEnd:
    """Standard output whose last flush fails, which makes the interpreter's exit status 120.

    SystemExit inside an exit hook leaves status 0, and ``os._exit`` would skip everything that others do at exit: flushing
    files, removing temporary directories.
    """

    closed = False

    def __init__(self, stream: Any, why: str):
        self._stream = stream
        self._why = why

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        if sys._getframe().f_back is None:  # called by the interpreter, at its end
            raise CallbackError(self._why)

    def __repr__(self) -> str:
        return "<oneflow>"


dispatcher = Dispatcher()
