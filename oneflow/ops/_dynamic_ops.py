"""Ops on Blobs of dynamic size: arrays that are padded along one axis, with the number of valid elements beside them.

XLA's shapes are fixed. A Blob of dynamic size therefore has the largest shape that it can have, and its ``valid_length`` names
the Blob that holds the number of valid elements. The padding and its gradient mean nothing, and may be NaN. Values and
gradients that leave the padded axis go through a mask that selects, as multiplying by 0 would keep NaN. The few ops here take
the valid length as an input; ``_dynamic_rules.py`` has the rules for all other ops.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..graph.node import Blob
from ._arrays import Array, broadcast_to, is_half, like, select, sum_to, widen
from ._emit import op
from .indexing import coordinates_gather
from .slicing import Triple

Number = int | float


def _inside(shape: tuple[int, ...], count: Array, axis: int) -> Array:
    """The mask of valid elements along ``axis``."""
    return lax.lt(lax.broadcasted_iota(np.int32, shape, axis), broadcast_to(lax.reshape(count, (1,) * len(shape)), shape))


@op("fill_padding", nondifferentiable=(1,))
def fill_padding(x: Array, count: Array, *, axis: int, value: Number) -> Array:
    """Replaces the padding by ``value``, and the gradient of the padding by 0."""
    return select(_inside(x.shape, count, axis), x, like(value, x))


def _repeat_grad(inputs: Any, outputs: Any, cotangents: Any, *, axis: int) -> tuple[Array | None, ...]:
    g = cotangents[0]
    kept = select(_inside(g.shape, inputs[2], g.ndim + axis), g, like(0, g))
    return sum_to(kept, inputs[0].shape), None, None


@op("broadcast_to_length", grad=_repeat_grad, nondifferentiable=(1, 2))
def broadcast_to_length(x: Array, other: Array, count: Array, *, axis: int) -> Array:
    """Broadcasts x along ``axis`` (negative), where it has size 1 or which it lacks, to the size of ``other``.

    The gradient is summed over valid elements only.
    """
    rank = max(x.ndim, -axis)
    x = lax.reshape(x, (*(1,) * (rank - x.ndim), *x.shape))
    return broadcast_to(x, tuple(other.shape[axis] if i == rank + axis else size for i, size in enumerate(x.shape)))


def lowest(x: Blob) -> Number:
    """A value that is not above any value of the Blob's dtype."""
    return int(np.iinfo(x.dtype.numpy_dtype).min) if x.dtype.is_integer else -math.inf


def highest(x: Blob) -> Number:
    """A value that all values of the Blob's dtype are sorted before."""
    return int(np.iinfo(x.dtype.numpy_dtype).max) if x.dtype.is_integer else math.nan


# --- sizes


def _as_size(n: Array) -> Array:
    return lax.reshape(lax.convert_element_type(n, np.int32), (1,))


@op("valid_elements", nondifferentiable=True)
def valid_elements(x: Array, count: Array, *, axes: tuple[int, ...], axis: int, to: np.dtype) -> Array:
    """The number of valid elements along several axes, ``axis`` among them."""
    others = math.prod(x.shape[a] for a in axes if a != axis)
    return lax.mul(lax.convert_element_type(count, to), np.asarray(others, to))


@op("at_most", nondifferentiable=True)
def at_most(count: Array, *, limit: int) -> Array:
    """The minimum of a length and a limit."""
    return lax.min(count, like(limit, count))


@op("resized", multiple_results=True, nondifferentiable=(1,))
def resized(x: Array, size: Array) -> tuple[Array, Array]:
    """x, and a valid length of its axis 0, clamped to the size of that axis."""
    return x, _as_size(lax.clamp(like(0, size), size, like(x.shape[0], size)))


# --- statistics


@op("valid_moment", nondifferentiable=(1,))
def valid_moment(x: Array, count: Array, *, axes: tuple[int, ...], keepdims: bool, axis: int, kind: str) -> Array:
    """The mean, variance or standard deviation of the valid elements over several axes, ``axis`` among them."""
    inside = _inside(x.shape, count, axis)
    wide = lax.convert_element_type(x, np.int64 if x.dtype.kind in "iu" else np.float32 if is_half(x) else x.dtype)
    number = lax.mul(lax.reshape(count, ()), np.int32(math.prod(x.shape[a] for a in axes if a != axis)))
    if wide.dtype.kind in "iu":
        number = lax.max(number, np.int32(1))  # the mean of no elements is 0, as integers have no NaN
    number = lax.convert_element_type(number, wide.dtype)
    kept_shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape))

    def mean(v: Array) -> Array:
        total = lax.reduce_sum(select(inside, v, like(0, v)), axes)
        return lax.reshape(lax.div(total, broadcast_to(number, total.shape)), kept_shape)

    y = mean(wide)
    if kind != "mean":
        centred = lax.sub(wide, broadcast_to(y, x.shape))
        y = mean(lax.square(select(inside, centred, like(0, centred))))
        y = lax.sqrt(y) if kind == "std" else y
    y = lax.convert_element_type(y, x.dtype)
    return y if keepdims else lax.reshape(y, tuple(size for i, size in enumerate(x.shape) if i not in axes) or (1,))


