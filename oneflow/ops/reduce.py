"""Reductions over axes. There are no Blobs of rank 0: reducing everything gives shape (1,)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base.dtype import dtype
from .._base.jax import lax
from .._base.refuse import shown, warn
from ..errors import ArgumentError, JobWarning
from ..graph.node import INVALID_AXIS, Blob
from ..graph.op import OpDef
from ._arrays import (
    Array,
    axis_after_removing,
    broadcast_to,
    dtype_for,
    in_float32,
    label,
    largest_of,
    least_of,
    like,
    number_for,
    root_of,
    select,
)
from ._emit import emit, fail, moved_axis, op, want
from .binary import COMPARISONS

Axis = int | Sequence[int] | None


def _shaped(y: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if keepdims:
        return lax.reshape(y, tuple(1 if i in axes else size for i, size in enumerate(x.shape)))
    return lax.reshape(y, (1,)) if y.ndim == 0 else y


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    count = math.prod(x.shape[a] for a in axes)
    wide = np.int64 if x.dtype.kind in "iu" else x.dtype  # neither the sum nor the count fits in int8
    total = lax.reduce_sum(lax.convert_element_type(x, wide), axes)
    return lax.convert_element_type(lax.div(total, like(count, total)), x.dtype)


def _restored(y: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """A reduced array, broadcast to x's shape."""
    return broadcast_to(lax.reshape(y, tuple(1 if i in axes else size for i, size in enumerate(x.shape))), x.shape)


def _variance(x: Array, axes: tuple[int, ...]) -> Array:
    return _mean(lax.square(lax.sub(x, _restored(_mean(x, axes), x, axes))), axes)


def _logsumexp(x: Array, axes: tuple[int, ...]) -> Array:
    top = lax.stop_gradient(lax.reduce_max(x, axes))
    top = select(lax.is_finite(top), top, like(0, top))
    return lax.add(lax.log(lax.reduce_sum(lax.exp(lax.sub(x, _restored(top, x, axes))), axes)), top)


def _norm(x: Array, axes: tuple[int, ...]) -> Array:
    return root_of(lax.reduce_sum(lax.square(x), axes))


def _nonzero(x: Array) -> Array:
    return lax.ne(x, like(0, x))


def _as_int8(x: Array) -> Array:
    return lax.convert_element_type(x, np.int8)


def _prod_grad(inputs: Any, outputs: Any, cotangents: Any, *, axes: tuple[int, ...], keepdims: bool) -> tuple[Array]:
    """The product of the other elements: product / x, with special cases for zeros."""
    x = inputs[0]
    is_zero = lax.eq(x, like(0, x))
    safe = select(is_zero, like(1, x), x)
    product = _restored(lax.reduce_prod(safe, axes), x, axes)
    zeros = _restored(lax.reduce_sum(lax.convert_element_type(is_zero, np.int32), axes), x, axes)
    others_zero = lax.gt(lax.sub(zeros, lax.convert_element_type(is_zero, np.int32)), np.int32(0))
    others = select(others_zero, like(0, x), lax.div(product, safe))
    return (lax.mul(_restored(cotangents[0], x, axes), others),)


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    left = {*range(rank)} - {*attrs["axes"]}
    is_image = {0, 1} <= left
    in_order = len(left) < 3 and not (1 in left and left - {0, 1})  # a vector or matrix: it is not channels last
    if not attrs["keepdims"] and not is_image and not in_order:
        return None
    return {**attrs, "axes": tuple(sorted(moved_axis(axis, rank) for axis in attrs["axes"]))}


