"""Masks, gather and scatter, segments, order."""

from __future__ import annotations

from typing import Any

import numpy as np
from table import NUMBERS, Gradient, Refusal, Row, floats, ints

import oneflow as flow
from oneflow.errors import ArgumentError, AxisError, DtypeError, ModeError, ShapeError
from oneflow.ops.scatter import indexed_slices_reduce_sum, unique_with_counts

m = flow.math
X = floats(2, 3)
TABLE = floats(4, 5, 3)
MASK = np.array([[1, 0, 2], [0, -1, 0]], np.int32)
IDS = np.array([[3, 0], [1, 3], [2, 2]], np.int32)
TIES = np.array([[1.0, 3, 3, 0], [2, 2, -1, 2]])
SPECIAL = np.array([3, np.nan, 0.0, -0.0, -np.inf, 1e-40, -np.nan, -1e-40, 0.0, np.inf, -3, -0.0])  # of both signs, and subnormal
LARGE = np.where(abs(SPECIAL) == 1e-40, 0, SPECIAL)


def _rows(table: Any, ids: Any, axis: int = 0) -> Any:
    """NumPy's take, with zeros for indices outside."""
    inside = (ids >= 0) & (ids < table.shape[axis])
    taken = np.take(table, np.where(inside, ids, 0), axis)
    mask = inside.reshape((1,) * axis + ids.shape + (1,) * (table.ndim - axis - 1))
    return np.where(mask, taken, 0)


def _scattered(base: Any, places: Any, updates: Any, replace: bool = False) -> Any:
    y = base.copy()
    where = tuple(np.moveaxis(places, -1, 0))
    if replace:
        y[where] = 0
    np.add.at(y, where, updates)
    return y


def _segments(data: Any, ids: Any, count: int, axis: int = 0) -> Any:
    y = np.zeros((*data.shape[:axis], count, *data.shape[axis + ids.ndim :]), data.dtype)
    for place in np.ndindex(ids.shape):
        if 0 <= ids[place] < count:
            y[(slice(None),) * axis + (ids[place],)] += data[(slice(None),) * axis + place]
    return y


PLACES = np.array([[0, 1], [3, 4], [0, 1]], np.int32)
LINES = np.array([[1], [3]], np.int64)
OUTSIDE = np.array([0, 4, -1, 3], np.int32)
SEGMENTS = np.array([1, 0, 1, 5], np.int32)

