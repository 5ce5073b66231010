"""Choosing by number: one_hot, gather, scatter, segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.check import whole
from .._base.dtype import dtype
from .._base.jax import jax, lax
from .._base.refuse import shown
from ..errors import ArgumentError, AxisError, DtypeError, ModeError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, dtype_for, is_half, is_many, label, select
from ._emit import emit, fail, is_number, op, want

# --- one_hot


@op("one_hot", nondifferentiable=True)
def _one_hot(indices: Array, *, depth: int, on: int | float, off: int | float, axis: int, to: np.dtype) -> Array:
    indices = narrow_indices(indices, (depth,))
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
    """``on_value`` at the position of each index, ``off_value`` elsewhere.

    Args:
      indices: integer Blob; an index outside [0, depth) results in ``off_value`` everywhere.
      depth: int > 0, the size of the new axis.
      on_value, off_value: numbers.
      axis: position of the new axis in the result, in [-(rank + 1), rank].
      dtype: of the result; None means float32.
      name: name of the op; made unique when omitted.
    Returns: Blob of one rank more; no gradient flows.
    Raises: DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.one_hot(labels, depth=10, dtype=flow.float32)   # (32,) -> (32, 10)
    """
    what = label("one_hot", name)
    index_blob(what, "indices", indices)
    depth = want.integer(what, "depth", depth, 1, (indices,))
    for argument, value in (("on_value", on_value), ("off_value", off_value)):
        if not is_number(value):
            fail(ArgumentError, what, f"{argument} must be a number, got {shown(value)}", (indices,))
    kind = dtypes.float32 if dtype is None else dtype_for(what, dtype)
    at = want.axis(what, axis, indices.ndim + 1, inputs=(indices,))
    return emit(_one_hot, indices, name=name, depth=depth, on=on_value, off=off_value, axis=at, to=kind.numpy_dtype)


def index_blob(what: str, argument: str, value: Any, others: Sequence[Blob] = ()) -> Blob:
    want.blob(what, argument, value)
    if not value.dtype.is_integer:
        fail(DtypeError, what, f"{argument} must be int32 or int64, got {value.dtype.name}", (value, *others),
             "convert with flow.cast(blob, flow.int32)")  # fmt: skip
    return value


# --- gather and scatter. Indices outside the axis read 0 and write nothing


def narrow_indices(indices: Array, sizes: Sequence[Any]) -> Array:
    """Indices into axes of these sizes in 32 bits, where that is enough; what is outside stays there.

    XLA ends the process where it divides a scatter at 64-bit indices into uneven pieces for several devices.
    """
    if indices.dtype.itemsize < 4:  # XLA compares them with the sizes in their own dtype, which may not hold these
        return lax.convert_element_type(indices, np.int32)
    most = np.iinfo(np.int32).max
    if indices.dtype.itemsize < 8 or any(isinstance(size, int) and size > most for size in sizes):
        return indices
    bounds = np.array([-1, most], indices.dtype)
    return lax.convert_element_type(lax.clamp(bounds[0], indices, bounds[1]), np.int32)


def coordinates_gather(x: Array, indices: Array, depth: int, axis: int = 0) -> Array:
    """x at the coordinates in the last axis of indices, which cover ``depth`` axes from ``axis`` on."""
    lead = indices.ndim - 1
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(i if i < axis else i + lead for i in range(x.ndim - depth)),
        collapsed_slice_dims=tuple(range(axis, axis + depth)), start_index_map=tuple(range(axis, axis + depth)),
    )  # fmt: skip
    sizes = tuple(1 if axis <= i < axis + depth else size for i, size in enumerate(x.shape))
    indices = narrow_indices(indices, x.shape)
    return lax.gather(x, indices, numbers, sizes, mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=0)


def coordinates_add(x: Array, indices: Array, updates: Array, depth: int, axis: int = 0) -> Array:
    """x with the updates added at the coordinates; the reverse of ``coordinates_gather``."""
    lead = indices.ndim - 1
    expected = (*x.shape[:axis], *indices.shape[:-1], *x.shape[axis + depth :])
    if updates.shape != expected:
        raise ValueError(f"updates must have shape {expected}, got {updates.shape}")
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(i if i < axis else i + lead for i in range(x.ndim - depth)),
        inserted_window_dims=tuple(range(axis, axis + depth)), scatter_dims_to_operand_dims=tuple(range(axis, axis + depth)),
    )  # fmt: skip
    return lax.scatter_add(x, narrow_indices(indices, x.shape), updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)


def _paired_gather(x: Array, indices: Array, axis: int, paired: tuple[int, ...]) -> Array:
    """x at the indices along an axis, where the paired axes of x and of indices run together."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + x.ndim - 1 - len(paired))),
        collapsed_slice_dims=(axis,), start_index_map=(axis,), operand_batching_dims=paired, start_indices_batching_dims=paired,
    )  # fmt: skip
    sizes = tuple(1 if i == axis or i in paired else size for i, size in enumerate(x.shape))
    indices = lax.reshape(narrow_indices(indices, x.shape), (*indices.shape, 1))
    return lax.gather(x, indices, numbers, sizes, mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=0)


