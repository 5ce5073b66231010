"""Reductions, order, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import math as fm
from ... import nn
from ..._base import dtype as dtypes
from ...graph.node import Blob
from ...ops.array import reshape
from ...ops.elementwise import cast, identity
from ...ops.indexing import dim_gather
from ...ops.slicing import slice_v2
from ...ops.sorting import argsort
from . import Reader, reads

_REDUCTIONS: dict[str, Callable[..., Blob]] = {
    "ReduceSum": fm.reduce_sum, "ReduceMean": fm.reduce_mean, "ReduceMax": fm.reduce_max, "ReduceMin": fm.reduce_min,
    "ReduceProd": fm.reduce_prod, "ReduceLogSumExp": fm.reduce_logsumexp, "ReduceL2": fm.reduce_euclidean_norm,
}  # fmt: skip
_BEFORE: dict[str, Callable[[Blob], Blob]] = {"ReduceL1": fm.abs, "ReduceSumSquare": fm.square, "ReduceLogSum": lambda x: x}


@reads(*_REDUCTIONS, *_BEFORE)
def _reduce(ctx: Reader, x: Any, axes: Any = None) -> Blob:
    blob, kind = ctx.blob(x), ctx.node.op_type
    given = ctx.axes(axes)
    if not given and ctx.attr("noop_with_empty_axes", 0):
        return identity(blob)
    keep = bool(ctx.attr("keepdims", 1))
    if kind in _BEFORE:
        total = fm.reduce_sum(_BEFORE[kind](blob), axis=given or None, keepdims=keep)
        return fm.log(total) if kind == "ReduceLogSum" else total
    return _REDUCTIONS[kind](blob, axis=given or None, keepdims=keep)


@reads("ArgMax", "ArgMin")
def _arg(ctx: Reader, x: Any) -> Blob:
    blob, axis = ctx.blob(x), ctx.attr("axis", 0)
    if ctx.attr("select_last_index", 0):
        ctx.refuse("select_last_index")
    if ctx.node.op_type == "ArgMin":  # of integers -x may overflow
        blob = -blob if not blob.dtype.is_integer else fm.subtract(255 if blob.dtype == dtypes.uint8 else -1, blob)
    place = cast(fm.argmax(blob, axis), dtypes.int64)
    if not ctx.attr("keepdims", 1):
        return place
    return reshape(place, [1 if i == axis % blob.ndim else size for i, size in enumerate(blob.shape)])


@reads("TopK")
def _top_k(ctx: Reader, x: Any, k: Any = None) -> list[Blob]:
    blob = ctx.blob(x)
    axis = ctx.attr("axis", -1) % blob.ndim
    count = ctx.attr("k") if k is None else (ctx.ints(k, "k") or [1])[0]
    order = argsort(blob, axis, "DESCENDING" if ctx.attr("largest", 1) else "ASCENDING")
    order = slice_v2(order, ctx.along(axis, 0, count))
    return [dim_gather(blob, axis, order), cast(order, dtypes.int64)]


@reads("Softmax", "LogSoftmax")
def _softmax(ctx: Reader, x: Any) -> Blob:
    blob = ctx.blob(x)
    function = nn.softmax if ctx.node.op_type == "Softmax" else nn.logsoftmax
    old = ctx.opset < 13
    axis = ctx.attr("axis", 1 if old else -1) % blob.ndim
    if blob.ndim == 1:
        return reshape(function(reshape(blob, [1, -1]), 1), blob.shape)
    if old:  # over all axes from that one on
        rows = int(np.prod(blob.shape[:axis]))
        return reshape(function(reshape(blob, [rows, -1]), 1), blob.shape)
    return function(blob, axis)


@reads("Hardmax")
def _hardmax(ctx: Reader, x: Any) -> Blob:
    given = ctx.blob(x)
    blob, axis = given, ctx.attr("axis", 1 if ctx.opset < 13 else -1) % given.ndim
    if ctx.opset < 13:  # over all axes from that one on
        blob, axis = reshape(given, [int(np.prod(given.shape[:axis])), -1]), 1
    top = reshape(fm.argmax(blob, axis), [1 if i == axis else s for i, s in enumerate(blob.shape)])
    places = ctx.blob(
        ctx.known(np.arange(blob.shape[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(blob.ndim)]))
    )
    return reshape(cast(fm.equal(top, places), blob.dtype), given.shape)


@reads("CumSum")
def _cumsum(ctx: Reader, x: Any, axis: Any) -> Blob:
    (at,) = ctx.axes(axis)
    return fm.cumsum(ctx.blob(x), at, bool(ctx.attr("exclusive", 0)), bool(ctx.attr("reverse", 0)))
