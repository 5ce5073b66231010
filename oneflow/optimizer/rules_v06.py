"""The optimizers of 0.6, as ``oneflow.compatible.single_client.optimizer`` has them: what differs from ``rules.py``.

All clip gradients first and add the gradients of regularizers then. x is a variable, g its gradient, lr the rate, wd the
decoupled weight decay, t the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._base.jax import jnp, lax
from ..graph.op import FusedRule
from . import rules
from ._grad_clipping import ClipGradientConf
from ._loss_scale import LossScalePolicy
from .rules import Patterns, Result, Variables
from .schedules import LrScheduler


class SGD(rules.SGD):
    """``oneflow.optimizer.SGD``. Gradients are clipped before regularizers are added."""

    clips_first = True


class SGDW(rules.SGDW):
    """``oneflow.optimizer.SGDW``. Gradients are clipped before regularizers are added."""

    clips_first = True


class RMSProp(rules.RMSProp):
    """``oneflow.optimizer.RMSProp``. Gradients are clipped before regularizers are added."""

    clips_first = True


class _CorrectedMoments(rules._Moments):
    """The rule of ``Adam``, ``AdamW`` and ``LazyAdam`` since 0.5.

    c1 = 1 - beta1^(t+1), c2 = 1 - beta2^(t+1), both 1 without bias correction;
    x <- x - lr / c1 * m / (sqrt(v) / sqrt(c2) + epsilon) - lr * wd * x. With ``amsgrad``, which the dict form alone has, the
    largest v so far replaces v in the root. State: ``<x>-m``, ``<x>-v``, and ``<x>-max_v``, which only amsgrad uses.
    """

    clips_first = True
    amsgrad = False
    suffixes = ("m", "v", "max_v")

    def effective_rate(self, lr: Any, step: Any) -> Any:
        return lr

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        m, v = self.moments(g, slots)
        max_v = lax.max(slots["max_v"], v) if self.amsgrad else slots["max_v"]
        root = jnp.sqrt(max_v if self.amsgrad else v)
        rate = lr
        if self.do_bias_correction:
            rate, scale = self._corrections(lr, step, x.dtype)
            root = root * scale
        moved = x - rate * m / (root + self.epsilon)
        return moved - lr * wd * x if wd else moved, {"m": m, "v": v, "max_v": max_v}

    def _corrections(self, lr: Any, step: Any, dtype: Any) -> tuple[Any, Any]:
        """lr / c1 and 1 / sqrt(c2)."""
        t = (step + 1).astype(jnp.float64)
        rate = (lr.astype(jnp.float64) / (1.0 - jnp.power(self.beta1, t))).astype(dtype)
        return rate, (1.0 / jnp.sqrt(1.0 - jnp.power(self.beta2, t))).astype(dtype)

    def fused(self) -> FusedRule | None:
        """The rule for the native part; None with amsgrad."""
        return None if self.amsgrad else super().fused()

    def fused_scalars(self, lr: Any, step: Any, weight_decay: float) -> tuple[Any, Any, Any]:
        """``rate`` and ``root`` with bias correction, ``decay`` without."""
        rate, root, decay = super().fused_scalars(lr, step, weight_decay)
        return (*self._corrections(lr, step, jnp.float32), decay) if self.do_bias_correction else (rate, root, decay)

    def _rule_conf(self) -> dict[str, Any]:
        names = ("beta1", "beta2", "epsilon", "do_bias_correction", "amsgrad")
        return {self.conf_key: {name: getattr(self, name) for name in names}}


class Adam(_CorrectedMoments, rules.Adam):
    """Adam; epsilon is outside the corrected root. Bias correction is off by default.

    c1 = 1 - beta1^(t+1), c2 = 1 - beta2^(t+1), both 1 without bias correction;
    x <- x - lr / c1 * m / (sqrt(v) / sqrt(c2) + epsilon). State: ``<x>-m``, ``<x>-v``, ``<x>-max_v``.

    Args: those of ``oneflow.optimizer.Adam``.
    """


class AdamW(_CorrectedMoments, rules.AdamW):
    """Adam with decoupled weight decay, which is not bias-corrected: ``- lr * wd * x``.

    Args: those of ``oneflow.optimizer.AdamW``.
    """


class LazyAdam(_CorrectedMoments, rules.LazyAdam):
    """Adam with bias correction always on.

    Args: those of ``oneflow.optimizer.LazyAdam``.
    """


@dataclass(repr=False)
class LARS(rules._Lars):
    """Momentum, with a separate rate for each variable.

    q = lr * lars_coefficient * |x| / (epsilon + |g| + wd * |x|) where both norms are > 0, else lr;
    m <- momentum_beta * m - q * g; x <- x + m - q * wd * x. |.| is the 2-norm. State: ``<x>-momentum``.

    Args: those of ``oneflow.optimizer.LARS``; ``weight_decay`` and its patterns come before ``grad_clipping``.
    """

    lr_scheduler: LrScheduler | float
    momentum_beta: float = 0.9
    epsilon: float = 1e-9
    lars_coefficient: float = 0.0001
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns | None = None
    weight_decay_excludes: Patterns | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None

    clips_first = True

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        x_norm, g_norm = rules._norm(x), rules._norm(g)
        local = lr * self.lars_coefficient * x_norm / (self.epsilon + g_norm + wd * x_norm)
        q = jnp.where((x_norm > 0) & (g_norm > 0), local, lr)
        m = self.momentum_beta * slots["momentum"] - q * g
        return x + m - q * wd * x if wd else x + m, {"momentum": m}


@dataclass(repr=False)
class LAMB(rules._Lamb):
    """Adam's direction, with a separate rate for each variable; epsilon is outside the root.

    The rule of ``oneflow.optimizer.LAMB`` with u = m / (1 - p1) / (sqrt(v / (1 - p2)) + epsilon).

    Args: those of ``oneflow.optimizer.LAMB``; ``weight_decay`` and its patterns come before ``grad_clipping``.
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns | None = None
    weight_decay_excludes: Patterns | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None

    clips_first = True

    def direction(self, m: Any, v: Any) -> Any:
        return m / (jnp.sqrt(v) + self.epsilon)
