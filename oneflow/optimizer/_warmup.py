"""Warm-ups, the learning rates before a schedule takes over: ``flow.optimizer.warmup``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from . import _check


class WarmupConf:
    """While ``step < steps`` the rate is ``rate(base, step)``; afterwards it is the schedule's, at the absolute step."""

    steps: int
    conf_key: ClassVar[str]
    factor_name: ClassVar[str]
    factor_bounds: ClassVar[Mapping[str, float]]

    def __post_init__(self) -> None:
        owner, name = f"warmup.{type(self).__name__}", self.factor_name
        object.__setattr__(self, "steps", _check.integer(owner, "steps", self.steps, low=0))
        object.__setattr__(self, name, _check.number(owner, name, getattr(self, name), **self.factor_bounds))

    def rate(self, base: float, step: Any) -> Any:
        """The learning rate at ``step``, a float64 scalar of NumPy or JAX, given that ``step < steps``."""
        raise NotImplementedError

    @property
    def warmup_conf(self) -> dict[str, Any]:
        """The warm-up in the dict form."""
        return {self.conf_key: {"warmup_batches": self.steps, self.factor_name: getattr(self, self.factor_name)}}


@dataclass(frozen=True)
class constant(WarmupConf):
    """For the first ``steps`` steps the rate is ``base_lr * multiplier``.

    Args:
      steps: int >= 0; 0 means no warm-up.
      multiplier: in (0, 1).
    Raises:
      ArgumentError: an argument outside its range.
    Example:
      >>> schedule = flow.optimizer.CosineScheduler(0.1, 1000, warmup=flow.optimizer.warmup.constant(10, 0.1))
    """

    steps: int
    multiplier: float

    conf_key = "constant_conf"
    factor_name = "multiplier"
    factor_bounds: ClassVar[Mapping[str, float]] = {"above": 0.0, "below": 1.0}

    def rate(self, base: float, step: Any) -> Any:
        """``base`` times the multiplier, at every step of the warm-up."""
        return base * self.multiplier


@dataclass(frozen=True)
class linear(WarmupConf):
    """The rate rises from ``base_lr * start_multiplier`` at step 0 towards ``base_lr`` at step ``steps``.

    Args:
      steps: int >= 0; 0 means no warm-up.
      start_multiplier: in [0, 1).
    Raises:
      ArgumentError: an argument outside its range.
    Example:
      >>> schedule = flow.optimizer.CosineScheduler(0.1, 1000, warmup=flow.optimizer.warmup.linear(100, 0))
    """

    steps: int
    start_multiplier: float

    conf_key = "linear_conf"
    factor_name = "start_multiplier"
    factor_bounds: ClassVar[Mapping[str, float]] = {"low": 0.0, "below": 1.0}

    def rate(self, base: float, step: Any) -> Any:
        """The rate at ``step``, which changes linearly to ``base``."""
        return base * (self.start_multiplier + (1.0 - self.start_multiplier) * step / self.steps)
