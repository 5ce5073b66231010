"""Normalizations and softmax."""

from __future__ import annotations

import math

import numpy as np

from ...export._axes import is_open
from .._emitter import Emitter, Result
from . import rule
from .window import column


@rule("batch_normalization")
def _batch_normalization(ctx: Emitter) -> Result:
    a = ctx.attrs
    perm = ctx.perm_of(0)
    x, place, rank = ctx.input(0, perm), perm.index(a["axis"]), ctx.blob(0).ndim
    vectors = all(b.ndim == 1 for b in ctx.node.inputs[1:])
    if place == rank - 1 > 1 and vectors:  # ONNX wants channels first, and so do its neighbours, most likely
        perm = (0, a["axis"], *(axis for axis in range(1, rank) if axis != a["axis"]))
        x, place = ctx.input(0, perm), 1
    if vectors and place == 1:
        rest = list(range(3, len(ctx.node.inputs)))
        gamma, beta = _parameters(ctx, rest, a["scale"], a["center"], ctx.blob(1).shape)
        y = ctx.emit("BatchNormalization", x, gamma, beta, ctx.input(1), ctx.input(2), epsilon=a["epsilon"])
        return ctx.moved(y, perm)
    spread = [_spread(ctx, i, rank, a["axis"], perm) for i in range(1, len(ctx.node.inputs))]
    mean, variance, *rest_of = spread
    inverse = ctx.emit("Reciprocal", ctx.emit("Sqrt", ctx.emit("Add", variance, ctx.number(a["epsilon"], ctx.dtype(2)))))
    y = ctx.emit("Mul", ctx.emit("Sub", x, mean), inverse)
    if a["scale"]:
        y = ctx.emit("Mul", y, rest_of.pop(0))
    if a["center"]:
        y = ctx.emit("Add", y, rest_of.pop(0))
    return ctx.moved(y, perm)


def _parameters(ctx: Emitter, rest: list[int], scale: bool, center: bool, shape: tuple[int, ...]) -> tuple[str, str]:
    """Factors and offsets; ones and zeros where there are none."""
    element = ctx.dtype(rest[0]).numpy_dtype if rest else ctx.dtype(0).numpy_dtype
    gamma = ctx.input(rest.pop(0)) if scale else ctx.constant(np.ones(shape, element), "ones")
    beta = ctx.input(rest.pop(0)) if center else ctx.constant(np.zeros(shape, element), "zeros")
    return gamma, beta


def _spread(ctx: Emitter, i: int, rank: int, axis: int, perm: tuple[int, ...]) -> str:
    """A vector along an axis, or an array of full rank, so that it broadcasts."""
    if ctx.blob(i).ndim > 1 or rank == 1:
        return ctx.input(i, perm)
    return column(ctx, i, rank - 1 - perm.index(axis))


@rule("layer_norm")
def _layer_norm(ctx: Emitter) -> Result:
    a = ctx.attrs
    begin = a["begin"]
    shape = ctx.shape(0)[begin:]
    if any(map(is_open, shape)):  # its parameters have an element for each
        shape = (1,)
    inputs = list(range(1, len(ctx.node.inputs)))
    own = ctx.blob(1).shape if inputs else tuple(shape)
    gamma, beta = _parameters(ctx, inputs, a["scale"], a["center"], own)
    return ctx.emit("LayerNormalization", ctx.input(0), gamma, beta if a["center"] else "", axis=begin, epsilon=a["epsilon"])


@rule("instance_norm")
def _instance_norm(ctx: Emitter) -> Result:
    a = ctx.attrs
    n, c, *space = ctx.shape(0)
    groups = c if a["groups"] is None else a["groups"]
    element = ctx.dtype().numpy_dtype
    x = ctx.reshape(ctx.input(0), (n, groups, math.prod(ctx.shape(0)[1:]) // groups), ctx.shape(0))
    affine = len(ctx.node.inputs) > 1
    flat = [ctx.static(i) for i in (1, 2)] if affine and groups == c else []
    if flat and all(array is not None for array in flat):
        gamma, beta = (ctx.constant(v.reshape(c), str(ctx.blob(i).node.attrs.get("variable", "parameter")))
                       for i, v in zip((1, 2), flat, strict=True) if v is not None)  # fmt: skip
        affine = False
    else:
        gamma, beta = ctx.constant(np.ones(groups, element), "ones"), ctx.constant(np.zeros(groups, element), "zeros")
    y = ctx.emit("InstanceNormalization", x, gamma, beta, epsilon=a["epsilon"])
    if affine:
        y = ctx.reshape(y, (n, c, math.prod(space)), ctx.shape(0))
        y = ctx.emit("Add", ctx.emit("Mul", y, ctx.input(1)), ctx.input(2))
    return ctx.reshape(y, ctx.shape(0), (n,))


@rule("layer_norm_grad")
def _layer_norm_grad(ctx: Emitter) -> Result:
    begin, rank = ctx.attrs["begin"], ctx.blob(1).ndim
    axes = list(range(begin, rank))
    dy, x = ctx.input(0), ctx.input(1)
    leading = (*ctx.shape(1)[:begin], *(1 for _ in axes))
    mean, inverse = (ctx.reshape(ctx.input(i), leading, ctx.shape(i)) for i in (2, 3))
    normal = ctx.emit("Mul", ctx.emit("Sub", x, mean), inverse)
    average = ctx.reduce("ReduceMean", dy, axes, True)
    shared = ctx.emit("Mul", normal, ctx.reduce("ReduceMean", ctx.emit("Mul", dy, normal), axes, True))
    return ctx.emit("Mul", inverse, ctx.emit("Sub", ctx.emit("Sub", dy, average), shared))


@rule("layer_norm_param_grad")
def _layer_norm_param_grad(ctx: Emitter) -> list[Result]:
    dy, norm, gamma = ctx.inputs()
    axes = list(range(ctx.blob(0).ndim - ctx.blob(2).ndim))

    def summed(name: str) -> str:
        return ctx.reduce("ReduceSum", name, axes, False) if axes else ctx.emit("Identity", name)

    return [ctx.emit("Mul", dy, gamma), summed(dy), summed(ctx.emit("Mul", dy, norm))]


# --- softmax


def _along(ctx: Emitter, kind: str) -> Result:
    perm = ctx.perm_of(0)
    return ctx.moved(ctx.emit(kind, ctx.input(0, perm), axis=perm.index(ctx.attrs["axis"])), perm)


@rule("softmax")
def _softmax(ctx: Emitter) -> Result:
    return _along(ctx, "Softmax")


@rule("logsoftmax")
def _logsoftmax(ctx: Emitter) -> Result:
    return _along(ctx, "LogSoftmax")


@rule("softmax_grad")
def _softmax_grad(ctx: Emitter) -> Result:
    y, dy = ctx.inputs()
    mean = ctx.reduce("ReduceSum", ctx.emit("Mul", y, dy), [ctx.attrs["axis"]], True)
    return ctx.emit("Mul", y, ctx.emit("Sub", dy, mean))


@rule("moments")
def _moments(ctx: Emitter) -> list[Result]:
    axes, keepdims = list(ctx.attrs["axes"]), ctx.attrs["keepdims"]
    x = ctx.input(0)
    mean = ctx.reduce("ReduceMean", x, axes, True)
    centred = ctx.emit("Sub", x, mean)
    variance = ctx.reduce("ReduceMean", ctx.emit("Mul", centred, centred), axes, True)
    if keepdims:
        return [mean, variance]
    dropped = axes if len(axes) < ctx.blob(0).ndim else axes[1:]
    return [ctx.squeeze(v, dropped) for v in (mean, variance)]