ROWS = [
    # --- masks
    Row("where", flow.where, lambda c, x, y: np.where(c, x, y), [MASK, X, floats(2, 3, seed=1)], out="float64",
        dtypes=["float64"], half=False),
    Row("where broadcast", lambda x, y, c: flow.where(c, x, y), lambda x, y, c: np.where(c, x, y),
        [floats(3), floats(2, 1), MASK]),
    Row("where crosswise", lambda x, y, c: flow.where(c, x, y), lambda x, y, c: np.where(c, x, y),
        [floats(3), floats(1), MASK[:, :1]]),
    Row("where with numbers", lambda x, c: flow.where(c, x, 0.5) + flow.where(c, -1, x),
        lambda x, c: np.where(c, x, 0.5) + np.where(c, -1, x), [X, MASK]),
    Row("where by comparison", lambda x: flow.where(x > 0, x, -x), np.abs, [X]),
    Row("where of integers", lambda x, c: flow.where(c, x, x + 1), lambda x, c: np.where(c, x, x + 1), [ints(2, 3), MASK],
        dtypes=("int32", "int8")),
    Row("masked_fill", lambda x, mask: flow.masked_fill(x, mask, -9), lambda x, mask: np.where(mask, -9, x), [X, MASK]),
    Row("masked_fill broadcast", lambda x, mask: flow.masked_fill(x, mask, 1.5), lambda x, mask: np.where(mask, 1.5, x),
        [floats(2, 1), MASK]),
    Row("one_hot", lambda i: flow.one_hot(i, 4, dtype=flow.float32), lambda i: np.eye(4)[i], [IDS], out="float32"),
    Row("one_hot axis", lambda i: flow.one_hot(i, 4, 5, -1, axis=0, dtype=flow.int32),
        lambda i: np.moveaxis(np.where(np.eye(4)[i] > 0, 5, -1), -1, 0), [IDS], out="int32"),
    Row("one_hot outside", lambda i: flow.one_hot(i, 3), lambda i: np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]),
        [OUTSIDE],
        out="float32"),
    # --- gather
    Row("gather", flow.gather, _rows, [TABLE, IDS]),
    Row("gather axis", lambda x, i: flow.gather(x, i, axis=1), lambda x, i: _rows(x, i, 1), [TABLE, IDS], dtypes=NUMBERS[:2]),
    Row("gather last axis", lambda x, i: flow.gather(x, i, axis=-1), lambda x, i: _rows(x, i, 2), [TABLE, np.array([2, 0, 2])]),
    Row("gather outside", flow.gather, _rows, [TABLE, OUTSIDE]),
    Row("gather far outside", flow.gather, _rows, [TABLE, np.array([2**32, 1, -(2**32), 2**31, 2**62])]),
    Row("gather of integers", flow.gather, _rows, [ints(5, 2), IDS], dtypes=("int32", "int64")),
    Row("gather in batches", lambda x, i: flow.gather(x, i, axis=1, batch_dims=1),
        lambda x, i: np.take_along_axis(x, i[..., None], 1), [floats(3, 5, 2), IDS]),
    Row("gather masked positions", lambda x, i: flow.gather(x, i, axis=2, batch_dims=2),
        lambda x, i: np.take_along_axis(x, i[..., None], 1), [floats(3, 5, 2), IDS]),
    Row("gather_nd", flow.gather_nd, lambda x, i: x[i[:, 0], i[:, 1]], [TABLE, PLACES]),
    Row("gather_nd lines", flow.gather_nd, lambda x, i: x[i[:, 0]], [TABLE, LINES.astype(np.int32)]),
    Row("gather_nd elements", flow.gather_nd, lambda x, i: x[tuple(np.moveaxis(i, -1, 0))], [X, ints(2, 2, 2, low=0, high=2)]),
    Row("dim_gather", lambda x, i: flow.dim_gather(x, 1, i), lambda x, i: np.take_along_axis(x, i, 1),
        [floats(3, 4), IDS], torch=lambda t, x, i: t.gather(x, 1, i.long())),
    Row("dim_gather first", lambda x, i: flow.dim_gather(x, 0, i), lambda x, i: np.take_along_axis(x, i, 0), [floats(4, 2), IDS]),
    Row("dim_gather of rank 3", lambda x, i: flow.dim_gather(x, 1, i), lambda x, i: np.take_along_axis(x, i, 1),
        [TABLE, ints(4, 6, 3, low=0, high=5)]),
    # --- scatter
    Row("scatter_nd", lambda u, i: flow.scatter_nd(i, u, [4, 5, 3]), lambda u, i: _scattered(np.zeros((4, 5, 3), u.dtype), i, u),
        [floats(3, 3), PLACES]),
    Row("scatter_nd of integers", lambda u, i: flow.scatter_nd(i, u, [4, 2]), lambda u,
        i: _scattered(np.zeros((4, 2), int), i, u),
        [ints(2, 2), LINES.astype(np.int32)], dtypes=("int32",)),
    Row("tensor_scatter_nd_add", lambda x, u, i: flow.tensor_scatter_nd_add(x, i, u), lambda x, u, i: _scattered(x, i, u),
        [TABLE, floats(3, 3), PLACES]),
    Row("tensor_scatter_nd_update", lambda x, u, i: flow.tensor_scatter_nd_update(x, i, u),
        lambda x, u, i: _scattered(x, i, u, replace=True), [TABLE, floats(3, 3), PLACES]),
    # --- segments
    Row("unsorted_segment_sum", lambda x, i: flow.unsorted_segment_sum(x, i, 3), lambda x, i: _segments(x, i, 3),
        [TABLE, SEGMENTS]),
    Row("unsorted_segment_sum axis", lambda x, i: flow.unsorted_segment_sum(x, i, 2, axis=1), lambda x, i: _segments(x, i, 2, 1),
        [floats(2, 4, 3), SEGMENTS]),
    Row("unsorted_segment_sum of rank 2", lambda x, i: flow.unsorted_segment_sum(x, i, 4), lambda x, i: _segments(x, i, 4),
        [floats(3, 2, 2), IDS]),
    Row("unsorted_segment_sum of integers", lambda x, i: flow.unsorted_segment_sum(x, i, 3), lambda x, i: _segments(x, i, 3),
        [ints(4, 2), SEGMENTS], dtypes=("int32",)),
    Row("unsorted_segment_sum_like", lambda x, like, i: flow.unsorted_segment_sum_like(x, i, like),
        lambda x, like, i: _segments(x, i, 2), [TABLE, floats(2, 5, 3), SEGMENTS]),
    Row("unsorted_batch_segment_sum", lambda x, i: flow.unsorted_batch_segment_sum(x, i, 3),
        lambda x, i: np.stack([_segments(r, s, 3) for r, s in zip(x, i, strict=True)]), [floats(3, 2, 2), IDS]),
    Row("unsorted_batch_segment_sum outside", lambda x, i: flow.unsorted_batch_segment_sum(x, i, 2),
        lambda x, i: np.stack([_segments(r, s, 2) for r, s in zip(x, i, strict=True)]), [floats(2, 4),
            np.stack([OUTSIDE, SEGMENTS])]),
    # --- unique
    Row("indexed_slices_reduce_sum", lambda v, i: indexed_slices_reduce_sum(i, v),
        lambda v, i: (np.array([2, 3, 0, 0]), np.array([[v[1, 0], v[1, 1]], v[0] + v[2] + v[3], [0, 0], [0, 0]]), np.array([2])),
        [floats(4, 2), np.array([3, 2, 3, 3], np.int32)], out=("int32", "float64",
            "int64"), dtypes=["float64"], grad=False, half=False),
    Row("unique_with_counts", lambda x: unique_with_counts(x)[1:],
        lambda x: (np.array([0, 1, 0, 2, 1, 0]), np.array([3, 2, 1, 0, 0, 0]), np.array([3])), [np.array([7.0, 2, 7, 9, 2, 7])],
        out=("int32",) * 3, grad=False, wide=True),
    Row("unique_with_counts values", lambda x: unique_with_counts(x, flow.int64)[0][:3], lambda x: np.array([7, 2, 9]),
        [np.array([7, 2, 7, 9, 2, 7])], dtypes=("int32",), grad=False, wide=True),
    # --- order
    Row("argmax", m.argmax, lambda x: np.argmax(x, -1), [TIES], dtypes=NUMBERS, out="int32", grad=False),
    Row("argmax axis", lambda x: m.argmax(x, 0), lambda x: np.argmax(x, 0), [TIES], out="int32", grad=False),
    Row("argmax of rank 1", m.argmax, lambda x: np.array([1]), [TIES[0]], out="int32", grad=False),
    Row("sort", flow.sort, np.sort, [floats(3, 4)], dtypes=NUMBERS),
    Row("sort descending", lambda x: flow.sort(x, 0, "DESCENDING"), lambda x: np.sort(x, 0)[::-1], [floats(3, 4)],
        dtypes=NUMBERS),
    Row("argsort", flow.argsort, lambda x: np.argsort(x, -1, stable=True), [TIES], dtypes=NUMBERS, out="int32", grad=False,
        wide=True),
    Row("argsort descending", lambda x: flow.argsort(x, 1, "DESCENDING"), lambda x: np.argsort(-x, 1, stable=True), [TIES],
        dtypes=NUMBERS, out="int32", grad=False, wide=True),
    Row("sort as in 0.1", lambda x: flow.sort(x, "DESCENDING"), lambda x: np.sort(x)[:, ::-1], [floats(3, 4)]),
    Row("argsort as in 0.1", lambda x: flow.argsort(x, "DESCENDING"), lambda x: np.argsort(-x, stable=True), [TIES], out="int32",
        grad=False, wide=True),
    Row("sort of special values", flow.sort, np.sort, [SPECIAL], grad=False),
    Row("argsort of special values", flow.argsort, lambda x: np.argsort(x, stable=True), [SPECIAL], out="int32", grad=False,
        wide=True),
    Row("top_k", lambda x: m.top_k(x, k=3), lambda x: np.argsort(-x, 1, stable=True)[:, :3], [TIES], dtypes=NUMBERS,
        out="int32", grad=False),
    Row("top_k axis", lambda x: m.top_k(x, 0, 5), lambda x: np.argsort(-x, 0, stable=True), [TIES], out="int32", grad=False),
    Row("top_k of special values", lambda x: m.top_k(x, k=11), lambda x: np.array([1, 6, 9, 0, 2, 3, 5, 7, 8, 11, 10]), [LARGE],
        out="int32", grad=False),
    Row("top_k of ties", lambda x: m.top_k(x, k=1), lambda x: np.argmax(x, 1)[:, None],
        [np.array([[-0.0, 0.0, -1], [1, np.nan, 2]])], out="int32", grad=False),
    Row("in_top_k", lambda p, t: m.in_top_k(t, p, 1), lambda p, t: np.array([1, 0, 0, 0]),
        [np.array([[1.0, 3, 3], [2, 1, 0], [1, 2, 3], [np.inf, 0, 0]]),
            np.array([2, 1, 3, 0], np.int32)], out="int8", grad=False),
]  # fmt: skip

