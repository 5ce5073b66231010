"""Blobs with known values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.graph import current
from ..graph.node import Blob
from ._arrays import Array, as_float, dtype_for, in_range, label
from ._emit import LARGEST, emit, fail, is_number, op, want


@op("constant")
def _constant(*, value: int | float, shape: tuple[int, ...], to: np.dtype) -> Array:
    with np.errstate(over="ignore"):
        return lax.full(shape, np.asarray(value).astype(to), to)


@op("constant_like", nondifferentiable=True)
def _constant_like(like: Array, *, value: int | float, to: np.dtype) -> Array:
    return _constant.define(value=value, shape=like.shape, to=to)


def _value(what: str, value: Any, kind: dtype) -> int | float:
    if not is_number(value):
        fail(ArgumentError, what, f"value must be a number, got {type(value).__name__} {shown(value)}")
    if not kind.is_integer:
        return as_float(value)
    limits = np.iinfo(kind.numpy_dtype)
    if not in_range(value, limits):
        fail(ArgumentError, what, f"value {shown(value)} is outside the range of {kind.name}, {limits.min} to {limits.max}")
    return int(value)


def constant(value: int | float, dtype: dtype | None = None, shape: Sequence[int] | None = None, name: str | None = None) -> Blob:
    """A Blob that holds one number everywhere.

    Args:
      value: the number, converted to ``dtype``.
      dtype: such as ``flow.float32``; required.
      shape: list or tuple of sizes > 0; None means (1,).
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and dtype.
    Raises: ArgumentError.
    Example: >>> half = flow.constant(0.5, flow.float32, [2, 3])
    """
    what = label("constant", name)
    if dtype is None:
        fail(ArgumentError, what, "dtype is required", (), "pass dtype=flow.float32 or another")
    kind = dtype_for(what, dtype)
    sizes = (1,) if shape is None else want.ints(what, "shape", shape)
    if any(size <= 0 for size in sizes) or not sizes:
        fail(ArgumentError, what, f"shape must hold sizes > 0, got {shown(shape)}", (), "write [1] for a single element")
    return emit(_constant, name=name, value=_value(what, value, kind), shape=sizes, to=kind.numpy_dtype)


def constant_scalar(value: int | float, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """A Blob of shape (1,) that holds a number; arguments are those of ``constant``, name is not used.

    Example: >>> half = flow.constant_scalar(0.5, flow.float32)
    """
    return constant(value, dtype, [1])


def constant_like(like: Blob, value: int | float, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """A Blob in the shape of another that holds one number everywhere.

    Args:
      like: Blob; its values are not used.
      value: the number, converted to the dtype.
      dtype: of the result; None means like's.
      name: name of the op; made unique when omitted.
    Returns: Blob of like's shape.
    Raises: ArgumentError.
    Example: >>> y = flow.constant_like(x, 0.5)
    """
    what = label("constant_like", name)
    want.blob(what, "like", like)
    kind = like.dtype if dtype is None else dtype_for(what, dtype)
    return emit(_constant_like, like, name=name, value=_value(what, value, kind), to=kind.numpy_dtype)


def ones_like(like: Blob, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """Ones in the shape of another Blob; arguments are those of ``constant_like``.

    Example: >>> y = flow.ones_like(x)
    """
    return constant_like(like, 1, dtype, name)


def zeros_like(like: Blob, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """Zeros in the shape of another Blob; arguments are those of ``constant_like``.

    Example: >>> y = flow.zeros_like(x)
    """
    return constant_like(like, 0, dtype, name)


def ones(shape: Sequence[int], dtype: dtype | None = None, name: str | None = None) -> Blob:
    """Ones; arguments are those of ``constant``, dtype None means float32.

    Example: >>> y = flow.ones([2, 3])
    """
    return _filled(1, "ones", shape, dtype, name)


def zeros(shape: Sequence[int], dtype: dtype | None = None, name: str | None = None) -> Blob:
    """Zeros; arguments are those of ``constant``, dtype None means float32.

    Example: >>> y = flow.zeros([2, 3])
    """
    return _filled(0, "zeros", shape, dtype, name)


def _filled(value: int, function: str, shape: Sequence[int], dtype: dtype | None, name: str | None) -> Blob:
    label(function, name)  # refuses a name that is not a str
    return constant(value, dtypes.float32 if dtype is None else dtype, shape, None if name is None else f"{name}constant")


@op("range")
def _range(*, start: float, delta: float, count: int, to: np.dtype) -> Array:
    steps = lax.iota(to, count)
    return lax.add(lax.mul(steps, np.asarray(delta, to)), np.asarray(start, to))


def range(start: int, limit: int | None = None, delta: int = 1, dtype: dtype | None = None, name: str = "range") -> Blob:
    """The numbers start, start + delta, ... below limit.

    Args:
      start: int; without ``limit`` it is the limit, and 0 the start.
      limit: int > start.
      delta: int in [1, limit - start].
      dtype: of the result; required.
      name: name of the op; the default is made unique where it is taken.
    Returns: Blob of shape (ceil((limit - start) / delta),).
    Raises: ArgumentError.
    Example: >>> y = flow.range(5, dtype=flow.int32)   # 0 1 2 3 4
    """
    what = label("range", name)
    first, end = (0, start) if limit is None else (start, limit)
    if dtype is None:
        fail(ArgumentError, what, "dtype is required", (), "pass dtype=flow.int32 or another")
    kind = dtype_for(what, dtype)
    first, end, step = want.ints(what, "start, limit and delta", [first, end, delta])
    if end <= first or not 1 <= step <= end - first:
        fail(ArgumentError, what,
             f"needs limit > start and delta in [1, limit - start], got start={first}, limit={end}, delta={step}")  # fmt: skip
    count = -(-(end - first) // step)
    graph = current(what)
    taken = isinstance(name, str) and name == "range" and graph.node(f"{graph.scope.namespace}{name}") is not None
    return emit(_range, name=None if taken else name, start=first, delta=step, count=count, to=kind.numpy_dtype)


def arange(start: float, limit: float, delta: float, dtype: dtype, name: str | None = None) -> Blob:
    """The numbers start, start + delta, ... before limit, in a dtype whose values they are; the op ``arange`` of 0.6.

    Raises: ArgumentError: there are none.
    """
    what = label("range", name)
    kind = dtype_for(what, dtype)
    first, end, step = (want.number(what, "start, limit and delta", n, finite=True) for n in (start, limit, delta))
    if step == 0 or (end - first) / step <= 0:
        fail(ArgumentError, what, f"from {first} to {end} in steps of {step} there are no numbers")
    graph = current(what)
    taken = name == "range" and graph.node(f"{graph.scope.namespace}{name}") is not None
    count = math.ceil((end - first) / step)
    if count > LARGEST:
        fail(ArgumentError, what, f"from {first} to {end} in steps of {step} there are {count:.1e} numbers")
    if kind.is_integer:
        first, step = int(first), int(step)
    return emit(_range, name=None if taken else name, start=first, delta=step, count=count, to=kind.numpy_dtype)
