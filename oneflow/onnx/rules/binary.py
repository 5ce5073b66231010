"""Functions of two Blobs, or of a Blob and a number, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..._base import dtype as dtypes
from ..._base.dtype import dtype as Dtype
from .._emitter import Emitter, Result, Truth, is_narrow
from . import rule

Compute = Callable[[Emitter, str, str, Dtype], str]


def _binary(name: str, scalar_name: str | None = None) -> Callable[[Compute], Compute]:
    """The rules of an op of two Blobs and of its twin of a Blob and a number: one function of two tensors and their dtype."""

    def register(compute: Compute) -> Compute:
        def of_two(ctx: Emitter) -> Result:
            (x, y), perm = ctx.aligned(0, 1)
            x, y = (ctx.widened(v, ctx.dtype()) for v in (x, y))
            return ctx.moved(ctx.narrowed(compute(ctx, x, y, _wide(ctx.dtype())), ctx.dtype()), perm)

        def of_number(ctx: Emitter) -> Result:
            perm, wide = ctx.perm_of(0), _wide(ctx.dtype())
            x, number = ctx.wide(0, perm), ctx.number(ctx.attrs["number"], wide)
            pair = (number, x) if ctx.attrs["swapped"] else (x, number)
            return ctx.moved(ctx.narrowed(compute(ctx, *pair, wide), ctx.dtype()), perm)

        rule(name)(of_two)
        rule(scalar_name or f"scalar_{name}")(of_number)
        return compute

    return register


def _wide(element: Dtype) -> Dtype:
    return dtypes.int32 if is_narrow(element) else element


def _simple(kind: str) -> Compute:
    return lambda ctx, x, y, element: ctx.emit(kind, x, y)


_binary("add")(_simple("Add"))
_binary("subtract", "scalar_sub")(_simple("Sub"))
_binary("multiply", "scalar_mul")(_simple("Mul"))
_binary("divide", "scalar_div")(_simple("Div"))
_binary("pow")(_simple("Pow"))
_binary("maximum")(_simple("Max"))
_binary("minimum")(_simple("Min"))


@_binary("mod")
def _mod(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    if element.is_integer:
        return ctx.emit("Mod", x, y)
    return _floored_rest(ctx, x, y, element)


def _floored_rest(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    """The remainder of floating numbers, of the sign of y."""
    rest, zero = ctx.emit("Mod", x, y, fmod=1), ctx.number(0, element)
    other_sign = ctx.emit("Xor", ctx.emit("Less", rest, zero), ctx.emit("Less", y, zero))
    wrong = ctx.emit("And", ctx.emit("Not", ctx.emit("Equal", rest, zero)), other_sign)
    return ctx.emit("Where", wrong, ctx.emit("Add", rest, y), rest)


@_binary("floordiv")
def _floordiv(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    if element.is_integer:  # ONNX divides integers towards 0
        return ctx.emit("Div", ctx.emit("Sub", x, ctx.emit("Mod", x, y)), y)
    rest = _floored_rest(ctx, x, y, element)  # as the job: the floor of a rounded quotient can be one too large
    whole = ctx.emit("Round", ctx.emit("Div", ctx.emit("Sub", x, rest), y))
    not_finite = ctx.emit("IsNaN", ctx.emit("Sub", rest, rest))
    return ctx.emit("Where", not_finite, ctx.emit("Floor", ctx.emit("Div", x, y)), whole)


@_binary("squared_difference")
def _squared_difference(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    difference = ctx.emit("Sub", x, y)
    return ctx.emit("Mul", difference, difference)


@_binary("xdivy")
def _xdivy(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    return _zero_where_x_is(ctx, x, y, element, lambda safe: ctx.emit("Div", x, safe))


@_binary("xlogy")
def _xlogy(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    return _zero_where_x_is(ctx, x, y, element, lambda safe: ctx.emit("Mul", x, ctx.emit("Log", safe)))


def _zero_where_x_is(ctx: Emitter, x: str, y: str, element: Dtype, function: Callable[[str], str]) -> str:
    zero = ctx.emit("Equal", x, ctx.number(0, element))
    safe = ctx.emit("Where", zero, ctx.number(1, element), y)
    return ctx.emit("Where", zero, ctx.number(0, element), function(safe))


@_binary("atan2")
def _atan2(ctx: Emitter, x: str, y: str, element: Dtype) -> str:
    """From atan(x / y) by quadrants; on the axis y = 0 it is half a turn's half, with x's sign."""

    def number(value: float) -> str:
        return ctx.number(value, element)

    upright = ctx.emit("Equal", y, number(0))
    slope = ctx.emit("Atan", ctx.emit("Div", x, ctx.emit("Where", upright, number(1), y)))
    below = ctx.emit("Less", x, number(0))
    turn = ctx.emit("Where", below, number(-math.pi), number(math.pi))
    turned = ctx.emit("Where", ctx.emit("Less", y, number(0)), ctx.emit("Add", slope, turn), slope)
    straight = ctx.emit("Mul", ctx.emit("Sign", x), number(math.pi / 2))
    return ctx.emit("Where", upright, straight, turned)


@rule("power_of_number")
def _power_of_number(ctx: Emitter) -> Result:
    perm, element = ctx.perm_of(0), ctx.dtype()
    x, exponent = ctx.wide(0, perm), ctx.attrs["exponent"]
    if exponent == 2:
        y = ctx.emit("Mul", x, x)
    elif exponent == 0.5:
        y = ctx.emit("Sqrt", x)
    else:
        y = ctx.emit("Pow", x, ctx.number(exponent, _wide(element)))
    return ctx.moved(ctx.narrowed(y, element), perm)


@rule("scalar_divided_by")
def _number_by_blob(ctx: Emitter) -> Result:
    perm, element = ctx.perm_of(0), ctx.dtype()
    wide = _wide(element)
    x = ctx.wide(0, perm)
    zero = ctx.emit("Equal", x, ctx.number(0, wide))
    quotient = ctx.emit("Div", ctx.number(ctx.attrs["number"], wide), ctx.emit("Where", zero, ctx.number(1, wide), x))
    return ctx.moved(ctx.narrowed(ctx.emit("Where", zero, ctx.number(0, wide), quotient), element), perm)


@rule("add_n", "acc")
def _add_n(ctx: Emitter) -> Result:
    names, perm = ctx.aligned(*range(len(ctx.node.inputs)))
    if len(names) == 1:
        return ctx.moved(ctx.emit("Identity", names[0]), perm)
    if ctx.dtype().is_floating_point:
        return ctx.moved(ctx.emit("Sum", *names), perm)
    total, *rest = (ctx.widened(name, ctx.dtype()) for name in names)
    for name in rest:
        total = ctx.emit("Add", total, name)
    return ctx.moved(ctx.narrowed(total, ctx.dtype()), perm)


# --- comparison and logic

_COMPARISONS = {
    "equal": "Equal", "not_equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}  # fmt: skip


def _compared(ctx: Emitter, name: str, x: str, y: str) -> str:
    hit = ctx.emit(_COMPARISONS[name], x, y)
    return ctx.emit("Not", hit) if name == "not_equal" else hit


@rule(*_COMPARISONS)
def _comparison(ctx: Emitter) -> Result:
    (x, y), perm = ctx.aligned(0, 1)
    return Truth(_compared(ctx, ctx.node.op.name, *(ctx.widened(v, ctx.dtype()) for v in (x, y))), perm)


@rule(*(f"scalar_{name}" for name in _COMPARISONS))
def _comparison_with_number(ctx: Emitter) -> Result:
    perm, name, constant = ctx.perm_of(0), ctx.node.op.name.removeprefix("scalar_"), ctx.attrs["constant"]
    if constant is not None:  # the same for every value of the dtype
        x = ctx.emit("Shape", ctx.input(0))
        value = np.array([int(constant)], np.int8)
        return ctx.emit("Expand", ctx.constant(value), x)
    number = ctx.number(ctx.attrs["number"], _wide(ctx.dtype()))
    return Truth(_compared(ctx, name, ctx.wide(0, perm), number), perm)


@rule("logical_and")
def _logical_and(ctx: Emitter) -> Result:
    (x, y), perm = ctx.aligned(0, 1, truths=(0, 1))
    return Truth(ctx.emit("And", x, y), perm)


@rule("scalar_logical_and")
def _logical_and_with_number(ctx: Emitter) -> Result:
    perm, constant = ctx.perm_of(0), ctx.attrs["constant"]
    other = ctx.attrs["number"] != 0 if constant is None else bool(constant)
    return Truth(ctx.emit("And", ctx.truth(0, perm), ctx.constant(np.asarray(other))), perm)
