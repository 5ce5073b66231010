"""Padding and cropping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base.jax import lax
from .._base.refuse import shown, warn
from ..errors import ArgumentError, JobWarning, ShapeError
from ..graph.node import Blob
from ._arrays import Array, broadcast_to, label, like, number_for
from ._emit import emit, fail, moved_entries, op, want
from ._window import sides

Pairs = tuple[tuple[int, int], ...]


@op("pad", autocast="between", channels_last=lambda attrs, rank: {**attrs, "paddings": moved_entries(attrs["paddings"])})
def _pad(x: Array, *, paddings: Pairs, value: int | float) -> Array:
    return lax.pad(x, like(value, x), [(before, after, 0) for before, after in paddings])


@op("pad_grad")
def _pad_grad(x: Array, *, paddings: Pairs) -> Array:
    return lax.slice(x, [b for b, _ in paddings], [size - a for size, (_, a) in zip(x.shape, paddings, strict=True)])


def _pairs(what: str, x: Blob, paddings: Any) -> Pairs:
    ok = isinstance(paddings, (list, tuple)) and len(paddings) == x.ndim
    if not ok or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in paddings):
        fail(ArgumentError, what, f"paddings must hold {x.ndim} pairs (before, after), got {shown(paddings)}", (x,))
    before, after = zip(*(want.ints(what, "paddings", pair, 2) for pair in paddings), strict=True)
    if min(before + after) < 0:
        fail(ArgumentError, what, f"paddings must be >= 0, got {shown(paddings)}", (x,))
    return tuple(zip(before, after, strict=True))


def pad(x: Blob, paddings: Sequence[Any], constant_value: int | float = 0, name: str | None = None) -> Blob:
    """Adds a border of one number.

    Args:
      x: Blob of any dtype.
      paddings: list or tuple with a pair (before, after) for each axis, all >= 0.
      constant_value: number, converted to x's dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's dtype, larger by before + after on each axis.
    Raises: ArgumentError.
    Example: >>> y = flow.pad(x, [(0, 0), (1, 2)])   # (2, 3) -> (2, 6)
    """
    what = label("pad", name)
    pairs = _pairs(what, want.blob(what, "x", x), paddings)
    return emit(_pad, x, name=name, paddings=pairs, value=number_for(what, constant_value, x, "constant_value"))


def pad_grad(x: Blob, paddings: Sequence[Any], constant_value: int | float = 0, name: str | None = None) -> Blob:
    """Removes the border that ``pad`` with these paddings adds.

    Args: those of ``pad``; constant_value is not used.
    Returns: Blob of x's dtype, smaller by before + after on each axis.
    Raises: ArgumentError, ShapeError (nothing left).
    Example: >>> y = flow.pad_grad(x, [(0, 0), (1, 2)])   # (2, 6) -> (2, 3)
    """
    what = label("pad_grad", name)
    pairs = _pairs(what, want.blob(what, "x", x), paddings)
    number_for(what, constant_value, x, "constant_value")
    if any(size <= before + after for size, (before, after) in zip(x.shape, pairs, strict=True)):
        fail(ShapeError, what, f"paddings {list(pairs)} leave nothing of {x.shape}", (x,))
    return emit(_pad_grad, x, name=name, paddings=pairs)


# --- images (N, C, H, W)


def _image_pairs(what: str, x: Any, padding: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    want.rank(what, want.blob(what, "x", x), 4, 4)
    if 0 in x.shape[2:]:
        fail(ShapeError, what, "the images are empty", (x,))
    left, right, top, bottom = want.ints(what, "padding", padding, 4)
    if min(left, right, top, bottom) < 0:
        fail(ArgumentError, what, f"padding must be >= 0, got {shown(padding)}", (x,))
    return (top, bottom), (left, right)


def constant_pad2d(
    x: Blob, padding: int | tuple[int, ...] | list[int], constant_value: int | float = 0, name: str | None = None
) -> Blob:
    """Adds a border of one number to images.

    Args:
      x: Blob (N, C, H, W).
      padding: int >= 0 for all sides, or (left, right, top, bottom).
      constant_value: number, converted to x's dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob (N, C, H + top + bottom, W + left + right) of x's dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.constant_pad2d(x, (1, 1, 2, 2))   # (2, 3, 4, 5) -> (2, 3, 8, 7)
    """
    what = label("constant_pad2d", name)
    rows, columns = _image_pairs(what, x, padding)
    value = number_for(what, constant_value, x, "constant_value")
    return emit(_pad, x, name=name, prefix="ConstantPad2d", paddings=((0, 0), (0, 0), rows, columns), value=value)


def zero_pad2d(x: Blob, padding: int | tuple[int, ...] | list[int], name: str | None = None) -> Blob:
    """Adds a border of zeros to images; arguments are those of ``constant_pad2d``.

    Example: >>> y = flow.zero_pad2d(x, 1)   # (2, 3, 4, 5) -> (2, 3, 6, 7)
    """
    rows, columns = _image_pairs(label("zero_pad2d", name), x, padding)
    return emit(_pad, x, name=name, prefix="ZeroPad2d", paddings=((0, 0), (0, 0), rows, columns), value=0)


def _along(x: Array, axis: int, start: int, stop: int) -> Array:
    return lax.slice_in_dim(x, start, stop, axis=axis)


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    """Of ops whose attribute ``first`` is the first axis of space."""
    return {**attrs, "first": 1} if attrs["first"] == 2 else None


@op("reflection_pad2d", channels_last=_channels_last)
def _reflection_pad2d(x: Array, *, rows: tuple[int, int], columns: tuple[int, int], first: int) -> Array:
    for axis, (before, after) in enumerate((rows, columns), first):
        size = x.shape[axis]
        ahead = lax.rev(_along(x, axis, 1, before + 1), (axis,))
        behind = lax.rev(_along(x, axis, size - 1 - after, size - 1), (axis,))
        x = lax.concatenate([ahead, x, behind], axis)
    return x


def _repeated(edge: Array, axis: int, count: int) -> Array:
    return broadcast_to(edge, tuple(count if i == axis else size for i, size in enumerate(edge.shape)))


@op("replication_pad2d", channels_last=_channels_last)
def _replication_pad2d(x: Array, *, rows: tuple[int, int], columns: tuple[int, int], first: int) -> Array:
    for axis, (before, after) in enumerate((rows, columns), first):
        size = x.shape[axis]
        top, bottom = _along(x, axis, 0, 1), _along(x, axis, size - 1, size)
        parts = [_repeated(top, axis, before), x, _repeated(bottom, axis, after)]
        x = lax.concatenate([part for part in parts if part.shape[axis]], axis)
    return x


def reflection_pad2d(x: Blob, padding: int | tuple[int, ...] | list[int], name: str | None = None) -> Blob:
    """Adds a border to images that mirrors them, without repeating the edge.

    Args:
      x: Blob (N, C, H, W).
      padding: int >= 0 for all sides, or one for each axis, (N, C, H, W), for both of its sides; those of N and C have no
        effect, and the others are smaller than the axis.
      name: name of the op; made unique when omitted.
    Returns: Blob (N, C, H + 2 * padding, W + 2 * padding) of x's dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.reflection_pad2d(x, 1)   # (2, 3, 4, 5) -> (2, 3, 6, 7)
    """
    what = label("reflection_pad2d", name)
    want.blob(what, "x", x)
    sides = want.ints(what, "padding", padding, 4)
    if any(sides[:2]) and len(set(sides)) > 1:
        warn(JobWarning, f"{what}: padding={sides} is (N, C, H, W), and the axes N and C are not padded; "
             "oneflow.compatible.single_client.reflection_pad2d takes (left, right, top, bottom)")  # fmt: skip
    return reflected(x, (sides[3], sides[3], sides[2], sides[2]), name)


def reflected(x: Blob, padding: int | tuple[int, ...] | list[int], name: str | None = None) -> Blob:
    """``reflection_pad2d`` with a padding of (left, right, top, bottom), as in 0.6."""
    what = label("reflection_pad2d", name)
    rows, columns = _image_pairs(what, x, padding)
    if max(rows) >= x.shape[2] or max(columns) >= x.shape[3]:
        fail(ShapeError, what, f"padding must be smaller than the image, {x.shape[2:]}, got {shown(padding)}", (x,))
    return emit(_reflection_pad2d, x, name=name, rows=rows, columns=columns, first=2)


def replication_pad2d(x: Blob, padding: int | tuple[int, ...] | list[int], name: str | None = None) -> Blob:
    """Adds a border to images that repeats their edge; arguments are those of ``constant_pad2d``.

    Example: >>> y = flow.replication_pad2d(x, 1)   # (2, 3, 4, 5) -> (2, 3, 6, 7)
    """
    rows, columns = _image_pairs(label("replication_pad2d", name), x, padding)
    return emit(_replication_pad2d, x, name=name, rows=rows, columns=columns, first=2)


# --- for windows


@op("same_padding", autocast="between", channels_last=_channels_last)
def _same_padding(
    x: Array, *, padding: str, first: int, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Array:
    config = [(0, 0, 0)] * x.ndim
    around = sides(padding, x.shape[first : first + len(kernel)], kernel, strides, dilations)
    for axis, (before, after) in enumerate(around, first):
        config[axis] = (before, after, 0)
    return lax.pad(x, np.zeros((), x.dtype), config)


def same_padding(
    x: Blob,
    padding: str,
    data_format: str,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    name: str | None = None,
) -> Blob:
    """Adds the zeros for ceil(size / stride) windows along each axis.

    Args:
      x: Blob (N, C, ...) or (N, ..., C).
      padding: "SAME_LOWER" (an odd zero goes in front) or "SAME_UPPER" (behind).
      data_format: "NCHW" and the like, or "NHWC" and the like.
      kernel_size, strides, dilation_rate: lists with one int > 0 for each spatial axis.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's dtype.
    Raises: ArgumentError.
    Example: >>> y = flow.same_padding(x, "SAME_LOWER", "NCHW", [3, 3], [2, 2], [1, 1])   # (2, 3, 4, 4) -> (2, 3, 5, 5)
    """
    what = label("same_padding", name)
    want.rank(what, want.blob(what, "x", x), 3)
    side = want.choice(what, "padding", padding.upper() if isinstance(padding, str) else padding, ("SAME_LOWER", "SAME_UPPER"))
    if not isinstance(data_format, str) or len(data_format) != x.ndim or "C" not in data_format.upper():
        fail(ArgumentError, what, f"data_format must name {x.ndim} axes, such as 'NCHW' for 4, got {shown(data_format)}", (x,))
    space = []
    for argument, values in (("kernel_size", kernel_size), ("strides", strides), ("dilation_rate", dilation_rate)):
        if not isinstance(values, (list, tuple)) or len(values) != x.ndim - 2 or min(want.ints(what, argument, values)) <= 0:
            fail(ArgumentError, what, f"{argument} must hold {x.ndim - 2} ints > 0, got {shown(values)}", (x,))
        space.append(want.ints(what, argument, values))
    first = 2 if data_format.upper().startswith("NC") else 1
    return emit(_same_padding, x, name=name, padding=side, first=first, kernel=space[0], strides=space[1], dilations=space[2])
