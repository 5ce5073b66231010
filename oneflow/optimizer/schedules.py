"""Learning-rate schedules: the rate as a function of the step, which is the number of earlier calls of the job.

Each formula is written once and computed in float64, on a scalar of NumPy (``value``) or of JAX (inside a job); a job rounds it
to float32. A warm-up, where there is one, replaces the formula while ``step < warmup.steps`` and does not shift it.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from .._base.jax import jnp
from .._base.refuse import shown
from .._base.terse_repr import terse_repr
from . import _check
from ._warmup import WarmupConf


class LrScheduler:
    """A learning-rate schedule. A subclass defines ``base_rate`` and ``decayed``."""

    warmup: WarmupConf | None = None
    conf_key: ClassVar[str] = ""

    def base_rate(self) -> float:
        """The rate at which a warm-up ends."""
        return self.base_lr  # type: ignore[attr-defined]

    @property
    def constant(self) -> float | None:
        """The rate if it is the same at every step, else None."""
        return None

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up.

        Args:
          step: int64 scalar, >= 0.
          xp: the module to compute with, ``numpy`` or ``jax.numpy``.
        Returns: a float64 scalar, or a Python float.
        """
        raise NotImplementedError

    def value(self, step: int) -> float:
        """The rate at ``step``, computed by NumPy, for plots and tests.

        Args:
          step: int >= 0.
        Returns: the rate in float64; a job uses it rounded to float32.
        Raises:
          ArgumentError: ``step`` is not an int >= 0.
        Example:
          >>> rates = [schedule.value(step) for step in range(1000)]
        """
        step = _check.integer(f"{type(self).__name__}.value", "step", step, low=0)
        with np.errstate(all="ignore"):
            return float(self._rate(np.int64(step), np))

    def learning_rate(self, step: Any) -> Any:
        """The rate at ``step`` inside a job: int64 scalar array -> float32 scalar array."""
        return self._rate(step, jnp).astype(jnp.float32)

    def _rate(self, step: Any, xp: Any) -> Any:
        rate = xp.asarray(self.decayed(step, xp), xp.float64)
        if self.warmup is None or self.warmup.steps == 0:
            return rate
        warming = self.warmup.rate(self.base_rate(), step.astype(xp.float64))
        return xp.where(step < self.warmup.steps, warming, rate)

    @property
    def learning_rate_decay_conf(self) -> dict[str, Any] | None:
        """The decay in the dict form."""
        return {self.conf_key: self._conf_fields()}

    @property
    def warmup_conf(self) -> dict[str, Any] | None:
        """The warm-up in the dict form."""
        return None if self.warmup is None else self.warmup.warmup_conf

    def SetLrFieldsInTrainConf(self, train_conf: MutableMapping[str, Any]) -> None:
        """Writes the schedule into a dict like ``Optimizer.train_conf``."""
        _check.mutable_mapping("SetLrFieldsInTrainConf", "train_conf", train_conf)
        train_conf["primary_lr"] = self.base_rate()
        update = train_conf.setdefault("model_update_conf", {})
        if self.learning_rate_decay_conf is not None:
            update["learning_rate_decay"] = self.learning_rate_decay_conf
        if self.warmup_conf is not None:
            update["warmup_conf"] = self.warmup_conf

    def _conf_fields(self) -> dict[str, Any]:
        return {conf_name(f.name): getattr(self, f.name) for f in fields(self) if f.name not in ("base_lr", "warmup")}  # type: ignore[arg-type]

    def _number(self, name: str, **limits: float | None) -> None:
        object.__setattr__(self, name, _check.number(type(self).__name__, name, getattr(self, name), **limits))

    def _decay_fields(self) -> None:
        """Checks the arguments that every decay has."""
        self._number("base_lr")
        object.__setattr__(self, "steps", _check.integer(type(self).__name__, "steps", self.steps, low=1))  # type: ignore[attr-defined]
        self._check_warmup()

    def _check_warmup(self) -> None:
        if self.warmup is not None and not isinstance(self.warmup, WarmupConf):
            rule = f"warmup must be one of flow.optimizer.warmup, got {shown(self.warmup)}"
            _check.bad(type(self).__name__, rule, "warmup=flow.optimizer.warmup.linear(steps=100, start_multiplier=0)")

    def __repr__(self) -> str:
        return terse_repr(self)