_SEG = np.ones((4, 2))
GRADIENTS = [
    Gradient("where", lambda c, x, y: flow.where(c, x, y), [MASK, X, X], [None, MASK != 0, MASK == 0]),
    Gradient("masked_fill", lambda x, c: flow.masked_fill(x, c, 0), [X, MASK], [MASK == 0, None]),
    Gradient("gather adds up", flow.gather, [np.ones((4, 2)), IDS], [[[1, 1], [1, 1], [2, 2], [2, 2]], None]),
    Gradient("gather outside", flow.gather, [np.ones((4, 2)), OUTSIDE], [[[1, 1], [0, 0], [0, 0], [1, 1]], None]),
    Gradient("tensor_scatter_nd_update", lambda x, i, u: flow.tensor_scatter_nd_update(x, i, u), [np.ones(3), LINES, np.ones(2)],
             [[1, 0, 1], None, [1, 0]]),
    Gradient("unsorted_segment_sum", lambda x, i: flow.unsorted_segment_sum(x, i, 3), [_SEG, SEGMENTS],
        [[[1, 1]] * 3 + [[0, 0]], None]),
    Gradient("like stops it", lambda x, i, y: flow.unsorted_segment_sum_like(x, i, y), [_SEG, SEGMENTS, np.ones((3, 2))],
             [[[1, 1]] * 3 + [[0, 0]], None, None]),
    Gradient("sort sends it back", lambda x: flow.sort(x) * flow.range(3, dtype=flow.float64), [np.array([3.0, 1, 2])],
        [[2, 0, 1]]),
    Gradient("argmax stops it", m.argmax, [X], [None]),
    Gradient("one_hot stops it", lambda i: flow.one_hot(i, 4), [IDS], [None]),
]  # fmt: skip

