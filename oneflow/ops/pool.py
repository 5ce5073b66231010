"""Maximum and average over sliding windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from .._base.jax import jax, jnp, lax
from ..graph.node import Blob
from ._arrays import Array, broadcast_to, full, label, like, where_else_zero, widen
from ._emit import emit, op, want
from ._int8 import LARGEST
from ._native_pool import NATIVE
from ._window import FORMATS, Padding, counts, must_fit, sides, want_format, want_padding, want_positive

Ints = int | Sequence[int]
_LARGEST = 64  # elements: larger windows are not computed slice by slice, which would make programs long


@dataclass(frozen=True)
class _Windows:
    """The windows over one array: all tuples have an entry for every axis of it."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    out: tuple[int, ...]

    @staticmethod
    def over(
        x: Array, ksize: Sequence[int], strides: Sequence[int], padding: Padding, channels_first: bool, ceil_mode: bool
    ) -> _Windows:
        sizes = x.shape[2:] if channels_first else x.shape[1:-1]
        pads = sides(padding, sizes, ksize, strides, None, ceil_mode)
        out = counts(pads, sizes, ksize, strides, (1,) * len(ksize))

        def every(spatial: Sequence[Any], other: Any) -> tuple[Any, ...]:
            return (other, other, *spatial) if channels_first else (other, *spatial, other)

        rest = (x.shape[0], x.shape[1 if channels_first else -1])
        shape = (*rest, *out) if channels_first else (rest[0], *out, rest[1])
        return _Windows(x.shape, every(ksize, 1), every(strides, 1), every(pads, (0, 0)), shape)

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """The positions in a window, row by row."""
        return list(itertools.product(*map(range, self.kernel)))

    @property
    def are_padded(self) -> bool:
        return any(low or high for low, high in self.pads)

    def parts(self, x: Array, fill: float) -> list[Array]:
        """For each position in a window, the elements at that position of all windows."""
        if self.are_padded:
            x = lax.pad(x, like(fill, x), [(low, high, 0) for low, high in self.pads])
        ends = [(size - 1) * stride + 1 for size, stride in zip(self.out, self.strides, strict=True)]
        return [lax.slice(x, o, [a + b for a, b in zip(o, ends, strict=True)], self.strides) for o in self.offsets]

    def real(self, offset: tuple[int, ...]) -> Array | None:
        """A mask of the windows with an element of the input, not padding, at that position; None if all have one."""
        mask = None
        for axis, (o, (low, _)) in enumerate(zip(offset, self.pads, strict=True)):
            place = np.arange(self.out[axis]) * self.strides[axis] + o - low
            inside = (place >= 0) & (place < self.shape[axis])
            if not inside.all():
                here = lax.broadcast_in_dim(inside, self.out, (axis,))
                mask = here if mask is None else lax.bitwise_and(mask, here)
        return mask

    def to_all(self, dy: Array) -> Array:
        """The gradient with respect to the input if every position of a window has the gradient ``dy`` of that window."""
        if self.kernel == self.strides:
            return self._assembled(self._widened(dy))
        return self._spread([dy] * len(self.offsets))

    def to_one(self, place: Array, dy: Array) -> Array:
        """``to_all``, if one position of each window, an index into ``offsets``, has its gradient and the others have 0."""
        numbers = np.arange(len(self.offsets), dtype=place.dtype)
        if self.kernel != self.strides:
            return self._spread([where_else_zero(lax.eq(place, like(i, place)), dy) for i in numbers])
        shape, _ = self._interleaved
        axes = [i for i, size in enumerate(shape) if i not in self._interleaved[1]]
        here = lax.broadcast_in_dim(numbers.reshape([shape[i] for i in axes]), shape, axes)
        return self._assembled(where_else_zero(lax.eq(self._widened(place), here), self._widened(dy)))

    @property
    def _interleaved(self) -> tuple[list[int], list[int]]:
        """The sizes of the output, each followed by that of the window where it is not 1; and the positions of the former."""
        shape: list[int] = []
        places: list[int] = []
        for size, k in zip(self.out, self.kernel, strict=True):
            places.append(len(shape))
            shape += [size, k] if k > 1 else [size]
        return shape, places

    def _widened(self, array: Array) -> Array:
        return lax.broadcast_in_dim(array, *self._interleaved)

    def _assembled(self, array: Array) -> Array:
        """The reverse of ``_interleaved``: from windows that do not overlap to the shape of the input."""
        whole = lax.reshape(array, [size * k for size, k in zip(self.out, self.kernel, strict=True)])
        edges = [
            (-low, size + low - covered, 0) for size, (low, _), covered in zip(self.shape, self.pads, whole.shape, strict=True)
        ]
        return lax.pad(whole, like(0, whole), edges) if any(e != (0, 0, 0) for e in edges) else whole

    def _spread(self, parts: Sequence[Array]) -> Array:
        """The transpose of ``parts``: sums the values that belong to the same element of the input."""
        placed = []
        for offset, part in zip(self.offsets, parts, strict=True):
            edges = []
            for axis, (o, (low, _)) in enumerate(zip(offset, self.pads, strict=True)):
                before, stride = o - low, self.strides[axis]
                edges.append((before, self.shape[axis] - before - (self.out[axis] - 1) * stride - 1, stride - 1))
            placed.append(lax.pad(part, like(0, part), edges))
        return reduce(lax.add, placed)

    def elements(self) -> Any:
        """The number of elements of the input in each window, in a shape that broadcasts to the output's.

        A NumPy array, unless the size of a padded axis is symbolic.
        """
        total: Any = np.ones((1,) * len(self.out), np.int64)
        for axis, (size, pads, k, stride) in enumerate(zip(self.shape, self.pads, self.kernel, self.strides, strict=True)):
            if tuple(pads) == (0, 0):  # every window is inside
                total = total * k
                continue
            of = np if isinstance(size, int) else jnp
            begin = of.arange(self.out[axis]) * stride - pads[0]
            inside = of.maximum(of.minimum(begin + k, size) - of.maximum(begin, 0), 0)
            if of is np:
                inside = inside[:1] if inside.size and (inside == inside[0]).all() else inside
            total = total * of.expand_dims(inside, [a for a in range(len(self.out)) if a != axis])
        return total


