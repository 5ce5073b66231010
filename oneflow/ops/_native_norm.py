"""Layer, group and instance normalization by the native part: the native lowerings of ``layer_norm`` and ``instance_norm``.

XLA makes a loop for each of the two sums and one for what reads them, and three more for the gradients. Here a row is read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax
from ..graph.op import Native
from ._arrays import Array

_MIN_ELEMENTS = 1 << 12  # below, a call costs more than it gains
_MIN_WIDTH = 8


@dataclass(frozen=True)
class RowNorm:
    """What a call computes of a matrix (rows, width): its rows normalized, times gamma if ``scale``, plus beta if ``center``.

    Attributes:
      epsilon: is added to the variances.
      parameters: the elements of gamma, and of beta.
      span: so many numbers side by side share one of them; 1 where each column has its own.
    """

    call = "layer_norm"
    rows: int
    width: int
    epsilon: float
    scale: bool
    center: bool
    parameters: int
    span: int

    @property
    def period(self) -> int:
        """After so many rows the elements of gamma begin anew."""
        return max(1, self.parameters * self.span // self.width)

    def spec(self, dtype: Any) -> list[int]:
        """The vector that describes a call to the native part."""
        flags = int(self.scale), int(self.center)
        sizes = self.parameters, self.span
        return [_native.dtype_code(dtype), self.rows, self.width, *flags, _native.float_bits(self.epsilon), *sizes]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of x."""
        return self.rows, self.width

    def axes(self, samples: int) -> _Axes:
        """Of x as it may be sharded: (samples, periods, rows of one, width)."""
        sizes = {"b": samples, "n": self.rows // self.period // samples, "r": self.period, "w": self.width, "s": 2}
        return _Axes(sizes, "b n r w", "b n r s", "b n")

    def of(self, pieces: Mapping[str, int]) -> RowNorm:
        """Of a device's pieces, by the names of the axes."""
        return replace(self, rows=pieces["b"] * pieces["n"] * self.period)

    def statistics(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what is kept for the gradients of an x of this shape."""
        return (*shape[:-1], 2)


@dataclass(frozen=True)
class GroupNorm:
    """What a call computes of (samples, pixels, channels): each sample's groups of channels normalized.

    They are multiplied by gamma, and beta is added, if ``scale``.

    Attributes:
      epsilon: is added to the variances.
    """

    call = "group_norm"
    samples: int
    pixels: int
    channels: int
    groups: int
    scale: bool
    epsilon: float

    @property
    def center(self) -> bool:
        """As ``RowNorm`` has it."""
        return self.scale

    @property
    def parameters(self) -> int:
        """As ``RowNorm`` has it."""
        return self.channels

    def spec(self, dtype: Any) -> list[int]:
        """The vector that describes a call to the native part."""
        sizes = self.samples, self.pixels, self.channels, self.groups
        return [_native.dtype_code(dtype), *sizes, int(self.scale), _native.float_bits(self.epsilon)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of x."""
        return self.samples, self.pixels, self.channels

    def axes(self, samples: int) -> _Axes:
        """Of x as it may be sharded."""
        return _Axes({"b": samples, "p": self.pixels, "c": self.channels, "w": self._width, "s": 2}, "b p c", "b s w", "b")

    def of(self, pieces: Mapping[str, int]) -> GroupNorm:
        """Of a device's pieces, by the names of the axes."""
        return replace(self, samples=pieces["b"])

    def statistics(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what is kept for the gradients of an x of this shape."""
        return (shape[0], 2, self._width)

    @property
    def _width(self) -> int:
        return -(-self.channels // 16) * 16  # whole vectors of any kernel


Norm = RowNorm | GroupNorm


@dataclass(frozen=True)
class _Axes:
    """For ``_native.split_over_devices``: the sizes of all axes, those of x and of the statistics, those that may be split."""

    sizes: Mapping[str, int]
    x: str
    statistics: str
    along: str


def layer(shape: Sequence[int], *, begin: int, epsilon: float, scale: bool, center: bool) -> RowNorm:
    """Of an array of this shape, with the attributes of ``layer_norm``."""
    width = math.prod(shape[begin:])
    return RowNorm(math.prod(shape[:begin]), width, epsilon, scale, center, width, 1)


def groups(shape: Sequence[int], parameters: int, *, epsilon: float, groups: int | None, channels_last: bool = False) -> Norm:
    """Of an array of this shape, with so many of gamma and beta, and the attributes of ``instance_norm``."""
    affine = parameters > 0
    if channels_last:
        count, *pixels, channels = shape
        return GroupNorm(count, math.prod(pixels), channels, channels if groups is None else groups, affine, epsilon)
    count, channels, *pixels = shape
    rows = count * (channels if groups is None else groups)
    width = math.prod(shape) // max(1, rows)
    return RowNorm(rows, width, epsilon, affine, affine, channels if affine else width, math.prod(pixels) if affine else 1)


@lru_cache(maxsize=1024)
def _refusal(norm: Norm, dtype: str) -> str | None:
    """Why the native part does not compute it; None where it does."""
    reason = _native.array_refusal(dtype, norm.shape)
    if reason is None and (math.prod(norm.shape) < _MIN_ELEMENTS or norm.shape[-1] < _MIN_WIDTH):
        return "too small to gain by it"
    reason = reason or _native.kernel_refusal(norm.call, norm.spec(np.dtype(dtype)))
    if reason is None and isinstance(norm, RowNorm) and norm.rows < _native.part().library.threads:
        return "there are more threads than rows"
    return reason


@lru_cache(maxsize=1024)
def differentiable(norm: Norm, samples: int, sharded: bool = False) -> Callable[..., Array]:
    """The function of x, gamma and beta, float32 (parameters,), where there are such.

    x is (rows, width), or (samples, pixels, channels) of a ``GroupNorm``. ``sharded``: it may be, over several devices, its
    samples unevenly, too; then it has the axes of ``norm.axes(samples)``.
    """
    axes = norm.axes(samples)
    sizes = {**axes.sizes, "v": norm.parameters}
    vectors, scale = ["v"] * (norm.scale + norm.center), ["v"] * norm.scale

    def result(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(x: Array, *parameters: Array) -> Any:
            results = [(x.shape, x.dtype), (norm.statistics(x.shape), np.float32)]
            return _native.call_several(norm.call, norm.of(pieces).spec(x.dtype), results, x, *parameters)

        return compute

    def gradients(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(x: Array, *others: Array) -> Any:
            results = [(x.shape, x.dtype), *([((2, norm.parameters), np.float32)] if vectors else [])]
            spec, aliases = norm.of(pieces).spec(x.dtype), {len(others): 0}
            found = _native.call_several(f"{norm.call}_grad", spec, results, x, *others, aliases=aliases)
            return found if vectors else found[0]

        return compute

    run = _native.split_over_devices(result, sizes, [axes.x, *vectors], [axes.x, axes.statistics], axes.along, sharded)
    read, sums = [axes.x, axes.statistics, *scale, axes.x], ["s v"] if vectors else []
    run_back = _native.split_over_devices(gradients, sizes, read, [axes.x, *sums], axes.along, sharded)

    @jax.custom_vjp
    def normalized(x: Array, *parameters: Array) -> Array:
        return run(x, *parameters)[0]

    def forward(x: Array, *parameters: Array) -> tuple[Array, Any]:
        y, statistics = run(x, *parameters)
        return y, (x, statistics, *parameters[: norm.scale])

    def backward(saved: tuple[Array, ...], dy: Array) -> tuple[Array, ...]:
        if not vectors:
            return (run_back(*saved, dy),)
        dx, (gamma, beta) = run_back(*saved, dy)
        return dx, *([gamma] if norm.scale else []), *([beta] if norm.center else [])

    normalized.defvjp(forward, backward)
    return normalized


# --- the lowerings of ops


def _lower(norm: Norm, x: Array, parameters: Sequence[Array], sharded: bool) -> Array:
    vectors = [p.astype(np.float32).reshape(norm.parameters) for p in parameters]
    samples, shape = x.shape[0], norm.shape
    if isinstance(norm, RowNorm):
        samples = math.gcd(samples, norm.rows // norm.period)  # 1 where axis 0 is normalized, too
        shape = (samples, -1, norm.period, norm.width) if sharded else shape
    # A matrix where it may be: products give such, and behind a reshape XLA copies what a call overwrites.
    return differentiable(norm, samples, sharded)(x.reshape(shape), *vectors).reshape(x.shape)


def lower_layer(x: Array, *parameters: Array, sharded: bool = False, **attrs: Any) -> Array:
    """``layer_norm``."""
    return _lower(layer(x.shape, **attrs), x, parameters, sharded)


def lower_groups(x: Array, *parameters: Array, sharded: bool = False, **attrs: Any) -> Array:
    """``instance_norm``."""
    return _lower(groups(x.shape, len(parameters), **attrs), x, parameters, sharded)


def _unsupported_layer(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, *parameters = arrays
    norm = layer(x.shape, **attrs)
    if any(math.prod(p.shape) != norm.width for p in parameters):
        return "gamma and beta do not have the axes that are normalized"
    return _refusal(norm, np.dtype(x.dtype).name)


def _unsupported_groups(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, *parameters = arrays
    return _refusal(groups(x.shape, len(parameters), **attrs), np.dtype(x.dtype).name)


def _describe(norm: Norm, x: Any) -> str:
    return f"normalization in {_native.part().library.describe(norm.call, norm.spec(x.dtype))}"


LAYER = Native(
    lower_layer, _unsupported_layer, lambda arrays, attrs: _describe(layer(arrays[0].shape, **attrs), arrays[0]), narrows=False
)
GROUPS = Native(
    lower_groups, _unsupported_groups,
    lambda arrays, attrs: _describe(groups(arrays[0].shape, len(arrays) - 1, **attrs), arrays[0]),
    narrows=False,
    any_layout=True,
)  # fmt: skip