def conf_name(argument: str) -> str:
    """The name of an argument of a schedule in the dict form."""
    return {"steps": "decay_batches", "scale": "scales"}.get(argument, argument)


def _select(boundaries: Sequence[int], values: Sequence[float], step: Any, xp: Any) -> Any:
    """``values[i]`` for the first i with ``step <= boundaries[i]``, the last value where there is none."""
    if not boundaries:
        return values[0]
    index = xp.sum(step > xp.asarray(boundaries, xp.int64), dtype=xp.int32)
    return xp.asarray(values, xp.float64)[index]


def _numbers(owner: str, name: str, given: Any) -> tuple[float, ...]:
    values = _check.sequence(owner, name, given, "numbers")
    return tuple(_check.number(owner, f"{name}[{i}]", value) for i, value in enumerate(values))


@dataclass(frozen=True, repr=False)
class PiecewiseConstantScheduler(LrScheduler):
    """``values[i]`` for the first i with ``step <= boundaries[i]``, and the last value afterwards.

    A constant rate is ``PiecewiseConstantScheduler([], [rate])``. A warm-up ends at ``values[0]``.

    Args:
      boundaries: steps, ascending; a boundary itself still belongs to the earlier piece.
      values: learning rates, one more than boundaries; with negative ones the loss is maximized.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: wrong lengths, order or types.
    Example:
      >>> schedule = flow.optimizer.PiecewiseConstantScheduler([1000, 2000], [0.1, 0.01, 0.001])
    """

    boundaries: Sequence[int]
    values: Sequence[float]
    warmup: WarmupConf | None = None

    conf_key = "piecewise_constant_conf"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        boundaries = _check.boundaries(owner, self.boundaries)
        values = _numbers(owner, "values", self.values)
        if len(values) != len(boundaries) + 1:
            rule = f"there must be one value more than boundaries, got {len(values)} values and {len(boundaries)} boundaries"
            _check.bad(owner, rule, "PiecewiseConstantScheduler([100, 200], [0.1, 0.01, 0.001])")
        object.__setattr__(self, "boundaries", boundaries)
        object.__setattr__(self, "values", values)
        self._check_warmup()

    def base_rate(self) -> float:
        """The first value: the rate at which a warm-up ends."""
        return self.values[0]

    @property
    def constant(self) -> float | None:
        is_constant = not self.boundaries and (self.warmup is None or self.warmup.steps == 0)
        return self.values[0] if is_constant else None

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        return _select(self.boundaries, self.values, step, xp)

    def _conf_fields(self) -> dict[str, Any]:
        return {"boundaries": list(self.boundaries), "values": list(self.values)}


@dataclass(frozen=True, repr=False)
class PiecewiseScalingScheduler(LrScheduler):
    """``base_lr * scale[i - 1]`` after the i-th boundary, ``base_lr`` up to the first one.

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      boundaries: steps, ascending; a boundary itself still belongs to the earlier piece.
      scale: factors of ``base_lr`` (not of the piece before), one per boundary; a single number serves every boundary.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: wrong lengths, order or types.
    Example:
      >>> schedule = flow.optimizer.PiecewiseScalingScheduler(0.1, [1000, 2000], [0.1, 0.01])
    """

    base_lr: float
    boundaries: Sequence[int]
    scale: float | Sequence[float]
    warmup: WarmupConf | None = None

    conf_key = "piecewise_scaling_conf"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        self._number("base_lr")
        boundaries = _check.boundaries(owner, self.boundaries)
        if isinstance(self.scale, (list, tuple, np.ndarray)):
            scale = _numbers(owner, "scale", self.scale)
        else:
            scale = (_check.number(owner, "scale", self.scale),) * len(boundaries)
        if len(scale) != len(boundaries):
            rule = f"there must be one scale per boundary, got {len(scale)} scales and {len(boundaries)} boundaries"
            _check.bad(owner, rule, "PiecewiseScalingScheduler(0.1, [100, 200], [0.1, 0.01]), with 1 up to the first boundary")
        object.__setattr__(self, "boundaries", boundaries)
        object.__setattr__(self, "scale", scale)
        self._check_warmup()

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        scale: Any = self.scale
        return _select(self.boundaries, [self.base_lr, *(self.base_lr * s for s in scale)], step, xp)

    def _conf_fields(self) -> dict[str, Any]:
        scale: Any = self.scale
        return {"boundaries": list(self.boundaries), "scales": [1.0, *scale]}


