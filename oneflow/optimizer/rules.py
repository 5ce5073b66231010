"""The update rules. In the formulas x is a variable, g its gradient, lr the rate, wd the decoupled weight decay.

wd is zero in the classes without ``weight_decay``, unless the dict form has one. The fields of each class are OneFlow's arguments
in OneFlow's order, which differs from class to class; so each class lists all of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from .._base.jax import jnp, lax
from ..graph.graph import Variable
from ..graph.op import FusedRule
from . import _check
from ._grad_clipping import ClipGradientConf
from ._loss_scale import LossScalePolicy
from .base import Optimizer, Slot, slot_dtype
from .schedules import LrScheduler

Variables = Sequence[str] | Callable[[], Sequence[str]]
Patterns = str | Sequence[str]
Result = tuple[Any, dict[str, Any]]


class _Momentum(Optimizer):
    """The rule of ``SGD`` and ``SGDW``."""

    row_sparse = True
    momentum: float | None

    def __post_init__(self) -> None:
        if self.momentum is not None:
            self.momentum = _check.number(type(self).__name__, "momentum", self.momentum, low=0.0)
        self.momentum = self.momentum or 0.0
        self.suffixes = ("momentum",) if self.momentum else ()
        super().__post_init__()

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        if not self.momentum:
            return x - lr * (g + wd * x if wd else g), {}
        m = self.momentum * slots["momentum"] - lr * g
        moved = x + m
        return moved - lr * wd * x if wd else moved, {"momentum": m}

    def fused(self) -> FusedRule | None:
        """The rule for the native part."""
        return FusedRule("momentum", ("momentum",), (self.momentum,)) if self.momentum else FusedRule("sgd", (), ())

    def _rule_conf(self) -> dict[str, Any]:
        return {"momentum_conf": {"beta": self.momentum}} if self.momentum else {"naive_conf": {}}


@dataclass(repr=False)
class SGD(_Momentum):
    """Gradient descent, with momentum unless that is 0 or None.

    momentum == 0: x <- x - lr * g. Otherwise: m <- momentum * m - lr * g; x <- x + m. The buffer, variable
    ``<x>-momentum``, holds a step, so a changing rate acts on new gradients only.

    Args:
      lr_scheduler: the learning rate: a number >= 0, or one of the schedules of ``flow.optimizer``.
      loss_scale_factor: a static loss scale; see ``flow.optimizer.loss_scale``.
      momentum: >= 0; None means 0. Its default is neither.
      grad_clipping: one of ``flow.optimizer.grad_clipping``.
      train_step_lbn: name of an int64 Blob of shape (1,) that counts the steps instead of the library.
      loss_scale_policy: one of ``flow.optimizer.loss_scale``, instead of ``loss_scale_factor``.
      variables: names of the variables to update, or a function that returns them; None for all on which the loss depends.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example:
      >>> flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    loss_scale_factor: float | None = None
    momentum: float | None = 0.9
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None


