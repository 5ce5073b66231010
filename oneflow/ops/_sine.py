"""Sines, cosines and tangents. XLA calls a function for each number on CPUs, which takes ten times as long as vectors do."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .._base.jax import lax
from ._arrays import Array, in_float32, of_many_on_cpus, polynomial, select

_MANY = 1 << 15  # numbers: each condition takes 20 ms to compile
_LARGEST = np.float32(8192)  # of absolute values: products of pi/2's parts with whole numbers are exact up to there
# pi/2 in parts of 8, 11, 11 and 24 bits (Cody and Waite, Software Manual for the Elementary Functions, 1980)
_HALF_PI = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.563344151594519e-12)
# polynomials in r**2, |r| <= pi/4, for (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 (Moshier, Cephes, sinf.c)
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
# for (tan(r) - r) / r**3 (tanf.c)
_TANGENT = (9.38540185543e-3, 3.11992232697e-3, 2.44301354525e-2, 5.34112807005e-2, 1.33387994085e-1, 3.33331568548e-1)


def sine_of(x: Array) -> Array:
    """The sine, within 2.5 units in the last place of float32; of large numbers it is XLA's."""
    return _of_many(lambda x: _turned(x, 0), lambda x: lax.sin(x), x)


def cosine_of(x: Array) -> Array:
    """The cosine, as exact as ``sine_of``."""
    return _of_many(lambda x: _turned(x, 1), lambda x: lax.cos(x), x)


def tangent_of(x: Array) -> Array:
    """The tangent, within 4 units in the last place of float32; of large numbers it is XLA's."""
    return _of_many(_tangent, lambda x: lax.tan(x), x)


def _of_many(near: Callable[[Array], Array], exact: Callable[[Array], Array], x: Array) -> Array:
    """``near``, for small numbers, where all of many are, on a CPU; else ``exact``."""

    def on_cpu(x: Array) -> Array:
        is_near = lax.reduce_and(lax.lt(lax.abs(x), lax.full_like(x, _LARGEST)), range(x.ndim))  # false for NaN
        return lax.cond(is_near, near, exact, x)

    return in_float32(lambda wide: of_many_on_cpus(on_cpu, exact, _MANY, wide), x)


def _quarters_and_rest(x: Array) -> tuple[Array, Array]:
    """The nearest whole number of quarter turns, as int32, and the angle that is left, within pi/4."""
    turns = lax.round(x * lax.full_like(x, 2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    r = x
    for part in _HALF_PI:
        r = r - turns * lax.full_like(x, part)
    return lax.convert_element_type(turns, np.int32), r


def _has_bit(number: Array, bit: int) -> Array:
    return lax.ne(lax.bitwise_and(number, lax.full_like(number, bit)), lax.full_like(number, 0))


def _turned(x: Array, quarters: int) -> Array:
    """The sine so many quarters of a turn further on."""

    def of(value: float) -> Array:
        return lax.full_like(x, value)

    turns, r = _quarters_and_rest(x)
    square = r * r
    sine = r + r * square * polynomial(square, _SINE)
    half = of(0.5) * square
    first = of(1) - half
    cosine = first + (((of(1) - first) - half) + square * square * polynomial(square, _COSINE))
    quarter = turns + np.int32(quarters)
    found = select(_has_bit(quarter, 1), cosine, sine)
    found = select(_has_bit(quarter, 2), lax.neg(found), found)
    return found if quarters else select(lax.eq(x, of(0)), x, found)  # -0 stays -0


def _tangent(x: Array) -> Array:
    turns, r = _quarters_and_rest(x)
    square = r * r
    tangent = r + r * square * polynomial(square, _TANGENT)
    found = select(_has_bit(turns, 1), lax.full_like(x, -1) / tangent, tangent)
    return select(lax.eq(x, lax.full_like(x, 0)), x, found)  # -0 stays -0