def _reduction(name: str, compute: Any, nondifferentiable: bool = False, grad: Any = None, narrow: bool = False) -> OpDef:
    """``narrow``: computing in float32 would not be more accurate."""

    def define(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        y = compute(x, axes) if narrow else in_float32(lambda wide: compute(wide, axes), x)
        return _shaped(y, x, axes, keepdims)

    return op(name, nondifferentiable=nondifferentiable, grad=grad, channels_last=_channels_last)(define)


_reduce_sum = _reduction("reduce_sum", lambda x, axes: lax.reduce_sum(x, axes))
_reduce_mean = _reduction("reduce_mean", _mean)
_reduce_max = _reduction("reduce_max", largest_of, narrow=True)
_reduce_min = _reduction("reduce_min", least_of, narrow=True)
_reduce_prod = _reduction("reduce_prod", lambda x, axes: lax.reduce_prod(x, axes), grad=_prod_grad)
_reduce_any = _reduction(
    "reduce_any", lambda x, axes: _as_int8(lax.reduce_or(_nonzero(x), axes)), nondifferentiable=True, narrow=True
)
_reduce_all = _reduction(
    "reduce_all", lambda x, axes: _as_int8(lax.reduce_and(_nonzero(x), axes)), nondifferentiable=True, narrow=True
)
_reduce_variance = _reduction("reduce_variance", _variance)
_reduce_std = _reduction("reduce_std", lambda x, axes: root_of(_variance(x, axes)))
_reduce_euclidean_norm = _reduction("reduce_euclidean_norm", _norm)
_reduce_logsumexp = _reduction("reduce_logsumexp", _logsumexp)


def _reduce(
    made: OpDef,
    argument: str,
    x: Any,
    axis: Any,
    keepdims: Any,
    name: str | None,
    *,
    floating: bool = False,
    no_axis: bool = False,
) -> Blob:
    what = label(made.name, name)
    want.blob(what, argument, x)
    if floating:
        want.floating(what, x)
    axes = want.axes(what, axis, x.ndim, inputs=(x,))
    if not isinstance(keepdims, (bool, np.bool_)):
        fail(ArgumentError, what, f"keepdims must be True or False, got {shown(keepdims)}", (x,))
    if not axes and not no_axis:
        return x
    if x.node.op.name.removeprefix("scalar_") in COMPARISONS:
        _tell_of_counts(what, made, math.prod(x.shape[axis] for axis in axes))
    y = emit(made, x, name=name, axes=axes, keepdims=bool(keepdims))
    y.is_dynamic = y.is_dynamic and len(axes) < x.ndim
    gone = axis_after_removing(axes, x.batch_axis)
    y.batch_axis = x.batch_axis if keepdims and gone >= 0 else gone
    return y


def _tell_of_counts(what: str, made: OpDef, count: int) -> None:
    """Warns where the ones of a comparison are counted in int8, as OneFlow does."""
    if (made is _reduce_sum and count > np.iinfo(np.int8).max) or (made is _reduce_mean and count > 1):
        lost = "a sum of more than 127 wraps around" if made is _reduce_sum else "a mean is 0 or 1"
        warn(JobWarning, f"{what} of a comparison is int8, where {lost}\n  try        flow.cast(blob, flow.float32) first")


def _single(y: Blob) -> Blob:
    """One number, however large the input was: no batch axis, and a constant size."""
    y.batch_axis, y.is_dynamic = INVALID_AXIS, False
    return y


def reduce_sum(input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The sum over axes.

    Args:
      input_tensor: Blob of any shape and dtype.
      axis: int, list or tuple of ints in [-rank, rank); None means all axes, [] returns the Blob itself.
      keepdims: keep the reduced axes with size 1.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same dtype without the reduced axes, (1,) when none is left. Integers wrap around; float16 is
      summed in float32.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.math.reduce_sum(x, axis=1)   # (2, 3) -> (2,)
    """
    return _reduce(_reduce_sum, "input_tensor", input_tensor, axis, keepdims, name)


def reduce_mean(input_blob: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The mean over axes; arguments are those of ``reduce_sum``. For integer dtypes the fraction is dropped.

    Example: >>> y = flow.math.reduce_mean(x)   # (2, 3) -> (1,)
    """
    return _reduce(_reduce_mean, "input_blob", input_blob, axis, keepdims, name)


def reduce_max(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The largest value over axes; arguments are those of ``reduce_sum``. Equal maxima share the gradient equally.

    Example: >>> y = flow.math.reduce_max(x, axis=-1, keepdims=True)   # (2, 3) -> (2, 1)
    """
    return _reduce(_reduce_max, "x", x, axis, keepdims, name)


def reduce_min(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The smallest value over axes; arguments are those of ``reduce_sum``. Equal minima share the gradient equally.

    Example: >>> y = flow.math.reduce_min(x, axis=[0, 1])   # (2, 3) -> (1,)
    """
    return _reduce(_reduce_min, "x", x, axis, keepdims, name)


def reduce_prod(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The product over axes; arguments are those of ``reduce_sum``.

    Example: >>> y = flow.math.reduce_prod(x, axis=0)   # (2, 3) -> (3,)
    """
    return _reduce(_reduce_prod, "x", x, axis, keepdims, name)


def reduce_any(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """1 where any value over axes is not 0, else 0; arguments are those of ``reduce_sum``, but [] tests each value.

    Returns: int8 Blob; no gradient flows.
    Example: >>> y = flow.math.reduce_any(x > 0, axis=1)   # (2, 3) -> (2,)
    """
    return _reduce(_reduce_any, "x", x, axis, keepdims, name, no_axis=True)


def reduce_all(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """1 where no value over axes is 0, else 0; arguments are those of ``reduce_sum``, but [] tests each value.

    Returns: int8 Blob; no gradient flows.
    Example: >>> y = flow.math.reduce_all(x > 0)   # (2, 3) -> (1,)
    """
    return _reduce(_reduce_all, "x", x, axis, keepdims, name, no_axis=True)


def reduce_variance(input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The variance over axes, divided by the count (not count - 1); arguments are those of ``reduce_sum``, floating dtypes only.

    Example: >>> y = flow.math.reduce_variance(x, axis=0)   # (2, 3) -> (3,)
    """
    return _reduce(_reduce_variance, "input_tensor", input_tensor, axis, keepdims, name, floating=True, no_axis=True)


def reduce_std(input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The square root of ``reduce_variance``; its gradient is 0 where all values are equal.

    Example: >>> y = flow.math.reduce_std(x, axis=0)   # (2, 3) -> (3,)
    """
    return _reduce(_reduce_std, "input_tensor", input_tensor, axis, keepdims, name, floating=True, no_axis=True)


def reduce_euclidean_norm(input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """sqrt(sum(x ** 2)) over axes; arguments are those of ``reduce_sum``, floating dtypes only. Its gradient at 0 is 0.

    Example: >>> y = flow.math.reduce_euclidean_norm(x, axis=1)   # (2, 3) -> (2,)
    """
    return _reduce(_reduce_euclidean_norm, "input_tensor", input_tensor, axis, keepdims, name, floating=True, no_axis=True)


def reduce_logsumexp(input_tensor: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """log(sum(exp(x))) over axes, without overflow; arguments are those of ``reduce_sum``, floating dtypes only.

    Example: >>> y = flow.math.reduce_logsumexp(x, axis=1)   # (2, 3) -> (2,)
    """
    return _reduce(_reduce_logsumexp, "input_tensor", input_tensor, axis, keepdims, name, floating=True, no_axis=True)


def _need_list(what: str, axis: Any) -> None:
    if not isinstance(axis, (list, tuple)):
        fail(ArgumentError, what, f"axis must be a list or tuple of ints, got {shown(axis)}")


def two_stage_reduce_max(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The same value as ``reduce_max``, for Blobs split over devices along a reduced axis.

    Args: those of ``reduce_max``, but axis must be a list or tuple.
    Example: >>> y = flow.math.two_stage_reduce_max(x, axis=[0])   # (2, 3) -> (3,)
    """
    _need_list(label("two_stage_reduce_max", name), axis)
    return _reduce(_reduce_max, "x", x, axis, keepdims, name)


def two_stage_reduce_min(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The same value as ``reduce_min``, for Blobs split over devices along a reduced axis.

    Args: those of ``reduce_min``, but axis must be a list or tuple.
    Example: >>> y = flow.math.two_stage_reduce_min(x, axis=[0])   # (2, 3) -> (3,)
    """
    _need_list(label("two_stage_reduce_min", name), axis)
    return _reduce(_reduce_min, "x", x, axis, keepdims, name)


@op("l2_normalize")
def _l2_normalize(x: Array, *, axes: tuple[int, ...], epsilon: float) -> Array:
    def normalized(x: Array) -> Array:
        squares = lax.reduce_sum(lax.square(x), axes)
        floor = like(epsilon, squares)
        length = lax.sqrt(select(lax.ge(squares, floor), squares, floor))
        return lax.div(x, _restored(length, x, axes))

    return in_float32(normalized, x)


def l2_normalize(input: Blob, axis: int | None = None, epsilon: float = 1e-12, name: str | None = None) -> Blob:
    """x / sqrt(max(sum(x ** 2), epsilon)), with the sum along an axis.

    Args:
      input: Blob, floating dtype.
      axis: int in [-rank, rank); None means all axes.
      epsilon: lower bound of the sum.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape and dtype.
    Raises: DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.math.l2_normalize(x, axis=1)
    """
    what = label("l2_normalize", name)
    want.floating(what, want.blob(what, "input", input))
    axes = want.axes(what, axis, input.ndim, inputs=(input,))
    return emit(_l2_normalize, input, name=name, axes=axes, epsilon=float(number_for(what, epsilon, input, "epsilon")))


# --- counts


@op("reduced_shape_elem_cnt", nondifferentiable=True)
def _elem_cnt(x: Array, *, axes: tuple[int, ...], to: np.dtype) -> Array:
    return lax.full((1,), math.prod(x.shape[a] for a in axes), to)


def _count_dtype(what: str, value: dtype | None) -> np.dtype:
    return np.dtype(np.int32) if value is None else dtype_for(what, value).numpy_dtype


def reduced_shape_elem_cnt(
    input_blob: Blob, axis: Sequence[int] | None = None, dtype: dtype | None = None, name: str | None = None
) -> Blob:
    """The product of the sizes of some axes, at run time.

    Args:
      input_blob: Blob of any shape and dtype.
      axis: list or tuple of ints in [-rank, rank); None means all axes.
      dtype: of the result; None means int32.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape (1,).
    Raises: AxisError, ArgumentError.
    Example: >>> n = flow.math.reduced_shape_elem_cnt(x, axis=[0])
    """
    what = label("reduced_shape_elem_cnt", name)
    want.blob(what, "input_blob", input_blob)
    if axis is not None:
        _need_list(what, axis)
    axes = want.axes(what, axis, input_blob.ndim, inputs=(input_blob,))
    return _single(emit(_elem_cnt, input_blob, name=name, axes=axes, to=_count_dtype(what, dtype)))


def elem_cnt(inputs: Blob, dtype: dtype | None = None, name: str | None = None) -> Blob:
    """The number of elements, at run time.

    Args:
      inputs: Blob of any shape and dtype.
      dtype: of the result; None means int32.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape (1,).
    Raises: ArgumentError.
    Example: >>> n = flow.elem_cnt(x)
    """
    what = label("elem_cnt", name)
    want.blob(what, "inputs", inputs)
    every = tuple(range(inputs.ndim))
    return _single(emit(_elem_cnt, inputs, name=name, prefix="ElemCnt", axes=every, to=_count_dtype(what, dtype)))


@op("count_not_finite", nondifferentiable=True)
def _count_not_finite(*arrays: Array) -> Array:
    total: Array = np.zeros((1,), np.int64)
    for x in arrays:
        bad = lax.convert_element_type(lax.bitwise_not(lax.is_finite(x)), np.int64)
        total = lax.add(total, lax.reshape(lax.reduce_sum(bad, range(x.ndim)), (1,)))
    return total


def count_not_finite(x: Blob, name: str | None = None) -> Blob:
    """The number of values that are infinite or NaN.

    Args:
      x: Blob of any shape, floating dtype.
      name: name of the op; made unique when omitted.
    Returns: int64 Blob of shape (1,).
    Raises: ArgumentError, DtypeError.
    Example: >>> n = flow.count_not_finite(gradient)
    """
    what = label("count_not_finite", name)
    want.floating(what, want.blob(what, "x", x))
    return _single(emit(_count_not_finite, x, name=name))


def multi_count_not_finite(x: Sequence[Blob] | None = None, name: str | None = None) -> Blob:
    """The number of values of several Blobs that are infinite or NaN.

    Args:
      x: list or tuple of at least one floating Blob.
      name: name of the op; made unique when omitted.
    Returns: int64 Blob of shape (1,).
    Raises: ArgumentError, DtypeError.
    Example: >>> n = flow.multi_count_not_finite([a, b])
    """
    what = label("multi_count_not_finite", name)
    blobs = want.blobs(what, "x", x)
    for blob in blobs:
        want.floating(what, blob)
    return _single(emit(_count_not_finite, *blobs, name=name, prefix="MultiCountNotFinite"))


@op("square_sum")
def _square_sum(x: Array) -> Array:
    return lax.reshape(in_float32(lambda wide: lax.reduce_sum(lax.square(wide), range(x.ndim)), x), (1,))


def square_sum(x: Blob, name: str | None = None) -> Blob:
    """The sum of squares of all elements.

    Args:
      x: Blob of any shape and dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape (1,) and x's dtype.
    Raises: ArgumentError.
    Example: >>> y = flow.experimental.square_sum(x)
    """
    return _single(emit(_square_sum, want.blob(label("square_sum", name), "x", x), name=name))