_F, _T = X.astype(np.float32), TABLE.astype(np.float32)
REFUSALS = [
    Refusal("where one missing", lambda c, x: flow.where(c, x), [MASK, _F], ArgumentError, "pass both x and y, or neither"),
    Refusal("where by floats", flow.where, [_F, _F, _F], DtypeError, "condition must be an integer Blob, got float32"),
    Refusal("where dtypes", flow.where, [MASK, _F, MASK], DtypeError, "got float32 and int32"),
    Refusal("where shapes", flow.where, [MASK, _F, _F[:, :2]], ShapeError, "do not broadcast"),
    Refusal("masked_fill", lambda x: flow.masked_fill(x, x, 0), [_F], DtypeError, "mask must be an integer Blob, got float32"),
    Refusal("one_hot of floats", lambda x: flow.one_hot(x, 3), [_F], DtypeError, "indices must be int32 or int64, got float32"),
    Refusal("one_hot depth", lambda x: flow.one_hot(x, 0), [IDS], ArgumentError, "depth must be an int > 0, got 0"),
    Refusal("one_hot axis", lambda x: flow.one_hot(x, 3, axis=3), [IDS], AxisError, "axis=3 is outside [-3, 3)"),
    Refusal("gather by floats", flow.gather, [_T, _F], DtypeError, "convert with flow.cast(blob, flow.int32)"),
    Refusal("gather axis", lambda x, i: flow.gather(x, i, axis=3), [_T, IDS], AxisError, "axis=3 is outside [-3, 3)"),
    Refusal("gather batch_dims", lambda x, i: flow.gather(x, i, axis=2, batch_dims=1), [_T, IDS], ModeError,
        "batch_dims must be 0 or"),
    Refusal("gather batches", lambda x, i: flow.gather(x, i, axis=1, batch_dims=1), [_T, IDS], ShapeError,
        "agree on the first 1 axes"),
    Refusal("gather_nd", flow.gather_nd, [_F[0], PLACES], ShapeError, "holds 2 coordinates, but there are 1 axes"),
    Refusal("dim_gather", lambda x, i: flow.dim_gather(x, 1, i), [_F, IDS], ShapeError, "agree on every axis except dim=1"),
    Refusal("dim_gather dim", lambda x, i: flow.dim_gather(x, -1, i), [_F, MASK], AxisError, "dim=-1 must be >= 0"),
    Refusal("scatter_nd", lambda i, u: flow.scatter_nd(i, u, [4, 5]), [PLACES, _F], ShapeError, "updates must have shape (3,)"),
    Refusal("tensor_scatter_nd_add", flow.tensor_scatter_nd_add, [_F, LINES, MASK], DtypeError, "got float32 and int32"),
    Refusal("segments", lambda x, i: flow.unsorted_segment_sum(x, i, 3), [_T, MASK], ShapeError,
        "segment_ids must have the shape of"),
    Refusal("segment count", lambda x, i: flow.unsorted_segment_sum(x, i, 0), [_T, SEGMENTS], ArgumentError,
        "num_segments must be an int > 0"),
    Refusal("segments like", flow.unsorted_segment_sum_like, [_T, SEGMENTS, _F], ShapeError, "like must have data's shape"),
    Refusal("unique rank", unique_with_counts, [_F], ShapeError, "needs a Blob of rank 1"),
    Refusal("argmax None", lambda x: m.argmax(x, None), [_F], ArgumentError, "axis must be an int, got None"),
    Refusal("sort direction", lambda x: flow.sort(x, direction="up"), [_F], ArgumentError, "one of 'ASCENDING', 'DESCENDING'"),
    Refusal("top_k", lambda x: m.top_k(x, k=0), [_F], ArgumentError, "k must be an int > 0, got 0"),
    Refusal("top_k as in 0.1", lambda x: m.top_k(x, 4), [_F], AxisError, "k=4 by its name: the second argument is the axis"),
    Refusal("in_top_k", lambda t, p: m.in_top_k(t, p, 1), [SEGMENTS, _F], ShapeError, "4 targets for 2 rows of predictions"),
]  # fmt: skip
