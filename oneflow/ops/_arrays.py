"""Functions that several families of ops share: numbers beside Blobs, broadcasting, selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.check import real
from .._base.dtype import dtype
from .._base.jax import jax, jnp, lax
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.node import INVALID_AXIS, Blob
from ._emit import fail, is_number

Array = Any


def label(op_name: str, name: str | None) -> str:
    """The name of an op in error messages."""
    if name is not None and not isinstance(name, str):
        fail(ArgumentError, op_name, f"name must be a str, got {shown(name)}")
    return op_name if name is None else f"{op_name} {shown(name)}"


def number_for(what: str, number: Any, blob: Blob, argument: str = "the number") -> int | float:
    """A Python or NumPy number as an int or float, like the Blob's dtype; for integer Blobs the fraction is dropped.

    Raises:
      ArgumentError: it is not a number, or an integer dtype cannot hold it.
    """
    if not is_number(number) or isinstance(number, np.complexfloating):
        fail(ArgumentError, what, f"{argument} must be a number, got {type(number).__name__} {shown(number)}", (blob,))
    if not blob.dtype.is_integer:
        return as_float(number)
    limits = np.iinfo(blob.dtype.numpy_dtype)
    if not in_range(number, limits):
        rule = f"{argument} {shown(number)} is outside {blob.dtype.name}'s range, {limits.min} to {limits.max}"
        fail(ArgumentError, what, rule, (blob,), "convert the Blob with flow.cast first")
    return int(number)


def as_float(number: Any) -> float:
    """A Python or NumPy number (a bool, too) as a float; an int that no float can hold becomes an infinity."""
    found = real(number)
    return float(number) if found is None else found


def in_range(number: Any, limits: np.iinfo) -> bool:
    """Whether an integer dtype can hold a number, whose fraction is dropped."""
    return math.isfinite(as_float(number)) and limits.min <= int(number) <= limits.max


def dtype_for(what: str, value: Any, argument: str = "dtype") -> dtype:
    """A dtype of oneflow that arrays can have.

    Raises:
      ArgumentError: it is something else.
    """
    try:
        kind = dtypes.as_dtype(value, argument)
        kind.numpy_dtype  # noqa: B018 - record and tensor_buffer raise here
    except ArgumentError as error:
        fail(ArgumentError, what, str(error))
    return kind


def like(number: Any, x: Array) -> Array:
    """``number`` as a NumPy scalar of x's dtype, which lax combines with x without promotion.

    A symbolic size, or a number computed from one, becomes an array.
    """
    if not isinstance(number, (int, float, np.generic, np.ndarray)):
        return lax.convert_element_type(jnp.asarray(number), x.dtype)
    with np.errstate(over="ignore"):  # 1e39 is a legal spelling of float32's infinity
        return np.asarray(number).astype(x.dtype)[()]


def full(number: int | float, x: Array) -> Array:
    """An array of x's shape and dtype that holds ``number`` everywhere."""
    return lax.broadcast_in_dim(like(number, x), x.shape, ())


def broadcast(*arrays: Array) -> tuple[Array, ...]:
    """The arrays in their common shape, by NumPy's rule."""
    shapes = [a.shape for a in arrays]
    if all(shape == shapes[0] for shape in shapes):
        return arrays
    common = common_shape(*shapes)
    return tuple(broadcast_to(a, common) for a in arrays)


def common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which these broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except TypeError:  # open sizes
        return _common_open_shape(shapes)
    except ValueError:
        raise _do_not_broadcast(shapes) from None


