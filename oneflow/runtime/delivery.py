"""The delivery thread: results in the order of calls, callbacks exactly once, a bounded number of calls undelivered.

The rules are written out in docs/architecture.md, "Protocol".
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from .._base import native
from .._base.frames import show_users_frames
from .._base.refuse import refuse
from .._base.source import colon_and_text, raised_at
from .._base.threads import AutoResetEvent
from ..errors import CallbackError
from . import processes
from .result import Delivery, Result, block_until_ready, have_ended, queued

MIN_WINDOW, MAX_WINDOW = 4, 32
_IDLE_NAPS = 3
_NAP = 0.0002  # seconds
_LONG_NAP = 0.01  # where callers deliver their own calls; a callback that is registered ends it
_MOST_PAUSES = 2  # naps in a row for a caller that is submitting calls
_TINY_SECONDS = 0.00003  # per call: Python's lock is the limit, not the device
_REGISTRATION_SECONDS = 0.05


class Deliveries:
    """What each call reads of delivery, or notes there. Where the native part has its extension module, its type of this name.

    Attributes:
      attention: whether a call must ask ``before_call``.
    """

    attention: bool
    _busy: bool  # a call, or late callbacks, are being delivered
    _asleep: bool
    _window: int
    _last_begun: int
    _last_delivered: int


_extension = native.fast_path()
if not TYPE_CHECKING and _extension is not None:
    Deliveries = _extension.Deliveries


class DeliveryThread(Deliveries):
    """One per process. ``submit`` is called with the dispatch lock held, in the order of calls.

    Ctrl-C may come between any two lines on the main thread, so a call is queued by one ``append`` and nothing is counted:
    what is undelivered is what is in the queue, and the one call that is being delivered. Whoever delivers holds ``_turn``.
    """

    def __init__(self) -> None:
        self.attention = False
        self.error: BaseException | None = None
        self.error_job = self._error_in = self._raised_at_exit = ""
        self._kept: deque[Exception] = deque()
        self._hook: Callable[[str], None] | None = None
        self._settle: Callable[[], None] | None = None
        self._errors = threading.Lock()
        self.in_user_code = False  # the thread runs a callback, a handler or a listener, which may take as long as it likes
        self._forever = threading.Lock()
        self._forever.acquire()
        self.thread: threading.Thread | None = None
        self._pending: deque[Result[Any]] = deque()
        self._late: deque[tuple[int, Result[Any]]] = deque()  # numbered
        self._lates = itertools.count(1)
        self._late_begun = self._late_ended = 0  # numbers of those that were run last
        self._turn = threading.Lock()
        self._extension: Any = None  # of the native part: it looks at the queue in less time
        self._callers_deliver = False  # they have since the thread looked last
        self._busy = False
        self._last_begun = self._last_delivered = 0
        self._window = MIN_WINDOW
        self._drains = False  # calls are so short that a full window is delivered whole
        self._progress = threading.Condition()
        self._awaited: list[Callable[[], bool]] = []  # what threads wait for
        self._asleep = False
        self.is_dozing = False  # asleep for a long nap, which ``wake`` ends
        self._wake = AutoResetEvent()
        self._stopping = False
        self._sequence = itertools.count(1)
        self._newest: dict[int, int] = {}  # by thread: its last call, where a callback may be registered any moment

    # --- callers

    def start(self) -> None:
        """Starts the thread where it does not run."""
        if self.thread is None:
            self._extension = native.fast_path()
            self.thread = threading.Thread(target=self._run, name="oneflow-delivery", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is doing; does not wait for that."""
        self._stopping = True
        self._look()
        self._wake.set()

    def enter_user_code(self) -> bool:
        """Asked by the thread before it runs a callback; False: the thread is to end."""
        self.in_user_code = True
        if self._stopping:  # a caller of ``stop`` sees the flag, or the thread sees the stop
            self.in_user_code = False
        return self.in_user_code

    def leave_user_code(self) -> None:
        """Where the thread was stopped meanwhile, nobody waits for it: it stays here while the interpreter goes away."""
        self.in_user_code = False
        if self._stopping:
            self._forever.acquire()

    def is_current(self) -> bool:
        """Whether the caller runs on the delivery thread: in a callback, a handler or a listener."""
        return threading.current_thread() is self.thread

    def undelivered(self) -> int:
        """The number of calls that were submitted and not delivered yet, the one that is being delivered included."""
        return len(self._pending) + self._busy

    def has_room(self, most: int = MAX_WINDOW) -> bool:
        """Whether a further call may be submitted. Asked with the dispatch lock held, so that the answer stays true."""
        room = self._window if self._window < most else most  # ``min`` takes longer
        return len(self._pending) + self._busy < room or self.is_current()

    def wait_for_room(self, most: int = MAX_WINDOW) -> None:
        """Waits, outside any lock, until half of the window or more is free. The delivery thread never waits for itself."""
        window = min(self._window, most)
        if len(self._pending) + self._busy < window or self.is_current():
            return
        self.moved_on(get_ident())
        if self._drains and most == MAX_WINDOW:
            self._deliver_here()
            if not self._pending:
                return
        start, goal = time.perf_counter(), 0 if self._drains else window // 2
        waited_for = self.undelivered() - goal
        self._wait(lambda: self.undelivered() <= goal)
        each = (time.perf_counter() - start) / max(waited_for, 1)
        self._drains = each < _TINY_SECONDS  # longer calls: the device must not run out of them
        # short steps: fewer thread switches per call; long steps: little lag
        self._window = min(self._window * 2, MAX_WINDOW) if each < 0.0005 else MIN_WINDOW if each > 0.002 else self._window

    def _deliver_here(self) -> None:
        """Delivers, on the caller's thread, the first calls in the queue that nothing is to be run for.

        To hand a tiny call to the other thread takes longer than the call. Ctrl-C may end this between any two lines: a call
        leaves the queue after its delivery, which may happen twice.
        """
        if self._turn.locked():
            return  # the thread is at it
        with self._turn:
            pending = self._pending
            if not pending or pending[0].has_callbacks or pending[0].delivery.watches:
                return
            ended = self._ended_together()  # of one job
            finished = pending[0].delivery.finished
            expecting = set(self._newest.values())  # after the look at the queue: a call is noted here before it is there
            self._callers_deliver = True
            if self._extension is not None:
                self._extension.pass_on(ended, expecting, finished, self, pending.popleft)
                return
            for result in ended:
                if result.has_callbacks or result.sequence in expecting:  # the thread runs them, or waits for one
                    break
                finished(result._results)
                result.passed = True
                if result.is_touched:
                    result.tell()
                    if result.has_callbacks:  # one was registered meanwhile
                        break
                self._last_begun = self._last_delivered = result.sequence
                pending.popleft()

    def submit(self, delivery: Delivery, results: Any) -> Result[Any]:
        """Queues a dispatched call for delivery. Called with the dispatch lock held, so that the order is that of calls."""
        number = next(self._sequence)
        thread = get_ident() if delivery.gives_handles or delivery.watches else 0
        if delivery.gives_handles:
            self._newest[thread] = number
        result = queued(delivery, results, number, thread)
        self._pending.append(result)
        if self._asleep or (self.is_dozing and delivery.watches):
            self._wake.set()
        return result

    def dispatcher(
        self, delivery: Delivery, fetch: Callable[..., Any], is_single: bool
    ) -> Callable[[tuple[Any, ...]], Result[Any] | None]:
        """A function that runs a step without state for its feeds and queues the call; None, and nothing is done, without room.

        As ``has_room`` and ``submit``, for calls of one job without watch handlers; called with the dispatch lock held, too.
        ``fetch`` gives one array where it ``is_single``, else a tuple.
        """
        pending, sequence, newest, gives_handles = self._pending, self._sequence, self._newest, delivery.gives_handles
        append = pending.append

        def dispatch(feeds: tuple[Any, ...]) -> Result[Any] | None:
            if len(pending) + self._busy >= self._window and not self.has_room():
                return None
            fetched = fetch(*feeds)
            results = (fetched,) if is_single else fetched, (), ()
            number = next(sequence)
            thread = 0
            if gives_handles:
                thread = get_ident()
                newest[thread] = number
            result = queued(delivery, results, number, thread)
            append(result)
            if self._asleep:
                self._wake.set()
            return result

        return dispatch

    def queue_parts(self) -> tuple[Any, Any, Iterator[int], dict[int, int]]:
        """What ``dispatcher`` queues a call with: the queue, its ``append``, the numbers, and the threads' newest calls."""
        return self._pending, self._pending.append, self._sequence, self._newest

    def wake(self) -> None:
        """Has the thread look at the queue now."""
        self._wake.set()

    def moved_on(self, thread: int) -> None:
        """The thread does something else now than register a callback for its last call."""
        self._newest.pop(thread, None)

    def late(self, result: Result[Any]) -> None:
        """Queues callbacks that were registered after their call was delivered."""
        self._late.append((next(self._lates), result))
        if self._asleep or self.is_dozing:
            self._wake.set()

    def wait_for(self, result: Result[Any]) -> None:
        """Waits until the call's watch handlers have run; on the delivery thread, runs them."""
        if self.is_current():
            result.wait(is_ready=False)  # counted here: it has passed when its turn comes
            result.finish()
        else:
            self._wait(lambda: result.passed)

    def drain(self, *, and_calls_of_callbacks: bool = False) -> None:
        """Waits until everything submitted so far is delivered, and what its callbacks submit if asked to.

        On the delivery thread there is nothing to wait for.
        """
        if self.thread is None or self.is_current():
            return
        self.moved_on(get_ident())
        last = self._last_submitted() or self._last_begun
        try:
            late = self._late[-1][0]
        except IndexError:
            late = self._late_begun
        found = False

        def is_found() -> bool:
            nonlocal found
            if not found and self._last_delivered >= last and self._late_ended >= late:
                owes_none = self.is_current() and not self._has_calls_of_callbacks()  # asked on the thread, between two calls
                found = owes_none or not and_calls_of_callbacks or self.is_drained()
            return found

        self._wait(is_found)

    def is_drained(self) -> bool:
        """Whether everything submitted is delivered, late callbacks included."""
        return not (self.undelivered() or self._late)

    def finish(self) -> None:
        """Waits for what was submitted, and for the callbacks and watch handlers of what is submitted meanwhile, by callbacks for
        example. Not for those of daemon threads, which may submit calls for ever."""
        self.drain()
        found = False

        def is_finished() -> bool:
            nonlocal found
            found = found or (self.is_current() and not self._owes_callbacks())  # asked on the thread between two calls
            return found or self.is_drained()

        if self.thread is not None:
            self._wait(is_finished)

    def _owes_callbacks(self) -> bool:
        daemons = {thread.ident for thread in threading.enumerate() if thread.daemon and thread is not self.thread}
        return any(result.thread and result.thread not in daemons for result in self._undelivered_results())

    def _has_calls_of_callbacks(self) -> bool:
        return any(result.thread == get_ident() for result in self._undelivered_results())

    def _undelivered_results(self) -> list[Result[Any]]:
        """Those in the queues, for the thread: callers append meanwhile."""
        queued = [self._pending[i] for i in range(len(self._pending))]
        return queued + [self._late[i][1] for i in range(len(self._late))]

    def before_call(self, job_name: str, *, submits: bool = False) -> None:
        """The first thing that a call does if ``attention`` is set: raises errors that wait, and calls the hook.

        Raises:
          CallbackError: a callback failed; or an exit function calls after the thread has ended, and ``submits`` something to it,
            or runs beside the main thread.
        """
        if self._stopping and (submits or threading.current_thread() is not threading.main_thread()):
            self._refuse_at_the_end(job_name)
        self.raise_error()
        if self._settle is not None and not self.is_current():
            self._settle()
        if self._hook is not None:
            self._hook(job_name)

    @staticmethod
    def _refuse_at_the_end(job_name: str) -> None:
        """For what exit functions call. Calls of daemon threads wait for a lock, and end with it."""
        if not threading.current_thread().daemon:
            late = "that runs after the library's own: no callback would run, and threads beside the main one cannot call jobs"
            rule = f"job {job_name!r} was called by an exit function {late}"
            hint = "register the exit function after `import oneflow`, or call a job that returns arrays, on the main thread"
            refuse(CallbackError, rule, hint=hint)

    def set_hook(self, hook: Callable[[str], None] | None) -> None:
        """Sets a function that is called with the job's name before each call, in the caller's thread."""
        self._hook = hook
        self._look()

    def set_settle(self, settle: Callable[[], None] | None) -> None:
        """Sets a function that is called before each call: it raises the error of a save of several processes, in all at once."""
        self._settle = settle
        self._look()

    def raise_error(self) -> None:
        """Raises the oldest error that was not raised yet, once; never on the delivery thread."""
        self.raise_kept()
        if self.error is not None and not self.is_current():
            self._note_at_exit()
            self.raise_as_callback_error(self.error, self.error_job)

    def raise_kept(self) -> None:
        """As ``raise_error``, errors of callbacks left aside."""
        if self._kept and not self.is_current():
            self._note_at_exit()
            if (kept := self.take_kept()) is not None:
                raise kept

    def take_kept(self) -> Exception | None:
        """The oldest error of work in the background, which is then raised nowhere else; None where there is none."""
        with self._errors:
            kept = self._kept.popleft() if self._kept else None
        self._look()
        return kept

    def raise_as_callback_error(self, error: BaseException, job_name: str) -> NoReturn:
        """Raises an error of a callback, handler or step; where it was still to be raised by the next call, that is done."""
        if self.error is error:
            self.error = None
            self._look()
        raise CallbackError(
            f"a callback, a watch handler or the step itself of job {job_name!r} raised "
            f"{type(error).__name__}{colon_and_text(error)}\n"
            f"{raised_at(error)}"
            f"  its traceback was printed when it happened; later callbacks went on, and the session works"
        ) from error

    def keep(self, error: Exception) -> None:
        """Keeps an error of work in the background, which the next call, ``sync`` or exit raises unchanged."""
        with self._errors:
            self._kept.append(error)
        self._look()

    def forget(self, error: BaseException) -> None:
        """An error that was kept has been raised elsewhere."""
        with self._errors:
            self._kept = deque(kept for kept in self._kept if kept is not error)
        self._look()

    def unraised(self) -> str:
        """The message at the program's end about errors that were never raised, or in an exit function, where an error ends
        nothing; empty if there are none."""
        if self.error is not None:
            return f"{self._error_in} of job {self.error_job!r} failed"
        return str(self._kept[0]) if self._kept else self._raised_at_exit

    def _note_at_exit(self) -> None:
        if not threading.main_thread().is_alive():
            self._raised_at_exit = self.unraised()

    def _look(self) -> None:
        with self._errors:
            hooks = self._hook is not None or self._settle is not None
            self.attention = self.error is not None or bool(self._kept) or hooks or self._stopping

    def report(self, error: BaseException, job_name: str, what: str = "a callback") -> None:
        """Prints the traceback of a callback or a step and keeps the error for the next call, ``sync`` or exit. Never raises."""
        if self.error is None:
            self.error_job, self._error_in = job_name, what
            self.error = error
            self._look()
        with contextlib.suppress(BaseException):  # standard error may be closed, or a pipe that nobody reads
            print(f"Exception in {what} of job {job_name!r}:", file=sys.stderr)
            show_users_frames(error)
            traceback.print_exception(error)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._progress:
            self._awaited.append(condition)
            try:
                self._wake.set()  # now, whatever the thread is waiting for
                while not condition():
                    self._progress.wait(1.0)
            finally:
                self._awaited.remove(condition)

    # --- the thread

    def _run(self) -> None:
        naps = pauses = newest = 0
        while not self._stopping:
            # a caller that is submitting calls is left alone for a moment: else each call has the two wait for Python's lock
            last = self._last_submitted()
            if last != newest and naps and (pauses < _MOST_PAUSES or self._callers_deliver) and not self._awaited:
                newest, pauses = last, pauses + 1
                if self._callers_deliver:
                    self._doze()
                else:
                    self._wake.wait(_NAP)
            elif self._step():
                naps, pauses = 1, 0
            elif naps < _IDLE_NAPS:
                naps += 1
                self._wake.wait(_NAP)
            else:
                self._asleep = True
                if not self._pending and not self._late:  # else they came in before the flag was up
                    self._wake.wait()
                self._asleep = False
                naps = 0

    def _last_submitted(self) -> int:
        """The number of the last call in the queue, 0 for none. Callers may be emptying it."""
        try:
            return self._pending[-1].sequence
        except IndexError:
            return 0

    def _doze(self) -> None:
        """A long nap: callers deliver all that nothing is to be run for. Who adds something to run sees the flag, or is seen."""
        self._callers_deliver = False
        self.is_dozing = True
        with self._turn:  # callers only append meanwhile
            is_waited_for = any(self._pending[i].is_waited_for for i in range(len(self._pending)))
        if not self._late and not is_waited_for:
            self._wake.wait(_LONG_NAP)
        self.is_dozing = False

    def _step(self) -> bool:
        """Delivers what is there: calls in order, each after the late callbacks that are due before its own.

        Never raises, whatever user code does: callers wait for this thread.
        """
        if not self._pending and not self._late:
            return False
        while (self._pending or self._late) and not self._stopping:
            with self._turn:
                self._deliver_some()
        return True

    def _deliver_some(self) -> None:
        """Not more than a window, so that a caller that waits for its turn is not left waiting by others' calls."""
        pending = self._pending
        self._busy = True
        ready = 0  # of the first calls in the queue
        for _ in range(MAX_WINDOW):
            if not pending or self._stopping:
                break
            ready = ready or (len(self._ended_together()) if self._drains else 0)
            self._last_begun = pending[0].sequence  # first: at each moment it is in the queue, or known as begun
            result = pending.popleft()
            try:
                self._deliver(result, ready > 0)
            except BaseException as error:
                self.report(error, result.job_name)
            self._last_delivered = result.sequence
            ready = ready and ready - 1
            if not ready or result.has_callbacks:  # who waits for tiny calls is told once per batch
                self._tell()
        if self._late:
            try:
                self._run_late()
            except BaseException as error:
                self.report(error, "")
        self._busy = False
        self._tell()

    def _tell(self) -> None:
        """Wakes the threads that wait, where one of them has waited for this."""
        if self._awaited and any(condition() for condition in tuple(self._awaited)):
            with self._progress:
                self._progress.notify_all()

    def _ended_together(self) -> list[Result[Any]]:
        """The calls in the queue where all are of one job and have ended well, else none."""
        if self._extension is not None:
            found: list[Result[Any]] | None = self._extension.ended(self._pending, block_until_ready())
            if found is not None:
                return found
        queued = [self._pending[i] for i in range(len(self._pending))]  # callers append meanwhile
        return queued if have_ended(queued) else []

    def _deliver(self, result: Result[Any], is_ready: bool) -> None:
        result.wait(is_ready)
        processes.returned()
        result.finish()
        if not result.has_callbacks and self._newest.get(result.thread) == result.sequence:
            self._await_callback(result)
        has_callbacks = result.has_callbacks  # before the look at late ones: those of earlier calls were registered before it
        while self._late:
            self._run_late()
        if has_callbacks:
            result.run_callbacks()

    def _await_callback(self, result: Result[Any]) -> None:
        """Waits a moment for a thread between a call and the registration of its callback, which is a line of Python.

        Without that, a thread that is held up there would have its callback run after those of other threads' later calls.
        """
        deadline = time.monotonic() + _REGISTRATION_SECONDS
        while self._newest.get(result.thread) == result.sequence and not result.has_callbacks and time.monotonic() < deadline:
            time.sleep(_NAP)

    def _run_late(self) -> None:
        due = []
        while self._late:
            self._late_begun = self._late[0][0]
            due.append(self._late.popleft())
        for _, result in sorted(due, key=lambda numbered: numbered[1].sequence):
            result.run_callbacks()
        self._late_ended = self._late_begun
