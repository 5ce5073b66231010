"""Enlarging images by repetition or interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.check import real
from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, is_half, label
from ._emit import emit, fail, op, want
from ._window import want_format


def _weights(size: int, factor: float, interpolation: str, align_corners: bool) -> np.ndarray:
    """The matrix (out, size) that interpolates along one axis."""
    out = int(size * factor)
    place = np.arange(out)
    weights = np.zeros((out, size))
    if interpolation == "nearest":
        weights[place, np.minimum(np.floor((place + 0.5) / factor).astype(np.int64), size - 1)] = 1.0
        return weights
    if align_corners:
        source = place * ((size - 1) / (out - 1)) if out > 1 else np.zeros(out)
    else:
        source = np.maximum((place + 0.5) / factor - 0.5, 0.0)
    low = np.minimum(np.floor(source).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.clip(source - low, 0.0, 1.0)
    np.add.at(weights, (place, low), 1.0 - share)
    np.add.at(weights, (place, high), share)
    return weights


def _whole(factor: float) -> int:
    return int(factor) if float(factor).is_integer() else 0


@op("upsample")
def _upsample(x: Array, *, factors: tuple[float, float], channels_first: bool, interpolation: str, align_corners: bool) -> Array:
    axes = (2, 3) if channels_first else (1, 2)
    for axis, factor in zip(axes, factors, strict=True):
        whole = _whole(factor)
        if interpolation == "nearest" and whole:  # each element several times: no arithmetic
            shape = (*x.shape[: axis + 1], whole, *x.shape[axis + 1 :])
            repeated = lax.broadcast_in_dim(x, shape, [a + (a > axis) for a in range(x.ndim)])
            x = lax.reshape(repeated, (*x.shape[:axis], x.shape[axis] * whole, *x.shape[axis + 1 :]))
            continue
        weights = _weights(x.shape[axis], factor, interpolation, align_corners).astype(np.float32 if is_half(x) else x.dtype)
        wide = lax.convert_element_type(x, weights.dtype)
        y = lax.dot_general(wide, weights, (((axis,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        order = [*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)]
        x = lax.convert_element_type(lax.transpose(y, order), x.dtype)
    return x


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


_MOST = 1024  # the interpolation matrices are computed on the host


def _factors(what: str, pair: Any, given: Any) -> tuple[float, float]:
    numbers = [real(v) for v in pair] if isinstance(pair, (list, tuple)) else []
    if len(numbers) != 2 or not all(v is not None and 0 < v <= _MOST for v in numbers):
        fail(ArgumentError, what, f"size must be a number in (0, {_MOST}] or a pair (h, w) of them, got {shown(given)}")
    return float(pair[0]), float(pair[1])
