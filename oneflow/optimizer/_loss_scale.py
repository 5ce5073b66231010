"""Loss scaling, for gradients that 16-bit numbers cannot hold: ``flow.optimizer.loss_scale``.

The gradients of the losses start with the scale instead of 1, and are divided by it before they are used.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .._base.refuse import shown
from . import _check

LARGEST = 2.0**100  # its reciprocal, divided by the number of losses, is a normal number of float32: XLA takes others for zeros


class LossScalePolicy:
    """A rule for the scale of the loss. The loss that a job returns is never scaled."""

    def SetLossScaleFieldsInTrainConf(self, train_conf: MutableMapping[str, Any]) -> None:
        """Writes the policy into a dict like ``Optimizer.train_conf``."""
        raise NotImplementedError


@dataclass(frozen=True)
class static_loss_scale(LossScalePolicy):
    """The same scale at every step.

    Args:
      loss_scale_factor: number > 0, at most 2^100; 1 has no effect.
    Raises:
      ArgumentError: the factor is not a positive number.
    Example:
      >>> policy = flow.optimizer.loss_scale.static_loss_scale(1024.0)
      >>> flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), loss_scale_policy=policy).minimize(loss)
    """

    loss_scale_factor: float

    def __post_init__(self) -> None:
        factor = _check.number("static_loss_scale", "loss_scale_factor", self.loss_scale_factor, above=0.0, high=LARGEST)
        object.__setattr__(self, "loss_scale_factor", factor)

    @property
    def factor(self) -> float:
        """The factor that the loss is multiplied by."""
        return self.loss_scale_factor

    def SetLossScaleFieldsInTrainConf(self, train_conf: MutableMapping[str, Any]) -> None:
        """Writes the policy into a dict like ``Optimizer.train_conf``."""
        _check.mutable_mapping("SetLossScaleFieldsInTrainConf", "train_conf", train_conf)
        train_conf["loss_scale_factor"] = self.loss_scale_factor


@dataclass(frozen=True)
class dynamic_loss_scale(LossScalePolicy):
    """A scale that falls when gradients overflow and grows while they do not.

    A step with a gradient that is not finite changes no variable and no counter; the scale becomes
    ``max(scale / multiplier, 1)``. After ``increment_period`` good steps in a row it becomes ``scale * multiplier``, at most
    2^100: what divides gradients by it is still a normal number of float32.

    Args:
      initial_loss_scale: number > 0, at most 2^100.
      increment_period: int > 0, in steps.
      multiplier: number >= 1.
    Raises:
      ArgumentError: an argument outside its range.
    Example:
      >>> policy = flow.optimizer.loss_scale.dynamic_loss_scale(initial_loss_scale=2**16)
      >>> flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), loss_scale_policy=policy).minimize(loss)
    """

    initial_loss_scale: float = 2**30
    increment_period: int = 2000
    multiplier: float = 2.0
    largest: ClassVar[float] = LARGEST

    def __post_init__(self) -> None:
        owner = "dynamic_loss_scale"
        initial = _check.number(owner, "initial_loss_scale", self.initial_loss_scale, above=0.0, high=self.largest)
        object.__setattr__(self, "initial_loss_scale", initial)
        object.__setattr__(self, "increment_period", _check.integer(owner, "increment_period", self.increment_period, low=1))
        object.__setattr__(self, "multiplier", _check.number(owner, "multiplier", self.multiplier, low=1.0))

    @property
    def initial(self) -> float:
        """The factor that the loss is multiplied by at first."""
        return self.initial_loss_scale

    def SetLossScaleFieldsInTrainConf(self, train_conf: MutableMapping[str, Any]) -> None:
        """Writes the policy into a dict like ``Optimizer.train_conf``."""
        _check.mutable_mapping("SetLossScaleFieldsInTrainConf", "train_conf", train_conf)
        train_conf["dynamic_loss_scale_policy"] = {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }


def policy_of(owner: str, factor: Any, policy: Any) -> LossScalePolicy | None:
    """The policy that ``loss_scale_factor=`` and ``loss_scale_policy=`` of an optimizer describe."""
    if factor is not None and policy is not None:
        rule = f"loss_scale_factor and loss_scale_policy cannot both be given, got {shown(factor)} and {shown(policy)}"
        _check.bad(owner, rule, "leave one of them out")
    if factor is not None:
        return static_loss_scale(_check.number(owner, "loss_scale_factor", factor, above=0.0, high=LARGEST))
    if policy is not None and not isinstance(policy, LossScalePolicy):
        rule = f"loss_scale_policy must be one of flow.optimizer.loss_scale, got {shown(policy)}"
        _check.bad(owner, rule, "loss_scale_policy=flow.optimizer.loss_scale.dynamic_loss_scale()")
    return policy


StaticLossScalePolicy = static_loss_scale
DynamicLossScalePolicy = dynamic_loss_scale
