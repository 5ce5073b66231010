"""The base of callbacks that watch one number."""

from __future__ import annotations

import math
from typing import Any

from .._base import check
from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError
from .base import Callback, Logs

_LARGER_IS_BETTER = ("accuracy", "acc", "auc", "precision", "recall", "f1", "r2", "iou", "map", "bleu", "reward")
_SMALLER_IS_BETTER = ("loss", "error", "err", "perplexity", "mse", "mae", "rmse", "nll", "distance")


class Monitor(Callback):
    """Calls ``take_value(value, step)`` with each new value of ``monitor``: after validations, else after epochs."""

    def __init__(self, monitor: str | None, mode: str):
        owner = type(self).__name__
        if monitor is not None and (not isinstance(monitor, str) or not monitor):
            refuse(ArgumentError, f"{owner}: monitor must be the name of a number in logs, got {shown(monitor)}",
                   hint='monitor="val_loss"')  # fmt: skip
        mode = check.checked(self, "mode", check.choice(mode, ("min", "max", "auto")))
        self.monitor = monitor
        self.mode = _mode_of(owner, monitor) if mode == "auto" and monitor is not None else mode
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets an earlier training. Called by ``fit`` before a training begins, or goes on from a checkpoint's state."""
        self._seen_at = -1
        self._was_validated = self._comes_from_validation = False

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is an improvement of more than ``by``. NaN never is."""
        if math.isnan(value):
            return False
        if than is None:
            return True
        return value < than - by if self.mode == "min" else value > than + by

    def take_value(self, value: float, step: int) -> None:
        """There is a new value; to be overridden."""

    def on_validation_end(self, step: int, logs: Logs) -> None:
        """Takes the value where the validation has made it."""
        self._was_validated = True
        self._comes_from_validation |= self._take(step, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Takes the value where the epoch has made it."""
        if self.monitor is None or self._comes_from_validation:  # what the logs of epochs have of it is an old one
            return
        if self._take(self.trainer.global_step - 1, logs) or self._seen_at >= 0:
            return
        if self._was_validated or not self.trainer.validates or not self.monitor.startswith("val_"):
            near = closest(self.monitor, logs, count=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
            if self.monitor.startswith("val_") and not self.trainer.validates:
                hint = "fit(train_job, data, val_job, val_data) validates; or monitor a number of the training"
            refuse(ArgumentError, f"{type(self).__name__} monitors {self.monitor!r}, which nothing has logged",
                   found=[("logged", ", ".join(logs))], hint=hint)  # fmt: skip

    def _take(self, step: int, logs: Logs) -> bool:
        if self.monitor is None or self.monitor not in logs:
            return False
        if step != self._seen_at:  # a validation at the end of an epoch is reported twice
            self._seen_at = step
            self.take_value(self._number(logs[self.monitor]), step)
        return True

    def _number(self, value: Any) -> float:
        if getattr(value, "size", 1) != 1:
            rule = f"{type(self).__name__} monitors {self.monitor!r}, which is an array of shape {value.shape} and not a number"
            refuse(ArgumentError, rule, hint="monitor a metric that is one number")
        return float(value.item() if hasattr(value, "item") else value)

    def state_dict(self) -> dict[str, Any]:
        """The step of the last value, and whether validations make it."""
        return {"seen_at": self._seen_at, "comes_from_validation": self._comes_from_validation}

    def load_state_dict(self, state: Any) -> None:
        """Goes on where ``state_dict()`` was taken."""
        self._seen_at = int(state.get("seen_at", -1))
        self._comes_from_validation = bool(state.get("comes_from_validation", False))


def _mode_of(owner: str, monitor: str) -> str:
    words = monitor.lower().replace("/", "_").split("_")
    if any(word in _SMALLER_IS_BETTER for word in words):
        return "min"
    if any(word in _LARGER_IS_BETTER for word in words):
        return "max"
    refuse(ArgumentError, f"{owner}: the name {monitor!r} does not say whether small or large values are good",
           hint='mode="min" or mode="max"')  # fmt: skip
