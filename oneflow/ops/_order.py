"""Sorting. On CPUs XLA sorts integers several times as fast as floats, or as pairs: values are sorted as integers there."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import jax, jnp, lax
from ._arrays import Array

_POSITION_BITS = 32


def ascending(x: Array, axis: int) -> Array:
    """The values in ascending order along an axis, NaNs last."""
    if not _is_float(x):
        return lax.sort(x, axis)

    def as_integers(x: Array) -> Array:
        return _values(lax.sort(_ranks(x), axis), x.dtype)

    @jax.custom_jvp
    def sort(x: Array) -> Array:
        return lax.platform_dependent(x, cpu=as_integers, default=lambda x: lax.sort(x, axis))

    @sort.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        values, at = _with_positions(primals[0], axis, zeros_are_equal=False)
        return values, jnp.take_along_axis(tangents[0], at, axis, mode="promise_in_bounds")

    return sort(x)


def ascending_with_positions(x: Array, axis: int) -> tuple[Array, Array]:
    """The values in ascending order along an axis, and their positions, int32.

    Equal values, zeros of both signs, and NaNs stay in their order; the sign of zeros, and the bits of NaNs, may be lost.
    """
    return _with_positions(x, axis, zeros_are_equal=True)


def _with_positions(x: Array, axis: int, *, zeros_are_equal: bool) -> tuple[Array, Array]:
    def pairs(x: Array) -> tuple[Array, Array]:
        values, at = lax.sort((x, lax.broadcasted_iota(np.int32, x.shape, axis)), axis, is_stable=True, num_keys=1)
        return values, at

    def packed(x: Array) -> tuple[Array, Array]:
        ranks = _ranks(x, zeros_are_equal=zeros_are_equal) if _is_float(x) else x
        high = lax.shift_left(lax.convert_element_type(ranks, np.int64), np.int64(_POSITION_BITS))
        both = lax.sort(lax.bitwise_or(high, lax.broadcasted_iota(np.int64, x.shape, axis)), axis)
        ranks = lax.convert_element_type(lax.shift_right_arithmetic(both, np.int64(_POSITION_BITS)), ranks.dtype)
        return _values(ranks, x.dtype) if _is_float(x) else ranks, lax.convert_element_type(both, np.int32)

    def ranked(x: Array) -> tuple[Array, Array]:
        ranks, at = pairs(_ranks(x, zeros_are_equal=zeros_are_equal))
        return _values(ranks, x.dtype), at

    has_int64 = jax.dtypes.canonicalize_dtype(np.int64).itemsize == 8  # not outside JAX's 64-bit mode
    if x.dtype.itemsize <= 4 and x.dtype != np.uint32 and has_int64:
        return lax.platform_dependent(x, cpu=packed, default=pairs)
    return ranked(x) if _is_float(x) else pairs(x)


def largest(x: Array, k: Any) -> tuple[Array, Array]:
    """The k largest values along the last axis, and their positions, int32; zeros of both signs are equal, NaNs the largest."""
    if isinstance(k, int) and k == 1:
        at = lax.expand_dims(lax.argmax(x, x.ndim - 1, np.int32), (x.ndim - 1,))
        return jnp.take_along_axis(x, at, x.ndim - 1, mode="promise_in_bounds"), at
    if _is_float(x):  # lax.top_k compares bits: 0 is larger than -0, and a NaN whose sign bit is set the smallest of all
        bits = lax.bitcast_convert_type(x, np.dtype(f"int{x.dtype.itemsize * 8}"))
        is_negative_zero = lax.eq(bits, bits.dtype.type(np.iinfo(bits.dtype).min))
        x = jnp.where(is_negative_zero, x.dtype.type(0), jnp.where(lax.ne(x, x), x.dtype.type(np.nan), x))
    values, at = lax.top_k(x, k)
    return values, at


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, np.floating)


def _ranks(x: Array, *, zeros_are_equal: bool = False) -> Array:
    """Signed integers in the order of floats: NaNs last, and negative zero before zero unless ``zeros_are_equal``."""
    bits = lax.bitcast_convert_type(x, np.dtype(f"int{x.dtype.itemsize * 8}"))
    limits = np.iinfo(bits.dtype)
    least, zero, most = (bits.dtype.type(i) for i in (limits.min, 0, limits.max))
    if zeros_are_equal:  # told by their bits: compared as floats, small numbers may be zeros, too
        bits = jnp.where(bits == least, zero, bits)
    return jnp.where(lax.ne(x, x), most, jnp.where(bits < zero, bits ^ most, bits))


def _values(ranks: Array, dtype: np.dtype) -> Array:
    """The floats of ``_ranks``."""
    zero, most = ranks.dtype.type(0), ranks.dtype.type(np.iinfo(ranks.dtype).max)
    return lax.bitcast_convert_type(jnp.where(ranks < zero, ranks ^ most, ranks), dtype)