@dataclass(frozen=True, repr=False)
class CosineScheduler(LrScheduler):
    """Half a cosine from ``base_lr`` down to ``alpha * base_lr`` at step ``steps``, constant afterwards.

    With c = min(step, steps): base_lr * ((1 - alpha) * 0.5 * (1 + cos(pi * c / steps)) + alpha).
    Source: Loshchilov, Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts".

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      steps: int > 0.
      alpha: the fraction of ``base_lr`` that remains, >= 0.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> schedule = flow.optimizer.CosineScheduler(0.1, steps=1000, alpha=0.01)
    """

    base_lr: float
    steps: int
    alpha: float = 0.0
    warmup: WarmupConf | None = None

    conf_key = "cosine_conf"

    def __post_init__(self) -> None:
        self._decay_fields()
        self._number("alpha", low=0.0)

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        c = xp.minimum(step, self.steps).astype(xp.float64)
        return self.base_lr * ((1.0 - self.alpha) * 0.5 * (1.0 + xp.cos(math.pi * c / self.steps)) + self.alpha)


@dataclass(frozen=True, repr=False)
class LinearCosineScheduler(LrScheduler):
    """A cosine under a falling line.

    With c = min(step, steps):
    base_lr * ((alpha + (steps - c) / steps) * 0.5 * (1 + cos(2 * pi * num_periods * c / steps)) + beta).
    Source: Bello, Zoph, Vasudevan, Le 2017, "Neural Optimizer Search with Reinforcement Learning".

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      steps: int > 0.
      num_periods: number of periods of the cosine within ``steps``.
      alpha, beta: numbers.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> schedule = flow.optimizer.LinearCosineScheduler(0.1, steps=1000)
    """

    base_lr: float
    steps: int
    num_periods: float = 0.5
    alpha: float = 0.0
    beta: float = 0.001
    warmup: WarmupConf | None = None

    conf_key = "linear_cosine_conf"

    def __post_init__(self) -> None:
        self._decay_fields()
        for name in ("num_periods", "alpha", "beta"):
            self._number(name)

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        c = xp.minimum(step, self.steps).astype(xp.float64)
        line = self.alpha + (self.steps - c) / self.steps
        wave = 0.5 * (1.0 + xp.cos(2.0 * math.pi * self.num_periods * c / self.steps))
        return self.base_lr * (line * wave + self.beta)


