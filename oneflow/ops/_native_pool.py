"""Max pooling by the native part: the native lowering of ``max_pool_1d`` .. ``max_pool_3d``.

The forward call keeps where each window's first maximum is, so that the gradient need not look for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax
from ..graph.op import Native
from ._arrays import Array
from ._window import counts, sides

Shape = tuple[int, ...]
_AXES = 3  # of an image, in a spec
_FEWEST_CHANNELS = 8


@dataclass(frozen=True)
class _Pooling:
    """Windows over an array of shape (N, ..., C)."""

    dtype: str
    shape: Shape
    kernel: Shape
    strides: Shape
    pads: tuple[tuple[int, int], ...]

    @staticmethod
    def of(array: Any, attrs: Mapping[str, Any]) -> _Pooling:
        space, kernel, strides = array.shape[1:-1], tuple(attrs["ksize"]), tuple(attrs["strides"])
        pads = sides(attrs["padding"], space, kernel, strides, None, attrs["ceil_mode"])
        return _Pooling(np.dtype(array.dtype).name, tuple(array.shape), kernel, strides, tuple((low, high) for low, high in pads))

    @property
    def out(self) -> Shape:
        space = counts(self.pads, self.shape[1:-1], self.kernel, self.strides, (1,) * len(self.kernel))
        return (self.shape[0], *space, self.shape[-1])

    def spec(self) -> list[int]:
        """The vector that describes a call to the native part."""
        missing = _AXES - len(self.kernel)
        low = [before for before, _ in self.pads]
        sizes = [*self._with(1, self.shape[1:-1]), *self._with(1, self.out[1:-1]), *self._with(1, self.kernel)]
        steps = [*self._with(1, self.strides), *[0] * missing, *low]
        return [_native.DTYPES[self.dtype], self.shape[0], self.shape[-1], *sizes, *steps]

    @staticmethod
    def _with(other: int, sizes: Sequence[int]) -> list[int]:
        return [*[other] * (_AXES - len(sizes)), *sizes]


@lru_cache(maxsize=1024)
def _refusal(pooling: _Pooling) -> str | None:
    """Why the native part does not compute it; None where it does."""
    reason = _native.array_refusal(pooling.dtype, (*pooling.shape, *pooling.out))
    return reason or _native.kernel_refusal("max_pool", pooling.spec())


def _differentiable(pooling: _Pooling) -> Callable[[Array], Array]:
    """The maxima of x, differentiable in it."""
    spec, out = pooling.spec(), pooling.out

    @jax.custom_vjp
    def maxima(x: Array) -> Array:
        return forward(x)[0]

    def forward(x: Array) -> tuple[Array, Array]:
        y, places = _native.call_several("max_pool", spec, [(out, x.dtype), (out, np.uint8)], x)
        return y, places

    def backward(places: Array, dy: Array) -> tuple[Array]:
        return _native.call_several("max_pool_grad", spec, [(pooling.shape, dy.dtype)], places, dy)

    maxima.defvjp(forward, backward)
    return maxima


def _lower(x: Array, **attrs: Any) -> Array:
    return _differentiable(_Pooling.of(x, attrs))(x)


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    if attrs["channels_first"]:
        return "its channels are not on the last axis"
    if all(k <= stride for k, stride in zip(attrs["ksize"], attrs["strides"], strict=True)):
        return "its windows do not overlap: XLA computes it together with what is around it"
    refusal = _refusal(_Pooling.of(arrays[0], attrs))
    if refusal is None and arrays[0].shape[-1] < _FEWEST_CHANNELS:
        return f"it has fewer than {_FEWEST_CHANNELS} channels, which fill half a vector"
    return refusal


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    return str(_native.part().library.describe("max_pool", _Pooling.of(arrays[0], attrs).spec()))


NATIVE = Native(_lower, _unsupported_reason, _describe, sharded="", narrows=False)
