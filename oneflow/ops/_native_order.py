"""The places of the largest numbers of rows by the native part: native lowerings of ``argmax``, ``top_k`` and ``categorical``.

XLA's loop over pairs of a number and its place computes one pair at a time, and its top_k sorts. Here rows are read in vectors,
and what is smaller than the largest so far is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jnp
from ..graph.op import Native
from ._arrays import Array

_MIN_ELEMENTS = 1 << 12  # below, a call costs more than it gains
_MIN_WIDTH = 16
MOST_PLACES = 512  # kMostPlaces in native/src/largest.cc


def _spec(dtype: Any, rows: int, width: int, count: int) -> list[int]:
    """The vector that describes a call to the native part."""
    return [_native.dtype_code(dtype), rows, width, count]


@lru_cache(maxsize=1024)
def refusal(dtype: str, shape: tuple[int, ...], axis: int, count: int) -> str | None:
    """Why the native part does not find the places along an axis; None where it does."""
    *outer, width = shape
    rows = math.prod(outer)
    reason = _native.array_refusal(dtype, shape)
    if reason is None and axis != len(outer):
        return "the axis is not the last one"
    if reason is None and (rows * width < _MIN_ELEMENTS or width < _MIN_WIDTH):
        return "too small to gain by it"
    if reason is None and count > MOST_PLACES:
        return f"more than {MOST_PLACES} of each row"
    return reason or _native.kernel_refusal("largest", _spec(np.dtype(dtype), rows, width, min(count, width)))


@lru_cache(maxsize=1024)
def _places(samples: int, rows: int, width: int, count: int, sharded: bool) -> Callable[[Array], Array]:
    """The places, int32 (samples, rows, count), in an array (samples, rows, width)."""

    def find(x: Array) -> Array:
        made = ((*x.shape[:2], count), np.int32)
        return _native.call_several("largest", _spec(x.dtype, math.prod(x.shape[:2]), width, count), [made], x)[0]

    sizes = {"b": samples, "r": rows, "w": width, "k": count}
    return _native.split_over_devices(lambda _: find, sizes, ["b r w"], ["b r k"], "b r", sharded)


def places_of_largest(x: Array, count: int, *, sharded: bool = False) -> Array:
    """The places of the ``count`` largest numbers along the last axis, int32, the largest first, equal ones in their order."""
    *outer, width = x.shape
    count = min(count, width)
    samples, rows = (outer[0], math.prod(outer[1:])) if outer else (1, 1)
    found = _places(samples, rows, width, count, sharded)(x.reshape(samples, rows, width))
    return found.reshape(*outer, count)


def largest(x: Array, count: int, *, sharded: bool = False) -> tuple[Array, Array]:
    """The numbers, and their places."""
    at = places_of_largest(x, count, sharded=sharded)
    return jnp.take_along_axis(x, at, x.ndim - 1, mode="promise_in_bounds"), at


def describe(array: Any, count: int) -> str:
    """The kernel that finds the places, as tables show it."""
    *outer, width = array.shape
    spec = _spec(array.dtype, math.prod(outer), width, min(count, width))
    return f"largest in {_native.part().library.describe('largest', spec)}"


# --- the lowerings of ops


def _argmax(x: Array, *, axis: int, sharded: bool = False) -> Array:
    at = places_of_largest(x, 1, sharded=sharded)
    return at[..., 0] if at.ndim > 1 else at


def _top_k(x: Array, *, axis: int, k: int, sharded: bool = False) -> Array:
    return places_of_largest(x, k, sharded=sharded)


def native(lower: Callable[..., Any], axis_and_count: Callable[[Any, Mapping[str, Any]], tuple[int, int]]) -> Native:
    """A lowering of an op that finds so many places along this axis of its input."""

    def unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
        return refusal(np.dtype(arrays[0].dtype).name, tuple(arrays[0].shape), *axis_and_count(arrays[0], attrs))

    def described(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
        return describe(arrays[0], axis_and_count(arrays[0], attrs)[1])

    return Native(lower, unsupported_reason, described, narrows=False)


ARGMAX = native(_argmax, lambda x, attrs: (attrs["axis"], 1))
TOP_K = native(_top_k, lambda x, attrs: (attrs["axis"], attrs["k"]))