@dataclass(frozen=True, repr=False)
class PolynomialScheduler(LrScheduler):
    """From ``base_lr`` to ``end_learning_rate``, by a power of the remaining fraction of the steps.

    (base_lr - end) * (1 - c / d) ** power + end, with c = min(step, steps) and d = steps; where ``cycle``, c = max(step, 1)
    and d = steps * ceil(c / steps), so that the rate rises again after each ``steps``.

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      steps: int > 0.
      end_learning_rate: the rate from step ``steps`` on.
      power: >= 0.
      cycle: whether to start again after ``steps``.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> schedule = flow.optimizer.PolynomialScheduler(0.1, steps=1000, power=2.0)
    """

    base_lr: float
    steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    warmup: WarmupConf | None = None

    conf_key = "polynomial_conf"

    def __post_init__(self) -> None:
        self._decay_fields()
        self._number("end_learning_rate")
        self._number("power", low=0.0)
        object.__setattr__(self, "cycle", _check.flag(type(self).__name__, "cycle", self.cycle))

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        # XLA multiplies by the reciprocals of constants: no whole number and no 0 may depend on a quotient's last bit
        if self.cycle:
            c = xp.maximum(step, 1)
            d = self.steps * -(-c // self.steps)
        else:
            c, d = xp.minimum(step, self.steps), self.steps
        left = (d - c).astype(xp.float64) / d
        return (self.base_lr - self.end_learning_rate) * xp.power(left, self.power) + self.end_learning_rate


class PolynomialSchduler(PolynomialScheduler):
    """The old, misspelt name of PolynomialScheduler, kept for the programs that use it.

    Example: >>> schedule = flow.optimizer.PolynomialSchduler(0.1, steps=1000, power=2.0)
    """


@dataclass(frozen=True, repr=False)
class _Falling(LrScheduler):
    """A decay by ``decay_rate`` every ``steps`` steps; subclasses have its arguments, and a formula."""

    base_lr: float
    steps: int
    decay_rate: float
    staircase: bool = False
    warmup: WarmupConf | None = None

    lowest_rate: ClassVar[float | None] = 0.0

    def __post_init__(self) -> None:
        self._decay_fields()
        self._number("decay_rate", low=self.lowest_rate)
        object.__setattr__(self, "staircase", _check.flag(type(self).__name__, "staircase", self.staircase))

    def _periods(self, step: Any, xp: Any) -> Any:
        if self.staircase:
            return (step // self.steps).astype(xp.float64)
        return step.astype(xp.float64) / self.steps


class ExponentialScheduler(_Falling):
    """base_lr * decay_rate ** p, with p = step / steps, rounded down where ``staircase``.

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      steps: int > 0, in which the rate falls once by ``decay_rate``.
      decay_rate: >= 0.
      staircase: whether the rate falls only every ``steps`` steps.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> schedule = flow.optimizer.ExponentialScheduler(0.1, steps=1000, decay_rate=0.9)
    """

    conf_key = "exponential_conf"

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        return self.base_lr * xp.power(self.decay_rate, self._periods(step, xp))


class InverseTimeScheduler(_Falling):
    """base_lr / (1 + decay_rate * p), with p = step / steps, rounded down where ``staircase``.

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      steps: int > 0.
      decay_rate: >= 0.
      staircase: whether the rate falls only every ``steps`` steps.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> schedule = flow.optimizer.InverseTimeScheduler(0.1, steps=100, decay_rate=0.5)
    """

    conf_key = "inverse_time_conf"

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        return self.base_lr / (1.0 + self.decay_rate * self._periods(step, xp))


class NaturalExpScheduler(_Falling):
    """base_lr * exp(-decay_rate * p), with p = step / steps, rounded down where ``staircase``.

    Args:
      base_lr: learning rate; with a negative one the loss is maximized.
      steps: int > 0.
      decay_rate: a number; a negative one lets the rate grow.
      staircase: whether the rate falls only every ``steps`` steps.
      warmup: one of ``flow.optimizer.warmup``.
    Raises:
      ArgumentError: an argument of another type or outside its range.
    Example: >>> schedule = flow.optimizer.NaturalExpScheduler(0.1, steps=100, decay_rate=0.5)
    """

    conf_key = "natural_exp_conf"
    lowest_rate = None

    def decayed(self, step: Any, xp: Any) -> Any:
        """The rate at ``step`` without warm-up."""
        return self.base_lr * xp.exp(-self.decay_rate * self._periods(step, xp))


@dataclass(frozen=True, repr=False)
class CustomScheduler(LrScheduler):
    """The learning rate is the value of a Blob of the job, for example of an input.

    Args:
      lbn: the Blob's ``logical_blob_name``; float32, shape (1,).
    Raises:
      ArgumentError: ``lbn`` is not the name of a Blob.
    Example:
      >>> @flow.global_function(type="train")
      ... def step(x: tp.Numpy.Placeholder((8, 4)), rate: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
      ...     loss = flow.math.reduce_mean(flow.layers.dense(x, 1, name="dense"))
      ...     schedule = flow.optimizer.CustomScheduler(rate.logical_blob_name)
      ...     flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
      ...     return loss
    """

    lbn: str

    def __post_init__(self) -> None:
        _check.lbn("CustomScheduler", "lbn", self.lbn)

    def _refuse(self) -> Any:
        _check.bad("CustomScheduler", f"the rate is the value of Blob {self.lbn!r} in each call; there is no formula")

    def base_rate(self) -> float:
        """Raises an error: only the job knows the rate."""
        return self._refuse()

    def decayed(self, step: Any, xp: Any) -> Any:
        """Raises an error: only the job knows the rate."""
        return self._refuse()

    @property
    def learning_rate_decay_conf(self) -> None:
        """None: a function has no dict form."""
        return None

    def SetLrFieldsInTrainConf(self, train_conf: MutableMapping[str, Any]) -> None:
        """Writes the name of the Blob into a dict like ``Optimizer.train_conf``."""
        _check.mutable_mapping("SetLrFieldsInTrainConf", "train_conf", train_conf)
        train_conf["primary_lr_lbn"] = self.lbn


SCHEDULES: tuple[type[LrScheduler], ...] = (
    PiecewiseConstantScheduler, PiecewiseScalingScheduler, CosineScheduler, LinearCosineScheduler, PolynomialScheduler,
    ExponentialScheduler, InverseTimeScheduler, NaturalExpScheduler,
)  # fmt: skip
