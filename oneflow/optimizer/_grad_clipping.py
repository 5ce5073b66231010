"""Rules for clipping gradients: ``flow.optimizer.grad_clipping``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._base.jax import jnp, lax
from . import _check


class ClipGradientConf:
    """A rule over the gradients of all variables that one optimizer updates.

    It has two steps, because the gradients may be on different devices: measurements of several devices are added up.
    """

    def measure(self, grads: Sequence[Any]) -> Any:
        """The contribution of these gradients to the measurement over all gradients: a scalar."""
        raise NotImplementedError

    def factor(self, measured: Any) -> Any:
        """The number that all gradients are multiplied by: a scalar."""
        raise NotImplementedError

    def scaled(self, grads: Sequence[Any], measured: Any) -> list[Any]:
        """The clipped gradients, in the same order, shapes and dtypes."""
        factor = self.factor(measured)
        return [g * factor.astype(g.dtype) for g in grads]

    def clip(self, grads: Sequence[Any]) -> list[Any]:
        """The clipped gradients, where ``grads`` are all gradients."""
        return self.scaled(grads, self.measure(grads))

    @property
    def clip_conf(self) -> dict[str, Any]:
        """The rule in the dict form."""
        raise NotImplementedError


@dataclass(frozen=True)
class by_global_norm(ClipGradientConf):
    """Scales all gradients by ``clip_norm / max(norm, clip_norm)``, with norm = sqrt(sum of squares of all gradients).

    Gradients whose norm is at most ``clip_norm`` do not change. The norm includes regularizers, but not decoupled weight
    decay. Source: Pascanu, Mikolov, Bengio 2013, "On the difficulty of training recurrent neural networks".

    Args:
      clip_norm: number > 0.
    Raises:
      ArgumentError: ``clip_norm`` is not a positive number.
    Example:
      >>> adam = flow.optimizer.Adam(schedule, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0))
    """

    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", _check.number("by_global_norm", "clip_norm", self.clip_norm, above=0.0))

    def measure(self, grads: Sequence[Any]) -> Any:
        """The sum of squares of these gradients: a scalar."""
        squares = [_sum_of_squares(g) for g in grads]
        wide = jnp.float64 if any(s.dtype == jnp.float64 for s in squares) else jnp.float32
        total = squares[0].astype(wide)
        for square in squares[1:]:
            total = total + square.astype(wide)
        return total

    def factor(self, measured: Any) -> Any:
        """1, or less where the global norm exceeds ``clip_norm``."""
        return self.clip_norm / jnp.maximum(jnp.sqrt(measured), self.clip_norm)

    @property
    def clip_conf(self) -> dict[str, Any]:
        """The rule in the dict form."""
        return {"clip_by_global_norm": {"clip_norm": self.clip_norm}}


def _sum_of_squares(g: Any) -> Any:
    if g.dtype.itemsize < 4:  # squares of 16-bit numbers leave their range
        g = g.astype(jnp.float32)
    return jnp.sum(lax.square(g))
