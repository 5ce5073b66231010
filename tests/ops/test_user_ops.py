"""Op types of OneFlow's registry through ``flow.user_op_builder``: one job holds an op of every type that arrays suffice for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import pytest
from scipy import special

import oneflow as flow
import oneflow.typing as tp
from oneflow.data.onerec import encode_example, write_onerec
from oneflow.errors import ArgumentError, DuplicateNameError, ModeError
from oneflow.user_op.registry import REGISTRY

RNG = np.random.default_rng(8)


def F(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


@dataclass
class Var:
    """An input that the op writes."""

    value: np.ndarray


@dataclass(eq=False)
class Use:
    """One op: inputs by name (an array, a list of them, or a Var), attributes, and what it gives, by output's name.

    For a Var the name in ``expected`` is that of the input, and the value the one after the call.
    """

    type_name: str
    inputs: dict[str, Any]
    expected: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    atol: float = 2e-5
    op_name: str = ""


USES: list[Use] = []


def use(
    type_name: str, inputs: dict[str, Any], expected: dict[str, Any], attrs: dict[str, Any] | None = None, atol: float = 2e-5
):
    USES.append(Use(type_name, inputs, expected, attrs or {}, atol, f"op{len(USES)}"))


# --- elementwise

X, POSITIVE, SMALL, DY = F(2, 3), F(2, 3, low=0.5, high=2.0), F(2, 3, low=-0.9, high=0.9), F(2, 3)
_SIGMOID = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
UNARY = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "erf": special.erf, "erfc": special.erfc, "exp": np.exp,
    "expm1": np.expm1, "floor": np.floor, "lgamma": special.gammaln, "log": np.log, "log1p": np.log1p,
    "log_sigmoid": lambda x: np.log(_SIGMOID(x)), "negative": np.negative, "reciprocal": lambda x: 1 / x,
    "reciprocal_no_nan": lambda x: 1 / x, "rint": np.rint, "round": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid_v2": _SIGMOID, "sign": np.sign, "sin": np.sin, "sinh": np.sinh, "softplus": lambda x: np.log1p(np.exp(x)),
    "sqrt": np.sqrt, "square": np.square, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
STEPS = ("ceil", "floor", "rint", "round", "sign")


def slope(function, x, h=1e-5):
    x = np.asarray(x, np.float64)
    return (function(x + h) - function(x - h)) / (2 * h)


for name, function in UNARY.items():
    x = SMALL if name in ("acos", "asin", "atanh") else POSITIVE + 1 if name == "acosh" else POSITIVE
    use(name, {"x": x}, {"y": function(x)})
    derivative = np.zeros_like(x) if name in STEPS else slope(function, x)
    use(f"{name}_grad", {"x": x, "dy": DY}, {"dx": DY * derivative}, atol=1e-4)

BINARY = {
    "pow": np.power, "atan2": np.arctan2, "floordiv": np.floor_divide, "xdivy": np.divide, "xlogy": special.xlogy,
}  # fmt: skip
OTHER = F(2, 3, low=0.5, high=2.0)
for name, function in BINARY.items():
    use(name, {"x": POSITIVE, "y": OTHER}, {"z": function(POSITIVE, OTHER)})
    flat = name == "floordiv"
    dx = 0 * X if flat else slope(lambda v, f=function: f(v, OTHER.astype(float)), POSITIVE)
    dy = 0 * X if flat else slope(lambda v, f=function: f(POSITIVE.astype(float), v), OTHER)
    use(f"{name}_x_grad", {"x": POSITIVE, "y": OTHER, "dz": DY}, {"dx": DY * dx}, atol=1e-4)
    use(f"{name}_y_grad", {"x": POSITIVE, "y": OTHER, "dz": DY}, {"dy": DY * dy}, atol=1e-4)
for name, function in {"maximum": np.maximum, "minimum": np.minimum}.items():
    chosen = function(X, SMALL) == X
    use(f"elementwise_{name}", {"x": X, "y": SMALL}, {"z": function(X, SMALL)})
    use(f"elementwise_{name}_backward", {"dz": DY, "x": X, "y": SMALL}, {"dx": DY * chosen, "dy": DY * ~chosen})

ROW = F(1, 3, low=0.5, high=2.0)
for name, function in {
    "broadcast_add": np.add, "broadcast_sub": np.subtract, "broadcast_mul": np.multiply, "broadcast_div": np.divide,
    "broadcast_minimum": np.minimum, "broadcast_maximum": np.maximum, "broadcast_floor_mod": np.mod, "broadcast_equal": np.equal,
    "broadcast_not_equal": np.not_equal, "broadcast_greater": np.greater, "broadcast_greater_equal": np.greater_equal,
    "broadcast_less": np.less, "broadcast_less_equal": np.less_equal, "broadcast_logical_and": np.logical_and,
}.items():  # fmt: skip
    z = function(X, ROW)
    use(name, {"x": X, "y": ROW}, {"z": z.astype(np.int8) if z.dtype == bool else z})
use("broadcast_div_grad", {"y": ROW, "z": X / ROW, "dz": DY}, {"dy": (-DY * X / ROW / ROW).sum(0, keepdims=True)})
use("multiply", {"x": X, "y": DY}, {"out": X * DY})
ONE = np.array([2.5], np.float32)
for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}.items():
    use(f"scalar_{name}_by_tensor", {"x": X, "scalar": ONE}, {"y": function(X, ONE)})
BY_FLOAT = {"has_int_operand": False, "has_float_operand": True, "float_operand": 1.5}
BY_INT = {"has_int_operand": True, "has_float_operand": False, "int_operand": 3}
I32 = np.array([[3, -1, 2], [0, 5, -4]], np.int32)
use("scalar_add", {"in": X}, {"out": X + 1.5}, BY_FLOAT)
use("scalar_add", {"in": I32}, {"out": I32 + 3}, BY_INT)
use("scalar_mul", {"in": X}, {"out": X * 1.5}, BY_FLOAT)
use("scalar_mul", {"in": I32}, {"out": I32 * 3}, BY_INT)
use("scalar_pow", {"in": POSITIVE}, {"out": POSITIVE**3}, {"exponent": 3.0})
use("scalar_pow_grad", {"x": POSITIVE, "dy": DY}, {"dx": DY * 3 * POSITIVE**2}, {"exponent": 3.0}, atol=1e-4)

_GELU = lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2)))  # noqa: E731
_HARD = lambda x: np.clip(x / 6 + 0.5, 0, 1)  # noqa: E731
for name, function, attrs in [
    ("relu", lambda x: np.maximum(x, 0), {}), ("ccrelu", lambda x: np.maximum(x, 0), {}), ("gelu", _GELU, {}),
    ("hardsigmoid", _HARD, {}), ("hardswish", lambda x: x * _HARD(x), {}),
    ("elu", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), {"alpha": 0.5}),
    ("hardtanh", lambda x: np.clip(x, -0.5, 0.7), {"min_val": -0.5, "max_val": 0.7}),
]:  # fmt: skip
    use(name, {"in": X}, {"out": function(X)}, attrs)
    at = {"y": function(X)} if name in ("relu", "ccrelu", "hardtanh") else {"x": X}
    use(f"{name}_grad", {**at, "dy": DY}, {"dx": DY * slope(function, X)}, attrs, atol=1e-4)
use("sigmoid", {"in": X}, {"out": _SIGMOID(X)})
use("sigmoid_grad", {"y": _SIGMOID(X), "dy": DY}, {"dx": DY * slope(_SIGMOID, X)})
use("cpu_only_relu_test", {"in": X}, {"out": np.maximum(X, 0)})
use("leaky_relu", {"x": X}, {"y": np.where(X > 0, X, 0.1 * X)}, {"alpha": 0.1})
use("leaky_relu_grad", {"x": X, "dy": DY}, {"dx": np.where(X > 0, DY, 0.1 * DY)}, {"alpha": 0.1})
ALPHA = np.array([0.5, 0.1, 0.2], np.float32)
use("prelu", {"x": X, "alpha": ALPHA}, {"y": np.where(X > 0, X, ALPHA * X)})
use("prelu_grad", {"dy": DY, "x": X, "alpha": ALPHA},
    {"dx": np.where(X > 0, DY, ALPHA * DY), "alpha_diff": np.where(X > 0, 0, X * DY).sum(0)})  # fmt: skip
CLIP = {"floating_min": -0.5, "integral_min": -1, "floating_max": 0.7, "integral_max": 3}
LOW, HIGH = {k: v for k, v in CLIP.items() if "min" in k}, {k: v for k, v in CLIP.items() if "max" in k}
for suffix, attrs, low, high in [("", CLIP, -0.5, 0.7), ("_min", LOW, -0.5, np.inf), ("_max", HIGH, -np.inf, 0.7)]:
    use(f"clip_by_scalar{suffix}", {"x": X}, {"y": np.clip(X, low, high)}, attrs)
    use(f"clip_by_scalar{suffix}_grad", {"dy": DY, "x": X}, {"dx": DY * ((low <= X) & (high >= X))}, attrs)
use("clip_by_scalar", {"x": I32}, {"y": np.clip(I32, -1, 3)}, CLIP)
use("add_n", {"in": [X, DY, SMALL]}, {"out": X + DY + SMALL})
use("cast", {"in": X}, {"out": X.astype(np.int32)}, {"dtype": flow.int32})
use("cast_like", {"in": X, "dtype_like": I32}, {"out": X.astype(np.int32)})
use("fused_cast_scale", {"x": I32, "scalar": ONE}, {"y": I32 * np.float32(2.5)})
use("identity", {"in": X}, {"out": X})
use("amp_white_identity", {"in": X}, {"out": X})
use("tuple_identity", {"in": [X, I32]}, {"out": [X, I32]})
use("where", {"condition": (X > 0).astype(np.int8), "x": X, "y": DY}, {"out": np.where(X > 0, X, DY)})

# --- reductions, sorting, shapes

for name, function in {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}.items():
    use(f"reduce_{name}", {"input_tensor": X}, {"output_tensor": function(X, 1, keepdims=True)}, {"axis": [1], "keepdims": True})
BITS = np.array([[1, 0, 1], [1, 1, 1]], np.int8)
use("reduce_any", {"input_tensor": BITS}, {"output_tensor": np.array([1, 1], np.int8)}, {"axis": [1], "keepdims": False})
use("reduce_all", {"input_tensor": BITS}, {"output_tensor": np.array([0, 1], np.int8)}, {"axis": [1], "keepdims": False})
use("reduce_sum_like", {"x": X, "like": ROW}, {"y": X.sum(0, keepdims=True)}, {"axis": [0]})
use("square_sum", {"x": X}, {"y": np.square(X).sum().reshape(1)})
use("multi_square_sum", {"x": [X, F(4)]}, {})
USES[-1].expected = {"y": np.array([sum(np.square(v).sum() for v in USES[-1].inputs["x"])])}
ODD = np.array([1, np.nan, np.inf], np.float32)
use("count_not_finite", {"x": ODD}, {"y": np.array([2])})
use("multi_count_not_finite", {"x": [ODD, X, ODD]}, {"y": np.array([4])})
TIES = np.array([[1, 3, 3], [2, 0, 1]], np.float32)
for kind, best in {"max": np.max, "min": np.min}.items():
    out = best(TIES, 1, keepdims=True)
    mask = (TIES == out).astype(np.int8)
    count = mask.sum(1, keepdims=True).astype(np.int32)
    use(f"reduce_{kind}_device_stage", {"in": TIES}, {"out": out, "mask": mask, "count": count}, {"axis": [1]})
    use(f"reduce_{kind}_device_stage_grad", {"out_diff": out, "mask": mask, "count": count}, {"in_diff": out * mask / count},
        {"axis": [1]})  # fmt: skip
    both = {"axis": [1], "keepdims": False}
    use(f"reduce_{kind}_global_stage", {"in": TIES, "device_count": count + 0 * mask}, {"out": out[:, 0], "mask": mask}, both)
    weights = mask * np.array([1, 2, 3], np.int32)
    use(f"reduce_{kind}_global_stage_grad",
        {"out_diff": out[:, 0], "mask": mask, "device_count": np.tile(np.array([1, 2, 3], np.int32), (2, 1))},
        {"in_diff": out * weights / weights.sum(1, keepdims=True)}, both)  # fmt: skip
use("arg_sort", {"in": X}, {"out": np.argsort(-X).astype(np.int32)}, {"direction": "DESCENDING"})
use("sort", {"in": X}, {"out": np.sort(X)}, {"direction": "ASCENDING"})
use("argmax", {"in": X}, {"out": X.argmax(-1).astype(np.int32)})
use("top_k", {"in": X}, {"out": np.argsort(-X)[:, :2].astype(np.int32)}, {"k": 2, "sorted": True})
use("in_top_k", {"targets": np.array([0, 2], np.int32), "predictions": TIES}, {"out": np.array([0, 1], np.int8)}, {"k": 2})
use("reshape", {"in": X}, {"out": X.reshape(3, 2)}, {"shape": [3, 2]})
use("TestReshape", {"in": X}, {"out": X.reshape(3, 2)}, {"shape": (3, 2)})
use("TestReshape4KeepHeaderOnly", {"in": X}, {"out": X.reshape(6)}, {"shape": (6,)})
use("reshape_like", {"in": X, "like": F(3, 2)}, {"out": X.reshape(3, 2)})
use("TestReshapeLike4KeepHeaderOnly", {"in": X, "like": F(3, 2)}, {"out": X.reshape(3, 2)})
use("flatten", {"in": X}, {"out": X.reshape(6)})
use("expand_dims", {"in": X}, {"out": X[:, None]}, {"axis": 1})
use("squeeze", {"in": ROW}, {"out": ROW[0]}, {"axes": [0]})
use("transpose", {"input": X}, {"output": X.T}, {"perm": [1, 0]})
use("concat", {"in": [X, DY]}, {"out": np.concatenate([X, DY], 1)}, {"axis": 1, "max_dim_size": 6})
use("broadcast_like", {"x": ROW, "like": X}, {"y": ROW + 0 * X}, {"broadcast_axes": [0]})
use("cast_to_static_shape", {"input": X}, {"output": X})
REGION = {"start": [0, 1], "stop": [2, 3], "step": [1, 1]}
PUT = F(2, 2)
region = (slice(0, 2), slice(1, 3))
use("slice", {"x": X}, {"y": X[region]}, REGION)
use("logical_slice", {"x": X}, {"y": X[region]}, REGION)
padded = np.zeros_like(X)
padded[region] = PUT
use("slice_grad", {"dy": PUT, "like": X}, {"dx": padded}, REGION)
updated = X.copy()
updated[region] = PUT
use("slice_update", {"x": X, "update": PUT}, {"y": updated}, REGION)
use("logical_slice_assign", {"ref": Var(X), "value": PUT}, {"ref": updated}, REGION)
use("split_like", {"in": X, "like": [F(2, 1), F(2, 2)]}, {"out": [X[:, :1], X[:, 1:]]}, {"axis": 1})
PADS = {"padding_before": [1, 0], "padding_after": [0, 2], "floating_constant_value": 7.0, "integral_constant_value": 7}
use("pad", {"x": X}, {"y": np.pad(X, [(1, 0), (0, 2)], constant_values=7)}, PADS)
use("pad_grad", {"dy": np.pad(X, [(1, 0), (0, 2)])}, {"dx": X}, PADS)

# --- indices, constants, random numbers

AT = np.array([2, 0], np.int32)
use("gather", {"in": X, "indices": AT}, {"out": X[:, AT]}, {"axis": 1})
use("batch_gather", {"in": X, "indices": I32[:, :1] * 0 + 1}, {"out": X[:, 1:2]})
COORDINATES = np.array([[0, 1], [1, 2]], np.int32)
PICKED = np.array([5.0, 7.0], np.float32)
scattered = np.zeros((2, 3), np.float32)
scattered[[0, 1], [1, 2]] = PICKED
use("gather_nd", {"params": X, "indices": COORDINATES}, {"out": X[[0, 1], [1, 2]]})
use("scatter_nd", {"indices": COORDINATES, "updates": PICKED}, {"out": scattered}, {"shape": (2, 3)})
use("scatter_nd_like", {"like": X, "indices": COORDINATES, "updates": PICKED}, {"out": scattered})
use("tensor_scatter_nd_add", {"params": X, "updates": PICKED, "indices": COORDINATES}, {"out": X + scattered})
use("tensor_scatter_nd_update", {"params": X, "updates": PICKED, "indices": COORDINATES},
    {"out": np.where(scattered == 0, X, scattered)})  # fmt: skip
PLACES = np.array([[1, 0, 1]], np.int32)
use("dim_gather", {"input": X, "index": PLACES}, {"output": np.take_along_axis(X, PLACES, 0)}, {"dim": 0})
put = np.zeros_like(X)
np.add.at(put, (PLACES, np.arange(3)[None]), ROW)
use("dim_scatter_add_like", {"like": X, "input": ROW, "index": PLACES}, {"output": put}, {"dim": 0})
IDS = np.array([1, 1], np.int32)
summed = np.stack([0 * X[0], X.sum(0)])
use("unsorted_segment_sum", {"data": X, "segment_ids": IDS}, {"out": summed}, {"axis": 0, "num_segments": 2})
use("unsorted_segment_sum_like", {"data": X, "segment_ids": IDS, "like": X}, {"out": summed}, {"axis": 0})
use("unsorted_batch_segment_sum", {"data": X, "segment_ids": np.zeros((2, 3), np.int32)},
    {"out": np.stack([X.sum(1), 0 * X[:, 0]], 1)}, {"num_segments": 2})  # fmt: skip
use("one_hot", {"indices": AT}, {"out": np.eye(3, dtype=np.float32)[AT] * 2 - 1},
    {"depth": 3, "floating_on_value": 1.0, "integer_on_value": 1, "floating_off_value": -1.0, "integer_off_value": -1,
     "dtype": flow.float32})  # fmt: skip
use("constant", {}, {"out": np.full((2, 2), 2.5, np.float32)},
    {"floating_value": 2.5, "integer_value": 0, "is_floating_value": True, "dtype": flow.float32, "shape": (2, 2)})  # fmt: skip
use("range", {}, {"out": np.arange(1, 8, 2)}, {"start": 1, "delta": 2, "limit": 8, "dtype": flow.int64})
use("zero_like", {"like": I32}, {"out": 0 * I32})
SURE = np.array([[0, 1], [1, 0]], np.float32)
use("bernoulli", {"in": SURE}, {"out": SURE.astype(np.int8)}, {"seed": 3, "has_seed": True, "dtype": flow.int8})
use("coin_flip", {}, {"out": np.ones(4, np.int8)}, {"probability": 1.0, "batch_size": 4})
use("generate_random_batch_permutation_indices", {"x": F(1, 3)}, {"y": np.array([0], np.int32)}, {"seed": 3})
use("random_mask_like", {"like": X}, {"out": np.ones((2, 3), np.int8)}, {"rate": 0.0, "seed": 3})
use("dropout", {"in": X, "mask": BITS, "_add_to_output": DY}, {"out": X * BITS * 1.25 + DY}, {"scale": 1.25})
use("dropout_grad", {"dy": DY, "mask": BITS}, {"dx": DY * BITS * 1.25}, {"scale": 1.25})

# --- products, windows

A, B = F(2, 2, 3), F(2, 4, 3)
use("matmul", {"a": X, "b": DY, "_add_to_output": PUT}, {"out": X @ DY.T + PUT}, {"transpose_b": True})
use("batch_matmul", {"a": A, "b": B}, {"out": A @ B.transpose(0, 2, 1)}, {"transpose_b": True})
use("bias_add", {"a": A, "b": ALPHA}, {"out": A + ALPHA}, {"axis": 2})
SQUARE = F(3, 3)
FILL = {"diagonal": 0, "floating_fill_value": -1.0, "is_floating_fill_value": True}
use("tril", {"in": SQUARE}, {"out": np.where(np.tri(3) > 0, SQUARE, -1)}, FILL)
use("fused_scale_tril", {"in": SQUARE}, {"out": np.where(np.tri(3) > 0, SQUARE * 2, -1)},
    {**FILL, "floating_scale_value": 2.0, "is_floating_scale_value": True})  # fmt: skip


def torch():
    return pytest.importorskip("torch")


IMAGES = {1: F(2, 4, 7), 2: F(2, 4, 7, 6), 3: F(1, 4, 5, 4, 5)}
for dims, image in IMAGES.items():
    weight, bias = F(6, 2, *(3,) * dims), F(6)
    window = {"padding_before": [1] * dims, "data_format": "channels_first", "kernel_size": [3] * dims, "strides": [2] * dims,
              "dilation_rate": [1] * dims, "groups": 2}  # fmt: skip
    t = torch()
    x, w, b = (t.tensor(v, requires_grad=True) for v in (image, weight, bias))
    y = getattr(t.nn.functional, f"conv{dims}d")(x, w, b, stride=2, padding=1, groups=2)
    grad = F(*y.shape)
    y.backward(t.tensor(grad))
    use(
        f"conv{dims}d", {"in": image, "weight": weight, "bias": bias}, {"out": y.detach().numpy()}, {**window, "filters": 6}, 1e-4
    )
    spatial = {**window, "num_spatial_dims": dims}
    use("conv_data_grad", {"dy": grad, "filter": weight, "x_like": image}, {"dx": x.grad.numpy()}, spatial, 1e-4)
    use("conv_filter_grad", {"dy": grad, "x": image}, {"filter_diff": w.grad.numpy()}, spatial, 2e-4)
    use(
        "conv_bias_grad",
        {"dy": grad},
        {"bias_diff": b.grad.numpy()},
        {"data_format": "channels_first", "num_spatial_dims": dims},
        1e-4,
    )
    up = getattr(t.nn.functional, f"conv_transpose{dims}d")(t.tensor(grad), t.tensor(weight), stride=2, padding=1, groups=2,
                                                           output_padding=1)  # fmt: skip
    turned = {**window, "filters": 4, "output_padding": [1] * dims}
    use(f"deconv{dims}d", {"in": grad, "weight": weight}, {"out": up.numpy()}, turned, 1e-4)
    for kind in ("avg", "max"):
        pooled = {"padding": "customized", "padding_before": [0] * dims, "padding_after": [0] * dims,
                  "data_format": "channels_first", "pool_size": [2] * dims, "strides": [2] * dims,
                  "ceil_mode": False}  # fmt: skip
        x.grad = None
        y = getattr(t.nn.functional, f"{kind}_pool{dims}d")(x, 2, 2)
        grad = F(*y.shape)
        y.backward(t.tensor(grad))
        use(f"{kind}_pool_{dims}d", {"x": image}, {"y": y.detach().numpy()}, pooled)
        use(f"{kind}_pool_{dims}d_grad", {"x": image, "y": y.detach().numpy(), "dy": grad}, {"dx": x.grad.numpy()}, pooled)
SAME = {
    "padding": "same_lower",
    "data_format": "channels_first",
    "kernel_size": [2, 2],
    "strides": [1, 1],
    "dilation_rate": [1, 1],
}
IMAGE = IMAGES[2]
use("same_padding", {"x": IMAGE}, {"y": np.pad(IMAGE, [(0, 0), (0, 0), (1, 0), (1, 0)])}, SAME)
use("same_padding_grad", {"x_like": IMAGE, "dy": np.pad(IMAGE, [(0, 0), (0, 0), (1, 0), (1, 0)])}, {"dx": IMAGE}, SAME)
reflected = np.pad(IMAGE, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="reflect")
use("reflection_pad2d", {"x": IMAGE}, {"y": reflected}, {"padding": [1, 1, 1, 1]})
t = torch()
x = t.tensor(IMAGE, requires_grad=True)
t.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect").backward(t.tensor(reflected))
use("reflection_pad2d_grad", {"dy": reflected}, {"dx": x.grad.numpy()}, {"padding": [1, 1, 1, 1]})
UP = {"height_scale": 2.0, "width_scale": 2.0, "data_format": "channels_first", "interpolation": "bilinear"}
x = t.tensor(IMAGE, requires_grad=True)
y = t.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
y.backward(y.detach())
use("upsample", {"x": IMAGE}, {"y": y.detach().numpy()}, UP)
use("upsample_grad", {"dy": y.detach().numpy()}, {"dx": x.grad.numpy()}, UP, 1e-4)

# --- softmax, losses, normalization

PROB = special.softmax(X, -1)
LABELS = np.array([2, 0], np.int32)
HOT = np.eye(3, dtype=np.float32)[LABELS]
use("softmax", {"in": X}, {"out": PROB})
use("softmax_grad", {"y": PROB, "dy": DY}, {"dx": PROB * (DY - (PROB * DY).sum(-1, keepdims=True))})
D1 = F(2)
loss = -np.log(PROB[[0, 1], LABELS])
use("softmax_cross_entropy", {"prediction": X, "label": HOT}, {"prob": PROB, "out": loss})
use("softmax_cross_entropy_grad", {"dy": D1, "label": HOT, "prob": PROB}, {"prediction_diff": D1[:, None] * (PROB - HOT)})
for ms in ("", "_ms"):
    use(f"sparse_cross_entropy{ms}", {"prediction": PROB, "label": LABELS}, {"out": loss}, {"depth": 3})
    use(f"sparse_cross_entropy{ms}_grad", {"prediction": PROB, "label": LABELS, "dy": D1},
        {"prediction_diff": -D1[:, None] * HOT / PROB}, {"depth": 3}, 1e-4)  # fmt: skip
    use(f"sparse_softmax_cross_entropy{ms}", {"prediction": X, "label": LABELS}, {"prob": PROB, "out": loss}, {"depth": 3})
    use(f"sparse_softmax_cross_entropy{ms}_grad", {"label": LABELS, "dy": D1, "prob": PROB},
        {"prediction_diff": D1[:, None] * (PROB - HOT)}, {"depth": 3})  # fmt: skip
_SMOOTH = lambda p: np.where(np.abs(p - DY) < 0.5, (p - DY) ** 2, np.abs(p - DY) - 0.25)  # noqa: E731
use("smooth_l1_loss", {"prediction": X, "label": DY}, {"loss": _SMOOTH(X)}, {"beta": 0.5})
use("smooth_l1_loss_grad", {"loss_grad": SMALL, "prediction": X, "label": DY},
    {"prediction_grad": SMALL * slope(_SMOOTH, X)}, {"beta": 0.5}, 1e-3)  # fmt: skip
THETA = np.arccos(SMALL[[0, 1], LABELS])
MARGIN = {"m1": 1.0, "m2": 0.5, "m3": 0.1, "depth": 3}
use("combined_margin_loss", {"x": SMALL, "label": LABELS},
    {"y": np.where(HOT == 1, (np.cos(THETA + 0.5) - 0.1)[:, None], SMALL), "theta": THETA}, MARGIN)  # fmt: skip
use("combined_margin_loss_grad", {"dy": DY, "label": LABELS, "theta": THETA},
    {"dx": np.where(HOT == 1, DY * (np.sin(THETA + 0.5) / np.sin(THETA))[:, None], DY)}, MARGIN, 1e-4)  # fmt: skip
total = np.square(X).sum(1, keepdims=True)
L2 = {"axis": 1, "epsilon": 1e-6}
use("l2_normalize", {"x": X}, {"y": X / np.sqrt(total), "square_x_sum": total}, L2)
unit = X / np.sqrt(total)
use("l2_normalize_grad", {"dy": DY, "y": unit, "square_x_sum": total},
    {"dx": (DY - unit * (DY * unit).sum(1, keepdims=True)) / np.sqrt(total)}, L2, 1e-4)  # fmt: skip
GAMMA, BETA = F(3, low=0.5), F(3)
mean, inverse = X.mean(1), 1 / np.sqrt(X.var(1) + 1e-5)
normalized = (X - mean[:, None]) * inverse[:, None]
use("layer_norm", {"x": X, "beta": BETA, "gamma": GAMMA},
    {"y": normalized * GAMMA + BETA, "mean": mean, "inv_variance": inverse, "normalized": normalized},
    {"center": True, "scale": True, "begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5}, 1e-4)  # fmt: skip
dx = inverse[:, None] * (DY - DY.mean(1, keepdims=True) - normalized * (DY * normalized).mean(1, keepdims=True))
use("layer_norm_grad", {"dy": DY, "x": X, "mean": mean, "inv_variance": inverse}, {"dx": dx},
    {"begin_norm_axis": 1, "epsilon": 1e-5}, 1e-4)  # fmt: skip
use("layer_norm_param_grad", {"dy": DY, "normalized": normalized, "gamma": GAMMA},
    {"normalized_diff": DY * GAMMA, "beta_diff": DY.sum(0), "gamma_diff": (DY * normalized).sum(0)},
    {"begin_params_axis": 1})  # fmt: skip
mean, variance = X.mean(0), X.var(0)
inverse = 1 / np.sqrt(variance + 1e-3)
normalized = (X - mean) * inverse
NORM = {"axis": 1, "epsilon": 1e-3, "momentum": 0.75}
moved = {"moving_mean": 0.25 * mean, "moving_variance": 0.75 + 0.25 * variance}
both = {"gamma": GAMMA, "beta": BETA}


def statistics():
    return {"moving_mean": Var(np.zeros(3, np.float32)), "moving_variance": Var(np.ones(3, np.float32))}


use("normalization", {"x": X, **statistics(), **both},
    {"y": normalized * GAMMA + BETA, "mean": mean, "inv_variance": inverse, **moved},
    {**NORM, "training": True}, 1e-4)  # fmt: skip
use(
    "normalization", {"x": X, **statistics(), **both}, {"y": X / np.sqrt(1.001) * GAMMA + BETA}, {**NORM, "training": False}, 1e-4
)
d_gamma, d_beta = (DY * normalized).sum(0), DY.sum(0)
dx = GAMMA * inverse * (DY - d_beta / 2 - normalized * d_gamma / 2)
EPS = {"axis": 1, "epsilon": 1e-3}
use("normalization_grad", {"x": X, "dy": DY, "mean": mean, "inv_variance": inverse, "gamma": GAMMA},
    {"gamma_diff": d_gamma, "beta_diff": d_beta, "dx": dx}, EPS, 1e-4)  # fmt: skip
y = np.maximum(normalized * GAMMA + BETA + DY, 0)
masked = np.where(y > 0, DY, 0)
d_gamma, d_beta = (masked * normalized).sum(0), masked.sum(0)
dx = GAMMA * inverse * (masked - d_beta / 2 - normalized * d_gamma / 2)
for name in ("normalization_add_relu", "cudnn_fused_normalization_add_relu"):
    use(
        name,
        {"x": X, "addend": DY, **statistics(), **both},
        {"y": y, "reserve_space": (y > 0).astype(np.int8), **moved},
        NORM,
        1e-4,
    )
    use(f"{name}_grad", {"x": X, "dy": DY, "mean": mean, "inv_variance": inverse, **both, "reserve_space": BITS, "y": y},
        {"gamma_diff": d_gamma, "beta_diff": d_beta, "dx": dx, "addend_diff": masked}, EPS, 1e-4)  # fmt: skip

# --- effects

V = F(2, 3)
use("assign", {"ref": Var(V), "value": X}, {"ref": X})
YES, NO = np.array([1], np.int32), np.array([0], np.int32)
use("assign_if", {"ref": Var(V), "value": X, "condition": YES}, {"ref": X})
use("assign_if_not", {"ref": Var(V), "value": X, "condition": YES}, {"ref": V})
use("dynamic_loss_scale_schedule",
    {"count_not_finite": np.array([2]), "loss_scale": Var(np.array([8.0], np.float32)), "good_step_counter": Var(np.array([5]))},
    {"loss_scale": np.array([4.0]), "good_step_counter": np.array([0])})  # fmt: skip
use("dynamic_loss_scale_schedule",
    {"count_not_finite": np.array([0]), "loss_scale": Var(np.array([8.0], np.float32)), "good_step_counter": Var(np.array([5]))},
    {"loss_scale": np.array([16.0]), "good_step_counter": np.array([0])}, {"increment_period": 6})  # fmt: skip
use("l1_l2_regularize_gradient", {"model": X, "model_diff": DY}, {"out": DY + 0.1 * np.sign(X) + 0.2 * X}, {"l1": 0.1, "l2": 0.2})
LR = np.array([0.1], np.float32)
use("adam_bias_correction_learning_rate", {"learning_rate": LR, "train_step": np.array([2])},
    {"out": LR * np.sqrt(1 - 0.999**3) / (1 - 0.9**3)})  # fmt: skip
STEP = {"model_diff": DY, "learning_rate": LR}
g = 0.5 * DY + 0.1 * np.sign(V) + 0.2 * V
REST = {"scale": 0.5, "l1": 0.1, "l2": 0.2, "weight_decay": 0.3}
SKIP = {"skip_if": np.array([1])}
use("sgd_update", {"model": Var(V), **STEP}, {"model": V - 0.1 * (g + 0.3 * V)}, REST)
use("sgd_update", {"model": Var(V), **STEP, **SKIP}, {"model": V}, REST)
use("sgd_update", {"model": Var(V), **STEP, "scale_by_tensor": ONE}, {"model": V - 0.1 * 2.5 * DY})
M = F(2, 3)
new = 0.8 * M - 0.1 * g
use("momentum_update", {"model": Var(V), **STEP, "momentum": Var(M)}, {"model": V + new - 0.03 * V, "momentum": new},
    {**REST, "beta": 0.8})  # fmt: skip
m, v = 0.9 * M + 0.1 * DY, 0.999 * M**2 + 0.001 * DY**2
use("adam_update", {"model": Var(V), **STEP, "m": Var(M), "v": Var(M**2)},
    {"m": m, "v": v, "model": V - 0.1 * m / (np.sqrt(v) + 1e-8)})  # fmt: skip
s, a = 0.99 * M**2 + 0.01 * DY**2, 0.99 * M * 0.1 + 0.01 * DY
use("rmsprop_update", {"model": Var(V), **STEP, "mean_square": Var(M**2)},
    {"mean_square": s, "model": V - 0.1 * DY / np.sqrt(s + 1e-8)})  # fmt: skip
use("rmsprop_update", {"model": Var(V), **STEP, "mean_square": Var(M**2), "mean_gradient": Var(M * 0.1)},
    {"mean_square": s, "mean_gradient": a, "model": V - 0.1 * DY / np.sqrt(s - a**2 + 1e-8)},
    {"centered": True}, 1e-4)  # fmt: skip
q = 0.1 * 0.5 * np.linalg.norm(V) / (1e-9 + np.linalg.norm(DY))
new = 0.9 * M - q * DY
use("lars_update", {"model": Var(V), **STEP, "train_step": np.array([3]), "momentum": Var(M)},
    {"momentum": new, "model": V + new}, {"lars_coefficient": 0.5})  # fmt: skip
p1, p2 = np.array([0.81], np.float32), np.array([0.998001], np.float32)
u = (m / (1 - p1)) / np.sqrt(v / (1 - p2) + 1e-6)
use("lamb_update",
    {"m": Var(M), "v": Var(M**2), "beta1_t": Var(np.array([0.9], np.float32)), "beta2_t": Var(np.array([0.999], np.float32)),
     "model": Var(V), **STEP},
    {"m": m, "v": v, "beta1_t": p1, "beta2_t": p2, "model": V - 0.1 * np.linalg.norm(V) / np.linalg.norm(u) * u},
    {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}, 1e-3)  # fmt: skip
ROWS = {"model_diff_indices": np.array([1, 1], np.int32), "model_diff_values": DY, "learning_rate": LR}
dense = np.stack([0 * DY[0], DY.sum(0)])
use("indexed_slices_sgd_update", {"model": Var(V), **ROWS},
    {"model": np.stack([V[0], V[1] - 0.1 * (dense[1] + 0.3 * V[1])])}, {"weight_decay": 0.3})  # fmt: skip
new = np.stack([M[0], 0.9 * M[1] - 0.1 * dense[1]])
use("indexed_slices_momentum_update", {"model": Var(V), **ROWS, "momentum": Var(M)},
    {"momentum": new, "model": np.stack([V[0], V[1] + new[1]])})  # fmt: skip
m = np.stack([M[0], 0.9 * M[1] + 0.1 * dense[1]])
v = np.stack([M[0] ** 2, 0.999 * M[1] ** 2 + 0.001 * dense[1] ** 2])
use("indexed_slices_adam_update", {"model": Var(V), **ROWS, "m": Var(M), "v": Var(M**2)},
    {"m": m, "v": v, "model": np.stack([V[0], V[1] - 0.1 * m[1] / (np.sqrt(v[1]) + 1e-8)])}, atol=1e-4)  # fmt: skip
scale = np.abs(X).max().reshape(1) / 127
use("min_max_observer", {"in": X}, {"scale": scale, "zero_point": np.zeros(1)})
use("fake_quantization", {"in": X, "scale": scale, "zero_point": np.zeros(1, np.float32)},
    {"out": np.round(X / scale) * scale})  # fmt: skip
use("moving_average_min_max_observer",
    {"in": X, "current_train_step": np.array([0]), "moving_max": Var(0 * ONE), "moving_min": Var(0 * ONE)},
    {"scale": scale, "moving_max": scale * 127}, {"training": True, "stop_update_after_iters": 5})  # fmt: skip
use("ssp_variable_proxy", {"var": Var(V)}, {"ref": V, "value": V}, {"buffer_size": 3})
use("distributed_partial_fc_sample_disable_boxing", {"sampled_weight_diff": X, "sampled_label": AT},
    {"boxing_disabled_sampled_weight_diff": X, "boxing_disabled_sampled_label": AT})  # fmt: skip
use("TestMultiInputGrad", {"x1": X, "x2": X, "y_diff": DY}, {"x1_diff": np.ones_like(X), "x2_diff": np.full_like(X, 2)})

ELSEWHERE = {  # tested with what they need: files, images, several devices, varying sizes
    "TestDataTypeAttr", "TestListDataTypeAndListShapeAndListStringAttr", "TestMultiInput", "TestMultiOutputOrder", "TestSource",
    "TestDynamicSource", "TestRandomSource", "TestSourceMultiGpuFixedOutNum",
    "COCOReader", "OFRecordReader", "OneRecReader", "ofrecord_image_classification_reader", "ofrecord_bytes_decoder",
    "ofrecord_image_decoder", "ofrecord_image_decoder_random_crop", "ofrecord_raw_decoder", "onerec_decoder", "image_decode",
    "image_flip", "image_normalize", "image_random_crop", "image_batch_align", "image_target_resize",
    "image_resize_keep_aspect_ratio", "image_resize_to_fixed", "crop_mirror_normalize_from_tensorbuffer",
    "crop_mirror_normalize_from_uint8", "object_bbox_flip", "object_bbox_scale", "object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale", "object_segmentation_polygon_to_mask", "tensor_buffer_to_tensor",
    "tensor_to_tensor_buffer", "acc", "pack", "unpack", "repeat", "eager_nccl_all_reduce", "argwhere",
    "distributed_partial_fc_sample", "CategoricalOrdinalEncode", "create_summary_writer", "flush_summary_writer",
    "summary_write_scalar", "summary_write_histogram", "summary_write_image", "summary_write_pb",
}  # fmt: skip


def build(item: Use, inputs: dict[str, Any]) -> dict[str, Any]:
    builder = flow.user_op_builder(item.op_name).Op(item.type_name)
    for name, value in inputs.items():
        builder = builder.Input(name, value if isinstance(value, list) else [value])
    for output in REGISTRY[item.type_name].outputs:
        expected = item.expected.get(output.name)
        if expected is not None:
            builder = builder.Output(output.name, len(expected) if isinstance(expected, list) else 1)
    for name, value in item.attrs.items():
        builder = builder.Attr(name, value)
    op = builder.Build().InferAndTryRun()
    return {f"{item.op_name} {o} {i}": b for o, blobs in op.RemoteBlobDict().items() for i, b in enumerate(blobs)}


@pytest.fixture(scope="module")
def outcome():
    """The value of every output and, after the call, of every variable; or the error of an op that could not be built."""
    arrays: dict[int, np.ndarray] = {}
    for item in USES:
        for value in item.inputs.values():
            arrays |= {id(a): a for a in (value if isinstance(value, list) else [value]) if isinstance(a, np.ndarray)}
    places = tuple(
        tp.Numpy.Placeholder(a.shape, {"f": flow.float32, "i": flow.int32}[a.dtype.kind] if a.dtype.itemsize == 4 else
                             {"f": flow.float64, "i": flow.int64}[a.dtype.kind] if a.dtype.itemsize == 8 else flow.int8)
        for a in arrays.values()
    )  # fmt: skip
    errors: dict[str, Exception] = {}
    variables: dict[str, np.ndarray] = {}

    def job(given):
        blobs = dict(zip(arrays, given, strict=True))
        results = {}
        for item in USES:
            inputs = {}
            for name, value in item.inputs.items():
                if isinstance(value, Var):
                    variables[f"{item.op_name}-{name}"] = value.value
                    dtype = {np.float32: flow.float32, np.int64: flow.int64}[value.value.dtype.type]
                    inputs[name] = flow.get_variable(f"{item.op_name}-{name}", value.value.shape, dtype, flow.zeros_initializer())
                elif isinstance(value, list):
                    inputs[name] = [blobs[id(a)] for a in value]
                else:
                    inputs[name] = blobs[id(value)]
            try:
                results |= build(item, inputs)
            except Exception as error:
                errors[item.op_name] = error
        return results

    import typing

    job.__annotations__ = {"given": typing.Tuple[places], "return": tp.Bundle[tp.Numpy]}  # noqa: UP006
    flow.clear_default_session()
    function = flow.global_function("predict")(job)
    assert function.graph is not None
    flow.load_variables(variables)
    values = function(tuple(arrays.values()))
    values |= {name: flow.get_all_variables()[name].numpy() for name in variables}
    flow.clear_default_session()
    return values, errors


@pytest.mark.parametrize("item", USES, ids=lambda u: f"{u.type_name}-{u.op_name}")
def test_values(item: Use, outcome) -> None:
    values, errors = outcome
    if item.op_name in errors:
        raise errors[item.op_name]
    for name, expected in item.expected.items():
        if isinstance(item.inputs.get(name), Var):
            found = [values[f"{item.op_name}-{name}"]]
        else:
            found = [values[f"{item.op_name} {name} {i}"] for i in range(len(expected) if isinstance(expected, list) else 1)]
        for f, e in zip(found, expected if isinstance(expected, list) else [expected], strict=True):
            e = np.asarray(e)
            assert f.shape == e.shape, f"{name}: {f.shape} instead of {e.shape}"
            np.testing.assert_allclose(f, e.astype(f.dtype), rtol=1e-4, atol=item.atol, err_msg=name)


def test_every_type_is_tried() -> None:
    built = {name for name, registered in REGISTRY.items() if registered.build is not None}
    assert built == {u.type_name for u in USES} | ELSEWHERE
    assert all(registered.why_not for registered in REGISTRY.values() if registered.build is None)
    assert set(flow.user_op_names()) >= built


# --- the builder


def describe(body):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return body(x)

    return job


def test_names_and_order_of_outputs():
    def body(x):
        with flow.scope.namespace("outer"):
            label = flow.constant(1, flow.int32, (2,))
            op = flow.user_op_builder("loss").Op("sparse_softmax_cross_entropy").Input("prediction", [x]).Input("label", [label])
            op = op.Output("out").Output("prob").Attr("depth", 3).Build().InferAndTryRun()
            out, prob = op.RemoteBlobList()
            assert (out.shape, prob.shape) == ((2,), (2, 3))
            assert out.logical_blob_name == "outer-loss/out_0"
            assert set(op.RemoteBlobDict()) == {"out", "prob"}
            relu = flow.user_op_builder("r").Op("relu").Input("in", [prob]).Output("out").Build().InferAndTryRun()
            assert relu.SoleOutputBlob().logical_blob_name == "outer-r/out_0" and relu.op_name == "outer-r"
            split = flow.user_op_builder("s").Op("split_like").Input("in", [x]).Input("like", [x, x]).Output("out", 2)
            with pytest.raises(ArgumentError, match="must add up"):
                split.Attr("axis", 1).Build().InferAndTryRun()
        return out

    assert describe(body)(np.zeros((2, 3), np.float32)).shape == (2,)


def test_modules():
    def body(x):
        module = flow.user_op_module_builder("leaky_relu").InputSize("x", 1).Output("y").Attr("alpha", 0.5).CheckAndComplete()
        module.user_op_module.InitOpKernel()
        first = module.OpName("first").Input("x", [x]).Build().InferAndTryRun().SoleOutputBlob()
        with flow.scope.namespace("n"):
            second = module.OpName("second").Input("x", [first]).Build().InferAndTryRun().SoleOutputBlob()
        assert second.op_name == "n-second"
        with pytest.raises(ModeError, match="the type of this module builder"):
            module.Op("relu")
        return second

    x = np.array([[-4, 1, 2], [0, 0, -8]], np.float32)
    np.testing.assert_allclose(describe(body)(x), np.where(x > 0, x, 0.25 * x))


def test_consistent_builders():
    def body(x):
        with flow.scope.mirrored_view():
            op = flow.consistent_user_op_builder("c").Op("relu").Input("in", [x]).Output("out").Build().InferAndTryRun()
            assert op.SoleOutputBlob().node.scope.view == "consistent"
            module = flow.consistent_user_op_module_builder("relu").Output("out")
            y = module.OpName("d").Input("in", [op.SoleOutputBlob()]).Build().InferAndTryRun().SoleOutputBlob()
            assert y.node.scope.view == "consistent"
        return x

    assert describe(body).graph is not None


def test_gradients_flow_through_built_ops():
    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (1, 2, 4), initializer=flow.ones_initializer())
        f = flow.get_variable("f", (2, 3, 3), initializer=flow.ones_initializer(), trainable=False)
        attrs = {"padding_before": [0], "data_format": "channels_first", "kernel_size": [3], "strides": [2], "dilation_rate": [1],
                 "filters": 3, "output_padding": [0], "groups": 1}  # fmt: skip
        builder = flow.user_op_builder("up").Op("deconv1d").Input("in", [w]).Input("weight", [f]).Output("out")
        for name, value in attrs.items():
            builder.Attr(name, value)
        y = builder.Build().InferAndTryRun().SoleOutputBlob()
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    assert job().shape == (1, 3, 9)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), np.full((1, 2, 4), 1 - 9.0))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda b, x: b.Op("rellu"), ArgumentError, "there is no op type 'rellu'; close are .*relu"),
        (lambda b, x: b.Attr("alpha", 1.0), ArgumentError, "has no type yet"),
        (lambda b, x: b.Op("elu").Attr("alpha", 1), ArgumentError, r"takes float .double., got 1(?s:.*)write 1.0"),
        (lambda b, x: b.Op("elu").Attr("beta", 1.0), ArgumentError, "there is no attribute 'beta'; it has alpha"),
        (lambda b, x: b.Op("reshape").Attr("shape", 6), ArgumentError, "a list or tuple of Shape"),
        (lambda b, x: b.Op("cast").Attr("dtype", np.float32), ArgumentError, "a flow dtype"),
        (lambda b, x: b.Op("relu").Input("in", x), ArgumentError, "takes a list or tuple of Blobs"),
        (lambda b, x: b.Op("relu").Input("z", [x]).Build(), ArgumentError, "there is no input 'z'; it has in"),
        (lambda b, x: b.Op("relu").Output("out").Build(), ArgumentError, "input 'in' is missing"),
        (lambda b, x: b.Op("relu").Input("in", [x, x]).Build(), ArgumentError, "takes one Blob, got 2"),
        (lambda b, x: b.Op("add_n").Input("in", [x]).Build(), ArgumentError, "takes 2 Blobs or more, got 1"),
        (lambda b, x: b.Op("relu").Input("in", [x]).Output("y").Build(), ArgumentError, "there is no output 'y'; it has out"),
        (lambda b, x: b.Op("elu").Input("in", [x]).Build(), ArgumentError, "attribute 'alpha', double, is missing"),
        (lambda b, x: b.Op("relu").Input("in", [x]).Build().RemoteBlobList(), ModeError, "not in the job yet"),
        (lambda b, x: b.Op("relu").Input("in", [x]).Build().InferAndTryRun().RemoteBlobList(), ArgumentError, "declared: out"),
        (lambda b, x: b.Op("sgd_update").Input("model", [x]).Input("model_diff", [x]).Input("learning_rate", [x]).Build()
         .InferAndTryRun(), ArgumentError, "is written and must be a variable"),
        (lambda b, x: b.Op("test_user_op_attr_auto_type"), ModeError, "OneFlow's own tests"),
    ],
)  # fmt: skip
def test_mistakes(make, error, text):
    with pytest.raises(error, match=text) as caught:
        describe(lambda x: make(flow.user_op_builder("name"), x)).graph  # noqa: B018
    assert "your line  " in str(caught.value) and "test_user_ops.py" in str(caught.value)


# --- op types that exercise the builder itself


def probe(type_name, inputs=None, outputs=(("out", 1),), **attrs):
    builder = flow.user_op_builder("probe").Op(type_name)
    for name, blob in (inputs or {}).items():
        builder = builder.Input(name, [blob])
    for name, number in outputs:
        builder = builder.Output(name, number)
    for name, attr in attrs.items():
        builder = builder.Attr(name, attr)
    return builder.Build().InferAndTryRun().RemoteBlobList()


def test_outputs_of_given_types_and_shapes():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tuple[list[tp.Numpy], tp.Numpy]:
        shapes, types = [(4, 4), (6,)], [flow.int8, flow.float64]
        many = probe("TestListDataTypeAndListShapeAndListStringAttr", {"in": x}, [("out", 2)], out_shapes=shapes,
                     out_types=types, string_list=["a"])  # fmt: skip
        with flow.scope.namespace("one"):
            return list(many), probe("TestDataTypeAttr", {"in": x}, output_type=flow.uint8)[0]

    many, one = job(X)
    assert [(a.shape, a.dtype) for a in many] == [((4, 4), np.int8), ((6,), np.float64)]
    assert (one.shape, one.dtype) == ((2, 3), np.uint8)
    with pytest.raises(ArgumentError, match="there are 1 out_shapes and 2 out_types"):
        bad = {"out_shapes": [(1,)], "out_types": [flow.int8] * 2, "string_list": ["a"]}
        describe(lambda x: probe("TestListDataTypeAndListShapeAndListStringAttr", {"in": x}, **bad)).graph  # noqa: B018


def test_several_inputs_and_outputs():
    gradients = {}

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        a, b = (flow.get_variable(n, (2, 3), initializer=flow.ones_initializer()) for n in "ab")
        for name, blob in (("a", a), ("b", b)):
            flow.watch_diff(blob, lambda g, name=name: gradients.update({name: g.numpy()}))
        (y,) = probe("TestMultiInput", {"x1": a, "x2": b}, [("y", 1)])
        flow.optimizer.SGD(0.1).minimize(y)
        with flow.scope.namespace("order"):
            return y, *probe("TestMultiOutputOrder", {"in": x}, [("out1", 1), ("out2", 1)])

    y, first, second = job(X)
    np.testing.assert_array_equal(y, np.ones((2, 3)))
    np.testing.assert_array_equal(gradients["a"], np.ones((2, 3)))
    np.testing.assert_array_equal(gradients["b"], np.full((2, 3), 2.0))
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, np.zeros((2, 6)))


def test_sources():
    @flow.global_function()
    def job():
        made = {}
        for name in ("TestSource", "TestDynamicSource"):
            with flow.scope.namespace(name):
                made[name] = probe(name)[0]
        for i, seed in enumerate((7, 7, 8)):
            with flow.scope.namespace(f"random{i}"):
                made[i] = probe("TestRandomSource", seed=seed)[0]
        made["pieces"] = probe("TestSourceMultiGpuFixedOutNum", out_num=5)[0]
        assert made["TestDynamicSource"].is_dynamic and made["TestSource"].batch_axis == 0
        return made

    made = job().get()
    np.testing.assert_array_equal(made["TestSource"].numpy(), np.arange(5))
    np.testing.assert_array_equal(made["TestDynamicSource"].numpy_list()[0], np.arange(3))
    np.testing.assert_array_equal(made["pieces"].numpy(), np.arange(5))
    np.testing.assert_array_equal(made[0].numpy(), made[1].numpy())
    assert (made[0].numpy() != made[2].numpy()).any() and (made[0].numpy() < 1).all()


def test_a_name_twice():
    def body(x):
        for _ in range(2):
            y = flow.user_op_builder("same").Op("relu").Input("in", [x]).Output("out").Build().InferAndTryRun().SoleOutputBlob()
        return y

    with pytest.raises(DuplicateNameError, match="already has an op named 'same'"):
        describe(body).graph  # noqa: B018
    with pytest.raises(ModeError):
        flow.user_op_builder("outside")


# --- types that arrays alone do not suffice for


def built(type_name, inputs, outputs, op_name, **attrs):
    builder = flow.user_op_builder(op_name).Op(type_name)
    for key, blob in inputs.items():
        builder.Input(key, [blob])
    for key in outputs:
        builder.Output(key)
    for key, attribute in attrs.items():
        builder.Attr(key, attribute)
    return builder.Build().InferAndTryRun().RemoteBlobList()


def test_tensor_buffers_and_images():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 4, 3, 3)), code: tp.Numpy.Placeholder((2,), flow.int8)) -> tp.Numpy:
        (buffers,) = built("tensor_to_tensor_buffer", {"in": x}, ["out"], "a", instance_dims=3)
        (scaled,) = built("image_normalize", {"in": buffers}, ["out"], "b", std=[2.0, 2.0, 2.0], mean=[1.0, 0.0, 0.0])
        (turned,) = built("image_flip", {"in": scaled, "flip_code": code}, ["out"], "c")
        return built("tensor_buffer_to_tensor", {"in": turned}, ["out"], "d", instance_shape=(4, 3, 3), dtype=flow.float32)[0]

    x = F(2, 4, 3, 3)
    expected = (x - np.array([1, 0, 0], np.float32)) / 2
    expected[1] = expected[1][:, ::-1]
    np.testing.assert_allclose(job(x, np.array([0, 1], np.int8)), expected, rtol=1e-5, atol=1e-6)


def test_record_readers(tmp_path):
    from oneflow.core.record import record_pb2

    records = []
    for i in range(4):
        record = record_pb2.OFRecord()
        record.feature["number"].int32_list.value.extend([i, 10 * i])
        records.append(record.SerializeToString())
    flow.data.write_parts(str(tmp_path), records, 1)

    @flow.global_function("predict")
    def job() -> tp.Numpy:
        options = {"data_dir": str(tmp_path), "data_part_num": 1, "batch_size": 2}
        (read,) = built("OFRecordReader", {}, ["out"], "reader", **options)
        return built("ofrecord_raw_decoder", {"in": read}, ["out"], "raw", name="number", shape=(2,), data_type=flow.int32)[0]

    assert job().tolist() == [[0, 0], [1, 10]]
    assert job().tolist() == [[2, 20], [3, 30]]


@pytest.mark.parametrize("op", ["OFRecordReader", "ofrecord_image_classification_reader", "OneRecReader"])
def test_the_seed_of_a_reader_alone_decides_the_order(tmp_path, op):
    from oneflow.core.record import record_pb2

    records = []
    for i in range(40):
        record = record_pb2.OFRecord()
        record.feature["class/label"].int32_list.value.append(i)
        record.feature["encoded"].bytes_list.value.append(cv2.imencode(".png", np.full((2, 2, 3), i, np.uint8))[1].tobytes())
        records.append(record.SerializeToString())
    flow.data.write_parts(str(tmp_path), records, 1)
    write_onerec(str(tmp_path / "e"), [encode_example({"label": np.array([i], np.int32)}) for i in range(40)])

    def order(seed, session_seed):
        flow.clear_default_session()
        flow.manual_seed(session_seed)

        @flow.global_function("predict")
        def job() -> tp.Numpy:
            options = {"batch_size": 40, "random_shuffle": True, "seed": seed}
            if op == "OneRecReader":
                (read,) = built(op, {}, ["out"], "reader", files=[str(tmp_path / "e")], **options)
                return flow.data.OneRecDecoder(read, "label", flow.int32, (1,))
            options |= {"data_dir": str(tmp_path), "data_part_num": 1}
            if op == "OFRecordReader":
                (read,) = built(op, {}, ["out"], "reader", **options)
                return flow.data.OFRecordRawDecoder(read, "class/label", (1,), flow.int32)
            return built(op, {}, ["image", "label"], "reader", **options)[1]

        return job().ravel().tolist()

    first = order(5, 1)
    assert first != list(range(40))
    assert order(5, 2) == first
    assert order(6, 1) != first
    assert order(-1, 1) != order(-1, 2)


def test_pieces_of_a_step_and_sizes_that_depend_on_data():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tuple[tp.Numpy, tp.ListNumpy, tp.Numpy]:
        (piece,) = built("unpack", {"in": x}, ["out"], "u", unpack_num=2)
        (whole,) = built("pack", {"in": piece}, ["out"], "p", pack_num=2)
        places, count = built("argwhere", {"input": x}, ["output", "output_size"], "w")
        return whole, flow.sync_dynamic_resize(places, count), count

    x = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 3]], np.float32)
    whole, places, count = job(x)
    np.testing.assert_array_equal(whole, x)
    np.testing.assert_array_equal(places[0], np.argwhere(x))
    assert count.tolist() == [3]


def test_numbering_of_categories():
    @flow.global_function("predict")
    def job(keys: tp.Numpy.Placeholder((4,), flow.int64)) -> tp.Numpy:
        zeros = flow.zeros_initializer()
        table = flow.get_variable("table", (16,), flow.int64, zeros, trainable=False)
        size = flow.get_variable("size", (1,), flow.int64, zeros, trainable=False)
        return built("CategoricalOrdinalEncode", {"table": table, "size": size, "in": keys}, ["out"], "e", hash_precomputed=True)[
            0
        ]

    assert job(np.array([70, 50, 70, 90])).tolist() == [1, 2, 1, 3]
    assert job(np.array([90, 60, 50, 60])).tolist() == [3, 4, 2, 4]


def test_an_update_without_64_bit_inputs_stays_silent(recwarn: pytest.WarningsRecorder) -> None:
    @flow.global_function()
    def job(gradient: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        m = flow.get_variable("m", (2,), initializer=flow.zeros_initializer())
        rate = flow.constant(0.5, flow.float32, (1,))
        op = flow.user_op_builder("update").Op("momentum_update").Input("model", [w]).Input("model_diff", [gradient])
        op.Input("learning_rate", [rate]).Input("momentum", [m]).Attr("weight_decay", 0.25).Build().InferAndTryRun()
        return flow.identity(gradient)

    job(np.array([1, 2], np.float32))
    assert np.allclose(flow.get_all_variables()["w"].numpy(), 1 - 0.5 * np.array([1, 2]) - 0.5 * 0.25)
    assert [str(w.message) for w in recwarn] == []


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_transposed_convolution_grows_with_what_is_fed(dims: int, extra: int, groups: int) -> None:
    torch = pytest.importorskip("torch", reason="the reference")
    rng = np.random.default_rng(dims)
    weight = rng.standard_normal((4, 3, *(3,) * dims), np.float32)
    attributes = {
        "filters": 3 * groups, "padding_before": [1] * dims, "data_format": "channels_first", "kernel_size": [3] * dims,
        "strides": [2] * dims, "dilation_rate": [1] * dims, "output_padding": [extra] * dims, "groups": groups,
    }  # fmt: skip

    @flow.global_function("predict")
    def job(x: tp.ListNumpy.Placeholder((2, 4, *(5,) * dims))) -> tp.ListNumpy:
        w = flow.get_variable("w", weight.shape, initializer=flow.zeros_initializer())
        builder = flow.user_op_builder("up").Op(f"deconv{dims}d").Input("in", [x]).Input("weight", [w]).Output("out")
        for name, value in attributes.items():
            builder = builder.Attr(name, value)
        return builder.Build().InferAndTryRun().RemoteBlobList()[0]

    flow.load_variables({"w": weight})
    for size in (5, 4):
        x = rng.standard_normal((2, 4, *(size,) * dims), np.float32)
        deconv = getattr(torch.nn.functional, f"conv_transpose{dims}d")
        expected = deconv(torch.tensor(x), torch.tensor(weight), stride=2, padding=1, output_padding=min(extra, 1), groups=groups)
        found = job([x])[0]
        assert found.shape == (2, 3 * groups, *(2 * size - 1 + extra,) * dims)
        inside = (slice(None), slice(None), *(slice(0, 2 * size - 1),) * dims)
        np.testing.assert_allclose(found[inside], expected.numpy()[inside], rtol=1e-4, atol=1e-4)
