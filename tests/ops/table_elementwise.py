"""Elementwise functions, arithmetic, comparisons, casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special
from table import NUMBERS, Gradient, Refusal, Row, floats, ints

import oneflow as flow
from oneflow.errors import ArgumentError, BlobUseError, DtypeError, ShapeError

m = flow.math
X = floats(2, 3)
POSITIVE = floats(2, 3, low=0.2, high=3.0)
INSIDE = floats(2, 3, low=-0.9, high=0.9)
Y = floats(2, 3, seed=1)
INTEGERS = ints(2, 3)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.2, -0.7])


def _unary(name: str, ref: Any, x: np.ndarray = X, **more: Any) -> Row:
    return Row(name, getattr(m, name), ref, [x], **more)


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


ROWS = [
    _unary("abs", np.abs, dtypes=NUMBERS),
    Row("abs of unsigned", m.abs, lambda x: x, [ints(2, 3, low=0)], dtypes=("uint8",)),
    _unary("acos", np.arccos, INSIDE),
    _unary("acosh", np.arccosh, POSITIVE + 1),
    _unary("asin", np.arcsin, INSIDE),
    _unary("asinh", np.arcsinh),
    _unary("atan", np.arctan),
    _unary("atanh", np.arctanh, INSIDE),
    _unary("ceil", np.ceil),
    _unary("cos", np.cos),
    _unary("cosh", np.cosh),
    _unary("erf", special.erf),
    _unary("erfc", special.erfc),
    _unary("exp", np.exp),
    _unary("expm1", np.expm1),
    _unary("floor", np.floor),
    _unary("gelu", lambda x: 0.5 * x * (1 + special.erf(x / math.sqrt(2))), torch=lambda t, x: t.nn.functional.gelu(x)),
    _unary("lgamma", special.gammaln, POSITIVE, rtol=2e-5, half=False),
    _unary("log", np.log, POSITIVE),
    _unary("log1p", np.log1p, POSITIVE),
    _unary("log_sigmoid", lambda x: -_softplus(-x), torch=lambda t, x: t.nn.functional.logsigmoid(x)),
    _unary("negative", np.negative, dtypes=NUMBERS),
    _unary("reciprocal", lambda x: 1 / x, POSITIVE),
    _unary("reciprocal_no_nan", lambda x: np.where(x == 0, 0, 1 / np.where(x == 0, 1, x)), np.array([0.5, -2.0, 3.0])),
    _unary("relu", lambda x: np.maximum(x, 0), dtypes=NUMBERS),
    _unary("rint", np.rint, HALVES, grad=False),
    _unary("round", np.round, HALVES, grad=False),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x), POSITIVE),
    _unary("sigmoid", special.expit),
    _unary("sigmoid_v2", special.expit),
    _unary("sign", np.sign, np.array([-2.0, 0.0, 3.0]), dtypes=NUMBERS, grad=False),
    _unary("sin", np.sin),
    _unary("sinh", np.sinh),
    _unary("softplus", _softplus, torch=lambda t, x: t.nn.functional.softplus(x, threshold=1e9)),
    _unary("sqrt", np.sqrt, POSITIVE),
    _unary("square", np.square, dtypes=NUMBERS),
    _unary("tan", np.tan, INSIDE),
    _unary("tanh", np.tanh),
    _unary("tanh_v2", np.tanh),
    Row("softplus far out", m.softplus, lambda x: np.maximum(x, 0), [np.array([-1e4, 1e4])], half=False),
    Row("log_sigmoid far out", m.log_sigmoid, lambda x: np.minimum(x, 0), [np.array([-1e4, 1e4])], half=False),
    Row("identity", flow.identity, lambda x: x, [X], dtypes=NUMBERS),
    Row("amp_white_identity", flow.amp_white_identity, lambda x: x, [X]),
    Row("identity_n", lambda x, y: flow.identity_n([x, y]), lambda x, y: (x, y), [X, INTEGERS], out=("float64", "int32"),
        dtypes=["float64"], half=False),
    # gradients as ops
    Row("gelu_grad", m.gelu_grad,
        lambda x, dy: dy * (special.ndtr(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)), [X, Y], grad=False),
    Row("sigmoid_grad", m.sigmoid_grad, lambda y, dy: dy * y * (1 - y), [X, Y], grad=False),
    Row("tanh_grad", m.tanh_grad, lambda y, dy: dy * (1 - y * y), [X, Y], grad=False),
    # with parameters
    Row("clip_by_value", lambda x: flow.clip_by_value(x, -1, 1.25), lambda x: np.clip(x, -1, 1.25), [X]),
    Row("clip_by_value below", lambda x: flow.clip_by_value(x, min_value=0), lambda x: np.maximum(x, 0), [X], dtypes=NUMBERS),
    Row("clip_by_value above", lambda x: flow.clip_by_value(x, max_value=0.9), lambda x: np.minimum(x, 0), [X],
        dtypes=("int32",)),
    Row("clip_by_value infinite", lambda x: flow.clip_by_value(x, 0.0, math.inf), lambda x: np.maximum(x, 0), [X],
        dtypes=NUMBERS),
    Row("clip_by_value beyond the dtype", lambda x: flow.clip_by_value(x, -1000, 1e9), lambda x: x, [X], dtypes=("int8",)),
    Row("cast", lambda x: flow.cast(x, flow.int32), lambda x: x.astype(np.int32), [X * 3], out="int32", grad=False),
    Row("cast same", lambda x: flow.cast(x, flow.float32) + 0, lambda x: x, [X], dtypes=("float32",), half=False),
    Row("cast up", lambda x: flow.cast(x, flow.float64), lambda x: x.astype(np.float32), [INTEGERS], dtypes=("float32",),
        out="float64"),
    Row("polyval", lambda x: m.polyval([3, 0, -1.5, 2], x), lambda x: 3 * x**3 - 1.5 * x + 2, [X]),
    Row("polyval of nothing", lambda x: m.polyval([], x), lambda x: 0 * x, [X]),
]  # fmt: skip

# --- two operands


def _int_div(x: Any, y: Any) -> Any:
    return np.trunc(x / y) if np.asarray(x).dtype.kind in "iu" else x / y


ROW, ONE, COLUMN = floats(3, low=0.5, high=2.0), floats(1, low=0.5, high=2.0, seed=3), floats(2, 1, low=0.5, high=2.0, seed=4)
NONZERO = np.array([[-3, 2, 5], [7, -2, 3]], np.int32)
BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": _int_div, "mod": np.mod,
    "floordiv": np.floor_divide, "maximum": np.maximum, "minimum": np.minimum, "squared_difference": lambda x, y: (x - y) ** 2,
}  # fmt: skip
for _name, _ref in BINARY.items():
    _op = getattr(m, _name)
    _grad = _name != "floordiv"
    ROWS += [
        Row(_name, _op, _ref, [X, POSITIVE]),
        Row(f"{_name} row", _op, _ref, [X, ROW]),
        Row(f"{_name} of (1,)", _op, _ref, [ONE, X + 5]),
        Row(f"{_name} crosswise", _op, _ref, [ROW, COLUMN]),
        Row(f"{_name} with number", lambda x, f=_op: f(x, 3), lambda x, f=_ref: f(x, 3), [X]),
        Row(f"{_name} of number", lambda x, f=_op: f(2.5, x), lambda x, f=_ref: f(2.5, x), [POSITIVE]),
        Row(f"{_name} of integers", _op, _ref, [INTEGERS, NONZERO], dtypes=("int32", "int64", "int8")),
        Row(f"{_name} of integers and a number", lambda x, f=_op: f(x, 2), lambda x, f=_ref: f(x, 2), [INTEGERS],
            dtypes=("int32",)),
        Row(f"{_name} of a number and integers", lambda x, f=_op: f(-7, x), lambda x, f=_ref: f(np.int32(-7), x), [NONZERO],
            dtypes=("int32",)),
    ]  # fmt: skip

for _name in ("atan2", "xdivy", "xlogy", "pow"):
    _ref = {"atan2": np.arctan2, "xdivy": np.divide, "xlogy": special.xlogy, "pow": np.power}[_name]
    ROWS += [
        Row(_name, getattr(m, _name), _ref, [POSITIVE, POSITIVE[::-1].copy()]),
        Row(f"{_name} row", getattr(m, _name), _ref, [POSITIVE, ROW]),
        Row(f"{_name} with number", lambda x, f=getattr(m, _name): f(x, 1.5), lambda x, f=_ref: f(x, 1.5), [POSITIVE]),
        Row(f"{_name} of number", lambda x, f=getattr(m, _name): f(1.5, x), lambda x, f=_ref: f(1.5, x), [POSITIVE]),
    ]

ROWS += [
    Row("xdivy of 0", m.xdivy, lambda x, y: np.zeros(2), [np.zeros(2), np.array([0.0, np.inf])], grad=False),
    Row("xlogy of 0", m.xlogy, lambda x, y: np.zeros(2), [np.zeros(2), np.array([0.0, np.inf])], grad=False),
    Row("log1p at the ends", m.log1p, np.log1p, [np.array([np.inf, 1e10, 0.0])], grad=False),
    Row("divide number by 0", lambda x: 3 / x, lambda x: np.array([0, 1.5]), [np.array([0.0, 2.0])], grad=False),
    Row("divide by number 0", lambda x: x / 0, lambda x: np.array([np.inf, -np.inf]), [np.array([1.0, -2.0])], grad=False),
    *(Row(f"pow {n}", lambda x, n=n: x**n, lambda x, n=n: x ** float(n), [POSITIVE]) for n in (0, 1, 2, -1, -2, 0.5, 2.5, 9)),
    Row("pow of negatives", lambda x: x**3, lambda x: x**3, [X]),
    Row("pow of integers", lambda x: x**2, lambda x: x**2, [INTEGERS], dtypes=("int32",)),
    Row("add_n", lambda x, y, z: m.add_n([x, y, z]), lambda x, y, z: x + y + z, [X, Y, POSITIVE], dtypes=NUMBERS),
    Row("add_n of one", lambda x: m.add_n([x]), lambda x: x, [X]),
    # operators
    Row("+ - *", lambda x, y: -(1 + x * 2 - y) * y, lambda x, y: -(1 + x * 2 - y) * y, [X, Y]),
    Row("/ // %", lambda x, y: 7.5 % (x / y) + (x // 0.5), lambda x, y: 7.5 % (x / y) + (x // 0.5), [POSITIVE, ROW]),
    Row("** abs", lambda x: abs(x) ** 2, lambda x: x**2, [X]),
    Row("NumPy numbers", lambda x: np.float64(2) * x + np.int64(1) - np.array(0.5) + True, lambda x: 2 * x + 1.5, [X]),
    Row("NumPy number in front", lambda x: np.float32(3) - x, lambda x: 3 - x, [X]),
]  # fmt: skip

# --- comparisons

COMPARE = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "logical_and": np.logical_and,
}  # fmt: skip
_LEFT = np.array([[-1, 0, 1], [2, 1, 0]], np.int32)
_RIGHT = np.array([0, 0, 1], np.int32)
for _name, _ref in COMPARE.items():
    _op = getattr(m, _name)
    ROWS += [
        Row(_name, _op, _ref, [X, X.round()], out="int8", grad=False),
        Row(f"{_name} of integers", _op, _ref, [_LEFT, _RIGHT], dtypes=("int32", "int8", "int64"), out="int8"),
        Row(f"{_name} with number", lambda x, f=_op: f(x, 1), lambda x, f=_ref: f(x, 1), [_LEFT], dtypes=NUMBERS, out="int8"),
    ]
    for _number in (0.5, -0.5, 1e9, -1e9, math.inf, math.nan):  # an int8 can hold none of them
        ROWS += [
            Row(f"{_name} of int8 with {_number}", lambda x, f=_op, n=_number: f(x, n), lambda x, f=_ref, n=_number: f(x, n),
                [_LEFT],
                dtypes=("int8",), out="int8"),
            Row(f"{_name} of {_number} with int8", lambda x, f=_op, n=_number: f(n, x), lambda x, f=_ref, n=_number: f(n, x),
                [_LEFT],
                dtypes=("int8",), out="int8"),
        ]  # fmt: skip
ROWS += [
    Row("comparison operators", lambda x: (x > 0) * (0.5 >= x) + (x == 1) + (2 != x) + (x <= 0) + (3 < x),
        lambda x: (x > 0) * (x <= 0.5) + (x == 1).astype(int) + (x != 2) + (x <= 0) + (x > 3), [_LEFT.astype(float)], out="int8",
        grad=False),
]  # fmt: skip

_AT = np.array([-1.0, 0.0, 2.0])
_ZEROS, _ONES = np.zeros(3), np.ones(3)

GRADIENTS = [
    Gradient("abs at 0", m.abs, [_AT], [[-1, 1, 1]]),
    Gradient("abs of integers", m.abs, [_AT.astype(np.int32)], [[-1, 1, 1]]),
    Gradient("relu at 0", m.relu, [_AT], [[0, 0, 1]]),
    Gradient("relu of integers", m.relu, [_AT.astype(np.int32)], [[0, 0, 1]]),
    Gradient("clip at the bounds", lambda x: flow.clip(x, -1, 0), [_AT], [[1, 1, 0]]),
    Gradient("clip below only", lambda x: flow.clamp(x, min_value=0), [_AT], [[0, 1, 1]]),
    Gradient("maximum ties", m.maximum, [np.array([1.0, 2, 3]), np.array([1.0, 3, 2])], [[0, 0, 1], [1, 1, 0]]),
    Gradient("minimum ties", m.minimum, [np.array([1.0, 2, 3]), np.array([1.0, 3, 2])], [[0, 1, 0], [1, 0, 1]]),
    Gradient("maximum broadcast ties", m.maximum, [np.array([[1.0], [2.0]]), np.array([1.0, 0, 2])], [[[1], [2]], [1, 0, 2]]),
    Gradient("maximum with a number", lambda x: m.maximum(x, 0.0), [_AT], [[0, 0, 1]]),
    Gradient("maximum of a number", lambda x: m.maximum(0.0, x), [_AT], [[0, 1, 1]]),
    Gradient("rounding has none", lambda x: m.ceil(x) + m.floor(x) + m.rint(x) + m.round(x) + m.sign(x), [_AT], [_ZEROS]),
    Gradient("floordiv has none", lambda x: x // 2, [_AT], [_ZEROS]),
    Gradient("floordiv of Blobs has none", m.floordiv, [_AT, _AT + 5], [_ZEROS, _ZEROS]),
    Gradient("pow to x <= 0", m.pow, [np.array([-2.0, 0, 2]), np.full(3, 2.0)], [[-4, 0, 4], [0, 0, 4 * math.log(2)]]),
    Gradient("pow of a number to x", lambda x: m.pow(2.0, x), [_AT], [2**_AT * math.log(2)]),
    Gradient("xdivy at 0", m.xdivy, [np.array([0.0, 2]), np.array([0.0, 4])], [[0, 0.25], [0, -0.125]]),
    Gradient("xlogy at 0", m.xlogy, [np.array([0.0, 2]), np.array([0.0, 4])], [[0, math.log(4)], [0, 0.5]]),
    Gradient("reciprocal_no_nan at 0", m.reciprocal_no_nan, [np.array([0.0, 2])], [[0, -0.25]]),
    Gradient("number / x at 0", lambda x: 3 / x, [np.array([0.0, 2])], [[0, -0.75]]),
    Gradient("sqrt at 0 is infinite", m.sqrt, [np.array([0.0, 4])], [[np.inf, 0.25]]),
    Gradient("comparisons stop it", lambda x: x > 0, [_AT], [None]),
    Gradient("cast to integers", lambda x: flow.cast(x, flow.int32), [_AT], [_ONES]),
    Gradient("cast of integers", lambda x: flow.cast(x, flow.float32), [_AT.astype(np.int32)], [_ONES.astype(np.int32)]),
    Gradient("mod", m.mod, [np.array([-7.0, 7]), np.array([3.0, 3])], [[1, 1], [3, -2]]),
    Gradient("mod of integers", m.mod, [np.array([-7, 7], np.int32), np.array([3, 3], np.int32)], [[1, 1], [3, -2]]),
    Gradient("acosh", m.acosh, [np.array([2.0])], [[1 / math.sqrt(3)]]),
    Gradient("cosh", m.cosh, [np.array([2.0])], [[math.sinh(2)]]),
    Gradient("lgamma", m.lgamma, [np.array([2.0])], [[special.digamma(2)]]),
    Gradient("xlogy broadcast", m.xlogy, [np.array([[1.0], [2.0]]), np.ones(3)], [[[0], [0]], [3, 3, 3]]),
]  # fmt: skip

_F32, _I32, _I8 = X.astype(np.float32), INTEGERS, INTEGERS.astype(np.int8)
REFUSALS = [
    Refusal("exp of integers", m.exp, [_I32], DtypeError, "needs a floating-point Blob, got int32"),
    Refusal("exp of a number", lambda: m.exp(2.0), [], ArgumentError, "x must be a Blob, got float 2.0"),
    Refusal("two dtypes", lambda x, y: x + y, [_F32, _I32], DtypeError,
        "got float32 and int32; Blobs are never converted implicitly"),
    Refusal("two shapes", lambda x, y: x * y, [_F32, _F32[:, :2]], ShapeError, "shapes (2, 3) and (2, 2) do not broadcast"),
    Refusal("str", lambda x: x + "a", [_F32], ArgumentError, "a Blob can be combined with a Blob or a number, not with str 'a'"),
    Refusal("list", lambda x: x * [1, 2], [_F32], ArgumentError, "not with list [1, 2]"),
    Refusal("list in front", lambda x: [1, 2] - x, [_F32], ArgumentError, "not with list [1, 2]"),
    Refusal("None", lambda x: x == None, [_F32], ArgumentError, "write `x is None`"),  # noqa: E711
    Refusal("array", lambda x: x + np.ones(3), [_F32], ArgumentError, "not with NumPy array of shape (3,)"),
    Refusal("array in front", lambda x: np.ones(3) + x, [_F32], BlobUseError, "a NumPy array cannot be combined with a Blob"),
    Refusal("complex", lambda x: x + 1j, [_F32], ArgumentError, "not with complex 1j"),
    Refusal("two numbers", lambda: m.add(1, 2), [], ArgumentError, "needs a Blob on at least one side, got int and int"),
    Refusal("number out of range", lambda x: x + 300, [_I8], ArgumentError, "300 is outside int8's range, -128 to 127"),
    Refusal("infinite integer", lambda x: x * math.inf, [_I8], ArgumentError, "inf is outside int8's range"),
    Refusal("comparing dtypes", lambda x, y: x == y, [_F32, _I32], DtypeError, "inputs must have one dtype"),
    Refusal("comparing a str", lambda x: x < "a", [_F32], ArgumentError, "not with str 'a'"),
    Refusal("integer power", lambda x: x**-1, [_I32], ArgumentError, "can be raised to 0, 1, ... 8 only, not to -1"),
    Refusal("integer Blob power", lambda x, y: x**y, [_I32, _I32], DtypeError, "needs a floating-point Blob"),
    Refusal("@ with a number", lambda x: x @ 2, [_F32], ArgumentError, "multiply by a number with *"),
    Refusal("clip without bounds", lambda x: flow.clip(x), [_F32], ArgumentError, "needs min_value or max_value"),
    Refusal("clip with a str", lambda x: flow.clip(x, "0"), [_F32], ArgumentError, "min_value must be a number, got str '0'"),
    Refusal("cast to NumPy's", lambda x: flow.cast(x, np.float32), [_F32], ArgumentError, "write flow.float32"),
    Refusal("cast to a name", lambda x: flow.cast(x, "float"), [_F32], ArgumentError, "'float'; write flow.float\n"),
    Refusal("cast to record", lambda x: flow.cast(x, flow.record), [_F32], ArgumentError, "record has no NumPy equivalent"),
    Refusal("polyval", lambda x: m.polyval(2, x), [_F32], ArgumentError, "coeffs must be a list or tuple of numbers, got 2"),
    Refusal("add_n of shapes", lambda x, y: m.add_n([x, y]), [_F32, _F32[0]], ShapeError, "inputs must have equal shapes"),
    Refusal("add_n of nothing", lambda: m.add_n([]), [], ArgumentError, "must be a list or tuple of at least one Blob"),
    Refusal("gelu_grad", m.gelu_grad, [_F32, _F32[0]], ShapeError, "inputs must have equal shapes, got (2, 3) and (3,)"),
]  # fmt: skip
