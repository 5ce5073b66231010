"""Shapes, constants, slices, matrices, reductions, padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special
from table import NUMBERS, Gradient, Refusal, Row, floats, ints

import oneflow as flow
from oneflow.errors import ArgumentError, AxisError, BlobUseError, DtypeError, ModeError, ShapeError
from oneflow.ops import padding
from oneflow.ops.reduce import square_sum
from oneflow.ops.slicing import logical_slice, logical_slice_assign

m = flow.math
X = floats(2, 3)
Y = floats(2, 3, seed=1)
CUBE = floats(2, 3, 4)
POSITIVE = floats(2, 3, low=0.2, high=3.0)
IMAGE = floats(2, 3, 4, 5)


def _dynamic(x: Any) -> Any:
    x.is_dynamic = True
    return x


ROWS = [
    # --- shapes
    Row("reshape", lambda x: flow.reshape(x, [3, 2]), lambda x: x.reshape(3, 2), [X], dtypes=NUMBERS),
    Row("reshape with -1", lambda x: flow.reshape(x, [x.shape[0], -1]), lambda x: x.reshape(2, 12), [CUBE]),
    Row("reshape with NumPy's ints", lambda x: flow.reshape(x, (np.int64(-1), np.int32(4))), lambda x: x.reshape(-1, 4), [CUBE]),
    Row("dynamic_reshape", lambda x: flow.dynamic_reshape(x, [-1, 4]), lambda x: x.reshape(-1, 4), [CUBE]),
    Row("reshape_like", flow.reshape_like, lambda x, y: x.reshape(y.shape), [X, floats(6)]),
    Row("flatten", flow.flatten, lambda x: x.reshape(-1), [CUBE]),
    Row("flatten from 1", lambda x: flow.flatten(x, start_dim=1), lambda x: x.reshape(2, 12), [CUBE]),
    Row("flatten in front", lambda x: flow.flatten(x, 0, -2), lambda x: x.reshape(6, 4), [CUBE]),
    Row("transpose", lambda x: flow.transpose(x, perm=[2, 0, 1]), lambda x: x.transpose(2, 0, 1), [CUBE], dtypes=NUMBERS),
    Row("expand_dims", lambda x: flow.expand_dims(x, 1), lambda x: x[:, None], [X]),
    Row("expand_dims behind", lambda x: flow.expand_dims(x, -1), lambda x: x[..., None], [X]),
    Row("squeeze", flow.squeeze, np.squeeze, [floats(1, 3, 1)]),
    Row("squeeze one axis", lambda x: flow.squeeze(x, [-1]), lambda x: x[..., 0], [floats(1, 3, 1)]),
    Row("squeeze everything", flow.squeeze, lambda x: x.reshape(1), [floats(1, 1)]),
    Row("concat", lambda x, y: flow.concat([x, y], axis=1), lambda x, y: np.concatenate([x, y], 1), [X, floats(2, 4)],
        dtypes=NUMBERS),
    Row("concat by values", lambda x, y: flow.concat(values=[x, y], axis=-2), lambda x, y: np.concatenate([x, y]), [X, Y]),
    Row("concat of one", lambda x: flow.concat([x], 0), lambda x: x, [X]),
    Row("concat bounded", lambda x, y: flow.concat([x, y], 0, max_dim_size=9), lambda x, y: np.concatenate([x, y]), [X, Y]),
    Row("stack", lambda x, y: flow.stack([x, y]), lambda x, y: np.stack([x, y]), [X, Y]),
    Row("stack behind", lambda x, y: flow.stack([x, y], axis=-1), lambda x, y: np.stack([x, y], -1), [X, Y]),
    Row("broadcast_like", flow.broadcast_like, lambda x, y: np.broadcast_to(x, y.shape), [floats(2, 1), X]),
    Row("broadcast_like front", lambda x, y: flow.broadcast_like(x, y, [0]), lambda x, y: np.broadcast_to(x, y.shape),
        [floats(3), X]),
    Row("broadcast_like behind", lambda x, y: flow.broadcast_like(x, y, [1]), lambda x, y: np.repeat(x[:, None], 3, 1),
        [floats(2), X]),
    Row("broadcast_like middle", lambda x, y: flow.broadcast_like(x, y, (1,)), lambda x, y: np.repeat(x[:, None], 3, 1),
        [floats(2, 4), CUBE]),
    Row("broadcast_to_compatible_with", lambda x, y, z: flow.broadcast_to_compatible_with(x, [y, z]),
        lambda x, y, z: np.broadcast_to(x, (2, 2, 3)), [floats(3), floats(2, 1), floats(2, 1, 1)]),
    Row("expand", lambda x: flow.expand(x, [4, -1, 3]), lambda x: np.broadcast_to(x, (4, 2, 3)), [floats(2, 1)]),
    Row("cast_to_static_shape", lambda x: flow.cast_to_static_shape(_dynamic(x)), lambda x: x, [X]),
    Row("parallel_cast", lambda x: flow.parallel_cast(x, distribute=flow.distribute.split(0)), lambda x: x, [X]),
    # --- constants
    Row("constant", lambda: flow.constant(1.5, flow.float32, (2, 3)), lambda: np.full((2, 3), 1.5), out="float32"),
    Row("constant without shape", lambda: flow.constant(3.7, flow.int32), lambda: np.array([3]), out="int32"),
    Row("constant infinite", lambda: flow.constant(1e39, flow.float32), lambda: np.array([np.inf]), out="float32"),
    Row("constant_scalar", lambda: flow.constant_scalar(2, flow.int8), lambda: np.array([2]), out="int8"),
    Row("constant_like", lambda x: flow.constant_like(x, -1), lambda x: np.full(x.shape, -1), [X], grad=False),
    Row("constant_like as", lambda x: flow.constant_like(x, 7, flow.int32), lambda x: np.full(x.shape, 7), [X], out="int32",
        grad=False),
    Row("ones_like", flow.ones_like, np.ones_like, [X], dtypes=NUMBERS, grad=False),
    Row("zeros_like", flow.zeros_like, np.zeros_like, [X], dtypes=NUMBERS, grad=False),
    Row("ones", lambda: flow.ones([2, 3]), lambda: np.ones((2, 3)), out="float32"),
    Row("zeros", lambda: flow.zeros((4,), flow.int32), lambda: np.zeros(4), out="int32"),
    Row("range", lambda: flow.range(2, 9, 3, dtype=flow.int32), lambda: np.arange(2, 9, 3), out="int32"),
    Row("range from 0", lambda: flow.range(4, dtype=flow.float32), lambda: np.arange(4), out="float32"),
    Row("range twice", lambda: flow.range(3, dtype=flow.int32) + flow.range(3, dtype=flow.int32), lambda: 2 * np.arange(3),
        out="int32"),
]  # fmt: skip

# --- slices

_S = slice
KEYS: list[tuple[str, Any]] = [
    ("int", 1), ("negative int", -1), ("NumPy int", np.int64(0)), ("ints", (0, 2)), ("all ints", (1, 2, 3)), ("slice", _S(0, 1)),
    ("steps", (_S(None), _S(None, None, 2), _S(None, None, -1))), ("backwards", (_S(None), _S(-1, 0, -2))), ("ellipsis",
        (..., 0)),
    ("front and back", (1, ..., _S(1, 3))), ("None", (None, _S(None), 1, None)), ("only dots", ...), ("clipped",
        (_S(0, 99), _S(-99, 2))),
]  # fmt: skip
ROWS += [
    Row(f"getitem {n}", lambda x, k=k: x[k], lambda x, k=k: np.asarray(x[k]).reshape(x[k].shape or (1,)), [CUBE]) for n, k in KEYS
]

_TRIPLES = [(None, None, None), (-1, -4, -1), (0, 4, 3)]
_AT = (_S(None), _S(-1, -4, -1), _S(0, 4, 3))


def _updated(x: np.ndarray, update: np.ndarray, region: Any) -> np.ndarray:
    y = x.copy()
    y[region] = update
    return y


ROWS += [
    Row("slice", lambda x: flow.slice(x, [0, 1, -2], [-1, 2, 1]), lambda x: x[:, 1:3, -2:-1], [CUBE], dtypes=NUMBERS),
    Row("slice of None", lambda x: flow.slice(x, [None, 1, 2], [None, None, 4]), lambda x: x[:, 1:, 2:], [CUBE]),
    Row("slice to the end from behind", lambda x: flow.slice(x, [0, -2, -1], [-1, 2, 1]), lambda x: x[:, -2:, -1:], [CUBE]),
    Row("slice_v2", lambda x: flow.slice_v2(x, _TRIPLES), lambda x: x[_AT], [CUBE], dtypes=NUMBERS),
    Row("slice_v2 of some axes", lambda x: flow.slice_v2(x, [(1, 2, 1)]), lambda x: x[1:2], [CUBE]),
    Row("logical_slice", lambda x: logical_slice(x, [(0, 2, 1), (0, 3, 2)]), lambda x: x[:, ::2], [CUBE]),
    Row("slice_update", lambda x, u: flow.slice_update(x, u, [(None, None, None), (1, 3, 1)]),
        lambda x, u: _updated(x, u, (_S(None), _S(1, 3))), [CUBE, floats(2, 2, 4)]),
    Row("slice_update with steps", lambda x, u: flow.slice_update(x, u, _TRIPLES), lambda x, u: _updated(x, u, _AT),
        [CUBE, floats(2, 3, 2)], dtypes=NUMBERS),
    Row("slice_update backwards", lambda x, u: flow.slice_update(x, u, [(None, None, -1)]), lambda x, u: u[::-1], [X, Y]),
    Row("reverse", lambda x: flow.reverse(x, 1), lambda x: x[:, ::-1], [X]),
    Row("reverse axes", lambda x: flow.reverse(x, [0, -1]), lambda x: x[::-1, ::-1], [X]),
]  # fmt: skip

# --- matrices

A, B, AT, BT = floats(2, 3), floats(3, 4), floats(3, 2), floats(4, 3)
SA, SB = floats(5, 2, 3), floats(5, 3, 4)


def _swap(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


ROWS += [
    Row("matmul", flow.matmul, np.matmul, [A, B], torch=lambda t, a, b: a @ b),
    Row("matmul a", lambda a, b: flow.matmul(a, b, transpose_a=True), lambda a, b: a.T @ b, [AT, B]),
    Row("matmul b", lambda a, b: flow.matmul(a, b, transpose_b=True), lambda a, b: a @ b.T, [A, BT]),
    Row("matmul both", lambda a, b: flow.matmul(a, b, True, True), lambda a, b: a.T @ b.T, [AT, BT]),
    Row("matmul @", lambda a, b: a @ b, np.matmul, [A, B]),
    Row("matmul stack", flow.linalg.matmul, np.matmul, [SA, SB]),
    Row("matmul stack a", lambda a, b: flow.matmul(a, b, True), lambda a, b: _swap(a) @ b, [floats(5, 3, 2), SB]),
    Row("matmul stack with matrix", flow.matmul, np.matmul, [SA, B]),
    Row(
        "matmul stack with matrix, both",
        lambda a, b: flow.matmul(a, b, True, True),
        lambda a, b: _swap(a) @ b.T,
        [floats(5, 3, 2), BT],
    ),
    Row("matmul matrix with stack", flow.matmul, np.matmul, [A, SB]),
    Row("matmul broadcast", flow.matmul, np.matmul, [floats(5, 1, 2, 3), floats(4, 3, 2)]),
    Row("matmul alpha", lambda a, b: flow.matmul(a, b, alpha=0.5), lambda a, b: a @ b / 2, [A, B]),
    Row("matmul of integers", flow.matmul, np.matmul, [ints(2, 3), ints(3, 4)], dtypes=("int32",)),
    Row(
        "einsum",
        lambda a, b: flow.einsum("ij,jk->ik", a, b),
        np.matmul,
        [A, B],
        torch=lambda t, a, b: t.einsum("ij,jk->ik", a, b),
    ),
    Row("einsum of a trace", lambda x: flow.einsum("iij", x), lambda x: np.einsum("iij", x), [floats(3, 3, 2)]),
    Row("einsum to a number", lambda x, y: flow.einsum("ij, ij ->", x, y), lambda x, y: np.sum(x * y).reshape(1), [X, Y]),
    Row("einsum with further axes", lambda x, y: flow.einsum("...i,i->...", x, y), lambda x, y: x @ y, [CUBE, floats(4)]),
    Row(
        "cumsum",
        lambda x: m.cumsum(x, 1),
        lambda x: np.cumsum(x, 1, x.dtype),
        [CUBE],
        dtypes=NUMBERS,
        torch=lambda t, x: t.cumsum(x, 1),
    ),
    Row("cumsum exclusive", lambda x: m.cumsum(x, -1, exclusive=True), lambda x: np.cumsum(x, -1) - x, [X]),
    Row(
        "cumsum reverse",
        lambda x: m.cumsum(x, 0, reverse=True),
        lambda x: np.cumsum(x[::-1], 0)[::-1],
        [X],
        torch=lambda t, x: x.flip(0).cumsum(0).flip(0),
    ),
    Row(
        "cumprod",
        lambda x: m.cumprod(x, 1),
        lambda x: np.cumprod(x, 1, x.dtype),
        [CUBE],
        dtypes=NUMBERS,
        torch=lambda t, x: t.cumprod(x, 1),
    ),
    Row("cumprod exclusive", lambda x: m.cumprod(x, 1, True), lambda x: np.cumprod(x, 1) / x, [POSITIVE]),
    Row("cumprod reverse", lambda x: m.cumprod(x, 1, False, True), lambda x: np.cumprod(x[:, ::-1], 1)[:, ::-1], [X]),
    Row("tril", m.tril, np.tril, [CUBE], dtypes=NUMBERS),
    Row("tril shifted", lambda x: m.tril(x, 1, 9), lambda x: np.where(np.tri(3, 4, 1) > 0, x, 9), [CUBE]),
    Row("tril below", lambda x: m.tril(x, -1), lambda x: np.tril(x, -1), [CUBE]),
    Row(
        "fused_scale_tril",
        lambda x: m.fused_scale_tril(x, -1, 5.0, 0.5),
        lambda x: np.where(np.tri(3, 4, -1) > 0, x / 2, 5),
        [CUBE],
    ),
    Row("diag", flow.diag, np.diag, [floats(3)], dtypes=NUMBERS),
    Row("diag above", lambda x: flow.diag(x, 2), lambda x: np.diag(x, 2), [floats(3)]),
    Row("diag below", lambda x: flow.diag(x, -1), lambda x: np.diag(x, -1), [floats(3)]),
    *(
        Row(f"diag of matrix {k}", lambda x, k=k: flow.diag(x, k), lambda x, k=k: np.diag(x, k).copy(), [floats(3, 4)])
        for k in (-2, 0, 1, 3)
    ),
]

# --- reductions


def _euclid(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.sqrt(np.sum(x * x, axis, keepdims=keepdims))


def _mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.trunc(x.mean(axis, keepdims=keepdims)) if x.dtype.kind in "iu" else x.mean(axis, keepdims=keepdims)


def _reduced(f: Any) -> Any:
    return lambda x: np.atleast_1d(f(x))


REDUCE: dict[str, tuple[Any, dict[str, Any]]] = {
    "reduce_sum": (np.sum, {}), "reduce_mean": (_mean, {"wide": True}), "reduce_max": (np.max, {}), "reduce_min": (np.min, {}),
    "reduce_prod": (np.prod, {}), "reduce_variance": (np.var, {}), "reduce_std": (np.std,
        {}), "reduce_euclidean_norm": (_euclid, {}),
    "reduce_logsumexp": (special.logsumexp, {}), "reduce_any": (np.any, {"out": "int8", "grad": False}),
    "reduce_all": (np.all, {"out": "int8", "grad": False}),
}  # fmt: skip
for _name, (_ref, _more) in REDUCE.items():
    _op = getattr(m, _name)
    _kinds: Any = {"dtypes": ("float32", "float64", "int32")} if _name in REDUCE and "reduce_" + _name.split("_")[1] in (
        "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all") else {}  # fmt: skip
    ROWS += [
        Row(_name, _op, _reduced(_ref), [POSITIVE], **_kinds, **_more),
        Row(f"{_name} axis", lambda x, f=_op: f(x, 1), lambda x, f=_ref: f(x, axis=1), [CUBE], **_more),
        Row(f"{_name} axes", lambda x, f=_op: f(x, [-1, 0]), lambda x, f=_ref: f(x, axis=(0, 2)), [CUBE], **_more),
        Row(
            f"{_name} keepdims",
            lambda x, f=_op: f(x, (0, 1), True),
            lambda x, f=_ref: f(x, axis=(0, 1), keepdims=True),
            [CUBE],
            **_more,
        ),
        Row(f"{_name} keeping all", lambda x, f=_op: f(x, keepdims=True), lambda x, f=_ref: f(x, keepdims=True), [X], **_more),
    ]
_BIG = np.array([[1e4, 1e4 + 1], [-np.inf, -np.inf]])
ROWS += [
    *(Row(f"{n} of no axes", lambda x, n=n: getattr(m, n)(x, []), lambda x: x, [X])
      for n in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_logsumexp")),
    Row("reduce_variance of no axes", lambda x: m.reduce_variance(x, []), np.zeros_like, [X], grad=False),
    Row("reduce_euclidean_norm of no axes", lambda x: m.reduce_euclidean_norm(x, []), np.abs, [X]),
    Row("reduce_any of no axes", lambda x: m.reduce_any(x, []), lambda x: x != 0, [ints(2, 3)], dtypes=("int8",)),
    Row("reduce_logsumexp far out", lambda x: m.reduce_logsumexp(x, 1), lambda x: special.logsumexp(x, 1), [_BIG], grad=False),
    Row("reduce_variance near constant", m.reduce_variance, lambda x: np.array([np.var(x)]), [np.array([1e4, 1e4 + 1])],
        half=False),
    Row("reduce_mean of integers", m.reduce_mean, lambda x: np.array([-1]), [np.array([-3, -1, 0])], dtypes=("int8", "int32"),
        wide=True),
    Row("reduce_mean of many", m.reduce_mean, lambda x: np.array([100]), [np.full(300, 100)], dtypes=("int8",), wide=True),
    Row("reduce_sum wraps", m.reduce_sum, lambda x: np.array([44]), [np.full(3, 100)], dtypes=("int8",)),
    Row("reduce_sum in float16", m.reduce_sum, lambda x: np.array([4096]), [np.ones(4096)], dtypes=("float16",)),
    Row("reduce_variance in float16", m.reduce_variance, lambda x: np.array([90000 / 4]), [np.array([0.0, 300])],
        dtypes=("float16",)),
    Row("l2_normalize zeros in float16", m.l2_normalize, lambda x: x, [np.zeros(3)], dtypes=("float16",)),
    Row("reduce_prod with zeros", m.reduce_prod, lambda x: np.array([0]), [np.array([2.0, 0, 3])]),
    Row("two_stage_reduce_max", lambda x: m.two_stage_reduce_max(x, [0]), lambda x: x.max(0), [X]),
    Row("two_stage_reduce_min", lambda x: m.two_stage_reduce_min(x, (0, 1), True), lambda x: x.min(keepdims=True), [X]),
    Row("reduced_shape_elem_cnt", m.reduced_shape_elem_cnt, lambda x: np.array([24]), [CUBE], out="int32", grad=False),
    Row("reduced_shape_elem_cnt axis", lambda x: m.reduced_shape_elem_cnt(x, [1, -1], flow.float32), lambda x: np.array([12]),
        [CUBE],
        out="float32", grad=False),
    Row("elem_cnt", lambda x: flow.elem_cnt(x, flow.int64), lambda x: np.array([24]), [CUBE], out="int64", grad=False),
    Row("count_not_finite", flow.count_not_finite, lambda x: np.array([3]), [np.array([[1, np.inf], [np.nan, -np.inf]])],
        out="int64",
        grad=False),
    Row("multi_count_not_finite", lambda x, y: flow.multi_count_not_finite([x, y]), lambda x, y: np.array([1]),
        [np.array([1, np.inf]), X], out="int64", grad=False),
    Row("square_sum", square_sum, lambda x: np.array([np.sum(x * x)]), [CUBE]),
    Row("l2_normalize", lambda x: m.l2_normalize(x, 1), lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)), [X]),
    Row("l2_normalize all", m.l2_normalize, lambda x: x / np.sqrt((x * x).sum()), [X]),
    Row("l2_normalize below epsilon", lambda x: m.l2_normalize(x, 0, epsilon=100.0), lambda x: x / 10, [X]),
]  # fmt: skip

# --- padding

ROWS += [
    Row("pad", lambda x: flow.pad(x, [(1, 2), (0, 3)], 7), lambda x: np.pad(x, [(1, 2), (0, 3)], constant_values=7), [X],
        dtypes=NUMBERS),
    Row("pad_grad", lambda x: flow.pad_grad(x, [[0, 0], [1, 2], [2, 1]]), lambda x: x[:, 1:-2, 2:-1], [floats(2, 5, 5)]),
    Row("constant_pad2d", lambda x: flow.constant_pad2d(x, (1, 2, 3, 0), 2.5),
        lambda x: np.pad(x, [(0, 0), (0, 0), (3, 0), (1, 2)], constant_values=2.5), [IMAGE]),
    Row("zero_pad2d", lambda x: flow.zero_pad2d(x, 1), lambda x: np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), [IMAGE]),
    Row("reflection_pad2d", lambda x: flow.reflection_pad2d(x, [0, 0, 3, 1]),
        lambda x: np.pad(x, [(0, 0), (0, 0), (3, 3), (1, 1)], mode="reflect"), [IMAGE]),
    Row("reflection_pad2d of 0.6", lambda x: padding.reflected(x, [1, 2, 3, 0]),
        lambda x: np.pad(x, [(0, 0), (0, 0), (3, 0), (1, 2)], mode="reflect"), [IMAGE],
        torch=lambda t, x: t.nn.functional.pad(x, (1, 2, 3, 0), mode="reflect")),
    Row("replication_pad2d", lambda x: flow.replication_pad2d(x, (1, 2, 3, 0)),
        lambda x: np.pad(x, [(0, 0), (0, 0), (3, 0), (1, 2)], mode="edge"), [IMAGE],
        torch=lambda t, x: t.nn.functional.pad(x, (1, 2, 3, 0), mode="replicate")),
    Row("same_padding", lambda x: flow.same_padding(x, "SAME_LOWER", "NCHW", [3, 4], [2, 1], [1, 1]),
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 0), (2, 1)]), [IMAGE]),
    Row("same_padding upper, channels last", lambda x: flow.same_padding(x, "same_upper", "NHWC", [2, 2], [1, 1], [1, 2]),
        lambda x: np.pad(x, [(0, 0), (0, 1), (1, 1), (0, 0)]), [IMAGE]),
]  # fmt: skip

_TIES = np.array([[1.0, 2, 2], [2, 0, 1]])
GRADIENTS = [
    Gradient("reduce_max ties", m.reduce_max, [_TIES], [[[0, 1 / 3, 1 / 3], [1 / 3, 0, 0]]]),
    Gradient("reduce_min ties", lambda x: m.reduce_min(x, 0), [np.array([[1.0, 2], [1, 3]])], [[[0.5, 1], [0.5, 0]]]),
    Gradient("reduce_prod with a zero", m.reduce_prod, [np.array([2.0, 0, 3])], [[0, 6, 0]]),
    Gradient("reduce_prod with two zeros", lambda x: m.reduce_prod(x, 1), [np.array([[2.0, 0, 0], [2, 3, 4]])],
        [[[0] * 3, [12, 8, 6]]]),
    Gradient("reduce_prod of integers", m.reduce_prod, [np.array([2, 3, 4])], [[12, 8, 6]]),
    Gradient("reduce_std at 0 is not a number of ours", lambda x: m.reduce_variance(x), [np.ones(3)], [np.zeros(3)]),
    Gradient("counting stops it", flow.elem_cnt, [X], [None]),
    Gradient("like stops it", flow.reshape_like, [X, floats(6)], [np.ones((2, 3)), None]),
    Gradient("compatible Blobs get none", lambda x, y: flow.broadcast_to_compatible_with(x, [y]), [floats(3), X],
        [np.full(3, 2), None]),
    Gradient("slice_update", lambda x, u: flow.slice_update(x, u, [(0, 1, 1)]), [X, Y[:1]],
        [[[0] * 3, [1] * 3], np.ones((1, 3))]),
    Gradient("pad is cropped", lambda x: flow.pad(x, [(1, 1), (2, 0)]), [X], [np.ones((2, 3))]),
    Gradient("reflection_pad2d folds back", lambda x: padding.reflected(x, (0, 0, 0, 1)), [np.ones((1, 1, 3, 1))],
             [np.array([1, 2, 1]).reshape(1, 1, 3, 1)]),
]  # fmt: skip

_F = X.astype(np.float32)
_C = CUBE.astype(np.float32)
_I = ints(2, 3)
REFUSALS = [
    Refusal("reshape count", lambda x: flow.reshape(x, [4, 2]), [_F], ShapeError, "6 elements do not fill [4, 2], which has 8"),
    Refusal("reshape rest", lambda x: flow.reshape(x, [4, -1]), [_F], ShapeError, "6 is not a multiple of 4"),
    Refusal("reshape two -1", lambda x: flow.reshape(x, [-1, -1]), [_F], ShapeError, "sizes must be > 0, except for one -1"),
    Refusal("reshape three -1", lambda x: flow.reshape(x, [-1, -1, -1]), [_F], ShapeError,
        "sizes must be > 0, except for one -1"),
    Refusal("reshape 0", lambda x: flow.reshape(x, [0, 6]), [_F], ShapeError, "sizes must be > 0"),
    Refusal("reshape to -6", lambda x: flow.reshape(x, [-6]), [_F], ShapeError, "sizes must be > 0"),
    Refusal("reshape to rank 0", lambda x: flow.reshape(x, []), [_F], ShapeError, "there are no Blobs of rank 0"),
    Refusal("reshape to int", lambda x: flow.reshape(x, 6), [_F], ArgumentError, "shape must be a list or tuple of ints, got 6"),
    Refusal("reshape to floats", lambda x: flow.reshape(x, [2.0, 3]), [_F], ArgumentError, "shape must be ints"),
    Refusal("reshape to array", lambda x: flow.reshape(x, np.array([3, 2])), [_F], ArgumentError,
        "must be a list or tuple of ints"),
    Refusal("reshape of array", lambda: flow.reshape(np.ones(3), [3]), [], ArgumentError, "x must be a Blob, got ndarray"),
    Refusal("flatten backwards", lambda x: flow.flatten(x, 2, 1), [_C], AxisError, "end_dim=1 comes before start_dim=2"),
    Refusal("flatten from -1", lambda x: flow.flatten(x, -1), [_C], AxisError, "start_dim=-1 must be >= 0"),
    Refusal("transpose without perm", lambda x: flow.transpose(x), [_F], ArgumentError, "pass perm=[1, 0]"),
    Refusal("transpose twice the same", lambda x: flow.transpose(x, [0, 0]), [_F], AxisError, "must hold each of 0, ..., 1 once"),
    Refusal("transpose conjugate", lambda x: flow.transpose(x, [1, 0], conjugate=True), [_F], ModeError,
        "there are no complex dtypes"),
    Refusal("expand_dims", lambda x: flow.expand_dims(x, 3), [_F], AxisError, "axis=3 is outside [-3, 3)"),
    Refusal("squeeze int", lambda x: flow.squeeze(x, 0), [_F], ArgumentError, "write axis=[0]"),
    Refusal("squeeze size", lambda x: flow.squeeze(x, [0]), [_F], ShapeError, "axis 0 has size 2; only axes of size 1"),
    Refusal("concat sizes", lambda x, y: flow.concat([x, y], 0), [_F, _F[:, :2]], ShapeError, "join along axis=1"),
    Refusal("concat ranks", lambda x, y: flow.concat([x, y], 0), [_F, _C], ShapeError, "inputs must have one rank, got 2 and 3"),
    Refusal("concat dtypes", lambda x, y: flow.concat([x, y], 0), [_F, _I], DtypeError, "got float32 and int32"),
    Refusal("concat axis", lambda x: flow.concat([x, x], axis=5), [_F], AxisError, "axis=5 is outside [-2, 2)"),
    Refusal("concat a Blob", lambda x: flow.concat(x, 0), [_F], ArgumentError,
        "inputs must be a list or tuple of at least one Blob"),
    Refusal("concat bound", lambda x: flow.concat([x, x], 0, max_dim_size=3), [_F], ShapeError, "more than max_dim_size=3"),
    Refusal("stack shapes", lambda x, y: flow.stack([x, y]), [_F, _C], ShapeError, "inputs must have equal shapes"),
    Refusal("broadcast_like", flow.broadcast_like, [_F, _C], ShapeError, "does not become (2, 3, 4)"),
    Refusal("broadcast_to_compatible_with", lambda x, y: flow.broadcast_to_compatible_with(x, [y]), [_F, _C], ShapeError,
        "broadcast"),
    Refusal("expand", lambda x: flow.expand(x, [4, 3]), [_F], ShapeError, "only axes of size 1 and new ones in front grow"),
    Refusal("parallel_cast auto", lambda x: flow.parallel_cast(x, distribute=flow.distribute.auto()), [_F], ModeError,
        "got auto()"),
    Refusal("assign to a value", lambda x: flow.assign(x, x), [_F], ArgumentError, "ref must be a variable"),
    Refusal("constant without dtype", lambda: flow.constant(1), [], ArgumentError, "dtype is required"),
    Refusal("constant of str", lambda: flow.constant("1", flow.float32), [], ArgumentError,
        "value must be a number, got str '1'"),
    Refusal("constant of size 0", lambda: flow.constant(1, flow.float32, [0]), [], ArgumentError, "sizes > 0"),
    Refusal("constant with NumPy dtype", lambda: flow.constant(1, np.int32), [], ArgumentError, "write flow.int32"),
    Refusal("constant too large", lambda: flow.constant(300, flow.int8), [], ArgumentError, "outside the range of int8"),
    Refusal("range without dtype", lambda: flow.range(3), [], ArgumentError, "dtype is required"),
    Refusal("range backwards", lambda: flow.range(3, 1, dtype=flow.int32), [], ArgumentError, "needs limit > start"),
    Refusal("range step", lambda: flow.range(0, 3, 4, dtype=flow.int32), [], ArgumentError, "delta in [1, limit - start]"),
    Refusal("range of floats", lambda: flow.range(0.0, 3.0, dtype=flow.int32), [], ArgumentError, "must be ints"),
    Refusal("slice length", lambda x: flow.slice(x, [0], [1]), [_F], ArgumentError, "begin must be a list or tuple of 2 entries"),
    Refusal("slice begin", lambda x: flow.slice(x, [2, 0], [1, 1]), [_F], AxisError, "begin[0]=2 is outside [-2, 1]"),
    Refusal("slice size", lambda x: flow.slice(x, [0, 0], [1, 4]), [_F], AxisError, "size[1]=4 is outside [1, 3]"),
    Refusal("slice_v2 entry", lambda x: flow.slice_v2(x, [0]), [_F], ArgumentError, "must be (start, stop, step), got 0"),
    Refusal("slice_v2 length", lambda x: flow.slice_v2(x, [(0, 1, 1)] * 3), [_F], ArgumentError, "must hold up to 2"),
    Refusal("slice_v2 start", lambda x: flow.slice_v2(x, [(2, None, 1)]), [_F], AxisError, "start=2 is outside [-2, 1]"),
    Refusal("slice_v2 stop", lambda x: flow.slice_v2(x, [(0, 9, 1)]), [_F], AxisError, "stop=9 is outside [-3, 2]"),
    Refusal("slice_v2 step", lambda x: flow.slice_v2(x, [(0, 1, 0)]), [_F], ArgumentError, "must be an int, not 0, got 0"),
    Refusal("slice_v2 empty", lambda x: flow.slice_v2(x, [(1, 1, 1)]), [_F], ShapeError, "the slice of axis 0 (size 2) is empty"),
    Refusal("logical_slice step", lambda x: logical_slice(x, [(1, 0, -1)]), [_F], ArgumentError, "must be an int > 0"),
    Refusal("logical_slice_assign", lambda x: logical_slice_assign(x, x, [(0, 2, 1)]), [_F], ArgumentError, "variable"),
    Refusal("slice_update", lambda x: flow.slice_update(x, x, [(0, 1, 1)]), [_F], ShapeError, "the region's shape (1, 3)"),
    Refusal("reverse None", lambda x: flow.reverse(x, None), [_F], ArgumentError, "got None"),
    Refusal("getitem outside", lambda x: x[2], [_F], AxisError, "index 2 is outside axis 0, which has size 2"),
    Refusal("getitem too many", lambda x: x[0, 0, 0], [_F], AxisError, "3 indices are too many for a Blob of rank 2"),
    Refusal("getitem empty", lambda x: x[2:], [_F], ShapeError, "the slice 2: of axis 0 (size 2) is empty"),
    Refusal("getitem by mask", lambda x: x[x > 0], [_F], ArgumentError, "not a Blob int8[2, 3]"),
    Refusal("getitem by list", lambda x: x[[0, 1]], [_F], ArgumentError, "flow.gather"),
    Refusal("getitem by Blob slice", lambda x, i: x[i:], [_F, _I], ArgumentError, "the bounds of a slice must be ints or None"),
    Refusal("getitem two ellipses", lambda x: x[..., ...], [_F], ArgumentError, "one Ellipsis only"),
    Refusal("iteration", lambda x: list(x), [_F], BlobUseError, "cannot be iterated over"),
    Refusal("matmul", flow.matmul, [_F, _F], ShapeError, "transpose_a=False, transpose_b=True would fit"),
    Refusal("matmul rank", flow.matmul, [_F, _F[0]], ShapeError, "b must have rank >= 2, got rank 1"),
    Refusal("matmul dtypes", flow.matmul, [_F, ints(3, 2)], DtypeError, "got float32 and int32"),
    Refusal("matmul stacks", flow.matmul, [np.ones((2, 3, 3)), np.ones((4, 3, 3))], ShapeError, "(2,) and (4,) do not broadcast"),
    Refusal("einsum inputs", lambda x: flow.einsum("ij,jk->ik", x), [X], ArgumentError, r"of 2 input\(s\), and 1 were given"),
    Refusal("einsum equation", lambda x: flow.einsum("i*j", x), [X], ArgumentError, "equation must be a str such as"),
    Refusal("einsum letters", lambda x: flow.einsum("ijk->i", x), [X], ShapeError, "einsum"),
    Refusal("einsum sizes", lambda x, y: flow.einsum("ij,jk->ik", x, y), [X, Y], ShapeError, "einsum"),
    Refusal("einsum result", lambda x: flow.einsum("ij->iz", x), [X], ShapeError, "einsum"),
    Refusal("cumsum axis", lambda x: m.cumsum(x, 2), [X], AxisError, r"axis=2 is outside \[-2, 2\)"),
    Refusal("tril rank", m.tril, [_F[0]], ShapeError, "needs a Blob of rank at least 2, got rank 1"),
    Refusal("diag rank", flow.diag, [_C], ShapeError, "needs a Blob of rank 1 to 2, got rank 3"),
    Refusal("diag outside", lambda x: flow.diag(x, 3), [_F], ShapeError, "a matrix of shape (2, 3) has no diagonal 3"),
    Refusal("reduce axis", lambda x: m.reduce_sum(x, 2), [_F], AxisError, "axis=2 is outside [-2, 2)"),
    Refusal("reduce keepdims", lambda x: m.reduce_sum(x, 0, 1), [_F], ArgumentError, "keepdims must be True or False, got 1"),
    Refusal("reduce_std of integers", m.reduce_std, [_I], DtypeError, "needs a floating-point Blob, got int32"),
    Refusal("two_stage", lambda x: m.two_stage_reduce_max(x, 0), [_F], ArgumentError,
        "axis must be a list or tuple of ints, got 0"),
    Refusal("count_not_finite", flow.count_not_finite, [_I], DtypeError, "needs a floating-point Blob"),
    Refusal("pad pairs", lambda x: flow.pad(x, [(1, 1)]), [_F], ArgumentError, "paddings must hold 2 pairs (before, after)"),
    Refusal("pad negative", lambda x: flow.pad(x, [(1, 1), (-1, 0)]), [_F], ArgumentError, "paddings must be >= 0"),
    Refusal("pad_grad", lambda x: flow.pad_grad(x, [(1, 1), (0, 0)]), [_F], ShapeError, "leave nothing of (2, 3)"),
    Refusal("constant_pad2d rank", lambda x: flow.constant_pad2d(x, 1), [_F], ShapeError, "needs a Blob of rank 4"),
    Refusal("reflection_pad2d", lambda x: flow.reflection_pad2d(x, 4), [np.ones((1, 1, 4, 9), "f")], ShapeError,
        "smaller than the image"),
    Refusal("same_padding", lambda x: flow.same_padding(x, "SAME", "NCHW", [1, 1], [1, 1], [1, 1]), [np.ones((1, 1, 2, 2), "f")],
            ArgumentError, "padding must be one of 'SAME_LOWER', 'SAME_UPPER'"),
]  # fmt: skip
