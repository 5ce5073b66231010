"""Functions of one Blob, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..._base.dtype import from_numpy
from .._emitter import Emitter, Result, is_narrow
from . import rule

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log",
    "negative": "Neg", "reciprocal": "Reciprocal", "relu": "Relu", "rint": "Round", "round": "Round", "sigmoid": "Sigmoid",
    "sigmoid_v2": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "softplus": "Softplus", "sqrt": "Sqrt", "tan": "Tan",
    "tanh": "Tanh", "tanh_v2": "Tanh", "identity": "Identity", "amp_white_identity": "Identity",
    "stop_gradient": "Identity",
}  # fmt: skip


@rule(*_SAME)
def _same(ctx: Emitter) -> Result:
    perm, name, element = ctx.perm_of(0), ctx.node.op.name, ctx.dtype()
    if name == "abs" and element.name == "uint8":
        return ctx.moved(ctx.emit("Identity", ctx.input(0, perm)), perm)
    if name == "relu" and element.is_integer:
        x = ctx.wide(0, perm)
        zero = ctx.constant(np.zeros((), np.int64 if element.name == "int64" else np.int32))
        return ctx.moved(ctx.narrowed(ctx.emit("Max", x, zero), element), perm)
    if _SAME[name] == "Identity":
        return ctx.moved(ctx.emit("Identity", ctx.input(0, perm)), perm)
    return ctx.moved(ctx.narrowed(ctx.emit(_SAME[name], ctx.wide(0, perm)), element), perm)


def unary(*names: str) -> Callable[[Callable[[Emitter, str], str]], None]:
    """The rule of an op that works element by element: a function of the emitter and the tensor, in whatever layout it has."""

    def register(function: Callable[[Emitter, str], str]) -> None:
        def in_layout(ctx: Emitter) -> Result:
            perm = ctx.perm_of(0)
            return ctx.moved(function(ctx, ctx.input(0, perm)), perm)

        rule(*names)(in_layout)

    return register


@unary("square")
def _square(ctx: Emitter, x: str) -> str:
    x = ctx.widened(x, ctx.dtype())
    return ctx.narrowed(ctx.emit("Mul", x, x), ctx.dtype())


@unary("rsqrt")
def _rsqrt(ctx: Emitter, x: str) -> str:
    return ctx.emit("Reciprocal", ctx.emit("Sqrt", x))


@unary("erfc")
def _erfc(ctx: Emitter, x: str) -> str:
    return ctx.emit("Sub", ctx.like(1), ctx.emit("Erf", x))


@unary("expm1")
def _expm1(ctx: Emitter, x: str) -> str:
    """tanh(x / 2) * (exp(x) + 1), which does not cancel near 0."""
    half = ctx.emit("Tanh", ctx.emit("Mul", x, ctx.like(0.5)))
    return ctx.emit("Mul", half, ctx.emit("Add", ctx.emit("Exp", x), ctx.like(1)))


@unary("log1p")
def _log1p(ctx: Emitter, x: str) -> str:
    """log(u) * x / (u - 1) for u = 1 + x as rounded, and x where u is 1 or infinite: rounding cancels out."""
    u = ctx.emit("Add", x, ctx.like(1))
    less = ctx.emit("Sub", u, ctx.like(1))
    nothing = ctx.emit("Or", ctx.emit("Equal", less, ctx.like(0)), ctx.emit("Equal", less, ctx.like(float("inf"))))
    safe = ctx.emit("Where", nothing, ctx.like(1), less)
    return ctx.emit("Where", nothing, x, ctx.emit("Mul", ctx.emit("Log", u), ctx.emit("Div", x, safe)))


@unary("log_sigmoid")
def _log_sigmoid(ctx: Emitter, x: str) -> str:
    return ctx.emit("Neg", ctx.emit("Softplus", ctx.emit("Neg", x)))


@unary("gelu")
def _gelu(ctx: Emitter, x: str) -> str:
    if ctx.opset >= 20:
        return ctx.emit("Gelu", x)
    return ctx.emit("Mul", ctx.emit("Mul", x, ctx.like(0.5)), _one_plus_erf(ctx, x))


def _one_plus_erf(ctx: Emitter, x: str) -> str:
    return ctx.emit("Add", ctx.emit("Erf", ctx.emit("Mul", x, ctx.like(math.sqrt(0.5)))), ctx.like(1))


@unary("reciprocal_no_nan")
def _reciprocal_no_nan(ctx: Emitter, x: str) -> str:
    zero = ctx.emit("Equal", x, ctx.like(0))
    return ctx.emit("Where", zero, ctx.like(0), ctx.emit("Reciprocal", ctx.emit("Where", zero, ctx.like(1), x)))


@unary("clip")
def _clip(ctx: Emitter, x: str) -> str:
    low, high, element = ctx.attrs["low"], ctx.attrs["high"], ctx.dtype()
    x = ctx.widened(x, element)
    wide = from_numpy(np.int32) if is_narrow(element) else element
    if low is not None and high is not None and low <= high:
        return ctx.narrowed(ctx.emit("Clip", x, ctx.number(low, wide), ctx.number(high, wide)), element)
    if low is not None:
        x = ctx.emit("Max", x, ctx.number(low, wide))
    if high is not None:
        x = ctx.emit("Min", x, ctx.number(high, wide))
    return ctx.narrowed(x, element)


@rule("cast")
def _cast(ctx: Emitter) -> Result:
    perm, to = ctx.perm_of(0), from_numpy(ctx.attrs["to"])
    return ctx.moved(ctx.cast(ctx.input(0, perm), to), perm)


@unary("polyval")
def _polyval(ctx: Emitter, x: str) -> str:
    element = ctx.dtype()
    x = ctx.widened(x, element)
    wide = from_numpy(np.int32) if is_narrow(element) else element
    first, *rest = ctx.attrs["coeffs"] or (0,)
    y = ctx.emit("Add", ctx.emit("Mul", x, ctx.number(0, wide)), ctx.number(first, wide))
    for coefficient in rest:
        y = ctx.emit("Add", ctx.emit("Mul", y, x), ctx.number(coefficient, wide))
    return ctx.narrowed(y, element)


# --- activations


@unary("hardtanh")
def _hardtanh(ctx: Emitter, x: str) -> str:
    return ctx.emit("Clip", x, ctx.like(ctx.attrs["low"]), ctx.like(ctx.attrs["high"]))


@unary("leaky_relu")
def _leaky_relu(ctx: Emitter, x: str) -> str:
    return ctx.emit("LeakyRelu", x, alpha=ctx.attrs["alpha"])


@unary("elu")
def _elu(ctx: Emitter, x: str) -> str:
    return ctx.emit("Elu", x, alpha=ctx.attrs["alpha"])


@unary("hardsigmoid")
def _hardsigmoid(ctx: Emitter, x: str) -> str:
    return ctx.emit("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@unary("hardswish")
def _hardswish(ctx: Emitter, x: str) -> str:
    return ctx.emit("HardSwish", x)


@unary("mish")
def _mish(ctx: Emitter, x: str) -> str:
    if ctx.opset >= 18:
        return ctx.emit("Mish", x)
    return ctx.emit("Mul", x, ctx.emit("Tanh", ctx.emit("Softplus", x)))


@unary("swish")
def _swish(ctx: Emitter, x: str) -> str:
    beta = ctx.attrs["beta"]
    return ctx.emit("Mul", x, ctx.emit("Sigmoid", x if beta == 1 else ctx.emit("Mul", x, ctx.like(beta))))


@rule("prelu")
def _prelu(ctx: Emitter) -> Result:
    return ctx.emit("PRelu", *ctx.inputs())


# --- gradients that are ops


@rule("gelu_grad")
def _gelu_grad(ctx: Emitter) -> Result:
    x, dy = ctx.inputs()
    density = ctx.emit("Exp", ctx.emit("Mul", ctx.emit("Mul", x, x), ctx.like(-0.5)))
    slope = ctx.emit("Mul", ctx.emit("Mul", x, density), ctx.like(1 / math.sqrt(2 * math.pi)))
    share = ctx.emit("Mul", _one_plus_erf(ctx, x), ctx.like(0.5))
    return ctx.emit("Mul", dy, ctx.emit("Add", share, slope))


@rule("sigmoid_grad")
def _sigmoid_grad(ctx: Emitter) -> Result:
    y, dy = ctx.inputs()
    return ctx.emit("Mul", dy, ctx.emit("Mul", y, ctx.emit("Sub", ctx.like(1), y)))


@rule("tanh_grad")
def _tanh_grad(ctx: Emitter) -> Result:
    y, dy = ctx.inputs()
    return ctx.emit("Mul", dy, ctx.emit("Sub", ctx.like(1), ctx.emit("Mul", y, y)))


# --- selection


@rule("where")
def _where(ctx: Emitter) -> Result:
    (mask, x, y), perm = ctx.aligned(0, 1, 2, truths=(0,))
    return ctx.moved(ctx.emit("Where", mask, x, y), perm)


@rule("masked_fill")
def _masked_fill(ctx: Emitter) -> Result:
    (x, mask), perm = ctx.aligned(0, 1, truths=(1,))
    return ctx.moved(ctx.emit("Where", mask, ctx.like(ctx.attrs["value"]), x), perm)


# --- names of the same value


@rule("parallel_cast", "hierarchical_parallel_cast", "nvtx_start", "nvtx_end", "cast_to_static_shape", "repeat")
def _alias(ctx: Emitter) -> None:
    ctx.alias(0, ctx.blob(0))


@rule("identity_n")
def _aliases(ctx: Emitter) -> None:
    for i, blob in enumerate(ctx.node.inputs):
        ctx.alias(i, blob)
