"""Element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ... import math as fm
from ... import nn
from ..._base import dtype as dtypes
from ...graph.node import Blob
from ...ops.array import reshape
from ...ops.constant import zeros_like
from ...ops.elementwise import cast, clip_by_value, identity
from ...ops.masks import where
from ...ops.nn import parametric_relu
from . import Reader, reads

_SAME: dict[str, Callable[[Blob], Blob]] = {
    "Abs": fm.abs, "Acos": fm.acos, "Acosh": fm.acosh, "Asin": fm.asin, "Asinh": fm.asinh, "Atan": fm.atan, "Atanh": fm.atanh,
    "Ceil": fm.ceil, "Cos": fm.cos, "Cosh": fm.cosh, "Erf": fm.erf, "Exp": fm.exp, "Floor": fm.floor, "Log": fm.log,
    "Neg": fm.negative, "Reciprocal": fm.reciprocal, "Relu": fm.relu, "Round": fm.rint, "Sigmoid": fm.sigmoid, "Sign": fm.sign,
    "Sin": fm.sin, "Sinh": fm.sinh, "Softplus": fm.softplus, "Sqrt": fm.sqrt, "Tan": fm.tan, "Tanh": fm.tanh,
    "HardSwish": nn.hardswish, "Mish": nn.mish,
}  # fmt: skip
_ONNX_DTYPES = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 6: dtypes.int32, 7: dtypes.int64, 9: dtypes.int8, 10: dtypes.float16,
    11: dtypes.float64, 16: dtypes.bfloat16,
}  # fmt: skip
BOOL = 9


@reads(*_SAME)
def _same(ctx: Reader, x: Any) -> Blob:
    return _SAME[ctx.node.op_type](ctx.blob(x))


@reads("Identity")
def _identity(ctx: Reader, x: Any) -> Any:
    return identity(x) if isinstance(x, Blob) else x


@reads("Dropout")
def _dropout(ctx: Reader, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """In ONNX a model's dropout is switched off, unless it says otherwise."""
    if ctx.number(training):
        ctx.refuse("it drops values although the model is exported")
    return identity(ctx.blob(x))


@reads("Elu")
def _elu(ctx: Reader, x: Any) -> Blob:
    return nn.elu(ctx.blob(x), ctx.attr("alpha", 1.0))


@reads("Selu")
def _selu(ctx: Reader, x: Any) -> Blob:
    alpha, gamma = ctx.attr("alpha", 1.67326319217681884765625), ctx.attr("gamma", 1.05070102214813232421875)
    return nn.elu(ctx.blob(x), alpha) * gamma


@reads("Celu")
def _celu(ctx: Reader, x: Any) -> Blob:
    alpha = ctx.attr("alpha", 1.0)
    return nn.elu(ctx.blob(x) / alpha, 1.0) * alpha


@reads("LeakyRelu")
def _leaky_relu(ctx: Reader, x: Any) -> Blob:
    return nn.leaky_relu(ctx.blob(x), ctx.attr("alpha", 0.01))


@reads("PRelu")
def _prelu(ctx: Reader, x: Any, slope: Any) -> Blob:
    y, factor = ctx.blob(x), ctx.blob(slope)
    if y.ndim == 1:
        return where(y > 0, y, y * factor)
    if factor.ndim < y.ndim:
        return parametric_relu(y, factor)
    if factor.shape[0] == 1:
        return parametric_relu(y, reshape(factor, factor.shape[1:]))
    return where(y > 0, y, y * factor)


@reads("HardSigmoid")
def _hardsigmoid(ctx: Reader, x: Any) -> Blob:
    alpha, beta = ctx.attr("alpha", 0.2), ctx.attr("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return nn.hardsigmoid(ctx.blob(x))
    return clip_by_value(ctx.blob(x) * alpha + beta, 0.0, 1.0)


@reads("Softsign")
def _softsign(ctx: Reader, x: Any) -> Blob:
    y = ctx.blob(x)
    return y / (fm.abs(y) + 1.0)


@reads("ThresholdedRelu")
def _thresholded(ctx: Reader, x: Any) -> Blob:
    y = ctx.blob(x)
    return where(y > ctx.attr("alpha", 1.0), y, zeros_like(y))


@reads("Gelu")
def _gelu(ctx: Reader, x: Any) -> Blob:
    y = ctx.blob(x)
    if ctx.attr("approximate", "none") == "none":
        return fm.gelu(y)
    return 0.5 * y * (1.0 + fm.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)))