@dataclass(repr=False)
class SGDW(_Momentum):
    """SGD with decoupled weight decay.

    momentum == 0: x <- x - lr * (g + wd * x). Otherwise: m <- momentum * m - lr * g; x <- x + m - lr * wd * x, with the old
    x on the right. Source: Loshchilov, Hutter 2019, "Decoupled Weight Decay Regularization".

    Args: those of ``SGD``, and
      weight_decay: wd >= 0; None for none.
      weight_decay_includes: regular expressions; only variables decay in whose full name one is found.
      weight_decay_excludes: regular expressions; variables do not decay in whose full name one is found.
    Raises:
      ArgumentError: an argument of another type or outside its range; includes and excludes both given.
    Example:
      >>> schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
      >>> flow.optimizer.SGDW(schedule, weight_decay=1e-4, weight_decay_excludes=["bias"]).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    loss_scale_factor: float | None = None
    momentum: float | None = 0.9
    weight_decay: float | None = None
    weight_decay_includes: Patterns | None = None
    weight_decay_excludes: Patterns | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None


class _Moments(Optimizer):
    """The rule of ``Adam``, ``AdamW`` and ``LazyAdam``; ``LAMB`` has the same moments."""

    beta1: float
    beta2: float
    epsilon: float
    do_bias_correction: bool
    suffixes: tuple[str, ...] = ("m", "v")
    row_sparse = True
    conf_key: ClassVar[str] = "adam_conf"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        self.beta1 = _check.number(owner, "beta1", self.beta1, low=0.0, below=1.0)
        self.beta2 = _check.number(owner, "beta2", self.beta2, low=0.0, below=1.0)
        self.epsilon = _check.number(owner, "epsilon", self.epsilon, low=0.0)
        self.do_bias_correction = _check.flag(owner, "do_bias_correction", self.do_bias_correction)
        super().__post_init__()

    def moments(self, g: Any, slots: dict[str, Any]) -> tuple[Any, Any]:
        """The new first and second moments of the gradient ``g``."""
        m = self.beta1 * slots["m"] + (1.0 - self.beta1) * g
        v = self.beta2 * slots["v"] + (1.0 - self.beta2) * lax.square(g)
        return m, v

    def effective_rate(self, lr: Any, step: Any) -> Any:
        if not self.do_bias_correction:
            return lr
        t = (step + 1).astype(jnp.float64)
        correction = jnp.sqrt(1.0 - jnp.power(self.beta2, t)) / (1.0 - jnp.power(self.beta1, t))
        return (lr.astype(jnp.float64) * correction).astype(jnp.float32)

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        m, v = self.moments(g, slots)
        direction = m / (jnp.sqrt(v) + self.epsilon)
        return x - lr * (direction + wd * x if wd else direction), {"m": m, "v": v}

    def fused(self) -> FusedRule | None:
        """The rule for the native part."""
        return FusedRule("adam", ("m", "v"), (self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.epsilon))

    def _rule_conf(self) -> dict[str, Any]:
        conf: dict[str, Any] = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        if self.conf_key == "adam_conf":
            conf["do_bias_correction"] = self.do_bias_correction
        return {self.conf_key: conf}


@dataclass(repr=False)
class Adam(_Moments):
    """Adam. Note that bias correction is off by default.

    m <- beta1 * m + (1 - beta1) * g; v <- beta2 * v + (1 - beta2) * g^2; x <- x - lr' * m / (sqrt(v) + epsilon), with
    lr' = lr, or where ``do_bias_correction`` lr' = lr * sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)) and t the step. Epsilon
    is added to the uncorrected root. State: ``<x>-m``, ``<x>-v``.
    Source: Kingma, Ba 2015, "Adam: A Method for Stochastic Optimization", the form at the end of its section 2.

    Args: those of ``SGD``, except
      beta1, beta2: in [0, 1).
      epsilon: >= 0.
      do_bias_correction: whether the first steps are corrected for the zeros that m and v start with.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example:
      >>> flow.optimizer.Adam(flow.optimizer.CosineScheduler(1e-3, 1000), do_bias_correction=True).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    do_bias_correction: bool = False
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None


@dataclass(repr=False)
class AdamW(_Moments):
    """Adam with decoupled weight decay: x <- x - lr' * (m / (sqrt(v) + epsilon) + wd * x), everything else is that of ``Adam``.

    Source: Loshchilov, Hutter 2019, "Decoupled Weight Decay Regularization".

    Args: those of ``Adam``, and ``weight_decay``, ``weight_decay_includes``, ``weight_decay_excludes`` of ``SGDW``.
    Raises:
      ArgumentError: an argument of another type or outside its range; includes and excludes both given.
    Example:
      >>> schedule = flow.optimizer.CosineScheduler(1e-3, 1000)
      >>> flow.optimizer.AdamW(schedule, weight_decay=0.01, weight_decay_excludes=["bias", "gamma", "beta"]).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    do_bias_correction: bool = False
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns | None = None
    weight_decay_excludes: Patterns | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None


@dataclass(repr=False)
class LazyAdam(_Moments):
    """Adam with bias correction always on. All rows of a variable are updated at each step.

    Args: those of ``Adam``, without ``do_bias_correction``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> flow.optimizer.LazyAdam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None

    do_bias_correction = True
    conf_key = "lazy_adam_conf"


