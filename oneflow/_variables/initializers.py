"""Initializers, which make the first values of variables. An initializer is an immutable value with equality and a repr.

Values are drawn in float64 from the generator that is passed in, some at a time, and cast to the variable's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .._base import check
from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.frames import shows_user_frames
from .._base.refuse import closest, refuse, shown
from .._base.threads import end_if_abandoned
from ..errors import ArgumentError

_TRUNCATED_STD = 0.87962566103423978  # the standard deviation of a standard normal that is cut at +-2
_FLOATING = {"float16", "bfloat16", "float32", "float64"}
_INTEGERS = {"int8", "uint8", "int32", "int64"}


_CHUNK = 1 << 16  # numbers that are drawn at a time: they stay in the cache, and take no memory to speak of

Draw = Callable[[int], np.ndarray]


def _filled(shape: tuple[int, ...], dtype: np.dtype, draw: Draw) -> np.ndarray:
    """An array of numbers that ``draw`` gives, so many at a time."""
    made = np.empty(shape, dtype)
    for _, part in _chunks(made):
        part[...] = draw(part.size)
    return made


def _chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        end_if_abandoned()
        yield begin, flat[begin : begin + _CHUNK]


def _normal(rng: np.random.Generator, factor: float, offset: float) -> Draw:
    return lambda count: _scaled(rng.standard_normal(count), factor, offset)


def _truncated(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator, factor: float, offset: float) -> np.ndarray:
    """Standard normals, those outside (-2, 2) drawn again after all others, times ``factor``, plus ``offset``."""
    made, outside = np.empty(shape, dtype), [np.empty(0, np.int64)]
    for begin, part in _chunks(made):
        drawn = rng.standard_normal(part.size)
        outside.append(begin + np.flatnonzero(np.abs(drawn) >= 2.0))
        part[...] = _scaled(drawn, factor, offset)
    flat, rejected = made.reshape(-1), np.concatenate(outside)
    while rejected.size:  # 4.6 % remain each time, so this costs little more than the first draw
        drawn = rng.standard_normal(rejected.size)
        remaining = rejected[np.abs(drawn) >= 2.0]
        flat[rejected] = _scaled(drawn, factor, offset)
        rejected = remaining
    return made


def _scaled(values: np.ndarray, factor: float, offset: float) -> np.ndarray:
    values *= factor
    if offset:
        values += offset
    return values


@dataclass(frozen=True, slots=True)
class Constant:
    """One value everywhere."""

    value: float

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value."""
        return self.value, self.value

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return np.full(shape, np.asarray(self.value).astype(dtype))


@dataclass(frozen=True, slots=True)
class Empty:
    """No particular value; for variables that are loaded or assigned before they are read. Here: zeros."""

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(shape, dtype)


@dataclass(frozen=True, slots=True)
class RandomUniform:
    """Uniform on [low, high]."""

    low: float
    high: float

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _filled(shape, dtype, lambda count: rng.uniform(self.low, self.high, count))


@dataclass(frozen=True, slots=True)
class RandomInteger:
    """Whole numbers low, ..., high - 1, equally likely."""

    low: int
    high: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return self.low, max(self.high - 1, self.low)

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _filled(shape, dtype, lambda count: rng.integers(*self.bounds, count, endpoint=True))


@dataclass(frozen=True, slots=True)
class RandomNormal:
    """Normal with this mean and standard deviation."""

    mean: float
    stddev: float

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _filled(shape, dtype, _normal(rng, self.stddev, self.mean))


@dataclass(frozen=True, slots=True)
class TruncatedNormal:
    """Normal, redrawn until it is less than two standard deviations from the mean."""

    mean: float
    stddev: float

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return _truncated(shape, dtype, rng, self.stddev, self.mean)


