"""Reductions, sorting, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..._base import dtype as dtypes
from ...export._axes import is_open
from .._emitter import TYPES, Emitter, Result, identity, is_half
from . import Inexpressible, rule

_SAME = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd",
    "reduce_logsumexp": "ReduceLogSumExp", "reduce_euclidean_norm": "ReduceL2",
}  # fmt: skip


def _reduced(ctx: Emitter, compute: Callable[[str, list[int]], str]) -> Result:
    """``compute`` reduces along axes that it keeps, with size 1; here they are dropped where the op says so."""
    axes, keepdims, rank = ctx.attrs["axes"], ctx.attrs["keepdims"], ctx.blob(0).ndim
    perm = ctx.perm_of(0)
    places = sorted(perm.index(axis) for axis in axes)
    y = compute(ctx.input(0, perm), places)
    if keepdims:
        return ctx.moved(y, perm)
    if len(axes) == rank:
        return ctx.squeeze(y, list(range(1, rank)))
    left = [axis for axis in perm if axis not in axes]
    new = tuple(sorted(left).index(axis) for axis in left)
    return ctx.moved(ctx.squeeze(y, places), new)


def _direct(ctx: Emitter, kind: str) -> Result:
    """A reduction that ONNX has, with the axes dropped by the node itself."""
    axes, keepdims, rank = ctx.attrs["axes"], ctx.attrs["keepdims"], ctx.blob(0).ndim
    if keepdims or len(axes) == rank:
        return _reduced(ctx, lambda x, places: _computed(ctx, kind, x, places, True))
    perm = ctx.perm_of(0)
    left = [axis for axis in perm if axis not in axes]
    y = _computed(ctx, kind, ctx.input(0, perm), sorted(perm.index(axis) for axis in axes), False)
    return ctx.moved(y, tuple(sorted(left).index(axis) for axis in left))


def _computed(ctx: Emitter, kind: str, x: str, places: list[int], keepdims: bool) -> str:
    if not places:
        return ctx.emit("Abs" if kind == "ReduceL2" else "Identity", x)
    exact = kind in ("ReduceMax", "ReduceMin")
    x = ctx.widened(x, ctx.dtype()) if exact else _precise(ctx, x)
    return ctx.narrowed(ctx.reduce(kind, x, places, keepdims), ctx.dtype(), halves=not exact)


def _precise(ctx: Emitter, x: str) -> str:
    """8-bit integers as int32, and 16-bit floats as float32, in which sums are taken."""
    return ctx.widened(x, ctx.dtype(), halves=True)


@rule(*_SAME)
def _reduce(ctx: Emitter) -> Result:
    return _direct(ctx, _SAME[ctx.node.op.name])


@rule("reduce_mean")
def _mean(ctx: Emitter) -> Result:
    if not ctx.dtype().is_integer:
        return _direct(ctx, "ReduceMean")
    return _reduced(ctx, lambda x, places: _integer_mean(ctx, x, places))


def _integer_mean(ctx: Emitter, x: str, places: list[int]) -> str:
    """The sum in 64 bits, divided towards 0."""
    total = ctx.reduce("ReduceSum", ctx.cast(x, dtypes.int64), places, True)
    perm = ctx.perm_of(0)
    count = math.prod((ctx.shape(0)[perm[place]] for place in places), start=1)
    return ctx.cast(ctx.emit("Div", total, ctx.size(count) if is_open(count) else ctx.ints([count])), ctx.dtype())


def _variance_of(ctx: Emitter, x: str, places: list[int]) -> str:
    if not places:
        return ctx.emit("Sub", x, x)
    x = _precise(ctx, x)
    centred = ctx.emit("Sub", x, ctx.reduce("ReduceMean", x, places, True))
    return ctx.reduce("ReduceMean", ctx.emit("Mul", centred, centred), places, True)


@rule("reduce_variance", "reduce_std")
def _variance(ctx: Emitter) -> Result:
    def compute(x: str, places: list[int]) -> str:
        y = _variance_of(ctx, x, places)
        y = ctx.emit("Sqrt", y) if ctx.node.op.name == "reduce_std" else y
        return ctx.narrowed(y, ctx.dtype(), halves=bool(places))

    return _reduced(ctx, compute)


@rule("reduce_any", "reduce_all")
def _any_all(ctx: Emitter) -> Result:
    kind = "ReduceMax" if ctx.node.op.name == "reduce_any" else "ReduceMin"

    def compute(x: str, places: list[int]) -> str:
        hits = ctx.emit("Cast", ctx.truth(0, ctx.perm_of(0)), to=TYPES["int32"])
        return ctx.cast(ctx.reduce(kind, hits, places, True), dtypes.int8) if places else ctx.cast(hits, dtypes.int8)

    return _reduced(ctx, compute)


@rule("square_sum")
def _square_sum(ctx: Emitter) -> Result:
    rank = ctx.blob(0).ndim
    x = _precise(ctx, ctx.input(0))
    total = ctx.reduce("ReduceSum", ctx.emit("Mul", x, x), list(range(rank)), True)
    return ctx.squeeze(ctx.narrowed(total, ctx.dtype(), halves=True), list(range(1, rank)))


@rule("l2_normalize")
def _l2_normalize(ctx: Emitter) -> Result:
    perm = ctx.perm_of(0)
    element = ctx.dtype()
    x = _precise(ctx, ctx.input(0, perm))
    places = sorted(perm.index(axis) for axis in ctx.attrs["axes"])
    squares = ctx.reduce("ReduceSumSquare", x, places, True)
    epsilon = ctx.number(ctx.attrs["epsilon"], dtypes.float32 if is_half(element) else element)
    y = ctx.emit("Div", x, ctx.emit("Sqrt", ctx.emit("Max", squares, epsilon)))
    return ctx.moved(ctx.narrowed(y, element, halves=True), perm)


@rule("count_not_finite")
def _count_not_finite(ctx: Emitter) -> Result:
    total = ctx.ints([0])
    for i, blob in enumerate(ctx.node.inputs):
        x = ctx.input(i)
        if blob.dtype.is_integer:
            continue
        bad = ctx.emit("Or", ctx.emit("IsNaN", x), ctx.emit("IsInf", x))
        count = ctx.reduce("ReduceSum", ctx.emit("Cast", bad, to=TYPES["int64"]), list(range(blob.ndim)), True)
        total = ctx.emit("Add", total, ctx.reshape(count, (1,)))
    return total if ctx.producer(total) else ctx.emit("Identity", total)


# --- order


@rule("argmax")
def _argmax(ctx: Emitter) -> Result:
    perm, axis, rank = ctx.perm_of(0), ctx.attrs["axis"], ctx.blob(0).ndim
    x = ctx.widened(ctx.input(0, perm), ctx.dtype())
    place = ctx.emit("ArgMax", x, axis=perm.index(axis), keepdims=int(rank == 1))
    left = [a for a in perm if a != axis]
    new = tuple(sorted(left).index(a) for a in left) if rank > 1 else identity(1)
    return ctx.moved(ctx.cast(place, dtypes.int32), new)


def _ordered(ctx: Emitter, count: str, descending: bool) -> tuple[str, str]:
    """The first values along the op's axis in order, and where they are."""
    x = ctx.widened(ctx.input(0), ctx.dtype())
    values, places = ctx.emit("TopK", x, count, outputs=2, axis=ctx.attrs["axis"], largest=int(descending), sorted=1)
    return ctx.narrowed(values, ctx.dtype()), places


