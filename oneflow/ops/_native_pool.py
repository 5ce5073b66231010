"""Max pooling by the native part: the native lowering of ``max_pool_1d`` .. ``max_pool_3d``.

The forward call keeps where each window's first maximum is, so that the gradient need not look for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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


def _differentiable(pooling: _Pooling, sharded: bool) -> Callable[[Array], Array]:
    """The maxima of x, differentiable in it. ``sharded``: x may be, over several devices."""

    def of(pieces: Mapping[str, int]) -> _Pooling:
        return replace(pooling, shape=(pieces["n"], *pooling.shape[1:]))

    def result(pieces: Mapping[str, int]) -> Callable[..., Any]:
        mine = of(pieces)
        made = [(mine.out, np.dtype(mine.dtype)), (mine.out, np.uint8)]
        return lambda x: _native.call_several("max_pool", mine.spec(), made, x)

    def gradient(pieces: Mapping[str, int]) -> Callable[..., Any]:
        mine = of(pieces)
        made = [(mine.shape, np.dtype(mine.dtype))]
        return lambda places, dy: _native.call_several("max_pool_grad", mine.spec(), made, places, dy)[0]

    axes = range(1, len(pooling.shape) - 1)
    x, y = (" ".join(["n", *(f"{letter}{i}" for i in axes), "c"]) for letter in "xy")
    sizes = {**dict(zip(x.split(), pooling.shape, strict=True)), **dict(zip(y.split(), pooling.out, strict=True))}
    run = _native.split_over_devices(result, sizes, [x], [y, y], "n", sharded)
    run_back = _native.split_over_devices(gradient, sizes, [y, y], [x], "n", sharded)

    @jax.custom_vjp
    def maxima(x: Array) -> Array:
        return forward(x)[0]

    def forward(x: Array) -> tuple[Array, Array]:
        y, places = run(x)
        return y, places

    def backward(places: Array, dy: Array) -> tuple[Array]:
        return (run_back(places, dy),)

    maxima.defvjp(forward, backward)
    return maxima


def _lower(x: Array, sharded: bool = False, **attrs: Any) -> Array:
    return _differentiable(_Pooling.of(x, attrs), sharded)(x)


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


NATIVE = Native(_lower, _unsupported_reason, _describe, narrows=False)
