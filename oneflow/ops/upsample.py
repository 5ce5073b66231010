"""Enlarging images by repetition or interpolation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from .._base.check import real
from .._base.jax import jnp, lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, broadcast_to, full, gradient_of, label, like, widen
from ._emit import emit, fail, op, want
from ._window import want_format


def _sources(size: int, factor: float, interpolation: str, align_corners: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each place along the enlarged axis the two elements that it lies between, and the second one's share."""
    place = np.arange(int(size * factor))
    if interpolation == "nearest":
        nearest = np.minimum(np.floor((place + 0.5) / factor).astype(np.int32), size - 1)
        return nearest, nearest, np.zeros(place.size)
    if align_corners:
        source = place * ((size - 1) / max(place.size - 1, 1))
    else:
        source = np.maximum((place + 0.5) / factor - 0.5, 0.0)
    low = np.minimum(np.floor(source).astype(np.int32), size - 1)
    return low, np.minimum(low + 1, size - 1), np.clip(source - low, 0.0, 1.0)


def _enlarged(x: Array, axis: int, low: np.ndarray, high: np.ndarray, share: np.ndarray) -> Array:
    if not share.any():
        return jnp.take(x, low, axis, mode="clip")
    along = [1] * x.ndim
    along[axis] = share.size
    second = broadcast_to(share.astype(x.dtype).reshape(along), (*x.shape[:axis], share.size, *x.shape[axis + 1 :]))
    first = lax.sub(full(1, second), second)
    return lax.add(lax.mul(jnp.take(x, low, axis, mode="clip"), first), lax.mul(jnp.take(x, high, axis, mode="clip"), second))