@reads("Swish")
def _swish(ctx: Reader, x: Any) -> Blob:
    return nn.swish(ctx.blob(x), ctx.attr("alpha", 1.0))


@reads("Clip")
def _clip(ctx: Reader, x: Any, low: Any = None, high: Any = None) -> Blob:
    y = ctx.blob(x)
    bounds: list[Any] = []
    for name, value in (("min", low), ("max", high)):
        bound = ctx.attr(name) if value is None else ctx.number(value)
        if bound is None and value is not None:
            y = (fm.maximum if name == "min" else fm.minimum)(y, ctx.blob(value))
        bounds.append(bound)
    return identity(y) if bounds == [None, None] else clip_by_value(y, bounds[0], bounds[1])


@reads("Cast")
def _cast(ctx: Reader, x: Any) -> Blob:
    to, y = ctx.attr("to"), ctx.blob(x)
    if to == BOOL:
        return fm.not_equal(y, 0)
    if to not in _ONNX_DTYPES:
        ctx.refuse(f"no Blob has ONNX's data type {to}")
    return cast(y, _ONNX_DTYPES[to])


@reads("CastLike")
def _cast_like(ctx: Reader, x: Any, like: Any) -> Blob:
    return cast(ctx.blob(x), ctx.blob(like).dtype)


@reads("IsNaN")
def _is_nan(ctx: Reader, x: Any) -> Blob:
    y = ctx.blob(x)
    return fm.not_equal(y, y)


@reads("IsInf")
def _is_inf(ctx: Reader, x: Any) -> Blob:
    y = ctx.blob(x)
    up, down = ctx.attr("detect_positive", 1), ctx.attr("detect_negative", 1)
    if not up and not down:
        return cast(zeros_like(y), dtypes.int8)
    if up and down:
        return fm.equal(fm.abs(y), math.inf)
    return fm.equal(y, math.inf if up else -math.inf)


# --- two values


def _either(ctx: Reader, value: Any) -> Any:
    """A value as an operand: a number, or a Blob."""
    number = ctx.number(value)
    if number is not None and not isinstance(number, bool):
        return number
    return ctx.blob(value)


_BINARY: dict[str, Callable[[Any, Any], Blob]] = {
    "Add": fm.add, "Sub": fm.subtract, "Mul": fm.multiply, "Pow": fm.pow, "Equal": fm.equal, "Less": fm.less,
    "LessOrEqual": fm.less_equal, "Greater": fm.greater, "GreaterOrEqual": fm.greater_equal, "And": fm.logical_and,
}  # fmt: skip


def _pair(ctx: Reader, x: Any, y: Any) -> tuple[Any, Any]:
    a, b = _either(ctx, x), _either(ctx, y)
    for one, other in ((a, b), (b, a)):  # a number alone would not determine the result's shape
        if not isinstance(one, Blob) and ctx.array(x if one is a else y).ndim > getattr(other, "ndim", 0):  # type: ignore[union-attr]
            return ctx.blob(x), ctx.blob(y)
    return (ctx.blob(x), ctx.blob(y)) if not isinstance(a, Blob) and not isinstance(b, Blob) else (a, b)


@reads(*_BINARY)
def _binary(ctx: Reader, x: Any, y: Any) -> Blob:
    a, b = _pair(ctx, x, y)
    if ctx.node.op_type == "Pow" and isinstance(a, Blob) and a.dtype.is_integer and _is_floating(b):
        power = cast(b, dtypes.float64) if isinstance(b, Blob) else b
        return cast(fm.pow(cast(a, dtypes.float64), power), a.dtype)
    if ctx.node.op_type == "Pow" and isinstance(a, Blob) and isinstance(b, Blob) and a.dtype != b.dtype:
        b = cast(b, a.dtype)
    return _BINARY[ctx.node.op_type](a, b)


