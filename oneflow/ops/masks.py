"""Choosing by mask: where, masked_fill; and argwhere, nonzero, sync_dynamic_resize, whose sizes depend on data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import lax
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.node import INVALID_AXIS, Blob, ValidLength
from . import _dynamic_moves  # noqa: F401 - its rules
from . import _dynamic_rules as rules
from ._arrays import Array, broadcast, dtype_for, label, like, number_for, select
from ._dynamic_ops import resized
from ._emit import emit, emit_many, fail, is_number, op, want
from .array import transpose
from .constant import constant
from .indexing import coordinates_add


@op("where", nondifferentiable=(0,), batch_inputs=(0, 1, 2), elementwise=True)
def _where(condition: Array, x: Array, y: Array) -> Array:
    mask, x, y = broadcast(lax.ne(condition, like(0, condition)), x, y)
    return lax.select(mask, x, y)


def _mask(what: str, argument: str, value: Any, others: Sequence[Any] = ()) -> Blob:
    want.blob(what, argument, value)
    if not value.dtype.is_integer and value.dtype is not dtypes.bool:
        fail(DtypeError, what, f"{argument} must be an integer Blob, got {value.dtype.name}", (value, *others),
             "compare first, e.g. condition > 0")  # fmt: skip
    return value


def where(condition: Blob, x: Blob | None = None, y: Blob | None = None, name: str | None = None) -> Blob:
    """x where the condition is not 0, else y.

    Args:
      condition: integer Blob, such as the result of a comparison.
      x, y: Blobs of one dtype; a number beside a Blob is converted to its dtype. The three broadcast together. Without
        both, ``where`` is ``argwhere``.
      name: name of the op; made unique when omitted.
    Returns: Blob of the common shape and x's dtype. No gradient flows to the condition.
    Raises: DtypeError, ShapeError, ArgumentError.
    Example: >>> y = flow.where(x > 0, x, flow.zeros_like(x))
    """
    what = label("where", name)
    if x is None and y is None:
        return argwhere(condition, name=name)
    if x is None or y is None:
        fail(ArgumentError, what, "pass both x and y, or neither",
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


@op("masked_fill", nondifferentiable=(1,), batch_inputs=(0, 1), elementwise=True)
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


# --- sizes that depend on data


@op("argwhere", nondifferentiable=True, multiple_results=True)
def _argwhere(condition: Array, *, to: np.dtype) -> tuple[Array, Array]:
    size = math.prod(condition.shape)
    index = np.dtype(np.int64 if isinstance(size, int) and size >= 2**31 else np.int32)  # symbolic sizes: int32
    hit = lax.reshape(lax.ne(condition, like(0, condition)), (size,))
    number = lax.cumsum(lax.convert_element_type(hit, index))  # of each hit, from 1
    count = lax.slice(number, (size - 1,), (size,)) if size else np.zeros((1,), index)
    place = lax.select(hit, lax.sub(number, lax.full_like(number, 1)), lax.full_like(number, size))
    flat = coordinates_add(lax.full((size,), 0, index), lax.reshape(place, (size, 1)), lax.iota(index, size), 1)
    columns, behind = [], size
    for n in condition.shape:
        behind //= max(n, 1)
        columns.append(lax.rem(lax.div(flat, like(max(behind, 1), flat)), like(max(n, 1), flat)))
    table = lax.concatenate([lax.reshape(lax.convert_element_type(c, to), (size, 1)) for c in columns], 1)
    return table, lax.convert_element_type(count, np.int32)


@rules.rule("argwhere")
def _of_dynamic_size(t: rules.Treatment) -> tuple[Blob, ...]:
    return t.make(t.fill(0, 0))


def with_valid_length(y: Blob, axis: int, count: Blob, others_vary: bool = False) -> Blob:
    """y, marked as a Blob whose size on ``axis`` is the value of the Blob ``count``."""
    y.valid_length = ValidLength(axis, count, others_vary)
    y.is_dynamic, count.is_dynamic = True, False
    y.batch_axis = count.batch_axis = INVALID_AXIS
    return y


def argwhere(condition: Blob, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """The coordinates of the elements that are not 0, in row-major order.

    Args:
      condition: Blob of any shape and dtype.
      dtype: of the result, int32 or int64; None means int32.
      name: name of the op; made unique when omitted.
    Returns: Blob of at most shape (number of elements, rank): one row per element that is not 0. ``tp.ListNumpy``
      fetches it with its true size; the guide's section "Sizes that depend on data" lists what a job can do with it. No
      gradient flows.
    Raises: ArgumentError, DtypeError.
    Example: >>> positions = flow.argwhere(x > 0)   # (2, 3) -> (<=6, 2)
    """
    y, count = argwhere_and_count(condition, dtype, name)
    return with_valid_length(y, 0, count)


def argwhere_and_count(condition: Blob, dtype: dtype | None = None, name: str | None = None) -> tuple[Blob, Blob]:
    """``argwhere`` as OneFlow's own op: a Blob of full size, filled up with 0, and the number of coordinates."""
    what = label("argwhere", name)
    want.blob(what, "condition", condition)
    kind = dtypes.int32 if dtype is None else dtype_for(what, dtype)
    if kind.name not in ("int32", "int64"):
        fail(DtypeError, what, f"dtype must be flow.int32 or flow.int64, got {kind}", (condition,))
    y, count = emit_many(_argwhere, condition, name=name, to=kind.numpy_dtype)
    return y, count


def nonzero(a: Blob, name: str | None = None) -> Blob:
    """The transpose of ``argwhere``: one row per axis, one column per element that is not 0.

    Args:
      a: Blob of any shape and dtype.
      name: name of the op; made unique when omitted.
    Returns: int32 Blob of at most shape (rank, number of elements), fetched like that of ``argwhere``. No gradient flows.
    Raises: ArgumentError.
    Example: >>> positions = flow.nonzero(x)   # (2, 3) -> (2, <=6)
    """
    want.blob(label("nonzero", name), "a", a)
    return transpose(argwhere(a), [1, 0], name=name)


def sync_dynamic_resize(inputs: Blob, size: Blob, name: str | None = None) -> Blob:
    """The first ``size`` slices of a Blob on axis 0.

    Args:
      inputs: Blob of any dtype.
      size: integer Blob of shape (1,); values beyond the size of axis 0 are reduced to it.
      name: name of the op; made unique when omitted.
    Returns: Blob of at most inputs' shape, fetched with its true size like that of ``argwhere``.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.sync_dynamic_resize(x, flow.elem_cnt(labels))   # (4, 3) -> (<=4, 3)
    """
    what = label("sync_dynamic_resize", name)
    want.blob(what, "inputs", inputs)
    want.blob(what, "size", size)
    if not size.dtype.is_integer:
        fail(DtypeError, what, f"size must be an integer Blob, got {size.dtype.name}", (inputs, size))
    if size.shape != (1,) or size.has_dynamic_size:
        fail(ShapeError, what, f"size must have shape (1,), got {size.shape}", (inputs, size))
    if inputs.has_dynamic_size:
        fail(ArgumentError, what, "the size of inputs depends on data already", (inputs, size),
             "flow.cast_to_static_shape(inputs) restores its full size")  # fmt: skip
    y, count = emit_many(resized, inputs, size)
    count.is_dynamic = False
    return rules.filled(y, ValidLength(0, count, inputs.is_dynamic), 0, name, "SyncDynamicResize")
