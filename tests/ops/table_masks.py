"""Blobs whose size depends on data: what makes them, and the ops that know of counts. ``test_sizes.py`` has all others."""

from __future__ import annotations

from typing import Any

import numpy as np
from table import Refusal, Row, floats

import oneflow as flow
from oneflow import math as m
from oneflow.errors import ArgumentError, DtypeError, ShapeError
from oneflow.ops._dynamic_rules import mean_of_valid

X = floats(3, 4)
MASK = np.array([[1, 0, -2], [0, 3, 0]], np.int32)
TWO, NONE = np.array([2], np.int32), np.array([0], np.int32)


def positive(x: Any) -> Any:
    """The elements above 0, in a row."""
    return flow.gather_nd(x, flow.argwhere(x > 0))


def chosen(x: Any) -> Any:
    """The rows that begin with a number above 0, of two elements each."""
    return flow.gather_nd(flow.reshape(x, (6, 2)), flow.argwhere(flow.slice(flow.reshape(x, (6, 2)), [0, 0], [6, 1]) > 0)[:, :1])


def of_numpy(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 2)[x.reshape(-1, 2)[:, 0] > 0]


def padded(rows: np.ndarray, size: int) -> np.ndarray:
    """The result of ``cast_to_static_shape``."""
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])


def _twice(r: Any) -> Any:
    """Three times the rows, by reshapes that keep them."""
    return flow.reshape(r, (-1, 2)) + flow.squeeze(flow.reshape(2 * r, (-1, 1, 2)), [1])


def whole(blob: Any) -> Any:
    return flow.cast_to_static_shape(blob)


def variable() -> Any:
    return flow.get_variable("v", (12,), initializer=flow.zeros_initializer())


