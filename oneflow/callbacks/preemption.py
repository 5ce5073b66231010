"""Leaving in time: a signal ends a training after its step, saved, with a status that says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from .._base import check
from .._base.refuse import refuse
from ..checkpoint import preemption
from ..errors import ArgumentError
from ..runtime.exit_status import PREEMPTED
from .base import Callback, Logs
from .checkpoint import ModelCheckpoint


class Preemption(Callback):
    """Saves and ends the program when a signal says that this machine will be taken away.

    When the signal has come, the step under way is finished, ``ModelCheckpoint(save_last=True)`` saves ``last``, and ``fit``
    ends the program with SystemExit. Started again, ``fit(..., ckpt_path="last")`` goes on bit for bit. A validation is
    finished first. In a run of several processes all leave after the same step, no more than about a second of steps later,
    whichever of them got the signal. Outside of ``fit`` signals do what they did before.

    Args:
      signals: numbers; None: SIGTERM and SIGUSR1.
      exit_status: of the program, in [1, 255].
    Raises:
      ArgumentError: an argument outside its range; in ``fit``, no ModelCheckpoint among the callbacks keeps ``last``.
      ModeError: in ``fit``, which was not called on the main thread.
    Example:
      >>> saving = flow.callbacks.ModelCheckpoint("./run", save_last=True)
      >>> trainer = flow.Trainer(max_epochs=90, callbacks=[saving, flow.callbacks.Preemption()])
    """

    _watch: preemption.Preemption | None = None

    def __init__(self, signals: Iterable[int] | None = None, exit_status: int = PREEMPTED):
        self.signals = preemption.signal_numbers(signals)
        self.exit_status = check.checked(self, "exit_status", check.integer(exit_status, low=1, high=255))
        self._is_due = self._is_saved = False

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Takes the signals over within the block, which ``fit`` enters, and leaves at its end, where that is due."""
        if not self._savers():
            refuse(ArgumentError, "Preemption needs a callback that saves the last checkpoint",
                   hint="callbacks=[flow.callbacks.ModelCheckpoint(save_last=True), flow.callbacks.Preemption()]")  # fmt: skip
        with preemption.save_on_preemption(lambda: None, self.signals, self.exit_status, automatic=False) as watch:
            self._watch, self._is_due, self._is_saved = watch, False, False
            yield
            if watch.is_due(at_once=True):
                if not self._is_saved:  # the signal came after the last step
                    self._save(self.trainer.global_step - 1, {})
                watch.leave()

    def waits_after(self, step: int) -> bool:
        """Whether a signal has come."""
        self._is_due = self._is_due or (self._watch is not None and self._watch.is_due())
        return self._is_due

    def on_checkpoint(self, step: int, logs: Logs) -> None:
        """Saves and ends the training, where a signal has come."""
        if self._is_due:
            self._save(step, logs)
            self.trainer.should_stop = self.trainer.interrupted = True

    def _savers(self) -> list[ModelCheckpoint]:
        given: list[Any] = [] if self.trainer is None else self.trainer.callbacks
        return [callback for callback in given if isinstance(callback, ModelCheckpoint) and callback.save_last]

    def _save(self, step: int, logs: Logs) -> None:
        for saver in self._savers():
            saver.on_interrupt(step, logs)
        self._is_saved = True