@op("valid_loss", nondifferentiable=(1,))
def valid_loss(x: Array, count: Array, *, axis: int) -> Array:
    """The sum divided by the valid length of axis 0 (OneFlow's rule for losses of varying size); 0 without valid elements."""
    wide = widen(x)
    total = lax.reduce_sum(select(_inside(x.shape, count, axis), wide, like(0, wide)), range(x.ndim))
    size = lax.reshape(count, ()) if axis == 0 else np.int32(x.shape[0])
    mean = lax.div(total, lax.convert_element_type(lax.max(size, np.int32(1)), wide.dtype))
    return lax.reshape(lax.convert_element_type(mean, x.dtype), (1,))


# --- shapes


@op("valid_reshape", multiple_results=True, nondifferentiable=(1,))
def valid_reshape(x: Array, count: Array, *, shape: tuple[int, ...], axis: int, to: int) -> tuple[Array, Array]:
    """Reshapes x so that ``axis`` becomes axis ``to`` (-1 in ``shape``); returns its valid length, too."""
    total = math.prod(size for size in shape if size != -1)
    sizes = tuple(x.size // total if size == -1 else size for size in shape)
    old, new = math.prod(x.shape[axis + 1 :]), math.prod(sizes[to + 1 :])
    return lax.reshape(x, sizes), lax.div(lax.mul(count, np.int32(old)), np.int32(new))


@op("valid_concat", multiple_results=True)
def valid_concat(*arrays: Array, has_length: tuple[bool, ...], axis: int, most: int | None) -> tuple[Array, Array]:
    """Concatenates the valid parts of arrays along an axis; returns the sum of the valid lengths, too.

    ``arrays`` holds the arrays, then the valid lengths of those with ``has_length``. The result is cut to the size ``most``,
    the sum is not.
    """
    parts, counts = arrays[: len(has_length)], list(arrays[len(has_length) :])
    size = sum(p.shape[axis] for p in parts)
    y = lax.full(tuple(size if i == axis else n for i, n in enumerate(parts[0].shape)), 0, parts[0].dtype)
    begin: Array = np.int32(0)
    for part, has_one in zip(parts, has_length, strict=True):  # each part overwrites the padding of the one before
        y = lax.dynamic_update_slice(y, part, [begin if i == axis else np.int32(0) for i in range(y.ndim)])
        count = lax.reshape(counts.pop(0), ()) if has_one else np.int32(part.shape[axis])
        begin = lax.add(begin, lax.convert_element_type(count, np.int32))  # gradients of integers are computed in float64
    return (y if most is None else lax.slice_in_dim(y, 0, most, axis=axis)), _as_size(begin)


def _selected(n: Any, triple: Triple, xp: Any) -> tuple[Any, Any]:
    """The first element of a Python slice of n elements, and how many it selects; n may be traced."""
    start, stop, step = triple
    step = 1 if step is None else step
    low, high = (0, n) if step > 0 else (-1, n - 1)

    def bound(v: int | None, default: Any) -> Any:
        if v is None:
            return default
        return xp.maximum(n + v, low) if v < 0 else xp.minimum(v, high)

    begin = bound(start, low if step > 0 else high)
    end = bound(stop, high if step > 0 else low)
    reach = xp.maximum(end - begin if step > 0 else begin - end, 0)
    return begin, (reach + abs(step) - 1) // np.int32(abs(step))


@op("valid_slice", multiple_results=True, nondifferentiable=(1,))
def valid_slice(x: Array, count: Array, *, axis: int, triple: Triple) -> tuple[Array, Array]:
    """A Python slice of the valid part of an axis; returns the number of selected elements, too."""
    size = x.shape[axis]
    capacity = int(np.max(_selected(np.arange(size + 1), triple, np)[1]))  # over all possible valid lengths
    begin, length = _selected(lax.reshape(count, ()), triple, jnp)
    if capacity == 0:
        return lax.slice_in_dim(x, 0, 0, axis=axis), _as_size(length)
    numbers = lax.iota(np.int32, capacity)
    places = lax.add(lax.mul(numbers, np.int32(triple[2] or 1)), jnp.asarray(begin, np.int32))
    places = select(
        lax.lt(numbers, jnp.asarray(length, np.int32)), places, np.int32(size)
    )  # out of range: read as 0, without gradient
    return coordinates_gather(x, lax.reshape(places, (capacity, 1)), 1, axis), _as_size(jnp.asarray(length))
