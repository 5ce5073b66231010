"""The arguments of a Trainer, checked, and what else a training asks its Trainer for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._base import check
from .._base.files import absolute
from .._base.refuse import refuse, shown
from ..callbacks.base import Callback, check_hooks
from ..callbacks.checkpoint import ModelCheckpoint, refuse_clashes
from ..callbacks.progress import TQDMProgressBar
from ..errors import ArgumentError
from ..loggers.base import Logger
from ..loggers.csv import CSVLogger
from ..metrics.base import Metric
from ..runtime import processes
from .interrupt import Interrupt
from .profiler import SimpleProfiler


class Settings:
    """The base of ``Trainer``, whose docstring explains the arguments."""

    def __init__(
        self,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        logger: Logger | Sequence[Logger] | bool | None = None,
        metrics: Metric | Sequence[Metric] | Mapping[str, Metric] | None = None,
        val_check_interval: int | float = 1.0,
        log_every_n_steps: int = 50,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        default_root_dir: str | os.PathLike[str] | None = None,
        profiler: str | None = None,
        enable_progress_bar: bool = True,
        seed: int | None = None,
    ):
        self.max_epochs, self.max_steps = _count("max_epochs", max_epochs, -1), _count("max_steps", max_steps, -1)
        shows_progress = check.checked(self, "enable_progress_bar", check.flag(enable_progress_bar))
        self.callbacks = _callbacks(callbacks, shows_progress)
        self.loggers = _loggers(logger)
        self.metrics = _metrics(metrics)
        self.val_check_interval = _interval(val_check_interval)
        self.log_every_n_steps = _count("log_every_n_steps", log_every_n_steps, 1) or 1
        self.limit_train_batches = _limit("limit_train_batches", limit_train_batches)
        self.limit_val_batches = _limit("limit_val_batches", limit_val_batches)
        self.limit_test_batches = _limit("limit_test_batches", limit_test_batches)
        self.limit_predict_batches = _limit("limit_predict_batches", limit_predict_batches)
        self.default_root_dir = os.curdir
        if default_root_dir is not None:
            self.default_root_dir = check.checked(self, "default_root_dir", check.path(default_root_dir))
        self.root_dir = absolute(self.default_root_dir)
        self.seed = _count("seed", seed, 0)
        if profiler is not None:
            check.checked(self, "profiler", check.choice(profiler, ("simple",)))
        self.profiler = SimpleProfiler() if profiler is not None else None
        self.should_stop = self.interrupted = False
        self.interrupt = Interrupt()
        self.state = "idle"  # or "training", "validating", "testing", "predicting"
        self.num_evaluation_batches: int | None = None
        self.evaluated_batches = 0
        for callback in self.callbacks:
            callback.trainer = self
        self.check_savers()

    def check_savers(self) -> None:
        """Refuses callbacks that save under the same names in one directory."""
        refuse_clashes([c for c in self.callbacks if isinstance(c, ModelCheckpoint)])

    def named_callbacks(self) -> list[tuple[str, Callback]]:
        """The callbacks, by the names under which checkpoints keep their state."""
        return _named(self.callbacks)

    def named_loggers(self) -> list[tuple[str, Logger]]:
        """The loggers, by the names under which checkpoints keep their state."""
        return _named(self.loggers)

    def measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; where there is a profiler, with its time counted."""
        return function if self.profiler is None else self.profiler.timed(name, function)

    def count_evaluated(self, batches: int) -> None:
        """Told how many batches of a validation, a test or a prediction are done."""
        self.evaluated_batches = batches


Settings.__init__.__qualname__ = "Trainer.__init__"  # what Python calls it where it refuses an argument


# --- the checks


def _count(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    found, problem = check.integer(value, low=least)
    if problem:
        refuse(ArgumentError, f"{name} must be an int >= {least} or None, got {shown(value)}")
    return found


def _limit(name: str, value: Any) -> int | float | None:
    if value is None:
        return None
    if (number := _whole_or_share(value)) is None:
        rule = f"{name} must be an int >= 0 (batches), a float in [0, 1] (a share of them) or None"
        refuse(ArgumentError, f"{rule}, got {shown(value)}")
    return number


def _interval(value: Any) -> int | float:
    if not (number := _whole_or_share(value)):
        rule = "val_check_interval must be an int >= 1 (steps) or a float in (0, 1] (a share of an epoch)"
        refuse(ArgumentError, f"{rule}, got {shown(value)}")
    return number


def _whole_or_share(value: Any) -> int | float | None:
    """An int >= 0 or a float in [0, 1]; None for anything else."""
    whole = check.whole(value)
    number = check.real(value) if whole is None else whole
    return number if number is not None and number >= 0 and (whole is not None or number <= 1) else None


def _callbacks(given: Any, shows_progress: bool) -> list[Callback]:
    listed = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in listed:
        check_hooks(callback)
    if shows_progress and not any(isinstance(c, TQDMProgressBar) for c in listed):
        listed.append(TQDMProgressBar())
    if processes.count() > 1 and processes.index():
        listed = [c for c in listed if not isinstance(c, TQDMProgressBar)]  # one process shows it
    return sorted(listed, key=lambda c: isinstance(c, ModelCheckpoint))  # after all others, whose state they save


def _loggers(given: Any) -> list[Logger]:
    if given is None or given is False:
        return []
    listed = [CSVLogger()] if given is True else list(given) if isinstance(given, (list, tuple)) else [given]
    wrong = [logger for logger in listed if not isinstance(logger, Logger)]
    if wrong:
        refuse(ArgumentError, f"logger must be of flow.loggers, True or None, got {shown(wrong[0])}")
    return listed if processes.count() == 1 or not processes.index() else []  # one process logs


def _metrics(given: Any) -> dict[str, Metric]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        named = dict(given)
        for name in named:
            if not isinstance(name, str):
                refuse(ArgumentError, f"the names of metrics must be str, got {shown(name)}")
    else:
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        named = {getattr(metric, "name", ""): metric for metric in listed}
        if len(named) < len(listed):
            refuse(ArgumentError, "two metrics have the same name", hint='give one of them a name: name="..."')
    wrong = [metric for metric in named.values() if not isinstance(metric, Metric)]
    if wrong:
        hint = "flow.metrics.Accuracy() and others; flow.metrics.Function(f) for a function of your own"
        refuse(ArgumentError, f"metrics must be of flow.metrics, got {shown(wrong[0])}", hint=hint)
    return named


def _named(items: Sequence[Any]) -> list[tuple[str, Any]]:
    """By class; several of one class are numbered."""
    counts: dict[str, int] = {}
    named = []
    for item in items:
        kind = type(item).__name__
        counts[kind] = counts.get(kind, 0) + 1
        named.append((kind if counts[kind] == 1 else f"{kind}#{counts[kind]}", item))
    return named
