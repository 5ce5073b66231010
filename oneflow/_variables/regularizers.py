"""Penalties, which are added to the gradients of variables. The value of the loss does not contain them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._base import check
from .._base.frames import shows_user_frames
from .._base.jax import jnp
from .._base.refuse import refuse
from ..errors import ArgumentError


@dataclass(frozen=True, slots=True)
class L1L2:
    """Adds l1 * sign(w) + l2 * w to the gradient of w."""

    l1: float
    l2: float

    def gradient(self, w: Any) -> Any:
        """The gradient of l1 * sum(|w|) + l2 / 2 * sum(w**2); the sign at 0 is +1."""
        total = None
        if self.l1:
            l1 = jnp.asarray(self.l1, w.dtype)
            total = jnp.where(w >= 0, l1, -l1)
        if self.l2:
            l2 = jnp.asarray(self.l2, w.dtype) * w
            total = l2 if total is None else total + l2
        return jnp.zeros_like(w) if total is None else total


def _factor(function: str, argument: str, value: Any) -> float:
    found, problem = check.number(value, low=0, finite=True)
    if problem:
        refuse(ArgumentError, f"regularizers.{function}: {argument} {problem}")
    return found


@shows_user_frames
def l1(l: float = 0.01) -> L1L2:  # noqa: E741 - OneFlow's name
    """Adds l * sign(w) to the gradient of w.

    Args:
      l: >= 0.
    Raises: ArgumentError.
    Example: >>> flow.layers.dense(x, 10, kernel_regularizer=flow.regularizers.l1(1e-4))
    """
    return L1L2(_factor("l1", "l", l), 0.0)


@shows_user_frames
def l2(l: float = 0.01) -> L1L2:  # noqa: E741 - OneFlow's name
    """Adds l * w to the gradient of w: the penalty l / 2 * sum(w**2).

    Args:
      l: >= 0.
    Raises: ArgumentError.
    Example: >>> flow.layers.dense(x, 10, kernel_regularizer=flow.regularizers.l2(5e-4))
    """
    return L1L2(0.0, _factor("l2", "l", l))


@shows_user_frames
def l1_l2(l1: float = 0.01, l2: float = 0.01) -> L1L2:
    """Adds l1 * sign(w) + l2 * w to the gradient of w.

    Args:
      l1, l2: >= 0.
    Raises: ArgumentError.
    Example: >>> flow.layers.dense(x, 10, kernel_regularizer=flow.regularizers.l1_l2(1e-5, 1e-4))
    """
    return L1L2(_factor("l1_l2", "l1", l1), _factor("l1_l2", "l2", l2))


def from_message(value: Any) -> Any:
    """A ``RegularizerConf`` message as the regularizer that it describes; anything else as it is."""
    return l1_l2(value.l1_l2_conf.l1, value.l1_l2_conf.l2) if check.is_message(value, "RegularizerConf") else value
