"""The learning rate: seen in the logs, and lowered where a number does not become better any more."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._base import check
from .._base.refuse import refuse
from ..checkpoint.api import get_all_variables, load_variables, steps_of
from ..errors import ModeError
from ..graph.graph import OP_VARIABLE
from ..job import JobFunction
from .base import Callback, Logs
from .monitor import Monitor

_log = logging.getLogger("oneflow")


class LearningRateMonitor(Callback):
    """Adds each step's learning rate to what is logged: ``lr``, or with several optimizers or jobs ``lr-0``, ``lr-1``, ...

    Steps that a dynamic loss scale skips, in which a schedule does not go on, count as others. Rates that ops of the job compute
    are left out.

    Example: >>> flow.callbacks.LearningRateMonitor()
    """

    def on_train_begin(self, logs: Logs) -> None:
        """Notes how many steps of the jobs were made before those of this training."""
        done = [steps_of(job.name) for job in self.trainer.train_jobs]
        self._ahead = [steps - self.trainer.global_step for steps in done]

    def on_log(self, step: int, logs: Logs) -> None:
        """Adds the rate."""
        rates = list(_rates(self.trainer.train_jobs, [step + ahead for ahead in self._ahead]))
        for i, rate in enumerate(rates):
            if rate is not None:
                logs["lr" if len(rates) == 1 else f"lr-{i}"] = rate


class ReduceLROnPlateau(Monitor):
    """Multiplies the learning rate by ``factor`` when a number has not become better for a while.

    The rate must be constant, as in ``flow.optimizer.SGD(0.1)``, or a variable of the job. The lowered rate is kept in
    the trainer's checkpoints.

    Args:
      monitor: its name in ``logs``; looked at after each validation, or, where no validation makes it, after each epoch.
      factor: in (0, 1).
      patience: looks without improvement that are tolerated, >= 0.
      mode: ``"min"`` or ``"max"``; ``"auto"`` decides by the name.
      min_delta: what counts as better must be so by more than this, >= 0.
      cooldown: looks after a change that are not counted, >= 0.
      min_lr: the rate is not lowered below this, >= 0.
    Raises:
      ArgumentError: an argument outside its range.
      ModeError: (by ``fit``) the rate of the train job cannot be changed.
    Example: >>> flow.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2)
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        super().__init__(monitor, mode)
        self.factor = check.checked(self, "factor", check.number(factor, above=0, below=1))
        self.patience = check.checked(self, "patience", check.integer(patience, low=0))
        self.min_delta = check.checked(self, "min_delta", check.number(min_delta, low=0, finite=True))
        self.cooldown = check.checked(self, "cooldown", check.integer(cooldown, low=0))
        self.min_lr = check.checked(self, "min_lr", check.number(min_lr, low=0, finite=True))

    def begin_anew(self) -> None:
        """Forgets an earlier training; the rate stays as it lowered it."""
        super().begin_anew()
        self.best_score: float | None = None
        self.wait_count = self.cooldown_count = 0

    def on_train_begin(self, logs: Logs) -> None:
        """Looks whether the rate can be changed."""
        for job in self.trainer.train_jobs:
            if not any(o.constant_rate is not None or _variable_of(o) for o in _optimizers(job)):
                rule = f"ReduceLROnPlateau cannot change the learning rate of job {job.name!r}, which follows a schedule"
                refuse(ModeError, rule,
                       hint="declare a constant rate, as in flow.optimizer.SGD(0.1)", source=job.source)  # fmt: skip

    def take_value(self, value: float, step: int) -> None:
        """Counts looks without improvement."""
        is_better = self.is_better(value, self.best_score, self.min_delta)
        if is_better:
            self.best_score = value
        if is_better or self.cooldown_count:
            self.wait_count, self.cooldown_count = 0, max(self.cooldown_count - 1, 0)
        else:
            self.wait_count += 1
            if self.wait_count > self.patience:
                self.wait_count, self.cooldown_count = 0, self.cooldown
                for job in self.trainer.train_jobs:
                    self._lower(job, step)

    def _lower(self, job: JobFunction[..., Any], step: int) -> None:
        """Lowers the rates of a job that are constant, and those that are variables."""
        optimizers = _optimizers(job)
        lowered = [None if rate is None else self._lowered(rate) for rate in job.constant_learning_rates]
        if any(rate is not None for rate in lowered):
            job.learning_rate = lowered
            _log.info("oneflow: step %d: the learning rate is now %s", step, lowered[0] if len(lowered) == 1 else lowered)
        for name in filter(None, map(_variable_of, optimizers)):
            value = get_all_variables()[name].numpy()
            changed = self._lowered(float(value[0]))
            load_variables({name: np.full_like(value, changed)})
            _log.info("oneflow: step %d: the learning rate is now %.6g", step, changed)

    def _lowered(self, rate: float) -> float:
        """The rate that comes after this one; a negative one comes closer to 0, too."""
        return math.copysign(min(abs(rate), max(abs(rate) * self.factor, self.min_lr)), rate)

    def state_dict(self) -> dict[str, Any]:
        """The best value, and how long ago it was."""
        own = {"best_score": self.best_score, "wait_count": self.wait_count, "cooldown_count": self.cooldown_count}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Any) -> None:
        """Goes on where ``state_dict()`` was taken."""
        super().load_state_dict(state)
        self.best_score, self.wait_count = state["best_score"], int(state["wait_count"])
        self.cooldown_count = int(state["cooldown_count"])


# --- the rates of a job


def _optimizers(job: JobFunction[..., Any]) -> tuple[Any, ...]:
    return job.graph.objective.optimizers


def _variable_of(optimizer: Any) -> str | None:
    """The variable that an optimizer reads its rate from, where it does."""
    blob = optimizer.learning_rate_blob
    return blob.node.name if blob is not None and blob.node.op is OP_VARIABLE else None


def _rates(jobs: list[JobFunction[..., Any]], steps: list[int]) -> Iterator[float | None]:
    """The rates at so many steps of each job, optimizer by optimizer; None for those that the job computes."""
    for job, step in zip(jobs, steps, strict=True):
        for optimizer, constant in zip(_optimizers(job), job.constant_learning_rates, strict=True):
            name = _variable_of(optimizer)
            if name is not None:
                yield float(get_all_variables()[name].numpy()[0])
            elif constant is not None:
                yield constant
            else:
                yield None if optimizer.learning_rate_blob is not None else float(optimizer.lr_scheduler.value(step))