@dataclass(frozen=True, slots=True)
class VarianceScaling:
    """Zero mean, and a variance of ``scale / fan``, so that a layer keeps the scale of its input."""

    scale: float
    mode: str
    distribution: str
    data_format: str = ""

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        variance = self.scale / max(fan(shape, self.mode, self.data_format), 1.0)
        if self.distribution == "random_uniform":
            limit = math.sqrt(3.0 * variance)
            return _filled(shape, dtype, lambda count: rng.uniform(-limit, limit, count))
        if self.distribution == "random_normal":
            return _filled(shape, dtype, _normal(rng, math.sqrt(variance), 0.0))
        return _truncated(shape, dtype, rng, math.sqrt(variance) / _TRUNCATED_STD, 0.0)


@dataclass(frozen=True, slots=True)
class Range:
    """start, start + stride, ... along one axis, the same along the others."""

    start: float
    stride: float
    axis: int

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        axis = self.axis % len(shape)
        steps = self.start + self.stride * np.arange(shape[axis])
        column = steps.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return np.broadcast_to(column, shape).astype(dtype)


def fan(shape: Sequence[int], mode: str, data_format: str) -> float:
    """The number of inputs of one output of a weight of this shape ("fan_in"), the reverse ("fan_out"), or their mean.

    Weights have their outputs on axis 0. Channels-first formats ("", "NCHW", ...) have the inputs on axis 1,
    channels-last ones on the last axis; the axes between are a kernel's.
    """
    fan_in = math.prod(shape[1:])
    kernel = shape[1:-1] if data_format and not data_format.startswith("NC") else shape[2:]
    fan_out = math.prod(kernel) * (shape[0] if shape else 1)
    return {"fan_in": float(fan_in), "fan_out": float(fan_out), "fan_avg": (fan_in + fan_out) / 2}[mode]


# --- the public functions

_FORMATS = ("", "NC", "NCW", "NWC", "NCHW", "NHWC", "NCDHW", "NDHWC")


def _refuse(function: str, rule: str, hint: str = "") -> NoReturn:
    refuse(ArgumentError, f"{function}: {rule}", hint=hint)


def _number(function: str, argument: str, value: Any, *, at_least: float | None = None) -> float:
    found, problem = check.number(value, low=at_least)
    if problem:
        _refuse(function, f"{argument} {problem}")
    if math.isinf(found) and isinstance(value, int):
        _refuse(function, f"{argument} is outside float64's range: {shown(value)}")
    return int(value) if isinstance(value, (int, np.integer)) and math.isfinite(found) else found


