"""Inverse trigonometric functions. XLA calls a function for each number on CPUs, as of sines (``_sine.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .._base.jax import lax
from ._arrays import Array, in_float32, of_many_on_cpus, polynomial, select

_MANY = 1 << 12  # numbers
_SIGN = np.int32(-(1 << 31))  # the bit of a float32
# polynomials in the square of what they are of (Moshier, Cephes): (arctan(t) - t) / t**3 for |t| <= tan(pi/8), atanf.c, and
# (arcsin(t) - t) / t**3 for |t| <= 1/2, asinf.c
_TANGENT = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_SINE = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_EIGHTH = math.tan(math.pi / 8)


def arc_tangent_of(x: Array) -> Array:
    """The arc tangent, within 3 units in the last place of float32."""
    return _of_many(lambda x: _angle(x, lax.full_like(x, 1)), lambda x: lax.atan(x), x)


def angle_of(y: Array, x: Array) -> Array:
    """The angle of the point (x, y), of arrays of one shape, as exact as ``arc_tangent_of``."""
    return of_many_on_cpus(_angle, lambda y, x: lax.atan2(y, x), _MANY, y, x)


def arc_sine_of(x: Array) -> Array:
    """The arc sine, within 3 units in the last place of float32."""
    return _of_many(_arc_sine, lambda x: lax.asin(x), x)


def arc_cosine_of(x: Array) -> Array:
    """The arc cosine, within 3 units in the last place of float32."""
    return _of_many(_arc_cosine, lambda x: lax.acos(x), x)


def _of_many(vectors: Callable[[Array], Array], exact: Callable[[Array], Array], x: Array) -> Array:
    return in_float32(lambda wide: of_many_on_cpus(vectors, exact, _MANY, wide), x)


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, np.int32)


def _is_negative(x: Array) -> Array:
    """-0 is, too."""
    return lax.lt(_bits(x), np.int32(0))


def _with_sign_of(x: Array, magnitude: Array) -> Array:
    return lax.bitcast_convert_type(lax.bitwise_or(_bits(magnitude), lax.bitwise_and(_bits(x), _SIGN)), np.float32)


def _angle(y: Array, x: Array) -> Array:
    def of(value: float) -> Array:
        return lax.full_like(x, value)

    up, aside = lax.abs(y), lax.abs(x)
    most, least = lax.max(up, aside), lax.min(up, aside)  # NaN where one is
    ratio = select(lax.eq(least, of(math.inf)), of(1), select(lax.eq(most, of(0)), of(0), least / most))
    is_steep = lax.gt(ratio, of(_EIGHTH))
    t = select(is_steep, (ratio - of(1)) / (ratio + of(1)), ratio)
    square = t * t
    angle = t + t * square * polynomial(square, _TANGENT)
    angle = select(is_steep, of(math.pi / 4) + angle, angle)
    angle = select(lax.gt(up, aside), of(math.pi / 2) - angle, angle)
    return _with_sign_of(y, select(_is_negative(x), of(math.pi) - angle, angle))


def _half_way(x: Array) -> tuple[Array, Array]:
    """Whether |x| > 1/2, and the arc sine of |x|, or there that of the square root of (1 - |x|) / 2."""
    size, half = lax.abs(x), lax.full_like(x, 0.5)
    is_far = lax.gt(size, half)
    square = select(is_far, half * (lax.full_like(x, 1) - size), size * size)
    t = select(is_far, lax.sqrt(square), size)
    return is_far, t + t * square * polynomial(square, _SINE)


def _arc_sine(x: Array) -> Array:
    is_far, angle = _half_way(x)
    return _with_sign_of(x, select(is_far, lax.full_like(x, math.pi / 2) - (angle + angle), angle))


def _arc_cosine(x: Array) -> Array:
    is_far, angle = _half_way(x)
    twice = angle + angle
    far = select(_is_negative(x), lax.full_like(x, math.pi) - twice, twice)
    return select(is_far, far, lax.full_like(x, math.pi / 2) - _with_sign_of(x, angle))