def _added_in(gather: Callable[..., Array]) -> Callable[..., tuple[Array, None]]:
    """The gradient of a gather: the cotangents are added at the indices, in float32 where they have 16 bits."""

    def grad(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Array, None]:
        (x, indices), (dy,) = inputs, cotangents
        wide = np.dtype(np.float32) if is_half(x) else x.dtype
        add = jax.linear_transpose(lambda t: gather(t, indices, **attrs), jax.ShapeDtypeStruct(x.shape, wide))
        return lax.convert_element_type(add(lax.convert_element_type(dy, wide))[0], x.dtype), None

    return grad


def _take(x: Array, indices: Array, *, axis: int) -> Array:
    return coordinates_gather(x, lax.reshape(indices, (*indices.shape, 1)), 1, axis)


def _take_in_each(x: Array, indices: Array, *, axis: int) -> Array:
    """As ``_take``. XLA adds the other way round, into many rows or of some length, up to 8 times as fast on CPUs."""
    lead = x.shape[:axis]
    if not axis or not (is_many(lead, 64) or is_many(x.shape[axis + 1 :], 2)):
        return _take(x, indices, axis=axis)
    repeated = lax.broadcast_in_dim(indices, (*lead, *indices.shape), tuple(range(axis, axis + indices.ndim)))
    return _paired_gather(x, repeated, axis, tuple(range(axis)))


def _batch_take(x: Array, indices: Array) -> Array:
    rank = indices.ndim - 1
    return _paired_gather(x, indices, rank, tuple(range(rank)))


def _take_nd(x: Array, indices: Array) -> Array:
    return coordinates_gather(x, indices, indices.shape[-1])


def _dim_take(x: Array, index: Array, *, dim: int) -> Array:
    return _paired_gather(x, index, dim, tuple(i for i in range(x.ndim) if i != dim))


_gather = op(
    "gather",
    nondifferentiable=(1,),
    grad=_added_in(_take_in_each),
    autocast="between",
    gathers_rows=lambda attrs: attrs["axis"] == 0,
)(_take)
_batch_gather = op("batch_gather", nondifferentiable=(1,), grad=_added_in(_batch_take))(_batch_take)
_gather_nd = op("gather_nd", nondifferentiable=(1,), grad=_added_in(_take_nd))(_take_nd)
_dim_gather = op("dim_gather", nondifferentiable=(1,), grad=_added_in(_dim_take))(_dim_take)