def _choice(function: str, argument: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        _refuse(function, f"{argument} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")
    return value


def _kind(function: str, value: Any) -> str:
    """ "float" or "int"; a bool is 0 or 1."""
    if value is dtypes.bool:
        return "int"
    if isinstance(value, dtypes.dtype) and value.name in _FLOATING | _INTEGERS:
        return "float" if value.name in _FLOATING else "int"
    refuse(_NotAnElementType, f"{function}: dtype must be a floating or integer dtype such as flow.float32, got {shown(value)}")


class _NotAnElementType(ArgumentError, NotImplementedError):
    """OneFlow raised NotImplementedError for a dtype without an initializer."""


@shows_user_frames
def constant_initializer(value: float = 0, dtype: dtype = dtypes.float32) -> Constant:
    """One value everywhere.

    Args:
      value: a number; its fraction is dropped where ``dtype`` is an integer type.
      dtype: the kind of number; the first value has the variable's own dtype.
    Raises: ArgumentError (not a number; a dtype that is neither floating nor integer).
    Example: >>> flow.get_variable("b", (10,), initializer=flow.constant_initializer(0.1))
    """
    number = _number("constant_initializer", "value", value)
    if _kind("constant_initializer", dtype) == "float":
        return Constant(float(number))
    if not math.isfinite(number):
        _refuse("constant_initializer", f"value must be finite for an integer dtype, got {shown(value)}")
    return Constant(int(number))


@shows_user_frames
def zeros_initializer(dtype: dtype = dtypes.float32) -> Constant:
    """0 everywhere.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.zeros_initializer())
    """
    return constant_initializer(0.0, dtype)


@shows_user_frames
def ones_initializer(dtype: dtype = dtypes.float32) -> Constant:
    """1 everywhere.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.ones_initializer())
    """
    return constant_initializer(1.0, dtype)


@shows_user_frames
def empty_initializer(dtype: dtype = dtypes.float32) -> Empty:
    """No particular value, for variables that are loaded before they are read; they start as zeros.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.empty_initializer())
    """
    _kind("empty_initializer", dtype)
    return Empty()


@shows_user_frames
def random_uniform_initializer(
    minval: float = 0, maxval: float = 1, dtype: dtype = dtypes.float32
) -> RandomUniform | RandomInteger:
    """Uniform values.

    Args:
      minval, maxval: the range, minval <= maxval: [minval, maxval], or minval ... maxval - 1 where ``dtype`` is an
        integer type.
      dtype: the kind of number.
    Raises: ArgumentError (minval > maxval; a range beyond float64's; a dtype that is neither floating nor integer).
    Example: >>> flow.random_uniform_initializer(-0.1, 0.1)
    """
    function = "random_uniform_initializer"
    low, high = _number(function, "minval", minval), _number(function, "maxval", maxval)
    if not low <= high:
        _refuse(function, f"minval must be <= maxval, got minval={shown(minval)} and maxval={shown(maxval)}")
    if _kind(function, dtype) == "int":
        if not -(2**63) <= low <= high < 2**63:
            rule = f"minval and maxval must be within int64's range, got {shown(minval)} and {shown(maxval)}"
            _refuse(function, rule)
        return RandomInteger(int(low), int(high))
    if not math.isfinite(float(high) - float(low)):
        _refuse(function, f"maxval - minval must be within float64's range, got {shown(minval)} and {shown(maxval)}")
    return RandomUniform(float(low), float(high))


@shows_user_frames
def random_normal_initializer(
    mean: float = 0.0, stddev: float = 1.0, seed: int | None = None, dtype: dtype | None = None
) -> RandomNormal:
    """Normal values.

    Args:
      mean, stddev: of the distribution; stddev >= 0.
      seed, dtype: must stay None; pass ``random_seed`` and ``dtype`` to get_variable.
    Raises: ArgumentError.
    Example: >>> flow.random_normal_initializer(stddev=0.02)
    """
    function = "random_normal_initializer"
    if seed is not None or dtype is not None:
        _refuse(function, f"seed and dtype must stay None, got seed={shown(seed)} and dtype={shown(dtype)}",
                "pass random_seed= and dtype= to flow.get_variable, or call flow.manual_seed")  # fmt: skip
    return RandomNormal(float(_number(function, "mean", mean)), float(_number(function, "stddev", stddev, at_least=0)))


@shows_user_frames
def truncated_normal_initializer(mean: float = 0.0, stddev: float = 1.0) -> TruncatedNormal:
    """Normal values, redrawn until they are less than two standard deviations from the mean.

    ``stddev`` is that of the normal distribution; the truncated one has 0.88 times that.

    Args:
      mean, stddev: of the normal; stddev >= 0.
    Raises: ArgumentError.
    Example: >>> flow.truncated_normal_initializer(stddev=0.1)
    """
    function = "truncated_normal_initializer"
    return TruncatedNormal(float(_number(function, "mean", mean)), float(_number(function, "stddev", stddev, at_least=0)))


@shows_user_frames
def truncated_normal(stddev: float = 1.0) -> TruncatedNormal:
    """``truncated_normal_initializer`` with mean 0.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.truncated_normal(0.02))
    """
    return TruncatedNormal(0.0, float(_number("truncated_normal", "stddev", stddev, at_least=0)))


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "random_normal", "random_uniform")


