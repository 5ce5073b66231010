"""Remainders with the sign of the divisor. XLA calls a function for each number on CPUs, as of sines (``_sine.py``)."""

from __future__ import annotations

import numpy as np

from .._base.jax import lax
from ._arrays import Array, like, of_many_on_cpus, select

_MANY = 1 << 15  # numbers: a condition takes 20 ms to compile


def remainder_of(x: Array, y: Array) -> Array:
    """x - floor(x / y) * y, exactly but for the last rounding; of arrays of one shape and dtype."""
    return of_many_on_cpus(_on_cpu, _exact, _MANY, x, y)


def quotient_of(x: Array, y: Array, rest: Array) -> Array:
    """floor(x / y), given ``remainder_of``: XLA multiplies by the reciprocal of a constant, so that 41 // 41 were 0."""
    whole = lax.round(lax.div(lax.sub(x, rest), y), lax.RoundingMethod.TO_NEAREST_EVEN)
    return select(lax.is_finite(rest), whole, lax.floor(lax.div(x, y)))


def _with_sign_of_divisor(rest: Array, y: Array) -> Array:
    zero = like(0, rest)
    other_sign = lax.ne(lax.lt(rest, zero), lax.lt(y, zero))
    return select(lax.bitwise_and(lax.ne(rest, zero), other_sign), lax.add(rest, y), rest)


def _exact(x: Array, y: Array) -> Array:
    return _with_sign_of_divisor(lax.rem(x, y), y)


def _on_cpu(x: Array, y: Array) -> Array:
    """``_by_division`` where no quotient is large, and no divisor large or small."""
    size = lax.abs(y)
    near = lax.lt(lax.abs(x), lax.mul(size, like(2.0**20, y)))  # false for NaN
    for bound, compare in ((2.0**-60, lax.gt), (2.0**60, lax.lt)):
        near = lax.bitwise_and(near, compare(size, like(bound, y)))
    return lax.cond(lax.reduce_and(near, range(x.ndim)), _by_division, _exact, x, y)


def _by_division(x: Array, y: Array) -> Array:
    """Exact: the product of a whole number with y is the sum of two float32 (Dekker, A Floating-Point Technique for Extending
    the Available Precision, 1971)."""

    def halves(a: Array) -> tuple[Array, Array]:
        first = lax.bitcast_convert_type(lax.bitwise_and(lax.bitcast_convert_type(a, np.int32), np.int32(-(1 << 12))), a.dtype)
        return first, lax.sub(a, first)

    quotient = lax.round(lax.div(x, y), lax.RoundingMethod.TO_NEAREST_EVEN)
    (q1, q2), (y1, y2) = halves(quotient), halves(y)
    product = lax.mul(quotient, y)
    error = lax.sub(lax.mul(q1, y1), product)
    for part in (lax.mul(q1, y2), lax.mul(q2, y1), lax.mul(q2, y2)):
        error = lax.add(error, part)
    rest = lax.sub(lax.sub(x, product), error)  # of up to about half of y, on either side
    return _with_sign_of_divisor(rest, y)
