"""Geometry of sliding windows, for convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.jax import jax, lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ._arrays import Array
from ._emit import fail, want

Padding = str | tuple[tuple[int, int], ...]  # "VALID", "SAME_LOWER", "SAME_UPPER", or (before, after) for each spatial axis

FORMATS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
_SPACE = {1: "W", 2: "HW", 3: "DHW"}


def want_format(what: str, data_format: Any, n: int, also: Sequence[str] = ()) -> bool:
    """Whether a format of ``n`` spatial axes has its channels first."""
    return want.choice(what, "data_format", data_format, (*FORMATS[n], *also)).startswith("NC")


def spec(n: int, first: str, second: str, channels_first: bool) -> str:
    """``spec(2, "O", "I", True)`` is "OIHW": the axes in the notation of ``lax.conv_general_dilated``."""
    return first + second + _SPACE[n] if channels_first else first + _SPACE[n] + second


def spatial(shape: tuple[int, ...], channels_first: bool) -> tuple[int, ...]:
    """The spatial sizes of a shape."""
    return shape[2:] if channels_first else shape[1:-1]


def want_padding(what: str, padding: Any, n: int, channels_first: bool) -> Padding:
    """A padding argument in its normal form.

    Strings are taken in any case, and "SAME" means "SAME_LOWER". A list has an entry for each axis of the input, in
    the order of its format: an int or a pair (before, after); those of batch and channels must be 0.
    """
    if isinstance(padding, str):
        name = padding.upper()
        name = "SAME_LOWER" if name == "SAME" else name
        if name not in ("VALID", "SAME_LOWER", "SAME_UPPER"):
            rule = f'padding must be "SAME", "SAME_LOWER", "SAME_UPPER", "VALID" or a list, got {shown(padding)}'
            fail(ArgumentError, what, rule)
        return name
    sides = [padding] * n if isinstance(padding, int) else list(padding) if isinstance(padding, (list, tuple)) else []
    if len(sides) != n or any(type(side) is not int or side < 0 for side in sides):
        sides = [1] * n
    pads = [[side, side] for side in sides]  # those of PyTorch's padding=1 and padding=(1, 2), where it is such a one
    example = f"write {[[0, 0], [0, 0], *pads] if channels_first else [[0, 0], *pads, [0, 0]]}"
    if not isinstance(padding, (list, tuple)) or len(padding) != n + 2:
        rule = f"padding must be a string or a list with an entry for each of the input's {n + 2} axes, got {shown(padding)}"
        fail(ArgumentError, what, rule, (), example)
    pairs = [want.ints(what, f"padding[{i}]", entry, 2) for i, entry in enumerate(padding)]
    if any(side < 0 for pair in pairs for side in pair):
        fail(ArgumentError, what, f"padding must not be negative, got {shown(padding)}")
    around = [pairs[0], pairs[1 if channels_first else -1]]
    if any(side for pair in around for side in pair):
        fail(ArgumentError, what, f"padding of the batch and channel axes must be 0, got {shown(padding)}", (), example)
    return tuple((low, high) for low, high in (pairs[2:] if channels_first else pairs[1:-1]))


def want_positive(what: str, argument: str, value: Any, n: int) -> tuple[int, ...]:
    """An int, or ``n`` of them, all > 0."""
    values = want.ints(what, argument, value, n)
    if any(v <= 0 for v in values):
        fail(ArgumentError, what, f"{argument} must be > 0, got {shown(value)}")
    return values


def sides(
    padding: Padding,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> list[tuple[int, int]]:
    """The padding before and after each spatial axis.

    It is computed when an op is lowered, not when it is added, because a call may feed less than the declared size.
    """
    result = []
    for i, (size, k, s) in enumerate(zip(sizes, kernel, strides, strict=True)):
        extent = (k - 1) * (dilations[i] if dilations else 1) + 1
        if padding == "VALID":
            low = high = 0
        elif isinstance(padding, str):
            total = at_least_zero((-(-size // s) - 1) * s + extent - size)
            low, high = total - total // 2, total // 2
            if padding == "SAME_UPPER":
                low, high = high, low
        else:
            low, high = padding[i]
            if ceil_mode:  # the last window starts inside and may end outside
                high += -(size + low + high - extent) % s
        result.append((low, high))
    return result


def convolved(
    x: Array, w: Array, strides: Sequence[int], pads: Any, dilations: Sequence[int], specs: tuple[str, str, str], groups: int
) -> Array:
    """``lax.conv_general_dilated``, of data with their padding in them where a window may be in it wholly.

    Of such a window of 1 x 1 at every second pixel, one channel and 32 filters XLA's gradient to the weights on CPUs ignores
    the padding (jaxlib 0.10).
    """
    kernel = [w.shape[specs[1].index(axis)] for axis in specs[0] if axis not in "NC"]
    is_known = not isinstance(pads, str)
    if is_known and any(max(pair) > (k - 1) * d for pair, k, d in zip(pads, kernel, dilations, strict=True)):
        places = iter(pads)
        x = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0) if axis in "NC" else (*next(places), 0) for axis in specs[0]])
        pads = [(0, 0)] * len(kernel)
    return lax.conv_general_dilated(
        x, w, strides, pads, rhs_dilation=dilations, dimension_numbers=specs, feature_group_count=groups
    )


def at_least_zero(number: Any) -> Any:
    """max(0, number), also for sizes that an exported model leaves to its caller."""
    return max(0, number) if isinstance(number, int) else jax.core.max_dim(number, 0)  # an open size


def counts(
    padding: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """The number of windows along each spatial axis."""
    return tuple(
        (size + low + high - (k - 1) * d - 1) // s + 1
        for size, (low, high), k, s, d in zip(sizes, padding, kernel, strides, dilations, strict=True)
    )


def must_fit(
    what: str,
    x: Blob,
    channels_first: bool,
    padding: Padding,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool = False,
) -> None:
    """Raises ShapeError where the window is larger than the padded input."""
    sizes = spatial(x.shape, channels_first)
    if min(counts(sides(padding, sizes, kernel, strides, dilations, ceil_mode), sizes, kernel, strides, dilations)) <= 0:
        extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
        fail(ShapeError, what, f"a window of {extent} does not fit into an input of {sizes} with padding {shown(padding)}", (x,),
             'use padding="SAME", or a smaller kernel')  # fmt: skip
