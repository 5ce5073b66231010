"""Choosing by mask or by number: where, gather, scatter, segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtype as dtypes
from .._jax import lax
from ..dtype import dtype
from ..errors import ArgumentError, DtypeError, ModeError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, broadcast, label, like, number_for, select
from ._emit import emit, fail, is_number, op, want
from .constant import constant

# --- masks


@op("where", stops=(0,))
def _where(condition: Array, x: Array, y: Array) -> Array:
    mask, x, y = broadcast(lax.ne(condition, like(0, condition)), x, y)
    return lax.select(mask, x, y)


def _mask(what: str, argument: str, value: Any, others: Sequence[Any] = ()) -> Blob:
    want.blob(what, argument, value)
    if not value.dtype.is_integer:
        fail(DtypeError, what, f"{argument} must be an integer Blob, got {value.dtype.name}", (value, *others),
             "compare first, e.g. condition > 0")  # fmt: skip
    return value


def where(condition: Blob, x: Blob | None = None, y: Blob | None = None, name: str | None = None) -> Blob:
    """x where the condition is not 0, else y.

    Args:
      condition: integer Blob, as comparisons give it.
      x, y: Blobs of one dtype; a number beside a Blob is converted to its dtype. The three broadcast together.
      name: name of the op; made unique when omitted.
    Returns: Blob of the common shape and x's dtype. No gradient flows to the condition.
    Raises: DtypeError, ShapeError, ArgumentError, ModeError (condition alone).
    Example: >>> y = flow.where(x > 0, x, flow.zeros_like(x))
    """
    what = label("where", name)
    if x is None and y is None:
        return argwhere(condition, name=name)
    if x is None or y is None:
        fail(ArgumentError, what, "x and y go together: both Blobs, or both left out",
             [v for v in (condition, x, y) if v is not None])  # fmt: skip
    if is_number(x) and isinstance(y, Blob):
        x = constant(number_for(what, x, y), y.dtype)
    if is_number(y) and isinstance(x, Blob):
        y = constant(number_for(what, y, x), x.dtype)
    want.blob(what, "x", x)
    want.blob(what, "y", y)
    _mask(what, "condition", condition, (x, y))
    if x.dtype is not y.dtype:
        want.same_dtype(what, (x, y))
    return emit(_where, condition, x, y, name=name)


@op("masked_fill", stops=(1,))
def _masked_fill(x: Array, mask: Array, *, value: int | float) -> Array:
    chosen, x = broadcast(lax.ne(mask, like(0, mask)), x)
    return select(chosen, like(value, x), x)


def masked_fill(x: Blob, mask: Blob, value: float | int, name: str | None = None) -> Blob:
    """``value`` where the mask is not 0, else x.

    Args:
      x: Blob of any dtype.
      mask: integer Blob; it and x broadcast together.
      value: number, converted to x's dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of the common shape and x's dtype.
    Raises: DtypeError, ShapeError, ArgumentError.
    Example: >>> y = flow.masked_fill(scores, padding, -10000.0)
    """
    what = label("masked_fill", name)
    want.blob(what, "x", x)
    _mask(what, "mask", mask, (x,))
    return emit(_masked_fill, x, mask, name=name, value=number_for(what, value, x, "value"))


def argwhere(condition: Blob, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """The coordinates of the elements that are not 0; not there yet, as its size depends on the values.

    Raises: ModeError, always.
    Example: >>> coordinates = flow.argwhere(x > 0)
    """
    return _not_yet("argwhere", condition, name)


def nonzero(a: Blob, name: str | None = None) -> Blob:
    """The transpose of ``argwhere``; not there yet, as its size depends on the values.

    Raises: ModeError, always.
    Example: >>> coordinates = flow.nonzero(x)
    """
    return _not_yet("nonzero", a, name)


def _not_yet(op_name: str, x: Any, name: str | None) -> Blob:
    what = label(op_name, name)
    want.blob(what, "the argument", x)
    fail(ModeError, what, "ops whose result's size depends on values are not there yet", (x,),
         "keep the full shape: choose with flow.where(condition, x, y), or compute on the returned array")  # fmt: skip


# --- one_hot


@op("one_hot", stops=True)
def _one_hot(indices: Array, *, depth: int, on: int | float, off: int | float, axis: int, to: np.dtype) -> Array:
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    kept = tuple(i for i in range(len(shape)) if i != axis)
    hit = lax.eq(lax.broadcast_in_dim(indices, shape, kept), lax.broadcasted_iota(indices.dtype, shape, axis))
    return select(hit, np.asarray(on).astype(to)[()], np.asarray(off).astype(to)[()])


def one_hot(
    indices: Blob,
    depth: int,
    on_value: int | float = 1,
    off_value: int | float = 0,
    axis: int = -1,
    dtype: dtype | None = None,
    name: str | None = None,
) -> Blob:
    """``on_value`` at the place that each index names, ``off_value`` elsewhere.

    Args:
      indices: integer Blob; an index outside [0, depth) gives ``off_value`` everywhere.
      depth: int > 0, the size of the new axis.
      on_value, off_value: numbers.
      axis: where the new axis stands in the result, in [-(rank + 1), rank].
      dtype: of the result; None means float32.
      name: name of the op; made unique when omitted.
    Returns: Blob of one rank more; no gradient flows.
    Raises: DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.one_hot(labels, depth=10, dtype=flow.float32)   # (32,) -> (32, 10)
    """
    what = label("one_hot", name)
    _index(what, "indices", indices)
    if isinstance(depth, bool) or not isinstance(depth, (int, np.integer)) or depth <= 0:
        fail(ArgumentError, what, f"depth must be an int > 0, got {depth!r}", (indices,))
    for argument, value in (("on_value", on_value), ("off_value", off_value)):
        if not is_number(value):
            fail(ArgumentError, what, f"{argument} must be a number, got {value!r}", (indices,))
    kind = dtypes.float32 if dtype is None else dtypes.as_dtype(dtype)
    at = want.axis(what, axis, indices.ndim + 1, inputs=(indices,))
    return emit(_one_hot, indices, name=name, depth=int(depth), on=on_value, off=off_value, axis=at, to=kind.numpy_dtype)


def _index(what: str, argument: str, value: Any, others: Sequence[Blob] = ()) -> Blob:
    want.blob(what, argument, value)
    if not value.dtype.is_integer:
        fail(DtypeError, what, f"{argument} must be int32 or int64, got {value.dtype.name}", (value, *others),
             "convert with flow.cast(blob, flow.int32)")  # fmt: skip
    return value


# --- gather and scatter. Indices outside the axis read 0 and write nothing


def _coordinates_gather(x: Array, indices: Array, depth: int, axis: int = 0) -> Array:
    """x at the coordinates in the last axis of indices, which cover ``depth`` axes from ``axis`` on."""
    lead = indices.ndim - 1
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(i if i < axis else i + lead for i in range(x.ndim - depth)),
        collapsed_slice_dims=tuple(range(axis, axis + depth)), start_index_map=tuple(range(axis, axis + depth)),
    )  # fmt: skip
    sizes = tuple(1 if axis <= i < axis + depth else size for i, size in enumerate(x.shape))
    return lax.gather(x, indices, numbers, sizes, mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=0)


def _coordinates_add(x: Array, indices: Array, updates: Array, depth: int, axis: int = 0) -> Array:
    """x with the updates added at the coordinates; the reverse of ``_coordinates_gather``."""
    lead = indices.ndim - 1
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(i if i < axis else i + lead for i in range(x.ndim - depth)),
        inserted_window_dims=tuple(range(axis, axis + depth)), scatter_dims_to_operand_dims=tuple(range(axis, axis + depth)),
    )  # fmt: skip
    return lax.scatter_add(x, indices, updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)


@op("gather", stops=(1,))
def _gather(x: Array, indices: Array, *, axis: int) -> Array:
    return _coordinates_gather(x, lax.reshape(indices, (*indices.shape, 1)), 1, axis)


@op("batch_gather", stops=(1,))
def _batch_gather(x: Array, indices: Array) -> Array:
    rank = indices.ndim - 1
    batch, rows = x.shape[:rank], x.shape[rank]
    flat = lax.reshape(x, (math.prod(batch) * rows, *x.shape[rank + 1 :]))
    number = lax.reshape(lax.iota(indices.dtype, math.prod(batch)), (*batch, 1))
    inside = lax.bitwise_and(lax.ge(indices, like(0, indices)), lax.lt(indices, like(rows, indices)))
    number = lax.broadcast_in_dim(number, indices.shape, tuple(range(indices.ndim)))
    place = lax.add(indices, lax.mul(number, like(rows, indices)))
    return _coordinates_gather(flat, lax.reshape(select(inside, place, like(-1, place)), (*indices.shape, 1)), 1)


def gather(
    params: Blob,
    indices: Blob,
    validate_indices: Any = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Blob:
    """The slices of ``params`` along an axis that the indices name.

    Args:
      params: Blob of any dtype.
      indices: int32 or int64 Blob of any shape; an index outside the axis gives zeros.
      validate_indices: not used.
      axis: in [-rank, rank); None means ``batch_dims``.
      batch_dims: 0, or equal to axis. Then the leading ``indices.ndim - 1`` axes of both are paired, and the indices
        count along the next axis: (B, S, H) with indices (B, P) gives (B, P, H).
      name: name of the op; made unique when omitted.
    Returns: Blob of shape params.shape[:axis] + indices.shape + params.shape[axis + 1:]. Gradients of rows that are read
      several times add up.
    Raises: DtypeError, AxisError, ShapeError, ArgumentError.
    Example: >>> rows = flow.gather(table, ids)   # (1000, 8), (32,) -> (32, 8)
    """
    what = label("gather", name)
    want.blob(what, "params", params)
    _index(what, "indices", indices, (params,))
    at = want.axis(what, batch_dims if axis is None else axis, params.ndim, inputs=(params, indices))
    if batch_dims == 0:
        return emit(_gather, params, indices, name=name, axis=at)
    if isinstance(batch_dims, bool) or not isinstance(batch_dims, int) or at != batch_dims:
        fail(ModeError, what, f"batch_dims must be 0 or equal to axis={axis}, got {batch_dims!r}", (params, indices))
    r = indices.ndim - 1
    if r >= params.ndim or params.shape[:r] != indices.shape[:r]:
        fail(ShapeError, what, f"with batch_dims, params and indices must agree on the first {r} axes", (params, indices))
    return emit(_batch_gather, params, indices, name=name)