def _is_floating(value: Any) -> bool:
    return value.dtype.is_floating_point if isinstance(value, Blob) else isinstance(value, float)


@reads("Div")
def _divide(ctx: Reader, x: Any, y: Any) -> Blob:
    a, b = _pair(ctx, x, y)
    if not isinstance(a, Blob):  # a number divided by a Blob would be 0 where that is 0
        a = ctx.blob(x)
    return fm.divide(a, b)


@reads("Mod")
def _mod(ctx: Reader, x: Any, y: Any) -> Blob:
    a, b = _pair(ctx, x, y)
    if not ctx.attr("fmod", 0):
        return fm.mod(a, b)
    a, b = ctx.blob(x), ctx.blob(y)
    rest = fm.mod(fm.abs(a), fm.abs(b))  # with the sign of a
    return where(a < 0, -rest, rest)


@reads("Or")
def _or(ctx: Reader, x: Any, y: Any) -> Blob:
    return fm.maximum(fm.not_equal(ctx.blob(x), 0), fm.not_equal(ctx.blob(y), 0))


@reads("Xor")
def _xor(ctx: Reader, x: Any, y: Any) -> Blob:
    return fm.not_equal(fm.not_equal(ctx.blob(x), 0), fm.not_equal(ctx.blob(y), 0))


@reads("Not")
def _not(ctx: Reader, x: Any) -> Blob:
    return fm.equal(ctx.blob(x), 0)


@reads("Where")
def _where(ctx: Reader, condition: Any, x: Any, y: Any) -> Blob:
    return where(ctx.blob(condition), ctx.blob(x), ctx.blob(y))


@reads("Max", "Min", "Sum", "Mean")
def _several(ctx: Reader, *xs: Any) -> Blob:
    function = {"Max": fm.maximum, "Min": fm.minimum}.get(ctx.node.op_type, fm.add)
    total = xs[0]
    for x in xs[1:]:
        total = function(*_pair(ctx, total, x))
    total = identity(ctx.blob(total)) if len(xs) == 1 else total
    return total / float(len(xs)) if ctx.node.op_type == "Mean" else total


# --- quantization


def _column(ctx: Reader, value: Any, rank: int, axis: int) -> Blob:
    blob = ctx.blob(value)
    if blob.shape == (1,) or blob.ndim != 1:
        return blob
    return reshape(blob, [-1 if i == axis % rank else 1 for i in range(rank)])


@reads("QuantizeLinear")
def _quantize(ctx: Reader, x: Any, scale: Any, zero: Any = None) -> Blob:
    y = ctx.blob(x)
    axis = ctx.attr("axis", 1)
    element = _ONNX_DTYPES.get(ctx.attr("output_dtype", 0) or 2, dtypes.float32) if zero is None else ctx.blob(zero).dtype
    limits = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "int32": (-(2.0**31), 2.0**31 - 1)}.get(element.name)
    if limits is None or ctx.attr("block_size", 0):
        ctx.refuse("only int8 and uint8 grids, per tensor or per axis, are known here")
    whole = fm.rint(y / _column(ctx, scale, y.ndim, axis))
    if zero is not None:
        whole = whole + cast(_column(ctx, zero, y.ndim, axis), y.dtype)
    return cast(clip_by_value(whole, *limits), element)


@reads("DequantizeLinear")
def _dequantize(ctx: Reader, x: Any, scale: Any, zero: Any = None) -> Blob:
    grid = ctx.blob(scale)
    y, axis = cast(ctx.blob(x), grid.dtype), ctx.attr("axis", 1)
    if zero is not None:
        y = y - cast(_column(ctx, zero, y.ndim, axis), grid.dtype)
    return y * _column(ctx, scale, y.ndim, axis)