@shows_user_frames
def variance_scaling_initializer(
    scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal", data_format: str = ""
) -> VarianceScaling:
    """Zero mean and variance scale / fan, for a weight with its outputs on axis 0.

    Args:
      scale: > 0.
      mode: "fan_in", "fan_out" or "fan_avg", in lower or upper case: the divisor.
      distribution: "truncated_normal" (its variance corrected for the truncation), "random_normal" or "random_uniform".
      data_format: the axis of the input channels of a convolution's weight: 1 for "NCHW"-like or "", the last for "NHWC"-like.
    Raises: ArgumentError.
    Example: >>> flow.variance_scaling_initializer(2.0, "fan_in", "random_normal")   # He et al., 2015
    """
    function = "variance_scaling_initializer"
    factor = _number(function, "scale", scale)
    if not factor > 0:
        _refuse(function, f"scale must be > 0, got {shown(scale)}")
    lowered = [text.lower() if isinstance(text, str) else text for text in (mode, distribution)]
    return VarianceScaling(
        float(factor),
        _choice(function, "mode", lowered[0], _MODES),
        _choice(function, "distribution", lowered[1], _DISTRIBUTIONS),
        _choice(function, "data_format", data_format, _FORMATS),
    )


@shows_user_frames
def glorot_uniform_initializer(data_format: str = "") -> VarianceScaling:
    """Uniform on +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.glorot_uniform_initializer())
    """
    return VarianceScaling(
        1.0, "fan_avg", "random_uniform", _choice("xavier_uniform_initializer", "data_format", data_format, _FORMATS)
    )


@shows_user_frames
def glorot_normal_initializer(data_format: str = "") -> VarianceScaling:
    """Normal, not truncated, of variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010).

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.glorot_normal_initializer())
    """
    return VarianceScaling(
        1.0, "fan_avg", "random_normal", _choice("xavier_normal_initializer", "data_format", data_format, _FORMATS)
    )


xavier_uniform_initializer = glorot_uniform_initializer
xavier_normal_initializer = glorot_normal_initializer


