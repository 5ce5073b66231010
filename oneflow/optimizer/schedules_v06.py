"""Schedules that 0.5 added to the dict form of training; they have no public classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _check
from ._warmup import WarmupConf
from .schedules import LrScheduler


@dataclass(frozen=True, repr=False)
class _Decay(LrScheduler):
    base_lr: float

    def __post_init__(self) -> None:
        self._number("base_lr", low=0.0)
        self._check_warmup()


@dataclass(frozen=True, repr=False)
class StepScheduler(_Decay):
    """base_lr * gamma ** floor(step / step_size)."""

    step_size: int
    gamma: float = 0.1
    warmup: WarmupConf | None = None

    conf_key = "step_conf"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "step_size", _check.integer(self.conf_key, "step_size", self.step_size, low=1))
        self._number("gamma", low=0.0)

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        return self.base_lr * xp.power(self.gamma, (step // self.step_size).astype(xp.float64))


@dataclass(frozen=True, repr=False)
class MultiStepScheduler(_Decay):
    """base_lr * gamma ** n, with n the number of milestones <= step."""

    milestones: Sequence[int]
    gamma: float = 0.1
    warmup: WarmupConf | None = None

    conf_key = "multi_step_conf"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = _check.sequence(self.conf_key, "milestones", self.milestones, "ints")
        found = tuple(_check.integer(self.conf_key, f"milestones[{i}]", n, low=0) for i, n in enumerate(given))
        object.__setattr__(self, "milestones", found)
        self._number("gamma", low=0.0)

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        passed = xp.sum(step >= xp.asarray(self.milestones, xp.int64), dtype=xp.int32)
        return self.base_lr * xp.power(self.gamma, passed.astype(xp.float64))


@dataclass(frozen=True, repr=False)
class CosineAnnealingScheduler(_Decay):
    """eta_min + (base_lr - eta_min) * (1 + cos(pi * step / t_max)) / 2; it rises again after ``t_max`` steps."""

    t_max: int
    eta_min: float = 0.0
    warmup: WarmupConf | None = None

    conf_key = "cosine_annealing_conf"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "t_max", _check.integer(self.conf_key, "t_max", self.t_max, low=1))
        self._number("eta_min", low=0.0)

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        wave = 0.5 * (1.0 + xp.cos(math.pi * step.astype(xp.float64) / self.t_max))
        return self.eta_min + (self.base_lr - self.eta_min) * wave


SCHEDULES: tuple[type[LrScheduler], ...] = (StepScheduler, MultiStepScheduler, CosineAnnealingScheduler)
