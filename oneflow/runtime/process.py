"""The state of this operating-system process that belongs to no session: one object, with one hook for forks."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from .._base import jax_versions
from .._base.process_state import process_state
from .._base.refuse import refuse
from ..errors import ForkError, ModeError
from . import lost_threads, processes
from .background import Background
from .concurrent_weak_set import ConcurrentWeakSet
from .delivery import DeliveryThread
from .exit_status import exit_status
from .gate import Gate, Results
from .waiting import Abandoned, Uninterrupted

_STOP_SECONDS = 1.0
_POOL_SECONDS = 5.0
# XLA's collectives between virtual CPU devices hang or abort where many calls are in flight: 64 did, up to 8 never
_CALLS_WITH_COLLECTIVES = 4
COMPUTING_THREADS = "oneflow-serving-"  # how the names of daemon threads that run programs by themselves begin


class Process:
    """The parts of the runtime that all sessions share.

    Attributes:
      lock: held while a step is handed to XLA and its result is queued, so that the order of calls is the order of steps and
        of deliveries, and while values of variables are read or replaced.
      delivery: the delivery thread.
      collectives: the gate of all jobs whose devices, virtual ones of this CPU, meet in collectives.
      uninterrupted: runs what Ctrl-C must not cut in two.
      saves: checkpoints that are being written in the background.
      sessions: those that are open; ``default_session`` is the one that jobs are declared in.
      calls: one entry for each call whose thread may be in JAX's C++ code, outside the lock.
      stops_at_first_call: True: a script is run only to find the jobs that it declares, and is stopped where it calls one; a
        name: where it calls that job.
      named_cpu_devices: the most that a job of the session named, where the user has set no number.
      seed: what ``flow.manual_seed`` set; None before.
      summary_writer: of ``flow.summary``; None before one was made.
      preemption: what ``save_on_preemption`` has returned; None where none is in force.
      unconfirmed_saves: checkpoints in place that the disk has not confirmed, by path: device and inode. Saving there again
        replaces them.
    """

    def __init__(self) -> None:
        self.sessions: ConcurrentWeakSet[Any] = ConcurrentWeakSet()
        self.default_session: Any = None
        self.seed: int | None = None
        self.named_cpu_devices = 1
        self.summary_writer: Any = None
        self.preemption: Any = None
        self.stops_at_first_call: bool | str = False
        self.has_said_that_cpus_stand_in = False
        self.unconfirmed_saves: dict[str, tuple[int, int]] = {}
        self._forked = False
        self._caller: tuple[int, str] | None = None
        self._kept_in_child: list[Any] = []  # of JAX, while this process is being forked
        self._begin()
        self._is_started = self._was_called = self._is_interrupted = self._has_ended = False
        # both at import: exit functions of the program, which run before this one, may call jobs; and JAX may be started long
        # before the first call, also by code that is not ours
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread() and not threading.main_thread().is_alive():
            self._stop_background()  # imported by an exit function: Python calls no further one
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self.delivery = DeliveryThread()
        self.collectives = Gate(_CALLS_WITH_COLLECTIVES)
        self.abandoned = Abandoned()
        self.uninterrupted = Uninterrupted(self.abandoned)
        self.saves = Background()
        self.calls: deque[None] = deque()

    def start(self) -> None:
        """Starts the delivery thread; does nothing the second time."""
        self.check_not_forked()
        if not self._is_started:
            self._is_started = True
            atexit.register(self._finish_work)  # callbacks may need what exit functions registered before put away
        jax_versions.postpone_exit_hook()
        self.delivery.start()

    @contextlib.contextmanager
    def in_call(self) -> Iterator[None]:
        """Around a call that may import JAX, build and compile.

        Raises:
          ModeError: the library has ended, and JAX has given its devices up; or it is called where it would wait for itself.
        """
        if self._caller is not None and self._caller[0] == threading.get_ident():
            refuse(ModeError, f"a job was called for the first time by {self._caller[1]}", hint="call it once before")
        if self._has_ended and not threading.current_thread().daemon:
            rule = "a job was called for the first time by an exit function that runs after the library's own"
            refuse(ModeError, rule, hint="register the exit function after `import oneflow`")
        self._was_called = True
        try:
            self.calls.append(None)  # here: an interruption is raised after it
            yield
        finally:
            self.calls.pop()

    @contextlib.contextmanager
    def refusing_first_calls(self, caller: str) -> Iterator[None]:
        """Inside, with the lock held: the user's code ``caller``, which would wait for ever for a job that is compiled."""
        self._caller = threading.get_ident(), caller
        try:
            yield
        finally:
            self._caller = None

    def finished(self, *calls: Results) -> None:
        """Told when somebody has seen that the devices have finished calls, the results of each."""
        if self.collectives.in_flight:
            with self.lock:
                for results in calls:
                    self.collectives.leave(results)

    # --- forks

    def check_not_forked(self) -> None:
        """Raises ForkError in the child of a process that had used JAX."""
        if self._forked:
            rule = "this process was forked from one that had used JAX, whose threads and devices do not survive a fork"
            hint = 'multiprocessing.get_context("spawn"), or subprocess, or fork before anything uses jobs or variables'
            refuse(ForkError, rule, hint=hint)

    def _before_fork(self) -> None:
        if not self._forked:
            self._kept_in_child = jax_versions.objects_with_threads()

    def _after_fork(self) -> None:
        if self._forked:
            return
        if not (self._kept_in_child or self._is_started):  # without JAX the child is a process like any other
            self.uninterrupted = Uninterrupted(self.abandoned)  # of its threads, there is none
            return
        self._forked = True
        process_state.after_fork()
        self._begin()  # locks may be held by threads that are not there any more
        processes.reset_after_fork()
        for session in self.sessions:
            session.after_fork()
        for kept in self._kept_in_child:  # their destructors wait for threads that are not there either
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        lost_threads.skip_destructors()

    # --- the end

    def _finish_work(self) -> None:
        """Waits for what was submitted, what callbacks and exit functions submit included. Ctrl-C leaves promptly."""
        if self._forked:
            return
        self._is_interrupted |= getattr(sys, "last_type", None) is KeyboardInterrupt
        if self._is_interrupted:
            self._finish_saves()
            return
        try:
            self.delivery.finish()
            while not self.saves.is_idle():
                self.saves.wait()
                self.delivery.finish()  # what its callbacks submit
        except KeyboardInterrupt:
            self._is_interrupted = True
            exit_status.fail("interrupted while callbacks were still to come; leaving with an error status")

    def _finish_saves(self) -> None:
        """After Ctrl-C: a checkpoint that was begun is finished, unless Ctrl-C comes again."""
        if not self.saves.is_idle():
            with contextlib.suppress(KeyboardInterrupt):
                print("oneflow: a checkpoint is being written; Ctrl-C again leaves without it", file=sys.stderr)
                self.saves.wait()

    def _at_exit(self) -> None:
        """The end, also of a program whose first call is still under way, on a daemon thread."""
        if self._forked:
            return
        if self._is_started:
            self._finish_work()
            self.delivery.stop()
            readers_ended = True
            for session in self.sessions:
                try:
                    readers_ended &= session.stop_threads(time.monotonic() + _POOL_SECONDS)
                except KeyboardInterrupt:
                    readers_ended = False
            self._stop_threads(self._is_interrupted, readers_ended)
            if (unraised := self.delivery.unraised() or str(self.saves.error or "")) and not self._is_interrupted:
                exit_status.fail(f"{unraised}; leaving with an error status")
        elif self._was_called:
            self._stop_threads(False)
        self._has_ended = True
        self._stop_background()
        processes.leave()
        jax_versions.run_exit_hook()

    def _stop_background(self) -> None:
        """Nobody will wait for other threads."""
        self.delivery.stop()
        self.saves.stop()
        self.uninterrupted.stop()

    def _stop_threads(self, interrupted: bool, readers_ended: bool = True) -> None:
        """Sees to it that no thread in C++ code aborts the process while the interpreter goes away.

        Ours end; those of the user that call jobs wait for the lock, which is never given back.
        """
        delivery = self.delivery
        delivery.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        harmless = delivery.thread is None or delivery.in_user_code
        with contextlib.suppress(KeyboardInterrupt):
            if delivery.thread is not None and not harmless:
                with contextlib.suppress(RuntimeError):  # a first call has made the thread, and not started it yet
                    delivery.thread.join(_STOP_SECONDS if interrupted else _POOL_SECONDS)
                deadline = time.monotonic() + _STOP_SECONDS
                harmless = not delivery.thread.is_alive()
            is_held = self.lock.acquire(timeout=max(deadline - time.monotonic(), 0.0001))
            while self._is_computing() and time.monotonic() < deadline:
                time.sleep(0.0005)
            harmless = harmless and readers_ended and self.saves.is_idle() and not self._is_computing()
            if is_held and harmless and not _has_daemon_threads_of_others():
                return
        if lost_threads.let_threads_hang():
            return
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            logging.shutdown()
        failed = delivery.unraised() or self.saves.error
        os._exit(130 if interrupted else exit_status.expected(failed=bool(failed)))

    def _is_computing(self) -> bool:
        return bool(self.calls or self.uninterrupted.compiling) or not self.abandoned.is_over()


def _has_daemon_threads_of_others() -> bool:
    """Whether there are threads that go on while the interpreter goes away, and may be in C++ code then, freeing arrays."""
    daemons = [thread.name for thread in threading.enumerate() if thread.daemon]
    return any(not name.startswith("oneflow-") or name.startswith(COMPUTING_THREADS) for name in daemons)


process = Process()
exit_status.watch()  # at import: ``sys.exit(main())`` looks sys.exit up before main() runs