@shows_user_frames
def kaiming_initializer(
    shape: tuple[int, ...],
    distribution: str = "random_normal",
    mode: str = "fan_in",
    nonlinearity: str | None = "leaky_relu",
    negative_slope: float = 0.0,
    data_format: str = "NCHW",
) -> RandomNormal | RandomUniform:
    """Zero mean and standard deviation gain / sqrt(fan) (He et al., 2015).

    Args:
      shape: the weight's, a tuple of at least two sizes, outputs first.
      distribution: "random_normal" (not truncated) or "random_uniform".
      mode: "fan_in", "fan_out" or "fan_avg", the mean of both.
      nonlinearity: of the layer: None or "sigmoid" (gain 1), "tanh" (5/3), "relu" (sqrt 2), "leaky_relu"
        (sqrt(2 / (1 + negative_slope**2))).
      negative_slope: of the leaky relu.
      data_format: "NCHW" or "NHWC": the axis of the input channels of the weight.
    Raises: ArgumentError.
    Example: >>> flow.kaiming_initializer((64, 3, 7, 7), nonlinearity="relu")
    """
    function = "kaiming_initializer"
    sizes = isinstance(shape, tuple) and all(isinstance(s, (int, np.integer)) and s > 0 for s in shape)
    if not sizes or len(shape) < 2:
        _refuse(function, f"shape must be a tuple of at least two sizes > 0, got {shown(shape)}")
    _choice(function, "distribution", distribution, ("random_normal", "random_uniform"))
    _choice(function, "mode", mode, _MODES)
    _choice(function, "data_format", data_format, ("NCHW", "NHWC"))
    if nonlinearity is not None:
        _choice(function, "nonlinearity", nonlinearity, ("sigmoid", "tanh", "relu", "leaky_relu"))
    slope = float(_number(function, "negative_slope", negative_slope))
    gains = {"tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "leaky_relu": math.sqrt(2.0 / (1.0 + slope * slope))}
    std = gains.get(nonlinearity or "", 1.0) / math.sqrt(fan(shape, mode, data_format))
    if distribution == "random_normal":
        return RandomNormal(0.0, std)
    return RandomUniform(-math.sqrt(3.0) * std, math.sqrt(3.0) * std)


# --- FunctionConfig.default_initializer_conf

_VARIANCE_NORMS = {0: "fan_in", 1: "fan_out", 2: "fan_avg", "kFanIn": "fan_in", "kFanOut": "fan_out", "kAverage": "fan_avg"}
_RANDOM_DISTRIBUTIONS = {
    0: "random_uniform", 1: "random_normal", 2: "truncated_normal",
    "kRandomUniform": "random_uniform", "kRandomNormal": "random_normal", "kTruncatedNormal": "truncated_normal",
}  # fmt: skip


def _scaling(scale: float, distribution: Any) -> Any:
    def make(conf: dict[str, Any]) -> VarianceScaling:
        norm = conf.pop("variance_norm", 0)
        chosen = conf.pop("distribution", 2) if distribution is None else distribution
        return variance_scaling_initializer(
            conf.pop("scale", 1.0) if distribution is None else scale,
            _VARIANCE_NORMS.get(norm, norm),
            _RANDOM_DISTRIBUTIONS.get(chosen, chosen),
            conf.pop("data_format", ""),
        )

    return make


_CONFS: dict[str, Any] = {
    "constant_conf": lambda c: constant_initializer(c.pop("value", 0.0)),
    "constant_int_conf": lambda c: constant_initializer(c.pop("value", 0), dtypes.int64),
    "random_uniform_conf": lambda c: random_uniform_initializer(c.pop("min", 0.0), c.pop("max", 1.0)),
    "random_uniform_int_conf": lambda c: random_uniform_initializer(c.pop("min", 0), c.pop("max", 1), dtypes.int64),
    "random_normal_conf": lambda c: random_normal_initializer(c.pop("mean", 0.0), c.pop("std", 1.0)),
    "truncated_normal_conf": lambda c: truncated_normal_initializer(c.pop("mean", 0.0), c.pop("std", 0.05)),
    "variance_scaling_conf": _scaling(1.0, None),
    "xavier_conf": _scaling(1.0, "random_uniform"),
    "msra_conf": _scaling(2.0, "random_normal"),
    "range_conf": lambda c: Range(float(c.pop("start", 0.0)), float(c.pop("stride", 1.0)), int(c.pop("axis", -1))),
    "int_range_conf": lambda c: Range(int(c.pop("start", 0)), int(c.pop("stride", 1)), int(c.pop("axis", -1))),
    "empty_conf": lambda c: Empty(),
}


def from_conf(conf: Mapping[str, Mapping[str, Any]]) -> Any:
    """The initializer that a ``default_initializer_conf`` describes: one key, such as ``{"random_normal_conf": {"std": 0.1}}``.

    Raises: ArgumentError (not exactly one key, an unknown one, or an unknown parameter).
    """
    function = "default_initializer_conf"
    if not isinstance(conf, Mapping) or len(conf) != 1:
        _refuse(
            function, f"must be a dict of one key, got {shown(conf)}", 'write {"random_normal_conf": {"mean": 0.0, "std": 0.1}}'
        )
    ((key, parameters),) = conf.items()
    if key not in _CONFS:
        near = closest(str(key), _CONFS)
        _refuse(function, f"there is no initializer {shown(key)}" + (f"; did you mean {' or '.join(near)}?" if near else ""),
                f"use one of {', '.join(_CONFS)}")  # fmt: skip
    rest = dict(parameters)
    made = _CONFS[key](rest)
    if rest:
        _refuse(function, f"{key} has no parameter {', '.join(map(repr, rest))}")
    return made


def from_message(value: Any) -> Any:
    """An ``InitializerConf`` message, of which a field is set, as the initializer that it describes; anything else as it is."""
    if not check.is_message(value, "InitializerConf"):
        return value
    kind = value.WhichOneof("type")
    return from_conf({kind: {field.name: number for field, number in getattr(value, kind).ListFields()}})
