"""Adding up by number: scatter, segments, unique."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob, ValidLength
from ._arrays import Array, dtype_for, in_float32, label, like, select
from ._emit import emit, emit_many, fail, in_view, op, want
from ._order import ascending_with_positions
from .elementwise import cast
from .indexing import coordinates, coordinates_add, coordinates_gather, index_blob, narrow_indices

# --- scatter. Positions outside are ignored


def _zeros(shape: Sequence[int], like_dtype: Any) -> Array:
    return lax.full(tuple(shape), 0, like_dtype)


@op("scatter_nd", nondifferentiable=(0,))
def _scatter_nd(indices: Array, updates: Array, *, shape: tuple[int, ...]) -> Array:
    depth = indices.shape[-1]
    return in_float32(lambda u: coordinates_add(_zeros(shape, u.dtype), indices, u, depth), updates)


def scatter_nd(indices: Blob, updates: Blob, shape: Sequence[int], name: str | None = None) -> Blob:
    """Zeros, with the updates added at coordinates; updates of the same position add up.

    Args:
      indices: integer Blob; its last axis holds k coordinates. Positions outside are ignored.
      updates: Blob of shape indices.shape[:-1] + shape[k:].
      shape: list or tuple of sizes > 0.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and updates' dtype.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.scatter_nd(positions, rows, [10, 4])   # (3, 1), (3, 4) -> (10, 4)
    """
    what = label("scatter_nd", name)
    index_blob(what, "indices", indices)
    want.blob(what, "updates", updates)
    sizes = want.ints(what, "shape", shape)
    if not sizes or any(size <= 0 for size in sizes):
        fail(ArgumentError, what, f"shape must hold sizes > 0, got {shown(shape)}", (indices, updates))
    indices, updates = in_view(what, indices, updates)
    _fits(what, sizes, indices, updates, (indices, updates))
    return emit(_scatter_nd, indices, updates, name=name, shape=sizes)


def _fits(what: str, shape: Sequence[int], indices: Blob, updates: Blob, blobs: Sequence[Blob]) -> None:
    depth = coordinates(what, shape, indices, blobs)
    expected = (*indices.shape[:-1], *shape[depth:])
    if updates.shape != expected:
        fail(ShapeError, what, f"updates must have shape {expected}: one slice per position, got {updates.shape}", blobs)


@op("tensor_scatter_nd_add", nondifferentiable=(1,))
def _tensor_scatter_nd_add(x: Array, indices: Array, updates: Array) -> Array:
    return coordinates_add(x, indices, updates, indices.shape[-1])


@op("tensor_scatter_nd_update", nondifferentiable=(1,))
def _tensor_scatter_nd_update(x: Array, indices: Array, updates: Array) -> Array:
    if all(isinstance(size, int) for size in (*indices.shape, *x.shape)) and math.prod(indices.shape[:-1]) == 1:
        return _updated_at(x, lax.reshape(indices, indices.shape[-1:]), updates)
    hits = coordinates_add(lax.full(x.shape, 0, np.int32), indices, lax.full(updates.shape, 1, np.int32), indices.shape[-1])
    kept = select(lax.gt(hits, np.int32(0)), like(0, x), x)
    return coordinates_add(kept, indices, updates, indices.shape[-1])


def _updated_at(x: Array, index: Array, update: Array) -> Array:
    """x with one slice replaced, in place where XLA may: no pass over the rest. Outside of x nothing is."""
    index, depth = narrow_indices(index, x.shape), index.shape[0]
    limits = np.array(x.shape[:depth], index.dtype)
    inside = lax.reduce_and(lax.bitwise_and(lax.ge(index, np.zeros_like(limits)), lax.lt(index, limits)), (0,))
    zero = lax.full((), 0, index.dtype)
    begin = [*(lax.index_in_dim(index, i, keepdims=False) for i in range(depth)), *[zero] * (x.ndim - depth)]
    sizes = (*(1,) * depth, *x.shape[depth:])
    before = lax.dynamic_slice(x, begin, sizes)
    return lax.dynamic_update_slice(x, lax.select(lax.broadcast(inside, sizes), lax.reshape(update, sizes), before), begin)


def tensor_scatter_nd_add(params: Blob, indices: Blob, updates: Blob, name: str | None = None) -> Blob:
    """``params`` with the updates added at coordinates.

    Args:
      params: Blob.
      indices: integer Blob; its last axis holds k coordinates. Positions outside are ignored.
      updates: Blob of params' dtype and of shape indices.shape[:-1] + params.shape[k:].
      name: name of the op; made unique when omitted.
    Returns: Blob of params' shape and dtype.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.tensor_scatter_nd_add(x, positions, rows)   # (10, 4), (3, 1), (3, 4) -> (10, 4)
    """
    return _tensor_scatter(_tensor_scatter_nd_add, params, indices, updates, name)


def tensor_scatter_nd_update(params: Blob, indices: Blob, updates: Blob, name: str | None = None) -> Blob:
    """``params`` with the values at coordinates replaced; updates of the same position add up.

    Args: those of ``tensor_scatter_nd_add``.
    Returns: Blob of params' shape and dtype; the gradient with respect to params is 0 where values were replaced.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.tensor_scatter_nd_update(x, positions, rows)   # (10, 4), (3, 1), (3, 4) -> (10, 4)
    """
    return _tensor_scatter(_tensor_scatter_nd_update, params, indices, updates, name)


def _tensor_scatter(made: Any, params: Blob, indices: Blob, updates: Blob, name: str | None) -> Blob:
    what = label(made.name, name)
    want.blob(what, "params", params)
    index_blob(what, "indices", indices, (params,))
    want.blob(what, "updates", updates)
    want.same_dtype(what, (params, updates))
    params, indices, updates = in_view(what, params, indices, updates)
    _fits(what, params.shape, indices, updates, (params, indices, updates))
    return emit(made, params, indices, updates, name=name)


# --- segments


def _segment_sum(data: Array, ids: Array, count: int, axis: int) -> Array:
    shape = (*data.shape[:axis], count, *data.shape[axis + ids.ndim :])
    numbers = lax.reshape(ids, (*ids.shape, 1))
    return in_float32(lambda d: coordinates_add(_zeros(shape, d.dtype), numbers, d, 1, axis), data)


@op("unsorted_segment_sum", nondifferentiable=(1,))
def _unsorted_segment_sum(data: Array, ids: Array, *, count: int, axis: int) -> Array:
    return _segment_sum(data, ids, count, axis)


@op("unsorted_segment_sum_like", nondifferentiable=(1, 2))
def _unsorted_segment_sum_like(data: Array, ids: Array, like: Array, *, axis: int) -> Array:
    return _segment_sum(data, ids, like.shape[axis], axis)


def _segments(what: str, data: Any, ids: Any, axis: Any) -> int:
    want.blob(what, "data", data)
    index_blob(what, "segment_ids", ids, (data,))
    at = want.axis(what, axis, data.ndim, inputs=(data, ids))
    if data.shape[at : at + ids.ndim] != ids.shape:
        fail(ShapeError, what, f"segment_ids must have the shape of data from axis {at} on, got {ids.shape}", (data, ids))
    return at


def _positive(what: str, argument: str, value: Any) -> int:
    return want.integer(what, argument, value, 1)


def unsorted_segment_sum(data: Blob, segment_ids: Blob, num_segments: int, axis: int = 0, name: str | None = None) -> Blob:
    """Sums the slices of ``data`` along an axis that have the same segment number.

    Args:
      data: Blob of any dtype.
      segment_ids: integer Blob of shape data.shape[axis : axis + r]; slices with a number outside
        [0, num_segments) are left out.
      num_segments: int > 0.
      axis: in [-rank, rank).
      name: name of the op; made unique when omitted.
    Returns: Blob of shape data.shape[:axis] + (num_segments,) + data.shape[axis + r:].
    Raises: ShapeError, DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.unsorted_segment_sum(rows, ids, 10)   # (32, 4), (32,) -> (10, 4)
    """
    what = label("unsorted_segment_sum", name)
    at = _segments(what, data, segment_ids, axis)
    count = _positive(what, "num_segments", num_segments)
    return emit(_unsorted_segment_sum, data, segment_ids, name=name, count=count, axis=at)


def unsorted_segment_sum_like(data: Blob, segment_ids: Blob, like: Blob, axis: int = 0, name: str | None = None) -> Blob:
    """``unsorted_segment_sum`` with as many segments as ``like`` has on the axis.

    Args:
      data, segment_ids, axis: those of ``unsorted_segment_sum``.
      like: Blob of the result's shape; its values are not used.
      name: name of the op; made unique when omitted.
    Returns: Blob of like's shape and data's dtype.
    Raises: ShapeError, DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.unsorted_segment_sum_like(rows, ids, table)
    """
    what = label("unsorted_segment_sum_like", name)
    at = _segments(what, data, segment_ids, axis)
    want.blob(what, "like", like)
    rest = data.shape[at + segment_ids.ndim :]
    if like.ndim <= at or like.shape != (*data.shape[:at], like.shape[at], *rest):
        fail(ShapeError, what, f"like must have data's shape, but for the segments on axis {at}, got {like.shape}",
             (data, segment_ids, like))  # fmt: skip
    return emit(_unsorted_segment_sum_like, data, segment_ids, like, name=name, axis=at)


@op("unsorted_batch_segment_sum", nondifferentiable=(1,))
def _unsorted_batch_segment_sum(data: Array, ids: Array, *, count: int) -> Array:
    axis = ids.ndim - 1
    batch = tuple(range(axis))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(ids.ndim, data.ndim)), inserted_window_dims=(axis,), scatter_dims_to_operand_dims=(axis,),
        operand_batching_dims=batch, scatter_indices_batching_dims=batch,
    )  # fmt: skip
    shape = *data.shape[:axis], count, *data.shape[ids.ndim :]
    places = lax.reshape(narrow_indices(ids, shape), (*ids.shape, 1))
    drop = lax.GatherScatterMode.FILL_OR_DROP
    return in_float32(lambda d: lax.scatter_add(_zeros(shape, d.dtype), places, d, numbers, mode=drop), data)


def unsorted_batch_segment_sum(data: Blob, segment_ids: Blob, num_segments: int, name: str | None = None) -> Blob:
    """``unsorted_segment_sum`` for every row of a batch.

    Args:
      data: Blob of any dtype.
      segment_ids: integer Blob of rank r, which has the sizes of data's first r axes; axis r - 1 is summed.
      num_segments: int > 0.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape data.shape[:r - 1] + (num_segments,) + data.shape[r:].
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.unsorted_batch_segment_sum(x, ids, 4)   # (2, 5, 3), (2, 5) -> (2, 4, 3)
    """
    what = label("unsorted_batch_segment_sum", name)
    _segments(what, data, segment_ids, 0)
    return emit(_unsorted_batch_segment_sum, data, segment_ids, name=name, count=_positive(what, "num_segments", num_segments))


# --- unique values. The results have the size of the input; a count says how many rows are meaningful


def _groups(x: Array) -> tuple[Array, Array, Array]:
    """For each element of x in ascending order: its position in x, the number of its group, whether it is the first of it."""
    if not x.size:
        none = lax.full((0,), 0, np.int32)
        return none, none, lax.full((0,), False)
    sorted_x, origin = ascending_with_positions(x, 0)
    changes = lax.ne(lax.slice(sorted_x, (1,), (x.size,)), lax.slice(sorted_x, (0,), (x.size - 1,)))
    begins = lax.concatenate([lax.full((1,), True), changes], 0)
    group = lax.sub(lax.cumsum(lax.convert_element_type(begins, np.int32)), np.int32(1))
    return origin, group, begins


def _column(x: Array) -> Array:
    return lax.reshape(x, (x.size, 1))


@op("indexed_slices_reduce_sum", nondifferentiable=True, multiple_results=True)
def _indexed_slices_reduce_sum(indices: Array, values: Array) -> tuple[Array, Array, Array]:
    flat = lax.reshape(indices, (indices.size,))
    rows = lax.reshape(values, (flat.size, math.prod(values.shape[indices.ndim :])))
    origin, group, begins = _groups(flat)
    ordered = coordinates_gather(flat, _column(origin), 1)
    firsts = _column(select(begins, group, np.int32(flat.size)))
    unique = coordinates_add(lax.full_like(flat, 0), firsts, ordered, 1)
    sums = _segment_sum(coordinates_gather(rows, _column(origin), 1), group, flat.size, 0)
    return unique, sums, _count(begins, np.int64)


def _count(begins: Array, to: Any) -> Array:
    return lax.reshape(lax.reduce_sum(lax.convert_element_type(begins, to), (0,)), (1,))


def indexed_slices_reduce_sum(indices: Blob, values: Blob, name: str | None = None) -> tuple[Blob, Blob, Blob]:
    """Sums the slices of ``values`` that have the same index.

    Args:
      indices: integer Blob with n elements.
      values: Blob whose leading axes have indices' shape, with m elements per index.
      name: name of the op; made unique when omitted.
    Returns: (the different indices (n,), their sums (n, m), their number: int64 (1,)); only the first rows, as many as
      that number says, are meaningful; ``tp.ListNumpy`` fetches those alone.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> ids, rows, count = flow.experimental.indexed_slices_reduce_sum(ids, rows)
    """
    what = label("indexed_slices_reduce_sum", name)
    index_blob(what, "indices", indices)
    want.blob(what, "values", values)
    if values.shape[: indices.ndim] != indices.shape:
        fail(ShapeError, what, f"the leading axes of values must be {indices.shape}", (indices, values))
    unique, sums, count = emit_many(_indexed_slices_reduce_sum, indices, values, name=name)
    _fetched_up_to(count, unique, sums)
    return unique, sums, count


def _fetched_up_to(count: Blob, *blobs: Blob) -> None:
    """``tp.ListNumpy`` fetches the meaningful part of the Blobs; in the job they have their full size."""
    count.is_dynamic = False
    if count.dtype is not dtypes.int32:
        count = cast(count, dtypes.int32)
    for blob in blobs:
        blob.valid_length = ValidLength(0, count)


@op("unique_with_counts", nondifferentiable=True, multiple_results=True)
def _unique_with_counts(x: Array, *, to: np.dtype) -> tuple[Array, Array, Array, Array]:
    size = x.size
    origin, group, begins = _groups(x)
    firsts = _column(select(begins, group, np.int32(size)))
    place = coordinates_add(lax.full((size,), 0, np.int32), firsts, origin, 1)  # where each group appears first
    exists = lax.lt(lax.iota(np.int32, size), lax.add(lax.reduce_max(group, (0,)), np.int32(1)))
    place, order = ascending_with_positions(select(exists, place, np.int32(size)), 0)
    rank = coordinates_add(lax.full((size,), 0, np.int32), _column(order), lax.iota(np.int32, size), 1)
    mine = coordinates_gather(rank, _column(group), 1)  # the number of each sorted element's group, by first appearance
    index = coordinates_add(lax.full((size,), 0, np.int32), _column(origin), mine, 1)
    counts = coordinates_add(lax.full((size,), 0, np.int32), _column(mine), lax.full((size,), 1, np.int32), 1)
    values = coordinates_gather(x, _column(place), 1)
    return values, lax.convert_element_type(index, to), lax.convert_element_type(counts, to), _count(begins, to)


def unique_with_counts(x: Blob, out_idx: dtype = dtypes.int32, name: str | None = None) -> tuple[Blob, Blob, Blob, Blob]:
    """The different values of a Blob in the order of their first appearance.

    Args:
      x: Blob of rank 1.
      out_idx: dtype of the other results, int32 or int64.
      name: name of the op; made unique when omitted.
    Returns: (values, idx, counts, number of different values (1,)); the first three have x's length, values and counts
      are meaningful up to that number, and values[idx] is x. ``tp.ListNumpy`` fetches only the meaningful part of
      values and counts.
    Raises: ShapeError, ArgumentError.
    Example: >>> values, idx, counts, number = flow.experimental.unique_with_counts(x)   # (6,) -> four Blobs
    """
    what = label("unique_with_counts", name)
    want.rank(what, want.blob(what, "x", x), 1, 1)
    kind = dtype_for(what, out_idx, "out_idx")
    if kind.name not in ("int32", "int64"):
        fail(ArgumentError, what, f"out_idx must be flow.int32 or flow.int64, got {kind}", (x,))
    values, index, counts, number = emit_many(_unique_with_counts, x, name=name, to=kind.numpy_dtype)
    _fetched_up_to(number, values, counts)
    return values, index, counts, number