def _common_open_shape(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    rank = max(map(len, shapes))
    common = []
    for columns in zip(*((*(1,) * (rank - len(shape)), *shape) for shape in shapes), strict=True):
        sizes = [size for size in columns if not (isinstance(size, int) and size == 1)]
        if any(size != sizes[0] for size in sizes):
            raise _do_not_broadcast(shapes)
        common.append(sizes[0] if sizes else 1)
    return tuple(common)


def _do_not_broadcast(shapes: Sequence[tuple[Any, ...]]) -> ValueError:
    found = " and ".join(f"({', '.join(map(str, shape))})" for shape in shapes)
    return ValueError(f"shapes {found} do not broadcast: counted from the last axis, sizes must be equal or 1")


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """x repeated along its missing and size-1 axes."""
    if x.shape == shape:
        return x
    offset = len(shape) - x.ndim
    if offset < 0 or any(size not in (1, shape[i + offset]) for i, size in enumerate(x.shape)):
        raise ValueError(f"shape {x.shape} does not become {shape} by repeating axes of size 1")
    if is_half(x):  # the gradient is a sum, which is rounded once then
        return lax.convert_element_type(broadcast_to(lax.convert_element_type(x, np.float32), shape), x.dtype)
    kept = [i for i, size in enumerate(x.shape) if size == shape[i + offset]]  # size-1 axes are dropped, then re-made
    squeezed = lax.reshape(x, tuple(x.shape[i] for i in kept)) if len(kept) < x.ndim else x
    return lax.broadcast_in_dim(squeezed, shape, tuple(i + offset for i in kept))


def groups_of_axes(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of axes of two shapes with the same number of elements: (axes of old, axes of new).

    (8, 3, 4) and (8, 12) have the runs ([0], [0]) and ([1, 2], [1]). Sizes are > 0.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i == len(old) or j == len(new):  # ones at the end
            groups[-1][0].extend(range(i, len(old)))
            groups[-1][1].extend(range(j, len(new)))
            break
        first_i, first_j, a, b = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        groups.append((list(range(first_i, i)), list(range(first_j, j))))
    return groups


def axis_after_removing(removed: Sequence[int], axis: int) -> int:
    """The number of an axis after others are removed; INVALID_AXIS where it is one of them, or already invalid."""
    return INVALID_AXIS if axis < 0 or axis in removed else axis - sum(a < axis for a in removed)


def sum_to(g: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of broadcasting: g summed over the axes along which an array of ``shape`` was repeated."""
    if g.shape == shape:
        return g
    offset = g.ndim - len(shape)
    axes = [i for i, size in enumerate(g.shape) if i < offset or shape[i - offset] != size]
    wide = widen(g)  # summed without rounding in between
    return lax.reshape(lax.convert_element_type(lax.reduce_sum(wide, axes), g.dtype), shape)


def select(mask: Array, x: Array, y: Array) -> Array:
    """x where mask, else y; x and y may be scalars of one dtype."""
    return lax.select(mask, *(v if v.shape == mask.shape else lax.broadcast_in_dim(v, mask.shape, ()) for v in (x, y)))


def polynomial(at: Array, coefficients: Sequence[float]) -> Array:
    """The polynomial with these coefficients, that of the highest power first."""
    total = lax.full_like(at, coefficients[0])
    for c in coefficients[1:]:
        total = total * at + lax.full_like(at, c)
    return total


def where_else_zero(mask: Array, x: Array) -> Array:
    """x where mask, else 0."""
    return lax.select(mask, x, lax.full_like(x, 0))


def largest_of(x: Array, axes: tuple[int, ...]) -> Array:
    """``lax.reduce_max``; NaN where there is one."""
    return _with_nans(lax.reduce_max(x, axes), x, axes)


def least_of(x: Array, axes: tuple[int, ...]) -> Array:
    """``lax.reduce_min``; NaN where there is one."""
    return _with_nans(lax.reduce_min(x, axes), x, axes)


def _with_nans(found: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """What a reduction of x has found, with the NaNs that XLA's library passes over on CPUs (jaxlib 0.10)."""
    if not jnp.issubdtype(x.dtype, np.floating):
        return found

    def exact(x: Array) -> Array:
        return lax.reduce_sum(where_else_zero(lax.ne(x, x), x), axes)

    def marks(x: Array) -> Array:
        if not is_many(x.shape, 1 << 15):  # a condition takes longer than to look at each of them
            return exact(x)
        total = lax.reduce_sum(x, axes)  # by the library as well, NaN where there is a NaN, or two infinities
        is_nan = lax.ne(total, total)
        return lax.cond(lax.reduce_or(is_nan, range(is_nan.ndim)), exact, lambda _: lax.full_like(found, 0), x)

    marked = lax.platform_dependent(lax.stop_gradient(x), cpu=marks, default=lambda x: lax.full_like(found, 0))
    return select(lax.ne(marked, marked), marked, found)


def is_many(sizes: Sequence[Any], least: int) -> bool:
    """Whether an array of these sizes has so many numbers; false where a size is symbolic."""
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) >= least


def root_of(x: Array) -> Array:
    """The square root, whose gradient at 0 is 0: that of the norm, the deviation or the distance that it belongs to."""
    return _zero_at_zero(lambda safe: lax.sqrt(safe), x)


def power_of(x: Array, exponent: float) -> Array:
    """x ** exponent for x >= 0 and an exponent > 0; its gradient at 0 is 0."""
    return _zero_at_zero(lambda safe: lax.pow(safe, like(exponent, safe)), x)


def _zero_at_zero(function: Callable[[Array], Array], x: Array) -> Array:
    zero = lax.eq(x, like(0, x))
    return select(zero, like(0, x), function(select(zero, like(1, x), x)))


def softplus_of(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return lax.add(lax.max(x, full(0, x)), lax.log1p(lax.exp(lax.neg(lax.abs(x)))))


def gradient_of(function: Any, x: Array, dy: Array) -> Array:
    """The vector-Jacobian product of a function of one array, for ops that are gradients of others."""
    return jax.vjp(function, x)[1](dy)[0]


def is_half(x: Array) -> bool:
    """Whether it is float16 or bfloat16, whose sums are computed in float32."""
    return x.dtype.itemsize == 2 and x.dtype.kind in "fV"


def widen(x: Array) -> Array:
    """float16 and bfloat16 as float32: sums and exponentials are not computed in half precision."""
    return lax.convert_element_type(x, np.float32) if is_half(x) else x


def of_many_on_cpus(vectors: Callable[..., Array], exact: Callable[..., Array], least: int, *arrays: Array) -> Array:
    """``vectors`` of ``least`` float32 numbers or more each on a CPU, else ``exact``."""
    if any(array.dtype != np.float32 or not is_many(array.shape, least) for array in arrays):
        return exact(*arrays)
    return lax.platform_dependent(*arrays, cpu=vectors, default=exact)


def in_float32(compute: Callable[[Array], Array], x: Array) -> Array:
    """compute(x), in float32 for 16-bit floats."""
    return lax.convert_element_type(compute(widen(x)), x.dtype) if is_half(x) else compute(x)
