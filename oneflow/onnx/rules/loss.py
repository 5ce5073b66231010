"""Losses, which predict jobs return too, and criteria."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..._base import dtype as dtypes
from ...export._axes import is_open
from ...ops.loss import _FLOOR, _LARGEST
from .._emitter import Emitter, Result
from . import Inexpressible, rule

# --- criteria: values, then their mean or sum


def _criterion(name: str) -> Callable[[Callable[[Emitter], str]], None]:
    def register(function: Callable[[Emitter], str]) -> None:
        def whole(ctx: Emitter) -> Result:
            values, reduction = function(ctx), ctx.attrs["reduction"]
            if reduction == "none":
                return values
            kind = "ReduceMean" if reduction == "mean" else "ReduceSum"
            rank = _rank_of_values(ctx)
            return ctx.squeeze(ctx.reduce(kind, values, list(range(rank)), True), list(range(1, rank)))

        rule(name)(whole)

    return register


def _rank_of_values(ctx: Emitter) -> int:
    ranks = max(b.ndim for b in ctx.node.inputs)
    return ranks - 1 if ctx.node.op.name == "triplet_margin_loss" else ranks


@_criterion("l1_loss")
def _l1(ctx: Emitter) -> str:
    x, t = ctx.inputs()
    return ctx.emit("Abs", ctx.emit("Sub", t, x))


@_criterion("mse_loss")
def _mse(ctx: Emitter) -> str:
    x, t = ctx.inputs()
    difference = ctx.emit("Sub", t, x)
    return ctx.emit("Mul", difference, difference)


@_criterion("binary_cross_entropy")
def _bce(ctx: Emitter) -> str:
    x, t, *weight = ctx.inputs()

    def log(v: str) -> str:
        return ctx.emit("Max", ctx.emit("Log", v), ctx.like(-100))

    one = ctx.like(1)
    hit = ctx.emit("Mul", t, log(x))
    miss = ctx.emit("Mul", ctx.emit("Sub", one, t), log(ctx.emit("Sub", one, x)))
    loss = ctx.emit("Neg", ctx.emit("Add", hit, miss))
    return ctx.emit("Mul", loss, weight[0]) if weight else loss


def _with_logits(ctx: Emitter, x: str, z: str, i: int) -> str:
    """max(x, 0) - x * z + log(1 + exp(-|x|))"""
    rest = ctx.emit("Softplus", ctx.emit("Neg", ctx.emit("Abs", x)))
    return ctx.emit("Add", ctx.emit("Sub", ctx.emit("Max", x, ctx.like(0, i)), ctx.emit("Mul", x, z)), rest)


@_criterion("binary_cross_entropy_with_logits")
def _bce_with_logits(ctx: Emitter) -> str:
    x, t, *rest = ctx.inputs()
    weight = rest.pop(0) if ctx.attrs["weighted"] else None
    if ctx.attrs["positive"]:
        one = ctx.like(1)
        more = ctx.emit("Mul", ctx.emit("Sub", rest.pop(0), one), t)
        softplus = ctx.emit("Softplus", ctx.emit("Neg", x))
        loss = ctx.emit("Add", ctx.emit("Mul", ctx.emit("Sub", one, t), x), ctx.emit("Mul", ctx.emit("Add", one, more), softplus))
    else:
        loss = _with_logits(ctx, x, t, 0)
    return loss if weight is None else ctx.emit("Mul", loss, weight)


@_criterion("margin_ranking_loss")
def _margin_ranking(ctx: Emitter) -> str:
    first, second, target = ctx.inputs()
    pushed = ctx.emit("Mul", target, ctx.emit("Sub", first, second))
    return ctx.emit("Max", ctx.emit("Sub", ctx.like(ctx.attrs["margin"]), pushed), ctx.like(0))


@_criterion("triplet_margin_loss")
def _triplet(ctx: Emitter) -> str:
    anchor, positive, negative = ctx.inputs()
    p = ctx.attrs["p"]

    def distance(one: str, other: str) -> str:
        x = ctx.emit("Add", ctx.emit("Sub", one, other), ctx.like(ctx.attrs["eps"]))
        if p == 2:
            return ctx.reduce("ReduceL2", x, [1], False)
        x = ctx.emit("Abs", x)
        if p == 1 or math.isinf(p):
            return ctx.reduce("ReduceSum" if p == 1 else "ReduceMax", x, [1], False)
        total = ctx.reduce("ReduceSum", ctx.emit("Pow", x, ctx.like(p)), [1], False)
        return ctx.emit("Pow", total, ctx.like(1 / p))

    far = distance(anchor, negative)
    if ctx.attrs["swap"]:
        far = ctx.emit("Min", far, distance(positive, negative))
    apart = ctx.emit("Add", ctx.emit("Sub", distance(anchor, positive), far), ctx.like(ctx.attrs["margin"]))
    return ctx.emit("Max", apart, ctx.like(0))


@_criterion("kl_div_loss")
def _kl_divergence(ctx: Emitter) -> str:
    x, t = ctx.inputs()
    if ctx.attrs["log_target"]:
        return ctx.emit("Mul", ctx.emit("Exp", t), ctx.emit("Sub", t, x))
    positive = ctx.emit("Greater", t, ctx.like(0))
    safe = ctx.emit("Where", positive, t, ctx.like(1))
    return ctx.emit("Where", positive, ctx.emit("Mul", t, ctx.emit("Sub", ctx.emit("Log", safe), x)), ctx.like(0))


# --- losses of classes


def _labels(ctx: Emitter, i: int, values: int) -> tuple[str, str]:
    """Labels as an index along the last axis of ``values``, put inside it, and which of them were there."""
    shape = ctx.shape(values)
    classes = shape[-1]
    if is_open(classes):
        raise Inexpressible("an open number of classes")
    labels = ctx.input(i) if ctx.dtype(i).name == "int64" else ctx.cast(ctx.input(i), dtypes.int64)
    labels = ctx.reshape(labels, (*shape[:-1], 1), ctx.shape(i))
    zero, last = ctx.constant(np.asarray(0, np.int64)), ctx.constant(np.asarray(classes - 1, np.int64))
    known = ctx.emit("And", ctx.emit("GreaterOrEqual", labels, zero), ctx.emit("LessOrEqual", labels, last))
    return ctx.emit("Clip", labels, zero, last), known


@rule("sparse_softmax_cross_entropy")
def _sparse_softmax_cross_entropy(ctx: Emitter) -> Result:
    labels, known = _labels(ctx, 0, 1)
    log_p = ctx.emit("LogSoftmax", ctx.input(1), axis=-1)
    loss = ctx.emit("Neg", ctx.emit("GatherElements", log_p, labels, axis=-1))
    most = ctx.like(_LARGEST, 1)
    loss = ctx.emit("Min", ctx.emit("Where", known, loss, most), most)
    return ctx.squeeze(loss, [ctx.blob(1).ndim - 1])


@rule("sparse_cross_entropy")
def _sparse_cross_entropy(ctx: Emitter) -> Result:
    labels, known = _labels(ctx, 0, 1)
    p = ctx.emit("Where", known, ctx.emit("GatherElements", ctx.input(1), labels, axis=-1), ctx.like(0, 1))
    loss = ctx.emit("Neg", ctx.emit("Log", ctx.emit("Max", p, ctx.like(_FLOOR, 1))))
    return ctx.squeeze(loss, [ctx.blob(1).ndim - 1])


@rule("softmax_cross_entropy")
def _softmax_cross_entropy(ctx: Emitter) -> Result:
    minus_log = ctx.emit("Min", ctx.emit("Neg", ctx.emit("LogSoftmax", ctx.input(1), axis=-1)), ctx.like(_LARGEST, 1))
    return ctx.reduce("ReduceSum", ctx.emit("Mul", ctx.input(0), minus_log), [ctx.blob(1).ndim - 1], False)


@rule("sigmoid_cross_entropy")
def _sigmoid_cross_entropy(ctx: Emitter) -> Result:
    labels = ctx.input(0) if ctx.dtype(0) == ctx.dtype(1) else ctx.cast(ctx.input(0), ctx.dtype(1))
    return _with_logits(ctx, ctx.input(1), labels, 1)


@rule("smooth_l1_loss")
def _smooth_l1(ctx: Emitter) -> Result:
    prediction, target = ctx.inputs()
    beta = ctx.attrs["beta"]
    d = ctx.emit("Abs", ctx.emit("Sub", prediction, target))
    far = ctx.emit("Sub", d, ctx.like(0.5 * beta))
    if not beta:
        return far
    near = ctx.emit("Mul", ctx.emit("Mul", d, d), ctx.like(0.5 / beta))
    return ctx.emit("Where", ctx.emit("Less", d, ctx.like(beta)), near, far)


@rule("combined_margin_loss")
def _combined_margin(ctx: Emitter) -> Result:
    m1, m2, m3 = (ctx.attrs[f"m{i}"] for i in (1, 2, 3))
    x, classes = ctx.input(0), ctx.shape(0)[-1]
    if is_open(classes):
        raise Inexpressible("an open number of classes")
    moved = x
    if m1 != 1 or m2 != 0:
        angle = ctx.emit("Acos", ctx.emit("Clip", x, ctx.like(-1), ctx.like(1)))
        moved = ctx.emit("Cos", ctx.emit("Add", ctx.emit("Mul", angle, ctx.like(m1)), ctx.like(m2)))
    labels = ctx.cast(ctx.input(1), dtypes.int64)
    labels = ctx.reshape(labels, (*ctx.shape(0)[:-1], 1), ctx.shape(1))
    mine = ctx.emit("Equal", labels, ctx.constant(np.arange(classes, dtype=np.int64)))
    return ctx.emit("Where", mine, ctx.emit("Sub", moved, ctx.like(m3)), x)