def _sums(x: Array, windows: _Windows) -> Array:
    if math.prod(windows.kernel) > _LARGEST:
        return lax.reduce_window(x, like(0, x), lax.add, windows.kernel, windows.strides, windows.pads)
    return reduce(lax.add, windows.parts(x, 0.0))


def _share(windows: _Windows, x: Array) -> Array:
    """1 / the number of elements of each window."""
    with np.errstate(divide="ignore"):  # a window in the padding: 0 * inf is NaN
        share = (1.0 / windows.elements()).astype(x.dtype)
    single = isinstance(share, np.ndarray) and share.size == 1
    return share.reshape(())[()] if single else broadcast_to(share, windows.out)


# Measured on 2 cores, (100, 32, 28, 28) float32, 2x2 windows, forward and backward in one program: slices 2.2 ms,
# reduce_window with the gradient that JAX derives 35 ms.
def _max_pool(x: Array, *, ksize: Any, strides: Any, padding: Padding, channels_first: bool, ceil_mode: bool) -> Array:
    windows = _Windows.over(x, ksize, strides, padding, channels_first, ceil_mode)
    least = -math.inf if jnp.issubdtype(x.dtype, np.floating) else int(jnp.iinfo(x.dtype).min)  # 8-bit integers in int8 inference
    if math.prod(windows.kernel) > _LARGEST:
        y = lax.reduce_window(x, like(least, x), lax.max, windows.kernel, windows.strides, windows.pads)
    else:
        y = reduce(lax.max, windows.parts(x, least))
    empty = windows.elements() == 0
    if not isinstance(empty, np.ndarray) or empty.any():  # only with ceil_mode: windows in the padding
        y = lax.select(broadcast_to(empty, y.shape), full(float(jnp.finfo(x.dtype).min) if least == -math.inf else least, y), y)
    return y