ROWS = [
    Row("argwhere", lambda x: whole(flow.argwhere(x)), lambda x: padded(np.argwhere(x), 6), [MASK]),
    Row("argwhere of floats", lambda x: whole(flow.argwhere(x, flow.int64)), lambda x: padded(np.argwhere(x), 12), [X],
        out="int64", grad=False),
    Row("argwhere of nothing", lambda x: whole(flow.argwhere(x > 9)), lambda x: np.zeros((12, 2)), [X], out="int32", grad=False),
    Row("argwhere of a Blob of dynamic size", lambda x: whole(flow.argwhere(positive(x) > 1)),
        lambda x: padded(np.argwhere(x[x > 0] > 1), 12), [X], out="int32", grad=False),
    Row("nonzero", lambda x: whole(flow.nonzero(x)), lambda x: padded(np.argwhere(x), 6).T, [MASK]),
    Row("where alone", lambda x: whole(flow.where(x)), lambda x: padded(np.argwhere(x), 6), [MASK]),
    Row("sync_dynamic_resize", lambda x, n: whole(flow.sync_dynamic_resize(x, n)), lambda x, n: padded(x[:2], 3), [X, TWO]),
    Row("sync_dynamic_resize to nothing", lambda x, n: whole(flow.sync_dynamic_resize(x, n)), lambda x, n: x * 0, [X, NONE]),
    Row("sync_dynamic_resize beyond", lambda x, n: whole(flow.sync_dynamic_resize(x, n + 7)), lambda x, n: x, [X, TWO]),
    Row("elements that a mask chooses", lambda x: whole(positive(x)), lambda x: padded(x[x > 0], 12), [X]),
    Row("dynamic and one number", lambda x, w: m.reduce_sum(positive(x) * w), lambda x, w: (x[x > 0] * w).sum(keepdims=True),
        [X, floats(1)]),
    Row("valid_loss", lambda x: mean_of_valid(positive(x)), lambda x: x[x > 0].mean(keepdims=True), [X]),
    Row("dynamic elem_cnt", lambda x: flow.elem_cnt(positive(x)), lambda x: np.array([(x > 0).sum()]), [X], out="int32",
        grad=False),
    Row("dynamic top_k", lambda x: whole(m.top_k(positive(x), k=9)),
        lambda x: padded(np.argsort(-x[x > 0], kind="stable"), 9), [X], out="int32", grad=False),
    Row("dynamic reduce_mean", lambda x: m.reduce_mean(positive(x)), lambda x: x[x > 0].mean(keepdims=True), [X]),
    Row("dynamic reduce_variance", lambda x: m.reduce_variance(positive(x)), lambda x: x[x > 0].var(keepdims=True), [X]),
    Row("dynamic reduce_std", lambda x: m.reduce_std(positive(x), 0, True), lambda x: x[x > 0].std(keepdims=True), [X]),
    Row("dynamic reshape", lambda x, n: whole(flow.reshape(flow.sync_dynamic_resize(x, n), [-1])),
        lambda x, n: padded(x[:2].reshape(-1), 12), [X, TWO]),
    Row("dynamic concat", lambda x, n: whole(flow.concat([positive(x), flow.flatten(x), positive(-x)])),
        lambda x, n: padded(np.concatenate([x[x > 0], x.reshape(-1), -x[x < 0]]), 36), [X, TWO]),
    Row("dynamic slices", lambda x: whole(flow.concat([positive(x)[1:], positive(x)[-3:-1], positive(x)[::-2], positive(x)[:2]])),
        lambda x: padded(np.concatenate([(p := x[x > 0])[1:], p[-3:-1], p[::-2], p[:2]]), 11 + 2 + 6 + 2), [X]),
    Row("dynamic elements by number", lambda x: positive(x)[0] + positive(x)[-1], lambda x: x[x > 0][:1] + x[x > 0][-1:], [X]),
    Row("dynamic_binary_split", lambda x: flow.experimental.dynamic_binary_split(flow.flatten(x), 1, 3)[0] * 2,
        lambda x: x.reshape(-1)[:6] * 2, [X]),
    Row("dynamic_binary_concat", lambda x: flow.experimental.dynamic_binary_concat(
            flow.experimental.dynamic_binary_split(flow.flatten(x), 1, 3), flow.flatten(x)), lambda x: x.reshape(-1), [X]),
    Row("dynamic reshapes of one size", lambda x: whole(_twice(chosen(x))), lambda x: padded(3 * of_numpy(x), x.size // 2), [X]),
    Row("dynamic rows joined twice", lambda x: whole(flow.reshape((r := chosen(x)), [-1]) * flow.flatten(r * 2)),
        lambda x: padded((2 * of_numpy(x) ** 2).reshape(-1), x.size), [X]),
    Row("dynamic rows joined and parted", lambda x: whole(flow.reshape(flow.reshape((r := chosen(x)), [-1]), [-1, 2]) + r),
        lambda x: padded(2 * of_numpy(x), x.size // 2), [X]),
    Row("dynamic slices of one size", lambda x: whole((r := chosen(x))[1:] + (r * 2)[1:]),
        lambda x: padded(3 * of_numpy(x)[1:], 5), [X]),
    Row("dynamic concats of one size", lambda x: whole(flow.concat([(r := chosen(x)), r]) + flow.concat([r * 2, r])),
        lambda x: padded(np.concatenate([3 * of_numpy(x), 2 * of_numpy(x)]), x.size), [X]),
    Row("dynamic reshape_like", lambda x: whole(flow.reshape_like((r := chosen(x)), flow.reshape(r, [-1])) * flow.flatten(r)),
        lambda x: padded((of_numpy(x) ** 2).reshape(-1), x.size), [X]),
    Row("dynamic reverse", lambda x: whole(flow.reverse(positive(x), 0)), lambda x: padded(x[x > 0][::-1], 12), [X]),
]  # fmt: skip

_F = X.astype(np.float32)
REFUSALS = [
    Refusal("argwhere dtype", lambda x: flow.argwhere(x, flow.float32), [_F], DtypeError, "dtype must be flow.int32"),
    Refusal("resize by floats", lambda x: flow.sync_dynamic_resize(x, x), [_F], DtypeError, "size must be an integer Blob"),
    Refusal("resize by two", lambda x, n: flow.sync_dynamic_resize(x, n), [_F, np.array([1, 2], np.int32)], ShapeError,
            "size must have shape (1,), got (2,)"),
    Refusal("resize twice", lambda x, n: flow.sync_dynamic_resize(flow.sync_dynamic_resize(x, n), n), [_F, TWO], ArgumentError,
            "depends on data already"),
    Refusal("another count", lambda x: positive(x) + positive(-x), [_F], ShapeError, "depend on data in different ways"),
    Refusal("other slices", lambda x: positive(x)[1:] + positive(x)[:-1], [_F], ShapeError, "depend on data in different ways"),
    Refusal("rows and elements", lambda x: flow.reshape(chosen(x), [-1]) + positive(x), [_F], ShapeError,
            "depend on data in different ways"),
    Refusal("other concats", lambda x: flow.concat([(p := positive(x)), x[0, :1]]) + flow.concat([p, x[0, :2]])[1:], [_F],
            ShapeError, "depend on data in different ways"),
    Refusal("reshape_like of others", lambda x: flow.reshape_like(flow.expand_dims(positive(x), 1), positive(-x)), [_F],
            ShapeError, "depend on data in different ways"),
    Refusal("rows that tear", lambda x: flow.reshape(flow.reshape(chosen(x), [-1]), [-1, 4]), [_F], ShapeError, "found again"),
    Refusal("a fixed size", lambda x: positive(x) + flow.flatten(x), [_F], ShapeError,
            "inputs[1] has size 12 on an axis where that of 'GatherNd_0' depends on data (at most 12)"),
    Refusal("split of two axes", flow.experimental.dynamic_binary_split, [_F], ShapeError, "a Blob of rank 1"),
    Refusal("split into none", lambda x: flow.experimental.dynamic_binary_split(x, out_num=0), [_F[0]], ArgumentError,
            "out_num in [1, 30]"),
    Refusal("concat of too little", lambda x: flow.experimental.dynamic_binary_concat([x[:2]], x), [_F[0]], ShapeError,
            "fewer elements"),
    Refusal("diag", lambda x: flow.diag(positive(x)), [_F], ShapeError, "and diag needs to know it"),
    Refusal("assign", lambda x: flow.assign(variable(), positive(x)), [_F], ShapeError,
            "the size of value depends on data"),
    Refusal("reshape", lambda x, n: flow.reshape(flow.sync_dynamic_resize(x, n), [2, 6]), [_F, TWO], ShapeError, "found again"),
    Refusal("squeeze", lambda x, n: flow.squeeze(flow.sync_dynamic_resize(x, n)), [_F[:1], TWO], ShapeError, "cannot be removed"),
    Refusal("pad", lambda x, n: flow.pad(flow.sync_dynamic_resize(x, n), [(1, 0), (0, 0)]), [_F, TWO], ShapeError,
            "cannot be padded"),
    Refusal("layer_norm", lambda x, n: flow.layers.layer_norm(flow.sync_dynamic_resize(x, n), begin_norm_axis=0), [_F, TWO],
            ShapeError, "it normalizes over axis 0"),
]  # fmt: skip
