"""Leaving in time: a signal has the program finish its step, save, and end with a status that says so."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from .._base import check
from .._base.frames import shows_user_frames
from .._base.refuse import shown
from ..compiler.analysis import STEP_PREFIX
from ..errors import ArgumentError, ModeError
from ..runtime import environment, processes
from ..runtime.exit_status import PREEMPTED
from ..runtime.process import process
from ..runtime.processes.poll import Poll
from ..runtime.session import default_session
from .api import get_all_variables, save
from .layout import as_path, complain
from .manager import CheckpointManager
from .saving import own_team
from .team import on_leader

Target = str | os.PathLike[str] | CheckpointManager | Callable[[], Any]


class Preemption:
    """The result of ``flow.checkpoint.save_on_preemption``.

    ``check()`` is what calls of train jobs do, for programs with ``automatic=False``. ``disable()`` puts the earlier signal
    handlers back; so does the end of a ``with`` block.
    """

    def __init__(self, write: Callable[[str], Any], signals: Iterable[int], exit_status: int, automatic: bool):
        self._write = write
        self._exit_status = exit_status
        self._requested = self._saved = False
        self._leaving = threading.Lock()
        self._process = os.getpid()
        self._job = ""  # the train job that was called last
        self._poll = Poll()
        self._before = {number: signal.signal(number, self._note) for number in signals}
        process.preemption = self
        if automatic:
            process.delivery.set_hook(self._before_call)
        self._is_automatic = automatic

    @property
    def requested(self) -> bool:
        """Whether a signal has come to this process."""
        return self._requested

    def check(self) -> None:
        """Saves and leaves, where a signal has come; in a run of several processes all call it equally often.

        Raises:
          SystemExit: the checkpoint is saved.
          CheckpointError: it cannot be saved; the next ``check`` tries again.
        """
        if process.delivery.is_current():
            return  # in a callback, of a step that is not over
        if self.is_due():
            self.leave()

    def is_due(self, at_once: bool = False) -> bool:
        """Whether a signal has come; in a run of several processes all call this equally often, and it is true in all alike.

        Args:
          at_once: several processes ask each other now, not just about once a second.
        """
        if processes.count() == 1:
            return self._requested
        if at_once:
            self._poll.ask_at_once()
        return self._is_agreed()

    def disable(self) -> None:
        """Puts the signal handlers back that were there before. Called on the main thread."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if before:
            process.preemption = None
            if self._is_automatic:
                process.delivery.set_hook(None)

    def __enter__(self) -> Preemption:
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()

    # --- on the threads that call jobs

    def _before_call(self, job_name: str) -> None:
        job = default_session().jobs.get(job_name)
        if job is not None and job.train:
            self._job = job_name
            self.check()

    def _is_agreed(self) -> bool:
        """Whether a signal has come to any process: asked about once a second, before the same call in all of them."""
        environment.start()
        found = self._poll.ask("whether the run is preempted", self._requested)
        if found is None or not any(found):
            return False
        self._poll.ask_at_once()  # should saving fail
        return True

    def leave(self) -> None:
        """Saves, and ends the program."""
        with self._leaving:  # of several threads one saves; the others end, too
            if not self._saved:
                self._write(self._job)
                process.saves.wait()
                process.delivery.raise_kept()
                process.saves.raise_error()
                self._saved = True
                print("oneflow: preempted: the checkpoint is saved, the program ends", file=sys.stderr)
        main = threading.main_thread()
        if threading.current_thread() is not main and main.ident is not None and self._before:
            signal.pthread_kill(main.ident, next(iter(self._before)))  # has ``_note`` end it
        sys.exit(self._exit_status)

    # --- the handler, on the main thread

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child that inherited the handler does what it would have done without
            before = self._before.get(number)
            signal.signal(number, signal.SIG_DFL if before is None else before)
            os.kill(os.getpid(), number)
            return
        self._requested = True
        if self._saved:
            sys.exit(self._exit_status)


@shows_user_frames
def save_on_preemption(
    target: Target,
    signals: Iterable[int] | None = None,
    exit_status: int = PREEMPTED,
    automatic: bool = True,
) -> Preemption:
    """Saves and leaves when a signal says that this machine will be taken away.

    When the signal has come, the next call of a train job waits for all steps so far and their callbacks, saves, and ends the
    program with SystemExit; that call's step is not run. In a run of several processes all leave before the same call, no more
    than about a second of steps later, whichever of them got the signal.

    Args:
      target: where to save: a path, whose checkpoint is replaced; a CheckpointManager, which names the checkpoint by the number
        of steps of the train job that is about to be called, or, if ``automatic`` is False, of the one that has done most (by
        the time, if its newest is named by the time); or a function without arguments that saves what the program needs to go on.
      signals: numbers; None: SIGTERM and SIGUSR1.
      exit_status: of the program, in [1, 255].
      automatic: False leaves the calls alone: the program calls ``check()`` of what is returned where it may leave, for example
        once per iteration where one iteration calls several train jobs.
    Returns: an object with ``check()``, ``requested`` and ``disable()``; also a context manager.
    Raises:
      ArgumentError: a wrong argument.
      ModeError: not on the main thread, or another one is still in force.
    Example:
      >>> manager = flow.checkpoint.CheckpointManager("./run", max_to_keep=3)
      >>> with flow.checkpoint.save_on_preemption(manager):
      ...     name = manager.restore_or_init()   # and the loop over steps
    """
    write = _writer(target)
    numbers = signal_numbers(signals)
    status, problem = check.integer(exit_status, low=1, high=255)
    if problem:
        complain(ArgumentError, f"exit_status {problem}")
    if threading.current_thread() is not threading.main_thread():
        complain(ModeError, "flow.checkpoint.save_on_preemption must be called on the main thread, which gets the signals")
    if process.preemption is not None:
        complain(ModeError, "flow.checkpoint.save_on_preemption is already in force", "call disable() of what it returned first")
    return Preemption(write, numbers, status, bool(automatic))


def signal_numbers(given: Iterable[int] | None) -> list[int]:
    """Those of SIGTERM and SIGUSR1 for None. Raises ArgumentError for what cannot be caught."""
    usual: list[int] = [signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    try:
        found = [signal.Signals(number) for number in (usual if given is None else given)]
    except Exception:  # of the user's objects, too
        found = []
    uncatchable = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
    if not found or uncatchable & {*found}:
        complain(ArgumentError, f"signals must be numbers of signals that can be caught, got {shown(given)}", "[signal.SIGTERM]")
    return [int(number) for number in found]


def _writer(target: Target) -> Callable[[str], Any]:
    """A function of the train job's name that saves."""
    if isinstance(target, CheckpointManager):
        manager = target
        return lambda job: manager.save(step=_steps_done(manager, job), overwrite=True)
    if callable(target):
        function = target
        return lambda job: function()
    path = as_path(target)
    return lambda job: save(path, overwrite=True)


def _steps_done(manager: CheckpointManager, job: str) -> int | None:
    """By what a manager is to name the checkpoint; None for the time."""

    def is_named_by_time() -> bool:
        newest = manager.latest()
        return newest is not None and manager.step(newest) is None

    if on_leader(own_team(), "how checkpoints are named", is_named_by_time):
        return None
    counters = {n: handle for n, handle in get_all_variables().items() if n.startswith(STEP_PREFIX)}
    counted = [counters[STEP_PREFIX + job]] if STEP_PREFIX + job in counters else counters.values()
    return max((int(counter.numpy().reshape(-1)[0]) for counter in counted), default=None)