def _reduced(dy: Array, axis: int, size: int, low: np.ndarray, high: np.ndarray, share: np.ndarray) -> Array:
    """The reverse of ``_enlarged``, by a product with a matrix: XLA scatters one element after another on CPUs."""
    weights = np.zeros((share.size, size), dy.dtype)
    place = np.arange(share.size)
    np.add.at(weights, (place, low), 1.0 - share)
    np.add.at(weights, (place, high), share)
    dx = lax.dot_general(dy, weights, (((axis,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    return lax.transpose(dx, [*range(axis), dy.ndim - 1, *range(axis, dy.ndim - 1)])


def _whole(factor: float) -> int:
    return int(factor) if factor.is_integer() else 0


# --- by whole factors: the places with the same position between two elements are a phase. Phases are slices of all elements at
# once, where ``_enlarged`` gathers one number after another, several times where XLA computes it inside of a reduction.

_MOST_PHASES = 16


def _number_of_phases(factor: float, size: Any) -> int:
    """How many phases an axis of that size is enlarged in; 0: in another way."""
    return int(factor) if factor.is_integer() and factor <= _MOST_PHASES and isinstance(size, int) else 0


def _phases(count: int) -> list[tuple[int, float]]:
    """For each of the places that an element becomes: on which side of it the other element lies, and that one's share."""
    distances = [(place + 0.5) / count - 0.5 for place in range(count)]
    return [(-1 if distance < 0 else 1, abs(distance)) for distance in distances]


def _part(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    return lax.slice_in_dim(x, start, stop, step, axis)


def _neighbours(x: Array, axis: int, side: int) -> Array:
    """For each element the one behind it (1) or before it (-1); at the border itself."""
    size = x.shape[axis]
    first, last = _part(x, axis, 0, 1), _part(x, axis, size - 1, size)
    pair = [first, _part(x, axis, 0, size - 1)] if side < 0 else [_part(x, axis, 1, size), last]
    return lax.concatenate(pair, axis)


def _neighbours_grad(dy: Array, axis: int, side: int) -> Array:
    return gradient_of(lambda x: _neighbours(x, axis, side), dy, dy)


def _interpolated(x: Array, axis: int, count: int) -> Array:
    parts = []
    for side, share in _phases(count):
        near = lax.mul(x, like(1 - share, x))
        parts.append(lax.add(near, lax.mul(_neighbours(x, axis, side), like(share, x))) if share else x)
    rows = [lax.expand_dims(part, (axis + 1,)) for part in parts]
    return lax.reshape(lax.concatenate(rows, axis + 1), (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


def _interpolated_grad(dy: Array, axis: int, count: int) -> Array:
    own: list[Array] = []
    others: dict[int, list[Array]] = {}
    for place, (side, share) in enumerate(_phases(count)):
        part = _part(dy, axis, place, dy.shape[axis], count)
        own.append(lax.mul(part, like(1 - share, part)))
        if share:
            others.setdefault(side, []).append(lax.mul(part, like(share, part)))
    return _sum([*own, *(_neighbours_grad(_sum(parts), axis, side) for side, parts in others.items())])


def _repeated_grad(dy: Array, axis: int, count: int) -> Array:
    return _sum([_part(dy, axis, place, dy.shape[axis], count) for place in range(count)])


def _sum(parts: Sequence[Array]) -> Array:
    return reduce(lambda a, b: lax.add(a, b), parts)


# --- the op


def _axes(channels_first: bool) -> tuple[int, int]:
    return (2, 3) if channels_first else (1, 2)


def _upsample_grad(
    inputs: Any,
    outputs: Any,
    cotangents: Any,
    *,
    factors: tuple[float, float],
    channels_first: bool,
    interpolation: str,
    align_corners: bool,
) -> tuple[Array]:
    (x,), dy = inputs, widen(cotangents[0])
    for axis, factor in zip(_axes(channels_first), factors, strict=True):
        whole, size = _whole(factor), x.shape[axis]
        phases = 0 if align_corners else _number_of_phases(factor, size)
        if phases and (interpolation == "nearest" or phases < size):  # a few elements that become many: a product of matrices
            dy = (_repeated_grad if interpolation == "nearest" else _interpolated_grad)(dy, axis, phases)
        elif interpolation == "nearest" and whole:
            dy = lax.reduce_sum(lax.reshape(dy, (*dy.shape[:axis], size, whole, *dy.shape[axis + 1 :])), (axis + 1,))
        else:
            dy = _reduced(dy, axis, size, *_sources(size, factor, interpolation, align_corners))
    return (lax.convert_element_type(dy, x.dtype),)


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    return {**attrs, "channels_first": False} if attrs["channels_first"] else None


@op("upsample", grad=_upsample_grad, channels_last=_channels_last)
def _upsample(x: Array, *, factors: tuple[float, float], channels_first: bool, interpolation: str, align_corners: bool) -> Array:
    is_nearest = interpolation == "nearest"
    y = x if is_nearest else widen(x)
    axes = list(zip(_axes(channels_first), factors, strict=True))
    for axis, factor in axes if is_nearest else reversed(axes):  # what each takes least time for
        whole, size = _whole(factor), y.shape[axis]
        if is_nearest and whole:  # each element several times: no arithmetic
            shape = (*y.shape[: axis + 1], whole, *y.shape[axis + 1 :])
            repeated = lax.broadcast_in_dim(y, shape, [a + (a > axis) for a in range(y.ndim)])
            y = lax.reshape(repeated, (*y.shape[:axis], size * whole, *y.shape[axis + 1 :]))
            continue
        if not isinstance(size, int):
            raise ValueError(f"the size of axis {axis} must be known: it says where the elements go, got {size}")
        phases = 0 if align_corners or is_nearest else _number_of_phases(factor, size)
        if phases:
            y = _interpolated(y, axis, phases)
        else:
            y = _enlarged(y, axis, *_sources(size, factor, interpolation, align_corners))
    return lax.convert_element_type(y, x.dtype)


def upsample_2d(
    x: Blob,
    size: int | float | Sequence[int | float],
    data_format: str,
    interpolation: str,
    align_corners: bool,
    name: str | None,
) -> Blob:
    """See ``layers.upsample_2d``."""
    what = label("upsample_2d", name)
    want.floating(what, want.blob(what, "x", x))
    want.rank(what, x, 4, 4)
    first = want_format(what, data_format, 2)
    want.choice(what, "interpolation", interpolation, ("nearest", "bilinear"))
    align_corners = want.flag(what, "align_corners", align_corners, (x,))
    pair = [size, size] if real(size) is not None else size
    factors = _factors(what, pair, size)
    if align_corners and interpolation == "nearest":
        fail(ArgumentError, what, 'align_corners=True needs interpolation="bilinear"', (x,))
    sizes = x.shape[2:] if first else x.shape[1:3]
    if min(math.floor(s * f) for s, f in zip(sizes, factors, strict=True)) < 1:
        fail(ShapeError, what, f"size={shown(size)} leaves nothing of an image of {tuple(sizes)}", (x,))
    return emit(
        _upsample, x, name=name, factors=factors, channels_first=first, interpolation=interpolation,
        align_corners=align_corners,
    )  # fmt: skip


_MOST = 1024  # the positions are computed on the host


def _factors(what: str, pair: Any, given: Any) -> tuple[float, float]:
    numbers = [real(v) for v in pair] if isinstance(pair, (list, tuple)) else []
    if len(numbers) != 2 or not all(v is not None and 0 < v <= _MOST for v in numbers):
        fail(ArgumentError, what, f"size must be a number in (0, {_MOST}] or a pair (h, w) of them, got {shown(given)}")
    return float(pair[0]), float(pair[1])
