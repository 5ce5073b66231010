"""Ending a training before its last epoch."""

from __future__ import annotations

import logging
import math
from typing import Any

from .._base import check
from .._base.refuse import refuse
from ..errors import ArgumentError
from .base import Callback, Logs
from .monitor import Monitor

_log = logging.getLogger("oneflow")


class EarlyStopping(Monitor):
    """Ends the training when a number has not become better for a while.

    Args:
      monitor: its name in ``logs``; looked at after each validation, or, where no validation makes it, after each epoch.
      min_delta: what counts as better must be so by more than this, >= 0.
      patience: the training ends after so many looks in a row without improvement; an int >= 0, where 0 is as 1.
      mode: ``"min"`` or ``"max"``; ``"auto"`` decides by the name.
      check_finite: ends the training also where the number is NaN or infinite.
      stopping_threshold: ends it as soon as the number is better than this.
    Raises:
      ArgumentError: an argument outside its range.
    Example: >>> flow.callbacks.EarlyStopping("val_loss", patience=3)
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 3,
        mode: str = "auto",
        check_finite: bool = True,
        stopping_threshold: float | None = None,
    ):
        super().__init__(monitor, mode)
        self.patience = check.checked(self, "patience", check.integer(patience, low=0))
        self.min_delta = check.checked(self, "min_delta", check.number(min_delta, low=0, finite=True))
        self.check_finite = check.checked(self, "check_finite", check.flag(check_finite))
        if stopping_threshold is not None:
            stopping_threshold = check.checked(self, "stopping_threshold", check.number(stopping_threshold))
        self.stopping_threshold = stopping_threshold

    def begin_anew(self) -> None:
        """Forgets an earlier training."""
        super().begin_anew()
        self.best_score: float | None = None
        self.wait_count = 0
        self.stopped_step = -1
        self._last = 0.0  # the last value
        self._was_ended = False  # the training that is resumed

    def on_train_begin(self, logs: Logs) -> None:
        """Ends a training that had been ended, and is begun again, unless it goes on by what the arguments are now."""
        if self._was_ended:
            self._was_ended = False
            self._stop_at_end(self._last, self.stopped_step)

    def take_value(self, value: float, step: int) -> None:
        """Counts looks without improvement."""
        self._last, self.stopped_step = value, -1
        if self.is_better(value, self.best_score, self.min_delta):
            self.best_score, self.wait_count = value, 0
        else:
            self.wait_count += 1
        self._stop_at_end(value, step)

    def _stop_at_end(self, value: float, step: int) -> None:
        if self.check_finite and not math.isfinite(value):
            self._stop(step, f"{self.monitor} is {value}")
        elif self.stopping_threshold is not None and self.is_better(value, self.stopping_threshold):
            self._stop(step, f"{self.monitor}={value:.6g} has passed {self.stopping_threshold:.6g}")
        elif self.wait_count >= max(self.patience, 1):
            best = "any number" if self.best_score is None else f"{self.best_score:.6g}"
            self._stop(step, f"{self.monitor}={value:.6g}, {self.wait_count} looks without being better than {best}")

    def _stop(self, step: int, why: str) -> None:
        self.stopped_step = step
        self.trainer.should_stop = True
        _log.info("oneflow: training ends after step %d: %s", step, why)

    def state_dict(self) -> dict[str, Any]:
        """The best value, how long ago it was, and whether the training was ended."""
        own = {"best_score": self.best_score, "wait_count": self.wait_count}
        return {**super().state_dict(), **own, "last": self._last, "stopped_step": self.stopped_step}

    def load_state_dict(self, state: Any) -> None:
        """Goes on where ``state_dict()`` was taken."""
        super().load_state_dict(state)
        self.best_score, self.wait_count = state["best_score"], int(state["wait_count"])
        self._last, self.stopped_step = state.get("last", 0.0), int(state.get("stopped_step", -1))
        self._was_ended = self.stopped_step >= 0


class TerminateOnNaN(Callback):
    """Ends the training when a step's loss is NaN or infinite. Steps that were submitted before are still done.

    Args:
      monitor: another number of the step. None: ``loss``, and all whose names end in ``_loss``, as those of several jobs do.
    Raises: ArgumentError: (by ``fit``, after the first step) the step has no such number.
    Example: >>> flow.callbacks.TerminateOnNaN()
    """

    def __init__(self, monitor: str | None = None):
        self.monitor = None if monitor is None else check.checked(self, "monitor", check.name(monitor))
        self.stopped_step = -1

    def on_train_begin(self, logs: Logs) -> None:
        """Forgets an earlier training."""
        self.stopped_step = -1

    def on_train_batch_end(self, step: int, logs: Logs) -> None:
        """Looks at the loss."""
        watched = [n for n in logs if n == self.monitor or (self.monitor is None and (n == "loss" or n.endswith("_loss")))]
        if not watched:
            what = "a loss" if self.monitor is None else repr(self.monitor)
            refuse(ArgumentError, f"TerminateOnNaN looks at {what}, which the step has not logged",
                   found=[("logged", ", ".join(logs))],
                   hint="return the loss from the job, or name another number: TerminateOnNaN(monitor=...)")  # fmt: skip
        for name in watched:
            if not math.isfinite(logs[name]) and self.stopped_step < 0:
                self.stopped_step = step
                self.trainer.should_stop = True
                _log.warning("oneflow: training ends: %s is %s at step %d", name, logs[name], step)
