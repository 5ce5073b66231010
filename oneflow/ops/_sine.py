"""Sines and cosines. XLA calls a function for each number on CPUs, which takes ten times as long as arithmetic on vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .._base.jax import lax
from ._arrays import Array, in_float32, is_many, select

_LARGEST = np.float32(8192)  # of absolute values: products of pi/2's parts with whole numbers are exact up to there
# pi/2 in parts of 8, 11, 11 and 24 bits (Cody and Waite, Software Manual for the Elementary Functions, 1980)
_HALF_PI = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.563344151594519e-12)
# polynomials in r**2, |r| <= pi/4, for (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 (Moshier, Cephes, sinf.c)
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def sine_of(x: Array) -> Array:
    """The sine, within 2.5 units in the last place of float32; of large numbers it is XLA's."""
    return in_float32(lambda wide: _turned(wide, 0, lambda x: lax.sin(x)), x)


def cosine_of(x: Array) -> Array:
    """The cosine, as exact as ``sine_of``."""
    return in_float32(lambda wide: _turned(wide, 1, lambda x: lax.cos(x)), x)


def _turned(x: Array, quarters: int, exact: Callable[[Array], Array]) -> Array:
    """The sine so many quarters of a turn further on, which ``exact`` computes of any numbers."""
    if x.dtype != np.float32 or not is_many(x.shape, 1 << 15):  # each condition takes 20 ms to compile
        return exact(x)

    def on_cpu(x: Array) -> Array:
        is_near = lax.reduce_and(lax.lt(lax.abs(x), lax.full_like(x, _LARGEST)), range(x.ndim))  # false for NaN
        return lax.cond(is_near, lambda x: _near_zero(x, quarters), exact, x)

    return lax.platform_dependent(x, cpu=on_cpu, default=exact)


def _near_zero(x: Array, quarters: int) -> Array:
    def of(value: float) -> Array:
        return lax.full_like(x, value)

    def polynomial(at: Array, coefficients: tuple[float, ...]) -> Array:
        total = of(coefficients[0])
        for c in coefficients[1:]:
            total = total * at + of(c)
        return total

    turns = lax.round(x * of(2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    r = x
    for part in _HALF_PI:
        r = r - turns * of(part)
    square = r * r
    sine = r + r * square * polynomial(square, _SINE)
    half = of(0.5) * square
    first = of(1) - half
    cosine = first + (((of(1) - first) - half) + square * square * polynomial(square, _COSINE))
    quarter = lax.convert_element_type(turns, np.int32) + np.int32(quarters)
    found = select(lax.ne(lax.bitwise_and(quarter, lax.full_like(quarter, 1)), lax.full_like(quarter, 0)), cosine, sine)
    found = select(lax.ne(lax.bitwise_and(quarter, lax.full_like(quarter, 2)), lax.full_like(quarter, 0)), lax.neg(found), found)
    return found if quarters else select(lax.eq(x, of(0)), x, found)  # -0 stays -0
