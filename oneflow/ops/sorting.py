"""Order: argmax, sort, top_k."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.dtype import int8
from .._base.jax import jnp, lax
from ..errors import DtypeError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, axis_after_removing, label, like
from ._emit import emit, emit_bounded, fail, op, want
from ._native_order import ARGMAX, TOP_K
from ._order import ascending, ascending_with_positions, largest
from .indexing import narrow_indices


@op("argmax", nondifferentiable=True, native=ARGMAX)
def _argmax(x: Array, *, axis: int) -> Array:
    y = lax.argmax(x, axis, np.int32)
    return lax.reshape(y, (1,)) if y.ndim == 0 else y


def argmax(input: Blob, axis: int = -1, name: str | None = None) -> Blob:
    """The position of the largest value along an axis, the first one among equals.

    Args:
      input: Blob of any dtype.
      axis: in [-rank, rank).
      name: name of the op; made unique when omitted.
    Returns: int32 Blob without that axis, (1,) for rank 1; no gradient flows.
    Raises: AxisError, ArgumentError.
    Example: >>> predictions = flow.math.argmax(logits, axis=1)   # (32, 10) -> (32,)
    """
    what = label("argmax", name)
    want.blob(what, "input", input)
    at = want.axis(what, axis, input.ndim, inputs=(input,))
    if input.shape[at] == 0:
        fail(ShapeError, what, f"axis {at} has no elements, so none of them is the largest", (input,))
    y = emit(_argmax, input, name=name, axis=at)
    y.batch_axis = axis_after_removing((at,), input.batch_axis)
    return y


@op("sort")
def _sort(x: Array, *, axis: int, descending: bool) -> Array:
    y = ascending(x, axis)
    return lax.rev(y, (axis,)) if descending else y


@op("argsort", nondifferentiable=True)
def _argsort(x: Array, *, axis: int, descending: bool) -> Array:
    if not descending:
        return ascending_with_positions(x, axis)[1]
    # reversed before and after, a stable sort leaves equal values in their order
    order = lax.rev(ascending_with_positions(lax.rev(x, (axis,)), axis)[1], (axis,))
    return like(x.shape[axis] - 1, order) - order


def _in_order(axis: Any, direction: Any) -> tuple[Any, Any]:
    """Axis and direction; OneFlow 0.1 and 0.2 had the direction second, and no axis."""
    return (-1, axis) if isinstance(axis, str) and direction == "ASCENDING" else (axis, direction)


def _descending(what: str, direction: str) -> bool:
    return want.choice(what, "direction", direction, ("ASCENDING", "DESCENDING")) == "DESCENDING"


def sort(input: Blob, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Blob:
    """The values in order along an axis.

    Args:
      input: Blob of any dtype.
      axis: in [-rank, rank).
      direction: "ASCENDING" or "DESCENDING".
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape and dtype; the gradient flows to the original position of each value.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.sort(x, direction="DESCENDING")
    """
    what = label("sort", name)
    want.blob(what, "input", input)
    axis, direction = _in_order(axis, direction)
    at = want.axis(what, axis, input.ndim, inputs=(input,))
    return emit(_sort, input, name=name, axis=at, descending=_descending(what, direction))


def argsort(input: Blob, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Blob:
    """The positions of the values in order along an axis; equal values keep their order in both directions.

    Args: those of ``sort``.
    Returns: int32 Blob of the same shape; no gradient flows.
    Raises: AxisError, ArgumentError.
    Example: >>> order = flow.argsort(x, axis=0)
    """
    what = label("argsort", name)
    want.blob(what, "input", input)
    axis, direction = _in_order(axis, direction)
    at = want.axis(what, axis, input.ndim, inputs=(input,))
    return emit(_argsort, input, name=name, axis=at, descending=_descending(what, direction))


@op("top_k", nondifferentiable=True, native=TOP_K)
def _top_k(x: Array, *, axis: int, k: int) -> Array:
    size = x.shape[axis]
    last = x.ndim - 1
    order = largest(jnp.moveaxis(x, axis, last), min(k, size) if isinstance(size, int) else k)[1]
    return jnp.moveaxis(lax.convert_element_type(order, np.int32), last, axis)


def top_k(input: Blob, axis: int = -1, k: int = 1, sorted: bool = True, name: str | None = None) -> Blob:
    """The positions of the k largest values along an axis, the largest first, equal ones in their order.

    Args:
      input: Blob of any dtype.
      axis: in [-rank, rank).
      k: int > 0; if it exceeds the size of the axis, all elements count.
      sorted: False allows any order among the k.
      name: name of the op; made unique when omitted.
    Returns: int32 Blob, of size min(k, d) on that axis; ``flow.dim_gather`` or ``gather`` fetches the values.
    Raises: AxisError, ArgumentError.
    Example: >>> best = flow.math.top_k(logits, k=5)   # (32, 1000) -> (32, 5)
    """
    what = label("top_k", name)
    want.blob(what, "input", input)
    hint = ""
    if type(axis) is type(k) is int and 0 < axis < 1 << 31 and k == 1:  # top_k(x, 4), as OneFlow 0.1 had it
        hint = f"k={axis} by its name: the second argument is the axis"
    at = want.axis(what, axis, input.ndim, inputs=(input,), hint=hint)
    want.flag(what, "sorted", sorted, (input,))
    return emit(_top_k, input, name=name, axis=at, k=want.integer(what, "k", k, 1, (input,)))


@op("in_top_k", nondifferentiable=True)
def _in_top_k(targets: Array, predictions: Array, *, k: int) -> Array:
    rows, _ = predictions.shape
    if targets.shape[0] != rows:
        raise ValueError(f"{targets.shape[0]} targets for {rows} rows of predictions")
    targets = narrow_indices(targets, predictions.shape[1:])
    column = lax.broadcast_in_dim(targets, predictions.shape, (0,))
    mine = lax.eq(column, lax.broadcasted_iota(targets.dtype, predictions.shape, 1))
    zero = lax.full_like(predictions, 0)
    score = lax.reduce_sum(lax.select(mine, predictions, zero), (1,))
    higher = lax.gt(predictions, lax.broadcast_in_dim(score, predictions.shape, (0,)))
    count = lax.reduce_sum(lax.convert_element_type(higher, np.int32), (1,))
    finite = lax.reduce_and(lax.is_finite(predictions), (1,))
    known = lax.reduce_or(mine, (1,))
    good = lax.bitwise_and(lax.lt(count, np.int32(k)), lax.bitwise_and(finite, known))
    return lax.convert_element_type(good, np.int8)


def in_top_k(targets: Blob, predictions: Blob, k: int | None, name: str | None = None) -> Blob:
    """1 where fewer than k classes score strictly higher than the target class, else 0.

    Args:
      targets: integer Blob (N,), classes in [0, C).
      predictions: floating Blob (N, C).
      k: int.
      name: name of the op; made unique when omitted.
    Returns: int8 Blob (N,); 0 for a target outside [0, C) and for rows with a value that is not finite.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> hits = flow.math.in_top_k(labels, logits, k=5)
    """
    what = label("in_top_k", name)
    want.rank(what, want.blob(what, "targets", targets), 1, 1)
    want.rank(what, want.blob(what, "predictions", predictions), 2, 2)
    want.floating(what, predictions)
    if not targets.dtype.is_integer:
        fail(DtypeError, what, f"targets must be int32 or int64, got {targets.dtype.name}", (targets, predictions))
    count = want.integer(what, "k", k, inputs=(targets, predictions))
    rows, blobs = (targets.shape[0], predictions.shape[0]), (targets, predictions)
    if rows[0] == rows[1]:
        return emit(_in_top_k, *blobs, name=name, k=count)
    if not targets.is_dynamic and not predictions.is_dynamic or any(b.has_dynamic_size for b in blobs):
        fail(ShapeError, what, f"{rows[0]} targets for {rows[1]} rows of predictions", blobs)
    return emit_bounded(_in_top_k, *blobs, bounds=[((min(rows),), int8)], name=name, k=count)[0]
