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
class Norm:
    """What a call computes of a matrix (rows, width): its rows normalized, times gamma if ``scale``, plus beta if ``center``.

    Attributes:
      epsilon: is added to the variances.
      parameters: the elements of gamma, and of beta.
      span: so many numbers side by side share one of them; 1 where each column has its own.
    """

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


@dataclass(frozen=True)
class GroupNorm:
    """What a call computes of channels-last arrays: each sample's groups of channels normalized.

    They are multiplied by gamma, and beta is added, if ``affine``.

    Attributes:
      pixels: of a sample.
      epsilon: is added to the variances.
    """

    samples: int
    pixels: int
    channels: int
    groups: int
    affine: bool
    epsilon: float

    @property
    def width(self) -> int:
        """The length of a vector of statistics, which is whole vectors of any kernel."""
        return -(-self.channels // 16) * 16

    def spec(self, dtype: Any) -> list[int]:
        """The vector that describes a call to the native part."""
        sizes = self.samples, self.pixels, self.channels, self.groups
        return [_native.dtype_code(dtype), *sizes, int(self.affine), _native.float_bits(self.epsilon)]


def layer(shape: Sequence[int], *, begin: int, epsilon: float, scale: bool, center: bool) -> Norm:
    """Of an array of this shape, with the attributes of ``layer_norm``."""
    width = math.prod(shape[begin:])
    return Norm(math.prod(shape[:begin]), width, epsilon, scale, center, width, 1)


def groups(
    shape: Sequence[int], parameters: int, *, epsilon: float, groups: int | None, channels_last: bool = False
) -> Norm | GroupNorm:
    """Of an array of this shape, with so many of gamma and beta, and the attributes of ``instance_norm``."""
    affine = parameters > 0
    if channels_last:
        count, *pixels, channels = shape
        return GroupNorm(count, math.prod(pixels), channels, groups or channels, affine, epsilon)
    count, channels, *pixels = shape
    rows = count * (channels if groups is None else groups)
    width = math.prod(shape) // max(1, rows)
    return Norm(rows, width, epsilon, affine, affine, channels if affine else width, math.prod(pixels) if affine else 1)


@lru_cache(maxsize=1024)
def _refusal(norm: Norm | GroupNorm, dtype: str) -> str | None:
    """Why the native part does not compute it; None where it does."""
    if isinstance(norm, GroupNorm):
        sizes = norm.samples, norm.pixels, norm.channels
        reason = _native.array_refusal(dtype, sizes)
        if reason is None and (math.prod(sizes) < _MIN_ELEMENTS or norm.channels < _MIN_WIDTH):
            return "too small to gain by it"
        return reason or _native.kernel_refusal("group_norm", norm.spec(np.dtype(dtype)))
    reason = _native.array_refusal(dtype, (norm.rows, norm.width))
    if reason is None and (norm.rows * norm.width < _MIN_ELEMENTS or norm.width < _MIN_WIDTH):
        return "too small to gain by it"
    reason = reason or _native.kernel_refusal("layer_norm", norm.spec(np.dtype(dtype)))
    if reason is None and norm.rows < _native.part().library.threads:
        return "there are more threads than rows"
    return reason


@lru_cache(maxsize=1024)
def differentiable(norm: Norm, samples: int, sharded: bool = False) -> Callable[..., Array]:
    """The function of x, gamma and beta, float32 (parameters,), where there are such.

    x is (rows, width). ``sharded``: it may be, over several devices, its samples unevenly, too; then it is (samples, periods,
    rows of one, width).
    """

    periods = norm.rows // norm.period // samples
    sizes = {"b": samples, "n": periods, "r": norm.period, "w": norm.width, "p": norm.parameters, "s": 2}
    vectors, scale = ["p"] * (norm.scale + norm.center), ["p"] * norm.scale

    def of(pieces: Mapping[str, int]) -> Norm:
        return replace(norm, rows=pieces["b"] * pieces["n"] * norm.period)

    def result(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(x: Array, *parameters: Array) -> Any:
            results = [(x.shape, x.dtype), ((*x.shape[:-1], 2), np.float32)]
            return _native.call_several("layer_norm", of(pieces).spec(x.dtype), results, x, *parameters)

        return compute

    def gradients(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(x: Array, *others: Array) -> Any:
            results = [(x.shape, x.dtype), *([((2, norm.parameters), np.float32)] if vectors else [])]
            spec, aliases = of(pieces).spec(x.dtype), {len(others): 0}
            found = _native.call_several("layer_norm_grad", spec, results, x, *others, aliases=aliases)
            return found if vectors else found[0]

        return compute

    x, both = "b n r w", "b n r s"
    run = _native.split_over_devices(result, sizes, [x, *vectors], [x, both], "b n", sharded)
    sums = ["s p"] if vectors else []
    run_back = _native.split_over_devices(gradients, sizes, [x, both, *scale, x], [x, *sums], "b n", sharded)

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


@lru_cache(maxsize=1024)
def differentiable_groups(norm: GroupNorm, sharded: bool = False) -> Callable[..., Array]:
    """The function of x (samples, pixels, channels), gamma and beta, float32 (channels,), where there are such.

    ``sharded``: it may be, over several devices, its samples unevenly, too.
    """
    sizes = {"b": norm.samples, "p": norm.pixels, "c": norm.channels, "w": norm.width, "s": 2}
    parameters = ["c", "c"] * norm.affine

    def of(pieces: Mapping[str, int], dtype: Any) -> list[int]:
        return replace(norm, samples=pieces["b"]).spec(dtype)

    def result(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(x: Array, *parameters: Array) -> Any:
            results = [(x.shape, x.dtype), ((x.shape[0], 2, norm.width), np.float32)]
            return _native.call_several("group_norm", of(pieces, x.dtype), results, x, *parameters)

        return compute

    def gradients(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(x: Array, *others: Array) -> Any:
            results = [(x.shape, x.dtype), *([((2, norm.channels), np.float32)] if norm.affine else [])]
            found = _native.call_several("group_norm_grad", of(pieces, x.dtype), results, x, *others, aliases={len(others): 0})
            return found if norm.affine else found[0]

        return compute

    x, both = "b p c", "b s w"
    run = _native.split_over_devices(result, sizes, [x, *parameters], [x, both], "b", sharded)
    run_back = _native.split_over_devices(
        gradients, sizes, [x, both, *parameters[:1], x], [x, "s c"] if norm.affine else [x], "b", sharded
    )

    @jax.custom_vjp
    def normalized(x: Array, *parameters: Array) -> Array:
        return run(x, *parameters)[0]

    def forward(x: Array, *parameters: Array) -> tuple[Array, Any]:
        y, statistics = run(x, *parameters)
        return y, (x, statistics, *parameters[:1])

    def backward(saved: tuple[Array, ...], dy: Array) -> tuple[Array, ...]:
        if not norm.affine:
            return (run_back(*saved, dy),)
        dx, (gamma, beta) = run_back(*saved, dy)
        return dx, gamma, beta

    normalized.defvjp(forward, backward)
    return normalized


# --- the lowerings of ops


def _lower(norm: Norm, x: Array, parameters: Sequence[Array], sharded: bool) -> Array:
    vectors = [p.astype(np.float32).reshape(norm.parameters) for p in parameters]
    samples = math.gcd(x.shape[0], norm.rows // norm.period)  # 1 where axis 0 is normalized, too
    # A matrix where it may be: products give such, and behind a reshape XLA copies what a call overwrites.
    rows = x.reshape((samples, -1, norm.period, norm.width) if sharded else (norm.rows, norm.width))
    return differentiable(norm, samples, sharded)(rows, *vectors).reshape(x.shape)


def lower_layer(x: Array, *parameters: Array, sharded: bool = False, **attrs: Any) -> Array:
    """``layer_norm``."""
    return _lower(layer(x.shape, **attrs), x, parameters, sharded)


def lower_groups(x: Array, *parameters: Array, sharded: bool = False, **attrs: Any) -> Array:
    """``instance_norm``."""
    norm = groups(x.shape, len(parameters), **attrs)
    if isinstance(norm, Norm):
        return _lower(norm, x, parameters, sharded)
    vectors = [p.astype(np.float32).reshape(norm.channels) for p in parameters]
    return differentiable_groups(norm, sharded)(x.reshape(norm.samples, norm.pixels, norm.channels), *vectors).reshape(x.shape)


def _unsupported_layer(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, *parameters = arrays
    norm = layer(x.shape, **attrs)
    if any(math.prod(p.shape) != norm.width for p in parameters):
        return "gamma and beta do not have the axes that are normalized"
    return _refusal(norm, np.dtype(x.dtype).name)


def _unsupported_groups(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, *parameters = arrays
    return _refusal(groups(x.shape, len(parameters), **attrs), np.dtype(x.dtype).name)


def _describe(norm: Norm | GroupNorm, x: Any) -> str:
    call = "layer_norm" if isinstance(norm, Norm) else "group_norm"
    return f"normalization in {_native.part().library.describe(call, norm.spec(x.dtype))}"


LAYER = Native(
    lower_layer, _unsupported_layer, lambda arrays, attrs: _describe(layer(arrays[0].shape, **attrs), arrays[0]), narrows=False
)
GROUPS = Native(
    lower_groups, _unsupported_groups,
    lambda arrays, attrs: _describe(groups(arrays[0].shape, len(arrays) - 1, **attrs), arrays[0]),
    narrows=False,
    any_layout=True,
)  # fmt: skip