def gather(
    params: Blob,
    indices: Blob,
    validate_indices: Any = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Blob:
    """The slices of ``params`` at these indices of an axis.

    Args:
      params: Blob of any dtype.
      indices: integer Blob of any shape; an index outside the axis reads zeros.
      validate_indices: not used.
      axis: in [-rank, rank); None means ``batch_dims``.
      batch_dims: 0, or equal to axis. Then the leading ``indices.ndim - 1`` axes of both are paired, and the indices
        count along the next axis: (B, S, H) with indices (B, P) results in (B, P, H).
      name: name of the op; made unique when omitted.
    Returns: Blob of shape params.shape[:axis] + indices.shape + params.shape[axis + 1:]. Gradients of rows that are read
      several times add up.
    Raises: DtypeError, AxisError, ShapeError, ArgumentError.
    Example: >>> rows = flow.gather(table, ids)   # (1000, 8), (32,) -> (32, 8)
    """
    what = label("gather", name)
    want.blob(what, "params", params)
    index_blob(what, "indices", indices, (params,))
    at = want.axis(what, batch_dims if axis is None else axis, params.ndim, inputs=(params, indices))
    if whole(batch_dims) == 0:
        return emit(_gather, params, indices, name=name, axis=at)
    if whole(batch_dims) != at:
        fail(ModeError, what, f"batch_dims must be 0 or equal to axis={at}, got {shown(batch_dims)}", (params, indices))
    r = indices.ndim - 1
    if r >= params.ndim or params.shape[:r] != indices.shape[:r]:
        fail(ShapeError, what, f"with batch_dims, params and indices must agree on the first {r} axes", (params, indices))
    return emit(_batch_gather, params, indices, name=name)


def gather_nd(params: Blob, indices: Blob, name: str | None = None) -> Blob:
    """The elements or slices of ``params`` at coordinates.

    Args:
      params: Blob of any dtype.
      indices: integer Blob; its last axis holds k coordinates, a position on the first k axes. A position
        outside reads zeros.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape indices.shape[:-1] + params.shape[k:].
    Raises: DtypeError, ShapeError, ArgumentError.
    Example: >>> y = flow.gather_nd(x, positions)   # (4, 5, 6), (3, 2) -> (3, 6)
    """
    what = label("gather_nd", name)
    want.blob(what, "params", params)
    index_blob(what, "indices", indices, (params,))
    coordinates(what, params.shape, indices, (params, indices))
    return emit(_gather_nd, params, indices, name=name)


def coordinates(what: str, shape: Sequence[int], indices: Blob, blobs: Sequence[Blob]) -> int:
    """The number of coordinates of a position; at most as many as the indexed shape has axes."""
    count = indices.shape[-1]
    if count > len(shape):
        fail(ShapeError, what, f"the last axis of indices holds {count} coordinates, but there are {len(shape)} axes", blobs)
    return count


def dim_gather(input: Blob, dim: int, index: Blob, name: str | None = None) -> Blob:
    """y[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so on: PyTorch's ``gather``.

    Args:
      input: Blob of any dtype.
      dim: in [0, rank).
      index: integer Blob of the same rank; sizes are equal except on ``dim``. An index outside reads 0.
      name: name of the op; made unique when omitted.
    Returns: Blob of index's shape and input's dtype.
    Raises: ShapeError, DtypeError, AxisError, ArgumentError.
    Example: >>> values = flow.dim_gather(logits, 1, best)   # (32, 10), (32, 5) -> (32, 5)
    """
    what = label("dim_gather", name)
    want.blob(what, "input", input)
    index_blob(what, "index", index, (input,))
    at = want.axis(what, dim, input.ndim, "dim", (input, index))
    if dim < 0:
        fail(AxisError, what, f"dim={dim} must be >= 0", (input, index))
    sizes = [(*b.shape[:at], *b.shape[at + 1 :]) for b in (input, index)]
    if input.ndim != index.ndim or sizes[0] != sizes[1]:
        fail(ShapeError, what, f"input and index must agree on every axis except dim={dim}", (input, index))
    return emit(_dim_gather, input, index, name=name, dim=at)
