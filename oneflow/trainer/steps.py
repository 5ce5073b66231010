"""The results of training steps, on the delivery thread: numbers, hooks and logging, in the order of steps.

Most steps only put their result into a list. Their numbers are computed together, a few times per second or every 32 steps,
which costs a fraction of doing it one by one: the delivery thread and the thread that submits steps share one interpreter.
Where a callback wants to see each step, each is done when it arrives.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from ..callbacks.base import Callback
from ..callbacks.progress import TQDMProgressBar
from ..errors import FeedError
from ..job import JobFunction
from .arguments import Arguments, Bound
from .evaluation import Stage
from .history import History
from .hooks import Hooks, guarded
from .settings import Settings
from .tally import Fed, Tally

_MOST_WAITING = 32  # steps
_MOST_BYTES = 1 << 22  # of results that wait
_PAUSE = 0.05  # seconds

_log = logging.getLogger("oneflow")


class Steps:
    """Submits the steps of a training, and follows their results.

    Attributes:
      tallies: of the jobs, one each.
      history: of the training, with a row for each step that is logged.
      epoch: of the steps that arrive.
      logs: the numbers of the last step, or of the epoch that it ended.
      is_loss_bad: whether the loss was not finite once.
    """

    def __init__(self, trainer: Settings, jobs: Sequence[JobFunction[..., Any]], stage: Stage, hooks: Hooks):
        self._trainer, self._jobs, self._stage, self._hooks = trainer, jobs, stage, hooks
        self.arguments = [Arguments(job, pads=False) for job in jobs]
        names = [f"{job.name}_" if len(jobs) > 1 else "" for job in jobs]
        self.tallies = [Tally(j, a, n, trainer.metrics) for j, a, n in zip(jobs, self.arguments, names, strict=True)]
        self.history = History()
        self.epoch = 0
        self.logs: dict[str, Any] = {}
        self.is_loss_bad = False
        self._parts: list[tuple[Any, dict[str, float]]] = []  # of the jobs of one step
        self._calls_outputs = hooks.defined("on_train_batch_outputs")
        self._sees_each = self._calls_outputs or any(map(_sees_each_step, trainer.callbacks))
        self._calls_on_log = hooks.defined("on_log")
        first = self.tallies[0]
        self._is_direct = len(jobs) == 1 and self.arguments[0].takes_arrays and not first.metrics
        self._rows = self.arguments[0].batch_size or 1
        self._waiting: list[Any] = []  # values of steps whose numbers are not computed yet
        self._most = 1 if self._sees_each else max(1, min(_MOST_WAITING, _MOST_BYTES // max(first.outputs.bytes, 1)))
        self._due = 0.0
        self._next = 0  # the step of the first value that waits

    def begin(self, step: int) -> None:
        """Counts the steps that arrive from ``step`` on."""
        self._next = step

    # --- on the thread of the training

    def submitter(self) -> Callable[[Any], bool | None]:
        """A function that submits a step with a batch; it returns False for one that is too short, None for an empty one."""
        return self._submit if len(self._jobs) == 1 else self._submit_each

    def _submit(self, batch: Any) -> bool | None:
        job = self._jobs[0]
        if self._is_direct and type(batch) is tuple:
            try:
                result = job.submit(*batch)
            except FeedError:  # short, or of another form
                pass
            else:
                result.async_get(self._arrived)
                return True
        bound = self.arguments[0].bind(batch)
        if bound is None:
            return False
        if bound.is_empty:
            return None
        result = job.submit(*bound.arguments)
        result.async_get(partial(self._arrived_alone, bound, self.tallies[0].keeps(bound)))
        return True

    def _submit_each(self, batch: Any) -> bool | None:
        """Submits a step of each of several jobs, which take turns on a batch."""
        bounds = [bound for arguments in self.arguments if (bound := arguments.bind(batch)) is not None]
        if len(bounds) < len(self._jobs):
            return False
        if any(bound.is_empty for bound in bounds):
            return None
        for i, (job, bound) in enumerate(zip(self._jobs, bounds, strict=True)):
            job.submit(*bound.arguments).async_get(partial(self._arrived_of, i, bound, self.tallies[i].keeps(bound)))
        return True

    # --- on the delivery thread

    def _arrived(self, value: Any) -> None:
        """A result is there. Called for each step: it does as little as it can."""
        self._waiting.append(value)
        if len(self._waiting) >= self._most or monotonic() >= self._due or self._is_log_due():
            self._stage.guard(self.settle)

    def _is_log_due(self) -> bool:
        """Whether callbacks are to be asked what they add to the log of the last step that arrived."""
        return self._calls_on_log and (self._next + len(self._waiting)) % self._trainer.log_every_n_steps == 0

    def _arrived_alone(self, bound: Bound, fed: Fed, value: Any) -> None:
        """The result of a step is there whose batch has weights or metrics, or had to be converted."""
        self._stage.guard(self._take_alone, bound, fed, value)

    def _take_alone(self, bound: Bound, fed: Fed, value: Any) -> None:
        self.settle()
        self._told(self.tallies[0].add(value, bound, fed), value)

    def _arrived_of(self, place: int, bound: Bound, fed: Fed, value: Any) -> None:
        """The result of one of several jobs is there."""
        self._stage.guard(self._take_part, place, bound, fed, value)

    def _take_part(self, place: int, bound: Bound, fed: Fed, value: Any) -> None:
        self._parts.append((value, self.tallies[place].add(value, bound, fed)))
        if place == len(self._jobs) - 1:
            parts, self._parts = self._parts, []
            self._told({name: number for _, logs in parts for name, number in logs.items()}, [v for v, _ in parts])

    def settle(self) -> None:
        """Does everything that is due of the steps that have arrived. On the delivery thread."""
        waiting, self._waiting = self._waiting, []
        self._due = monotonic() + _PAUSE
        if not waiting:
            return
        numbers = self.tallies[0].add_all(waiting, self._rows)
        if self._sees_each:
            for i, value in enumerate(waiting):
                self._told({name: each[i] for name, each in numbers.items()}, value)
            return
        self._check_loss(numbers.get("loss", ()))
        first, every, last = self._next, self._trainer.log_every_n_steps, len(waiting) - 1
        self._next += len(waiting)
        self.logs = {name: each[last] for name, each in numbers.items()}
        for i in range((-first - 1) % every, len(waiting), every):
            self._report(first + i, self.logs if i == last else {name: each[i] for name, each in numbers.items()})
        self._hooks("on_train_batch_end", self._next - 1, self.logs)  # of progress bars

    def _told(self, logs: dict[str, float], value: Any) -> None:
        """The numbers of one step are there."""
        step = self._next
        self._next = step + 1
        if "loss" in logs:
            self._check_loss((logs["loss"],), step)
        if self._calls_outputs:
            self._hooks("on_train_batch_outputs", step, value)
        self._hooks("on_train_batch_end", step, logs)
        if (step + 1) % self._trainer.log_every_n_steps == 0:
            self._report(step, logs)
        self.logs = logs

    def _report(self, step: int, logs: dict[str, float]) -> None:
        self._hooks("on_log", step, logs)
        self.history.steps.append({"epoch": self.epoch, "step": step, **logs})
        self.log({**logs, "epoch": self.epoch}, step)

    def log(self, numbers: Mapping[str, Any], step: int) -> None:
        """Hands numbers to the loggers."""
        for logger in self._trainer.loggers:
            guarded(logger.log_metrics, numbers, step)

    def _check_loss(self, losses: Sequence[float], first: int | None = None) -> None:
        if self.is_loss_bad or math.isfinite(sum(losses)):
            return
        bad = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is None:  # only their sum is too large
            return
        self.is_loss_bad = True
        loss = self._jobs[0].graph.objective.losses[0]
        _log.warning(
            "oneflow: the loss is %s at step %d, for the first time\n  the loss   %s   %s",
            losses[bad], (self._next if first is None else first) + bad, loss.source, loss.source.text,
        )  # fmt: skip


def _sees_each_step(callback: Callback) -> bool:
    """Whether a callback has a hook for steps; a progress bar is drawn now and then, and can do with the last of several."""
    hook = getattr(callback.on_train_batch_end, "__func__", None)
    return hook not in (Callback.on_train_batch_end, TQDMProgressBar.on_train_batch_end)
