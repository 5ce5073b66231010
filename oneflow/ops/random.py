"""Random values inside a job: new ones in every call, reproducible with ``flow.manual_seed``."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from .._base.check import whole
from .._base.dtype import dtype, float32
from .._base.jax import jax, jnp, lax
from .._base.refuse import refuse, shown
from ..data.crops import coin_flips
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.node import Blob
from ..graph.op import HostRule
from ..graph.scopes import mirrored_view_enabled
from . import _native_order, _order
from ._arrays import Array, axis_after_removing, dtype_for, is_half, label, widen
from ._emit import emit, fail, op, want
from ._names import DefaultName, given_name
from .dropout import random_mask, want_seed

_Largest = Callable[[Array, Any], tuple[Array, Array]]  # the numbers along the last axis, and their places
_MOST_LIKELY = _native_order.MOST_PLACES  # classes that are looked at before all of them are sorted


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


@op("random_uniform", random=True)
def _uniform(*, shape: tuple[int, ...], low: float, high: float, to: np.dtype, seed: int | None, key: Any) -> Array:
    kind = np.dtype(np.float32) if to.itemsize < 4 else to
    drawn = jax.random.uniform(key, shape, kind, minval=kind.type(low), maxval=kind.type(high))
    return lax.convert_element_type(drawn, to)


@op("random_normal", random=True)
def _normal(*, shape: tuple[int, ...], mean: float, std: float, to: np.dtype, seed: int | None, key: Any) -> Array:
    kind = np.dtype(np.float32) if to.itemsize < 4 else to
    drawn = lax.add(lax.mul(jax.random.normal(key, shape, kind), kind.type(std)), kind.type(mean))
    return lax.convert_element_type(drawn, to)


def uniform(
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    dtype: dtype = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """Random numbers from [low, high), new ones in every call.

    Args:
      shape: of the result.
      low, high: the bounds; low <= high.
      dtype: a floating dtype.
      seed: makes its sequence reproducible, independently of the session's seed.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> noise = flow.random.uniform((8, 4), -1.0, 1.0)
    """
    what = label("random_uniform", name)
    low = want.number(what, "low", low, finite=True)
    high = want.number(what, "high", high, low=low, finite=True)
    return _drawn(what, _uniform, shape, dtype, seed, name, low=low, high=high)


def normal(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: dtype = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """Random numbers of a normal distribution, new ones in every call.

    Args:
      shape: of the result.
      mean: of the distribution.
      std: standard deviation, >= 0.
      dtype, seed, name: those of ``uniform``.
    Returns: Blob of that shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> noise = flow.random.normal((8, 4), std=0.1)
    """
    what = label("random_normal", name)
    mean = want.number(what, "mean", mean, finite=True)
    std = want.number(what, "std", std, low=0, finite=True)
    return _drawn(what, _normal, shape, dtype, seed, name, mean=mean, std=std)


def _drawn(what: str, definition: Any, shape: Any, dtype: Any, seed: Any, name: str | None, **numbers: Any) -> Blob:
    sizes = want.ints(what, "shape", shape)
    if not sizes or min(sizes) < 1:
        fail(ArgumentError, what, f"shape must hold at least one int, and only ints > 0, got {shown(shape)}")
    to = dtype_for(what, dtype)
    if not to.is_floating_point:
        fail(DtypeError, what, f"dtype must be a floating one, got {to.name}", (), "convert with flow.cast")
    seed = want_seed(what, seed, name, needs_name=False)
    return emit(definition, name=name, shape=sizes, to=to.numpy_dtype, seed=seed, **numbers)


def _class_of(key: Any, x: Array, largest: _Largest) -> Array:
    """A class per row, with probabilities softmax(x): the largest logit after Gumbel noise is added."""
    kind = x.dtype.type
    ones = jax.random.uniform(key, x.shape, x.dtype, minval=kind(np.finfo(x.dtype).tiny), maxval=kind(1))
    noise = lax.neg(lax.log(lax.neg(lax.log(ones))))
    return largest(lax.add(x, noise), 1)[1][..., 0]


def _class_of_shares(key: Any, shares: Array, top_p: float) -> Array:
    """The number of a class per row: of the first classes that together have the probability ``top_p``, at least one.

    It is where a random part of their probability is reached, whatever classes follow. The most likely classes are first.
    """
    last = shares.ndim - 1
    upto = lax.cumsum(shares, last)
    is_first = lax.eq(lax.broadcasted_iota(np.int32, shares.shape, last), np.int32(0))
    taken = (upto - shares < shares.dtype.type(top_p)) | is_first
    count = jnp.sum(taken, last, dtype=np.int32)
    together = jnp.take_along_axis(upto, count[..., None] - 1, last, mode="promise_in_bounds")
    reached = jax.random.uniform(key, together.shape, shares.dtype) * together
    return jnp.minimum(jnp.sum(upto <= reached, last, dtype=np.int32), count - 1)


def _class_in_order(order: Array, number: Array) -> Array:
    """The class that has this number in the order of each row."""
    last = order.ndim - 1
    return jnp.take_along_axis(order, lax.expand_dims(number, (last,)), last, mode="clip")[..., 0]


def _drawn_of_shares(key: Any, x: Array, top_p: float, largest: _Largest | None) -> Array:
    last, classes = x.ndim - 1, x.shape[-1]

    def of_all(x: Array) -> Array:
        falling, order = _order.ascending_with_positions(lax.neg(x), last)
        return _class_in_order(order, _class_of_shares(key, jax.nn.softmax(lax.neg(falling), last), top_p))

    if largest is None:
        return of_all(x)
    # all need not be sorted where the most likely ones have that probability
    values, order = largest(x, _MOST_LIKELY)
    shares = lax.exp(values - jax.nn.logsumexp(x, last, keepdims=True))
    number = _class_of_shares(key, shares, top_p)
    if classes <= _MOST_LIKELY:
        return _class_in_order(order, number)
    are_enough = jnp.all(jnp.sum(shares, last) >= top_p)
    return lax.cond(are_enough, lambda x: _class_in_order(order, number), of_all, x)


def _drawn_class(
    logits: Array, largest: _Largest, *, temperature: float, top_k: int | None, top_p: float | None, seed: int | None, key: Any,
    is_quick: bool = False,
) -> Array:  # fmt: skip
    """``is_quick``: ``largest`` takes much less time than a sort."""
    x = widen(logits)
    x = lax.div(x, x.dtype.type(temperature))
    last = x.ndim - 1
    if top_k is not None:
        size = x.shape[last]
        x, order = largest(x, min(top_k, size) if isinstance(size, int) else top_k)
        number = _class_of(key, x, _order.largest) if top_p is None else _class_of_shares(key, jax.nn.softmax(x, last), top_p)
        drawn = _class_in_order(order, number)
    elif top_p is not None:
        drawn = _drawn_of_shares(key, x, top_p, largest if is_quick else None)
    else:
        drawn = _class_of(key, x, largest)
    return lax.reshape(drawn, (1,)) if drawn.ndim == 0 else drawn


def _natively_drawn_class(logits: Array, *, sharded: bool = False, **attrs: Any) -> Array:
    return _drawn_class(logits, partial(_native_order.largest, sharded=sharded), is_quick=True, **attrs)


def _places_to_find(logits: Any, attrs: Mapping[str, Any]) -> tuple[int, int]:
    """Along which axis, and how many."""
    top_k, top_p = attrs["top_k"], attrs["top_p"]
    return logits.ndim - 1, top_k if top_k is not None else 1 if top_p is None else _MOST_LIKELY


@op("categorical", random=True, nondifferentiable=True, native=_native_order.native(_natively_drawn_class, _places_to_find))
def _categorical(logits: Array, **attrs: Any) -> Array:
    return _drawn_class(logits, _order.largest, **attrs)


def categorical(
    logits: Blob,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """A random class per row, drawn with the probabilities softmax(logits / temperature).

    Args:
      logits: (..., classes), floating.
      temperature: > 0; small ones prefer likely classes.
      top_k: draw from the k most likely classes only; None for all.
      top_p: draw from the fewest most likely classes only that together have this probability, in (0, 1]; None for all.
      seed: makes its sequence reproducible, independently of the session's seed.
      name: name of the op; made unique when omitted.
    Returns: int32 Blob without the last axis, (1,) for rank 1; no gradient flows.
    Raises: ArgumentError, DtypeError.
    Example: >>> token = flow.random.categorical(logits, temperature=0.8, top_k=5, top_p=0.9)   # (8, 10) -> (8,)
    """
    what = label("categorical", name)
    want.floating(what, want.blob(what, "logits", logits))
    last = logits.ndim - 1
    if logits.shape[last] == 0:
        fail(ShapeError, what, "there are no classes to draw from", (logits,))
    temperature = want.number(what, "temperature", temperature, (logits,), above=0, finite=True)
    if top_k is not None:
        top_k = want.integer(what, "top_k", top_k, 1, (logits,))
    if top_p is not None:
        top_p = want.number(what, "top_p", top_p, (logits,), above=0, high=1)
    seed = want_seed(what, seed, name, needs_name=False)
    y = emit(_categorical, logits, name=name, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    y.batch_axis = axis_after_removing((last,), logits.batch_axis)
    return y