@dataclass(repr=False)
class RMSProp(Optimizer):
    """RMSProp, with epsilon inside the root.

    s <- decay_rate * s + (1 - decay_rate) * g^2; x <- x - lr * g / sqrt(s + epsilon). Where ``centered``, also
    a <- decay_rate * a + (1 - decay_rate) * g, and s - a^2 (at least 0) replaces s in the root.
    State: ``<x>-mean_square`` and, where centered, ``<x>-mean_gradient``.
    Source: Hinton, lecture 6e of "Neural Networks for Machine Learning"; centered: Graves 2013, arXiv:1308.0850.

    Args: those of ``SGD``, except
      decay_rate: in [0, 1).
      epsilon: >= 0.
      centered: whether the gradient's variance is used instead of its mean square.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> flow.optimizer.RMSProp(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), centered=True).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    decay_rate: float = 0.99
    epsilon: float = 1e-8
    centered: bool = False
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None

    def __post_init__(self) -> None:
        self.decay_rate = _check.number("RMSProp", "decay_rate", self.decay_rate, low=0.0, below=1.0)
        self.epsilon = _check.number("RMSProp", "epsilon", self.epsilon, low=0.0)
        self.centered = _check.flag("RMSProp", "centered", self.centered)
        self.suffixes = ("mean_square", "mean_gradient") if self.centered else ("mean_square",)
        super().__post_init__()

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        s = self.decay_rate * slots["mean_square"] + (1.0 - self.decay_rate) * lax.square(g)
        if not self.centered:
            return x - lr * g / jnp.sqrt(s + self.epsilon), {"mean_square": s}
        a = self.decay_rate * slots["mean_gradient"] + (1.0 - self.decay_rate) * g
        variance = jnp.maximum(s - lax.square(a), 0.0)  # rounding may leave it below zero
        return x - lr * g / jnp.sqrt(variance + self.epsilon), {"mean_square": s, "mean_gradient": a}

    def _rule_conf(self) -> dict[str, Any]:
        return {"rmsprop_conf": {"decay_rate": self.decay_rate, "epsilon": self.epsilon, "centered": self.centered}}


class _Lars(Optimizer):
    """What ``LARS`` has in all releases."""

    momentum_beta: float
    epsilon: float
    lars_coefficient: float
    suffixes = ("momentum",)

    def __post_init__(self) -> None:
        for name in ("momentum_beta", "epsilon", "lars_coefficient"):
            setattr(self, name, _check.number("LARS", name, getattr(self, name), low=0.0))
        super().__post_init__()

    def _rule_conf(self) -> dict[str, Any]:
        names = ("momentum_beta", "epsilon", "lars_coefficient")
        return {"lars_conf": {name: getattr(self, name) for name in names}}


@dataclass(repr=False)
class LARS(_Lars):
    """Momentum, with a separate rate for each variable.

    q = lr * lars_coefficient * |x| / (epsilon + |g| + wd * |x|), without the term of wd at step 0;
    m <- momentum_beta * m - q * (g + wd * x); x <- x + m. |.| is the 2-norm over the whole variable. Consequently a variable
    that is all zeros stays zero: give biases another initializer, or another optimizer by ``CombinedOptimizer``.
    State: ``<x>-momentum``. Source: You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks".

    Args: those of ``SGD``, except
      momentum_beta: >= 0.
      epsilon: >= 0.
      lars_coefficient: >= 0.
      weight_decay, weight_decay_includes, weight_decay_excludes: those of ``SGDW``, by keyword only.
    Raises:
      ArgumentError: an argument of another type or outside its range; includes and excludes both given.
    Example: >>> flow.optimizer.LARS(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum_beta=0.9).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    momentum_beta: float = 0.9
    epsilon: float = 1e-9
    lars_coefficient: float = 0.0001
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None
    _: KW_ONLY
    weight_decay: float | None = None
    weight_decay_includes: Patterns | None = None
    weight_decay_excludes: Patterns | None = None

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        x_norm = _norm(x)
        scale = self.epsilon + _norm(g)
        if wd:
            scale = jnp.where(step == 0, scale, scale + wd * x_norm)
            g = g + wd * x
        m = self.momentum_beta * slots["momentum"] - lr * self.lars_coefficient * x_norm / scale * g
        return x + m, {"momentum": m}