def _all_of(ctx: Emitter) -> str:
    size = ctx.shape(0)[ctx.attrs["axis"]]
    return ctx.size(size) if is_open(size) else ctx.ints([size])


@rule("sort")
def _sort(ctx: Emitter) -> Result:
    return _ordered(ctx, _all_of(ctx), ctx.attrs["descending"])[0]


@rule("argsort")
def _argsort(ctx: Emitter) -> Result:
    return ctx.cast(_ordered(ctx, _all_of(ctx), ctx.attrs["descending"])[1], dtypes.int32)


@rule("top_k")
def _top_k(ctx: Emitter) -> Result:
    size = ctx.shape(0)[ctx.attrs["axis"]]
    k = ctx.attrs["k"]
    return ctx.cast(_ordered(ctx, ctx.ints([k if is_open(size) else min(k, size)]), True)[1], dtypes.int32)


@rule("in_top_k")
def _in_top_k(ctx: Emitter) -> Result:
    targets, predictions = ctx.inputs()
    classes = ctx.shape(1)[1]
    if is_open(classes):
        raise Inexpressible("an open number of classes")
    numbers = ctx.constant(np.arange(classes, dtype=np.int64))
    mine = ctx.emit("Equal", ctx.unsqueeze(ctx.cast(targets, dtypes.int64), [1]), numbers)
    zero, one = ctx.number(0, ctx.dtype(1)), ctx.constant(np.asarray(1, np.int32))
    none = ctx.constant(np.asarray(0, np.int32))
    score = ctx.reduce("ReduceSum", ctx.emit("Where", mine, predictions, zero), [1], True)
    higher = ctx.emit("Where", ctx.emit("Greater", predictions, score), one, none)
    count = ctx.reduce("ReduceSum", higher, [1], False)
    bad = ctx.emit("Or", ctx.emit("IsNaN", predictions), ctx.emit("IsInf", predictions))
    bad = ctx.reduce("ReduceMax", ctx.emit("Where", bad, one, none), [1], False)
    known = ctx.reduce("ReduceMax", ctx.emit("Where", mine, one, none), [1], False)
    good = ctx.emit("And", ctx.emit("Less", count, ctx.constant(np.asarray(ctx.attrs["k"], np.int32))),
                    ctx.emit("Greater", known, bad))  # fmt: skip
    return ctx.emit("Cast", good, to=TYPES["int8"])


@rule("cumsum")
def _cumsum(ctx: Emitter) -> Result:
    axis = ctx.constant(np.array(ctx.attrs["axis"] % ctx.blob(0).ndim, np.int64))
    exclusive, reverse = (int(ctx.attrs[name]) or None for name in ("exclusive", "reverse"))
    return ctx.narrowed(ctx.emit("CumSum", ctx.wide(0), axis, exclusive=exclusive, reverse=reverse), ctx.dtype())