def _max_pool_grad(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Array]:
    (x,), (y,), (dy,) = inputs, outputs, cotangents
    windows = _Windows.over(x, **attrs)
    if math.prod(windows.kernel) > _LARGEST:
        return (jax.vjp(lambda v: _max_pool(v, **attrs), x)[1](dy)[0],)
    place = None  # of the first maximum: the last one found in reverse order
    for number, (offset, part) in reversed(list(enumerate(zip(windows.offsets, windows.parts(x, -math.inf), strict=True)))):
        hit = lax.bitwise_not(lax.lt(part, y))  # true at a NaN, too, so that it does not vanish from the gradient
        real = windows.real(offset)
        hit = hit if real is None else lax.bitwise_and(hit, real)
        mine = lax.full(y.shape, number, np.uint8)
        place = lax.select(hit, mine, lax.full(y.shape, _LARGEST, np.uint8) if place is None else place)
    return (windows.to_one(place, dy),)


def _avg_pool(x: Array, *, ksize: Any, strides: Any, padding: Padding, channels_first: bool, ceil_mode: bool) -> Array:
    windows = _Windows.over(x, ksize, strides, padding, channels_first, ceil_mode)
    wide = widen(x)
    y = _sums(wide, windows)
    return lax.convert_element_type(lax.mul(y, _share(windows, y)), x.dtype)


def _avg_pool_grad(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Array]:
    (x,), (dy,) = inputs, cotangents
    windows = _Windows.over(x, **attrs)
    share = lax.mul(dy, _share(windows, dy))
    if math.prod(windows.kernel) > _LARGEST:
        return (jax.vjp(lambda v: _sums(v, windows), x)[1](share)[0],)
    return (windows.to_all(share),)


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    return {**attrs, "channels_first": False} if attrs["channels_first"] else None


def _undivided(attrs: Mapping[str, Any], inputs: Sequence[Blob], outputs: Sequence[Blob], devices: int) -> Container[int]:
    """The spatial axes, where windows overlap and skip pixels: XLA cannot divide what spreads their gradients."""
    skips = any(1 < stride < k for k, stride in zip(attrs["ksize"], attrs["strides"], strict=True))
    begin = 2 if attrs["channels_first"] else 1
    return range(begin, begin + inputs[0].ndim - 2) if skips else ()


_FACTS: dict[str, Any] = {
    "batch_inputs": (0,), "channels_last": _channels_last, "autocast": "between", "zeros": "all", "undivided": _undivided,
}  # fmt: skip
_MAX = {
    n: op(f"max_pool_{n}d", grad=_max_pool_grad, seeks_output=True, int8=LARGEST, native=NATIVE, **_FACTS)(_max_pool)
    for n in FORMATS
}
_AVERAGE = {n: op(f"avg_pool_{n}d", grad=_avg_pool_grad, **_FACTS)(_avg_pool) for n in FORMATS}


def _pool(
    kind: str, n: int, x: Any, ksize: Any, strides: Any, padding: Any, data_format: Any, ceil_mode: bool, name: str | None
) -> Blob:
    made = (_MAX if kind == "max" else _AVERAGE)[n]
    what = label(f"{kind}_pool{n}d", name)
    want.floating(what, want.blob(what, "input", x))
    want.rank(what, x, n + 2, n + 2)
    first = want_format(what, data_format, n, ("NCHW_VECT_C",) if n == 2 else ())
    size = want_positive(what, "ksize", ksize, n)
    steps = want_positive(what, "strides", 1 if strides is None else strides, n)
    pads = want_padding(what, padding, n, first)
    ceil = want.flag(what, "ceil_mode", ceil_mode, (x,)) and not isinstance(pads, str)
    must_fit(what, x, first, pads, size, steps, (1,) * n, ceil)
    prefix = f"{kind.capitalize()}Pool{n}D"
    return emit(made, x, name=name, prefix=prefix, ksize=size, strides=steps, padding=pads, channels_first=first, ceil_mode=ceil)