class _Lamb(_Moments):
    """What ``LAMB`` has in all releases."""

    row_sparse = False  # its rate comes from norms over the whole variable
    do_bias_correction = False  # by p1 and p2 instead of by the rate
    conf_key = "lamb_conf"

    def slots(self, variable: Variable) -> list[Slot]:
        """Both moments, and the powers of both betas, by which ``formula`` corrects their bias."""
        powers = [Slot(f"beta{i}_t", (1,), slot_dtype(variable), beta) for i, beta in ((1, self.beta1), (2, self.beta2))]
        return [*super().slots(variable), *powers]

    def fused(self) -> FusedRule | None:
        """None: the rate depends on norms of the whole variable."""
        return None

    def direction(self, m: Any, v: Any) -> Any:
        """The step's direction: Adam's, from the corrected moments."""
        raise NotImplementedError

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> Result:
        p1, p2 = slots["beta1_t"] * self.beta1, slots["beta2_t"] * self.beta2
        m, v = self.moments(g, slots)
        u = self.direction(m / (1.0 - p1.reshape(())), v / (1.0 - p2.reshape(())))
        x_norm, u_norm = _norm(x), _norm(u)
        r = jnp.where((x_norm > 0) & (u_norm > 0), x_norm / u_norm, jnp.ones_like(x_norm))
        return x - lr * r * (u + wd * x if wd else u), {"m": m, "v": v, "beta1_t": p1, "beta2_t": p2}


@dataclass(repr=False)
class LAMB(_Lamb):
    """Adam's direction, with a separate rate for each variable; epsilon is inside the root.

    p1 <- p1 * beta1; p2 <- p2 * beta2; m <- beta1 * m + (1 - beta1) * g; v <- beta2 * v + (1 - beta2) * g^2;
    u = m / (1 - p1) / sqrt(v / (1 - p2) + epsilon); r = |x| / |u| where both are > 0, else 1;
    x <- x - lr * r * (u + wd * x). |.| is the 2-norm over the whole variable. p1 and p2 start at beta1 and beta2, so the
    first step divides by 1 - beta^2, as in OneFlow. State: ``<x>-m``, ``<x>-v``, ``<x>-beta1_t``, ``<x>-beta2_t``.
    Source: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes".

    Args: those of ``Adam``, without ``do_bias_correction``, and
      weight_decay, weight_decay_includes, weight_decay_excludes: those of ``SGDW``, by keyword only.
    Raises:
      ArgumentError: an argument of another type or outside its range; includes and excludes both given.
    Example: >>> flow.optimizer.LAMB(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), beta2=0.99).minimize(loss)
    """

    lr_scheduler: LrScheduler | float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    loss_scale_factor: float | None = None
    grad_clipping: ClipGradientConf | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None
    variables: Variables | None = None
    _: KW_ONLY
    weight_decay: float | None = None
    weight_decay_includes: Patterns | None = None
    weight_decay_excludes: Patterns | None = None

    def direction(self, m: Any, v: Any) -> Any:
        return m / jnp.sqrt(v + self.epsilon)


def _norm(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(lax.square(x)))
