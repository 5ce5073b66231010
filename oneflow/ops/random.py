"""Random values inside a job: new ones in every call, reproducible with ``flow.manual_seed``."""

from __future__ import annotations

import random as python_random
from typing import Any

import numpy as np

from .._base.check import whole
from .._base.dtype import dtype
from .._base.jax import jax, lax
from .._base.refuse import refuse, shown
from ..data.crops import coin_flips
from ..errors import ArgumentError
from ..graph.node import Blob
from ..graph.op import HostRule
from ..graph.scopes import mirrored_view_enabled
from ._arrays import Array, dtype_for, is_half, label
from ._emit import emit, op, want
from ._names import DefaultName, given_name
from .dropout import random_mask, want_seed


def gen_seed(seed: int | None = None) -> tuple[int, bool]:
    """(seed, True) for an op to use: the one given, or one from Python's ``random``.

    In the mirrored view, without a seed: (-1, False), a fresh one for each device.

    Example: >>> seed, has_seed = flow.random.gen_seed(7)   # (7, True)
    """
    if seed is not None:
        found = whole(seed)
        if found is None:
            refuse(ArgumentError, f"flow.random.gen_seed: seed must be an int or None, got {shown(seed)}")
        return found, True
    if mirrored_view_enabled():
        return -1, False
    return python_random.randint(-(2**63) + 1, 2**63 - 1), True


@op("bernoulli", random=True, nondifferentiable=True)
def _bernoulli(x: Array, *, to: np.dtype, seed: int | None, key: Any) -> Array:
    kind = np.dtype(np.float32) if is_half(x) else x.dtype
    drawn = jax.random.uniform(key, x.shape, kind, minval=kind.type(0), maxval=kind.type(1))
    probability = lax.convert_element_type(x, drawn.dtype)
    return lax.convert_element_type(lax.lt(drawn, probability), to)


def bernoulli(x: Blob, seed: int | None = None, dtype: dtype | None = None, name: str | None = DefaultName("Bernoulli")) -> Blob:
    """1 with probability x, else 0.

    Args:
      x: probabilities in [0, 1]; floating.
      seed: makes its sequence reproducible, independently of the session's seed.
      dtype: the result's; None means x's.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape, without a gradient.
    Raises: ArgumentError, DtypeError.
    Example: >>> sample = flow.random.bernoulli(probabilities, dtype=flow.int8)
    """
    name = given_name(name)
    what = label("bernoulli", name)
    want.floating(what, want.blob(what, "x", x))
    seed = want_seed(what, seed, name, needs_name=False)
    to = x.dtype if dtype is None else dtype_for(what, dtype)
    return emit(_bernoulli, x, name=name, to=to.numpy_dtype, seed=seed)


def _draw_coins(seed: int, call: int, count: int, *, batch_size: int, probability: float) -> np.ndarray:
    return coin_flips(seed, call, count, probability)


# before image ops the coins are flipped by their random number generator
_FLIPPED_ON_HOST = HostRule(lambda *, batch_size, probability, draws: draws, random=_draw_coins, only=False)


@op("coin_flip", random=True, host=_FLIPPED_ON_HOST)
def _coin_flip(*, batch_size: int, probability: float, seed: int | None, key: Any) -> Array:
    return lax.convert_element_type(random_mask(key, (batch_size,), probability), np.int8)


def coin_flip(
    batch_size: int = 1, seed: int | None = None, probability: float = 0.5, name: str | None = DefaultName("CoinFlip")
) -> Blob:
    """For each sample, 1 with this probability, else 0.

    Args:
      batch_size: number of samples, > 0.
      seed: makes its sequence reproducible, independently of the session's seed.
      probability: of a 1; in [0, 1].
      name: name of the op; made unique when omitted.
    Returns: Blob (batch_size,), int8.
    Raises: ArgumentError.
    Example: >>> mirror = flow.random.coin_flip(32)
    """
    name = given_name(name)
    what = label("coin_flip", name)
    batch_size = want.integer(what, "batch_size", batch_size, 1)
    probability = want.number(what, "probability", probability, low=0, high=1)
    seed = want_seed(what, seed, name, needs_name=False)
    return emit(_coin_flip, name=name, batch_size=batch_size, probability=probability, seed=seed)


CoinFlip = coin_flip


def _permutation(key: Any, size: int) -> Array:
    return jax.random.permutation(key, lax.iota(np.int32, size), independent=False)


@op("generate_random_batch_permutation_indices", random=True, nondifferentiable=True)
def _permutation_indices(value: Array, *, seed: int | None, key: Any) -> Array:
    return _permutation(key, value.shape[0])


def generate_random_batch_permutation_indices(value: Blob, seed: int | None = None, name: str | None = None) -> Blob:
    """0, ..., N - 1 in random order, for the N rows of ``value``.

    Args:
      value: N is its size on axis 0; any dtype.
      seed: makes its sequence reproducible, independently of the session's seed; needs a name.
      name: name of the op.
    Returns: Blob (N,), int32.
    Raises: ArgumentError.
    Example: >>> order = flow.random.generate_random_batch_permutation_indices(images)
    """
    what = label("generate_random_batch_permutation_indices", name)
    want.blob(what, "value", value)
    seed = want_seed(what, seed, name)
    return emit(_permutation_indices, value, name=name, prefix="GenerateRandomBatchPermutationIndices", seed=seed)


@op("shuffle", random=True)
def _shuffle(value: Array, *, seed: int | None, key: Any) -> Array:
    order = _permutation(key, value.shape[0])
    rows = lax.GatherDimensionNumbers(tuple(range(1, value.ndim)), (0,), (0,))
    return lax.gather(value, lax.expand_dims(order, (1,)), rows, (1, *value.shape[1:]), mode="promise_in_bounds")


def shuffle(value: Blob, seed: int | None = None, name: str | None = None) -> Blob:
    """The rows of ``value`` in random order.

    Args:
      value: any dtype; permuted along axis 0.
      seed: makes its sequence reproducible, independently of the session's seed.
      name: name of the op.
    Returns: Blob of value's shape and dtype.
    Raises: ArgumentError.
    Example: >>> mixed = flow.random.shuffle(images)
    """
    what = label("shuffle", name)
    want.blob(what, "value", value)
    seed = want_seed(what, seed, name, needs_name=False)
    return emit(_shuffle, value, name=name, seed=seed)
