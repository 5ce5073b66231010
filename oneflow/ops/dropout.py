"""Dropout and its mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.check import whole
from .._base.jax import jax, lax
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.graph import current
from ..graph.node import Blob
from ._arrays import Array, full, label, like
from ._emit import emit, fail, op, want


def random_mask(key: Any, shape: tuple[int, ...], probability: float) -> Array:
    """True with this probability, to a precision of 2**-16 (exactly where 256 * probability is whole).

    Dropout spends its time on random bits, and JAX needs as long for 8 of them as for 32: each word is split along the last
    axis, for 4 or 2 elements (3.5 or 1.6 times faster for 1000 x 1000 on 2 cores).
    """
    kind = np.dtype(np.uint8 if (probability * 256).is_integer() else np.uint16)
    steps = 2 ** (8 * kind.itemsize)
    threshold = math.floor(probability * steps + 0.5)
    if threshold == steps:
        return lax.full(shape, True)
    each = 4 // kind.itemsize
    *leading, last = shape
    words = jax.random.bits(key, (*leading, -(-last // each)), np.uint32)
    bits = lax.reshape(lax.bitcast_convert_type(words, kind), (*leading, words.shape[-1] * each))
    return lax.lt(lax.slice_in_dim(bits, 0, last, axis=len(leading)), lax.full(shape, threshold, kind))


def scaled_where(mask: Array, x: Array, rate: float) -> Array:
    """x / (1 - rate) where the mask is set, else 0."""
    return lax.select(mask, lax.mul(x, like(1.0 / (1.0 - rate), x)), full(0, x))


@op("dropout", random=True, autocast="between", zeros="all")
def _dropout(x: Array, *, rate: float, seed: int | None, key: Any) -> Array:
    return scaled_where(random_mask(key, x.shape, 1.0 - rate), x, rate)


@op("random_mask_like", random=True, nondifferentiable=True)
def _random_mask_like(like: Array, *, rate: float, seed: int | None, key: Any) -> Array:
    return lax.convert_element_type(random_mask(key, like.shape, 1.0 - rate), np.int8)


def want_rate(what: str, rate: Any, noise_shape: Any, seed: Any, name: str | None) -> float:
    """Checks the arguments that all dropouts share."""
    found = want.number(what, "rate", rate, hint="rate is the fraction that is dropped", low=0, below=1)
    if noise_shape is not None:
        fail(ArgumentError, what, f"noise_shape must stay None, got {shown(noise_shape)}")
    want_seed(what, seed, name)
    return found


def want_seed(what: str, seed: Any, name: str | None, *, needs_name: bool = True) -> int | None:
    """A seed: None, or an int of an op with a name."""
    if seed is None:
        return None
    found = whole(seed)
    if found is None:
        fail(ArgumentError, what, f"seed must be an int or None, got {shown(seed)}")
    if name is None and needs_name:
        fail(ArgumentError, what, "an op with a seed needs a name", (), 'pass name="..."; without a seed no name is needed')
    return found


def dropout(x: Blob, rate: float, noise_shape: Any = None, seed: int | None = None, name: str | None = None) -> Blob:
    """Sets elements to 0 with probability ``rate``, and divides the others by 1 - rate; each call draws a new mask.

    In a predict job, or with rate 0, x itself is the result.

    Args:
      x: floating.
      rate: in [0, 1).
      noise_shape: must stay None.
      seed: makes its sequence of masks reproducible, independent of the session's seed; needs a name.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> y = flow.nn.dropout(x, rate=0.5)   # Srivastava et al., 2014
    """
    what = label("dropout", name)
    share = want_rate(what, rate, noise_shape, seed, name)
    want.floating(what, want.blob(what, "x", x))
    if not current("flow.nn.dropout").train or share == 0:
        return x
    return emit(_dropout, x, name=name, rate=share, seed=None if seed is None else int(seed))


def random_mask_like(like: Blob, rate: float, seed: int | None = None, noise_shape: Any = None, name: str | None = None) -> Blob:
    """0 with probability ``rate``, else 1; each call draws another mask.

    Args:
      like: a Blob of the mask's shape; any dtype.
      rate: in [0, 1).
      seed: makes its sequence of masks reproducible, independent of the session's seed; needs a name.
      noise_shape: must stay None.
      name: name of the op.
    Returns: Blob of like's shape, int8.
    Raises: ArgumentError.
    Example: >>> mask = flow.nn.random_mask_like(x, rate=0.1)
    """
    what = label("random_mask_like", name)
    share = want_rate(what, rate, noise_shape, seed, name)
    return emit(_random_mask_like, want.blob(what, "like", like), name=name, rate=share, seed=None if seed is None else int(seed))