def max_pool2d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Any,
    data_format: str = "NCHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> Blob:
    """The maximum of each window. The gradient goes to the first maximum of a window, row by row.

    Args:
      input: (N, C, H, W), or (N, H, W, C) for "NHWC"; floating.
      ksize: the window: an int or a pair > 0.
      strides: an int or a pair > 0; None means 1.
      padding: "VALID": none. "SAME" = "SAME_LOWER": the output has ceil(size / stride) elements, an odd total pads more
        before; "SAME_UPPER" more after. Or an entry for each axis of the input, an int or (before, after). Padding is
        never chosen.
      data_format: "NCHW", "NHWC" or "NCHW_VECT_C" (the same as "NCHW").
      ceil_mode: with a padding list, a last window that begins inside may end outside.
      name: name of the op.
    Returns: Blob of input's dtype and rank.
    Raises: ArgumentError, ShapeError (rank; a window that does not fit), DtypeError.
    Example: >>> y = flow.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")   # (8, 3, 28, 28) -> (8, 3, 14, 14)
    """
    return _pool("max", 2, input, ksize, strides, padding, data_format, ceil_mode, name)


def avg_pool2d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Any,
    data_format: str = "NCHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> Blob:
    """The mean of each window; padding is not counted.

    Args, Returns, Raises: those of ``max_pool2d``.
    Example: >>> y = flow.nn.avg_pool2d(x, ksize=2, strides=2, padding="VALID")   # (8, 3, 28, 28) -> (8, 3, 14, 14)
    """
    return _pool("avg", 2, input, ksize, strides, padding, data_format, ceil_mode, name)


def max_pool3d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Any,
    data_format: str = "NCDHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> Blob:
    """The maximum of each window of three axes.

    Args, Returns, Raises: those of ``max_pool2d``, for (N, C, D, H, W), or (N, D, H, W, C) with "NDHWC".
    Example: >>> y = flow.nn.max_pool3d(x, ksize=2, strides=2, padding="VALID")   # (1, 3, 8, 8, 8) -> (1, 3, 4, 4, 4)
    """
    return _pool("max", 3, input, ksize, strides, padding, data_format, ceil_mode, name)


def avg_pool3d(
    input: Blob,
    ksize: Ints,
    strides: Ints,
    padding: Any,
    data_format: str = "NCDHW",
    ceil_mode: bool = False,
    name: str | None = None,
) -> Blob:
    """The mean of each window of three axes; padding is not counted.

    Args, Returns, Raises: those of ``max_pool2d``, for (N, C, D, H, W), or (N, D, H, W, C) with "NDHWC".
    Example: >>> y = flow.nn.avg_pool3d(x, ksize=2, strides=2, padding="VALID")   # (1, 3, 8, 8, 8) -> (1, 3, 4, 4, 4)
    """
    return _pool("avg", 3, input, ksize, strides, padding, data_format, ceil_mode, name)


def max_pool1d(input: Blob, ksize: Ints, strides: Ints, padding: Any, data_format: str = "NWC", name: str | None = None) -> Blob:
    """The maximum of each window of one axis.

    Args, Returns, Raises: those of ``max_pool2d``, for (N, W, C), or (N, C, W) with "NCW". (OneFlow has no such kernel.)
    Example: >>> y = flow.nn.max_pool1d(x, ksize=2, strides=2, padding="VALID", data_format="NCW")   # (8, 3, 28) -> (8, 3, 14)
    """
    return _pool("max", 1, input, ksize, strides, padding, data_format, False, name)


def avg_pool1d(input: Blob, ksize: Ints, strides: Ints, padding: Any, data_format: str = "NCW", name: str | None = None) -> Blob:
    """The mean of each window of one axis; padding is not counted.

    Args, Returns, Raises: those of ``max_pool2d``, for (N, C, W), or (N, W, C) with "NWC". (OneFlow has no such kernel.)
    Example: >>> y = flow.nn.avg_pool1d(x, ksize=2, strides=2, padding="VALID")   # (8, 3, 28) -> (8, 3, 14)
    """
    return _pool("avg", 1, input, ksize, strides, padding, data_format, False, name)
