"""Quantization-aware training in ONNX's words: QuantizeLinear and DequantizeLinear around what will run on integers.

Ranges of variables are known when the model is written, so that weights are written as integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._emitter import Emitter, InLayout, Op, Perm, Result, Static
from . import Inexpressible, rule


def _grid(high: np.ndarray, low: np.ndarray, a: Any) -> list[Result]:
    """Scale and zero point of known extremes; as in ``ops/quantization.py``."""
    bits = a["bits"]
    zero = np.zeros_like(high)
    if a["formula"] == "cambricon":
        _, exponent = np.frexp(high)
        return [Static((exponent - (bits - 1)).astype(high.dtype)), Static(zero)]
    if a["scheme"] == "symmetric":
        return [Static((high / high.dtype.type(2 ** (bits - 1) - 1)).astype(high.dtype)), Static(zero)]
    scale = ((high - low) / high.dtype.type(2**bits - 1)).astype(high.dtype)
    quotient = np.divide(low, scale, out=np.zeros_like(scale), where=scale != 0)
    return [Static(scale), Static(-quotient)]


@rule("min_max_observer")
def _min_max_observer(ctx: Emitter) -> list[Result]:
    a = ctx.attrs
    rank = ctx.blob(0).ndim
    axes = tuple(range(0 if a["per_layer"] else 1, rank))
    magnitudes = a["scheme"] == "symmetric" or a["formula"] == "cambricon"
    known = ctx.static(0)
    if known is not None:
        values = np.abs(known) if magnitudes else known
        high, low = (f(values, axis=axes).reshape(-1) for f in (np.max, np.min))
        return _grid(high, low, a)
    if a["formula"] == "cambricon":
        raise Inexpressible("a power of two that is measured at each call")
    x = ctx.emit("Abs", ctx.input(0)) if magnitudes else ctx.input(0)

    def extreme(kind: str) -> str:
        return ctx.squeeze(ctx.reduce(kind, x, list(axes), True), list(range(1, rank)))

    high = extreme("ReduceMax")
    if magnitudes:
        return [ctx.emit("Div", high, ctx.like(2 ** (a["bits"] - 1) - 1)), ctx.emit("Mul", high, ctx.like(0))]
    low = extreme("ReduceMin")
    scale = ctx.emit("Div", ctx.emit("Sub", high, low), ctx.like(2 ** a["bits"] - 1))
    flat = ctx.emit("Equal", scale, ctx.like(0))
    quotient = ctx.emit("Div", low, ctx.emit("Where", flat, ctx.like(1), scale))
    return [scale, ctx.emit("Neg", ctx.emit("Where", flat, ctx.like(0), quotient))]


@rule("moving_average_min_max_observer")
def _moving_average(ctx: Emitter) -> list[Result]:
    if ctx.attrs["training"]:
        raise Inexpressible("an observer that measures at each call")
    high, low = ctx.static(2), ctx.static(3)
    if high is None or low is None:
        raise Inexpressible("averages that are computed")
    return [*_grid(high, low, ctx.attrs), Static(high), Static(low)]


@rule("fake_quantization")
def _fake_quantization(ctx: Emitter) -> Result:
    a = ctx.attrs
    scale, zero = ctx.static(1), ctx.static(2)
    if scale is None or zero is None:
        if a["formula"] == "cambricon":
            raise Inexpressible("a power of two that is measured at each call")
        return _computed(ctx)
    if a["formula"] == "cambricon":
        scale = np.ldexp(np.ones_like(scale), scale.astype(np.int32))
    if a["bits"] != 8:
        return _computed(ctx, scale, zero)
    affine = a["scheme"] == "affine" and a["formula"] == "google"
    x = ctx.static(0)
    if x is not None:
        return _weights(ctx, x, scale, zero, affine)
    if not scale.all():  # nothing but zeros was observed
        if scale.size > 1:
            return _computed(ctx, scale, zero)
        return ctx.emit("Mul", ctx.input(0), ctx.like(0))
    return _activations(ctx, scale, zero, affine)


@rule("int8_round")
def _int8_round(ctx: Emitter) -> Result:
    grid = ctx.attrs["grid"]
    x, scale = ctx.input(0), np.asarray(grid.scale, np.float32)
    if (grid.low, grid.high) != (0, 255):
        ends = (np.asarray((end - grid.zero) * scale, np.float32) for end in (grid.low, grid.high))
        x = ctx.emit("Clip", x, *map(ctx.constant, ends))
    point = min(255, max(0, grid.zero))
    shift = ctx.constant(np.asarray((grid.zero - point) * scale, np.float32))
    constants = [ctx.constant(scale), ctx.constant(np.asarray(point, np.uint8))]
    moved = x if point == grid.zero else ctx.emit("Add", x, shift)
    y = ctx.emit("DequantizeLinear", ctx.emit("QuantizeLinear", moved, *constants), *constants)
    return y if point == grid.zero else ctx.emit("Sub", y, shift)


@rule("int8_round_weights")
def _int8_round_weights(ctx: Emitter) -> Result:
    w, channel = ctx.folded(0), ctx.attrs["perm"][0]
    if w is None:
        raise Inexpressible("weights that are computed of what is not known when the model is written")
    high = np.abs(w).max(tuple(i for i in range(w.ndim) if i != channel))
    scale = np.where(high == 0, 1, high / np.float32(127)).astype(np.float32)
    column = scale.reshape([-1 if i == channel else 1 for i in range(w.ndim)])
    whole = np.clip(np.rint(w / column), -127, 127).astype(np.int8)
    name, node, attrs = str(ctx.blob(0).node.attrs.get("variable", ctx.blob(0).op_name)), ctx.node, ctx.attrs

    def make(perm: Perm) -> str:
        outer, ctx.node, ctx.attrs = (ctx.node, ctx.attrs), node, attrs
        try:
            integers = ctx.initializer(f"{name}_quantized", np.transpose(whole, perm))
            points = _points(ctx, name, np.zeros(scale.shape, np.int8))
            return ctx.emit("DequantizeLinear", integers, ctx.constant(scale), points, axis=perm.index(channel))
        finally:
            ctx.node, ctx.attrs = outer

    return InLayout(make)


def _points(ctx: Emitter, name: str, values: np.ndarray) -> str:
    """Zero points that no other weights share: onnxruntime replaces them where it turns int8 weights into uint8."""
    return ctx.initializer(f"{name}_zero_point", values)


def keep_biases_in_range(ctx: Emitter) -> None:
    """Raises scales of weights that are too small for the bias beside them.

    onnxruntime adds biases to sums of 32-bit integers, as multiples of the product of both scales, without looking whether they
    fit. Where they would not, the weights are so small beside the bias that a coarser grid changes nothing that an 8-bit result
    shows.
    """
    makers = {name: op for op in ctx.ops for name in op.outputs}
    ops: list[Op] = []
    for op in ctx.ops:
        if op.kind in ("Conv", "ConvTranspose", "Gemm") and len(op.inputs) == 3:
            weights, bias = makers.get(op.inputs[1]), ctx.initializers.get(op.inputs[2])
            step = _step_of(ctx, makers, op.inputs[0])
            if step and bias is not None and weights is not None and weights.kind == "DequantizeLinear":
                coarser = _coarser(ctx, weights, np.abs(bias).astype(np.float64) / (step * 2.0**30))
                if coarser is not None:
                    ops.append(coarser)
                    op.inputs[1] = coarser.outputs[0]
        ops.append(op)
    ctx.ops = ops


def _step_of(ctx: Emitter, makers: Mapping[str, Op], name: str) -> float | None:
    """The scale of 8-bit numbers that have at most been put into another order since."""
    op = makers.get(name)
    while op is not None and op.kind in ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool"):
        op = makers.get(op.inputs[0])
    scale = None if op is None or op.kind != "DequantizeLinear" else ctx.initializers.get(op.inputs[1])
    return float(scale.item()) if scale is not None and scale.size == 1 else None


def _coarser(ctx: Emitter, weights: Op, least: np.ndarray) -> Op | None:
    """The same weights as multiples of scales that are no smaller than ``least``, which has one for each channel."""
    whole, scale, point = (ctx.initializers.get(name) for name in weights.inputs)
    if whole is None or scale is None or point is None:
        return None
    least = least.max() if scale.size == 1 else least.reshape(-1)
    if np.shape(least) not in ((), scale.shape) or (scale >= least).all():
        return None
    raised = np.maximum(scale, least).astype(scale.dtype)
    column = [-1 if i == weights.attrs.get("axis") else 1 for i in range(whole.ndim)] if scale.size > 1 else [1] * whole.ndim
    ratio, middle = (scale / raised).reshape(column), point.astype(np.int32).reshape(column)
    moved = (np.rint((whole - middle) * ratio) + middle).astype(whole.dtype)
    return ctx.copy(weights, [moved, raised, point])


def _point(zero: np.ndarray, affine: bool) -> np.ndarray:
    """The zero point as an integer, which ONNX wants."""
    return np.clip(np.rint(zero), 0, 255).astype(np.uint8) if affine else np.zeros(zero.shape, np.int8)


def _rest(scale: np.ndarray, zero: np.ndarray, point: np.ndarray) -> np.ndarray:
    """The shift of values that turns a zero point with a fraction into that integer."""
    return ((zero - point.astype(zero.dtype)) * scale).astype(scale.dtype)


def _weights(ctx: Emitter, x: np.ndarray, scale: np.ndarray, zero: np.ndarray, affine: bool) -> Result:
    name, rank = str(ctx.blob(0).node.attrs.get("variable", ctx.blob(0).op_name)), x.ndim
    safe = np.where(scale == 0, 1, scale).astype(scale.dtype)
    column = (-1, *[1] * (rank - 1)) if scale.size > 1 else (1,) * rank
    low, high, kind = (0, 255, np.uint8) if affine else (-127, 127, np.int8)
    moved = x / safe.reshape(column) + (zero.reshape(column) if affine else 0)
    whole = np.clip(np.sign(moved) * np.floor(np.abs(moved) + 0.5), low, high).astype(kind)
    whole = np.where((scale == 0).reshape(column), _point(zero, affine).reshape(column), whole).astype(kind)
    point = _point(zero, affine)
    rest = _rest(safe, zero, point)
    rest[scale == 0] = 0
    node, attrs = ctx.node, ctx.attrs

    def make(perm: Perm) -> str:
        outer, ctx.node, ctx.attrs = (ctx.node, ctx.attrs), node, attrs
        try:
            integers = ctx.initializer(f"{name}_quantized", np.transpose(whole, perm))
            axis = perm.index(0) if scale.size > 1 else None
            steps, points = (v if axis is not None else v.reshape(()) for v in (safe, point))
            y = ctx.emit("DequantizeLinear", integers, ctx.constant(steps), _points(ctx, name, points), axis=axis)
            if rest.any():
                y = ctx.emit("Sub", y, ctx.constant(np.transpose(rest.reshape(column), perm)))
            return y
        finally:
            ctx.node, ctx.attrs = outer

    return InLayout(make)


def _activations(ctx: Emitter, scale: np.ndarray, zero: np.ndarray, affine: bool) -> Result:
    perm, rank = ctx.perm_of(0), ctx.blob(0).ndim
    x, point = ctx.input(0, perm), _point(zero, affine)
    axis = perm.index(0) if scale.size > 1 else None
    column = np.ones(rank, np.int64)
    if axis is not None:
        column[axis] = -1
    grid = [ctx.constant(v if axis is not None else v.reshape(())) for v in (scale, point)]
    rest = _rest(scale, zero, point).reshape(tuple(column))
    if rest.any():
        x = ctx.emit("Add", x, ctx.constant(rest))
    if not affine and ctx.blob(0).node.op.name != "relu":  # the grid is symmetric, int8 is not
        x = ctx.emit("Max", x, ctx.constant((-127 * scale).astype(scale.dtype).reshape(tuple(column))))
    y = ctx.emit("DequantizeLinear", ctx.emit("QuantizeLinear", x, *grid, axis=axis), *grid, axis=axis)
    if rest.any():
        y = ctx.emit("Sub", y, ctx.constant(rest))
    return ctx.moved(y, perm)


def _computed(ctx: Emitter, known_scale: np.ndarray | None = None, known_zero: np.ndarray | None = None) -> Result:
    """In floating point, where the grid is measured at each call, or has other than 8 bits."""
    a = ctx.attrs
    bits, rank = a["bits"], ctx.blob(0).ndim
    behind = list(range(1, rank))
    column = (-1, *[1] * (rank - 1))
    x = ctx.input(0)
    if known_scale is None or known_zero is None:
        scale, zero = (ctx.unsqueeze(ctx.input(i), behind) for i in (1, 2))
    else:
        scale, zero = (ctx.constant(v.reshape(column)) for v in (known_scale, known_zero))
    nothing = ctx.emit("Equal", scale, ctx.like(0))
    quotient = ctx.emit("Div", x, ctx.emit("Where", nothing, ctx.like(1), scale))
    affine = a["scheme"] == "affine" and a["formula"] == "google"
    if affine:
        quotient = ctx.emit("Add", quotient, zero)
    rounded = ctx.emit("Mul", ctx.emit("Sign", quotient),
                       ctx.emit("Floor", ctx.emit("Add", ctx.emit("Abs", quotient), ctx.like(0.5))))  # fmt: skip
    low, high = (0, 2**bits - 1) if affine else (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
    y = ctx.emit("Clip", rounded, ctx.like(low), ctx.like(high))
    if affine:
        y = ctx.emit("Sub", y, zero)
    return ctx.emit("Where", nothing, ctx.like(0), ctx.emit("Mul", y, scale))
