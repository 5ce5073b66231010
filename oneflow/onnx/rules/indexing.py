"""Gathering and scattering. ONNX takes no index outside an axis, where the ops here give zeros or leave it out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..._base import dtype as dtypes
from ..._base.dtype import from_numpy
from ...export._axes import Shape, Size, is_open
from .._emitter import Emitter, Result
from . import Inexpressible, rule


def _long(ctx: Emitter, i: int) -> str:
    """Indices as int64, which some nodes insist on."""
    name = ctx.input(i)
    return name if ctx.dtype(i).name == "int64" else ctx.cast(name, dtypes.int64)


def _index(ctx: Emitter, i: int) -> str:
    """Indices in one of the two dtypes that all nodes take."""
    return ctx.input(i) if ctx.dtype(i).name == "int32" else _long(ctx, i)


@rule("one_hot")
def _one_hot(ctx: Emitter) -> Result:
    a = ctx.attrs
    axis, element = a["axis"], from_numpy(a["to"])
    behind = ctx.node.outputs[0].ndim - axis - 1
    numbers = np.arange(a["depth"], dtype=np.int64).reshape(-1, *[1] * behind)
    hit = ctx.emit("Equal", ctx.unsqueeze(_long(ctx, 0), [axis]), ctx.constant(numbers))
    return ctx.emit("Where", hit, ctx.number(a["on"], element), ctx.number(a["off"], element))


@rule("gather")
def _gather(ctx: Emitter) -> Result:
    return ctx.emit("Gather", ctx.input(0), _index(ctx, 1), axis=ctx.attrs["axis"])


@rule("batch_gather")
def _batch_gather(ctx: Emitter) -> Result:
    rank = ctx.blob(1).ndim
    if rank == 1:
        return ctx.emit("Gather", ctx.input(0), _index(ctx, 1), axis=0)
    return ctx.emit("GatherND", ctx.input(0), ctx.unsqueeze(_long(ctx, 1), [rank]), batch_dims=rank - 1)


@rule("gather_nd")
def _gather_nd(ctx: Emitter) -> Result:
    return ctx.emit("GatherND", ctx.input(0), _long(ctx, 1))


@rule("dim_gather")
def _dim_gather(ctx: Emitter) -> Result:
    return ctx.emit("GatherElements", ctx.input(0), _index(ctx, 1), axis=ctx.attrs["dim"])


# --- scattering


def _zeros(ctx: Emitter, shape: Shape, i: int) -> str:
    return ctx.emit("Expand", ctx.number(0, ctx.dtype(i), 1), ctx.sizes(shape))


@rule("scatter_nd")
def _scatter_nd(ctx: Emitter) -> Result:
    zeros = _zeros(ctx, ctx.attrs["shape"], 1)
    return ctx.emit("ScatterND", zeros, _long(ctx, 0), ctx.input(1), reduction="add")


@rule("tensor_scatter_nd_add")
def _tensor_scatter_nd_add(ctx: Emitter) -> Result:
    return ctx.emit("ScatterND", ctx.input(0), _long(ctx, 1), ctx.input(2), reduction="add")


@rule("tensor_scatter_nd_update")
def _tensor_scatter_nd_update(ctx: Emitter) -> Result:
    """Updates of one place add up: first that place becomes 0."""
    places, updates = _long(ctx, 1), ctx.input(2)
    kept = ctx.emit("ScatterND", ctx.input(0), places, _zeros(ctx, ctx.shape(2), 2))
    return ctx.emit("ScatterND", kept, places, updates, reduction="add")


def _inside(ctx: Emitter, ids: str, count: str) -> str:
    """Segment numbers; those outside become the number behind the last, whose segment is cut off."""
    low = ctx.emit("GreaterOrEqual", ids, ctx.constant(np.asarray(0, np.int64)))
    return ctx.emit("Where", ctx.emit("And", low, ctx.emit("Less", ids, count)), ids, count)


def _segment_sum(ctx: Emitter, count: int, axis: int) -> Result:
    if is_open(count):
        raise Inexpressible("an open number of segments")
    rank, own = ctx.blob(0).ndim, ctx.blob(1).ndim
    shape = ctx.shape(0)
    places = list(range(axis, axis + own))
    rest = [i for i in range(rank) if i not in places]
    data = ctx.input(0, (*places, *rest))
    ids = ctx.unsqueeze(_inside(ctx, _long(ctx, 1), ctx.constant(np.asarray(count, np.int64))), [own])
    zeros = _zeros(ctx, (count + 1, *(shape[i] for i in rest)), 0)
    sums = ctx.slice(ctx.emit("ScatterND", zeros, ids, data, reduction="add"), [0], [0], [count], [1])
    if not axis:
        return sums
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(rest) + 1)]
    return ctx.emit("Transpose", sums, perm=order)


@rule("unsorted_segment_sum")
def _unsorted_segment_sum(ctx: Emitter) -> Result:
    return _segment_sum(ctx, ctx.attrs["count"], ctx.attrs["axis"])


@rule("unsorted_segment_sum_like")
def _unsorted_segment_sum_like(ctx: Emitter) -> Result:
    return _segment_sum(ctx, ctx.shape(2)[ctx.attrs["axis"]], ctx.attrs["axis"])


@rule("unsorted_batch_segment_sum")
def _unsorted_batch_segment_sum(ctx: Emitter) -> Result:
    count, axis, shape = ctx.attrs["count"], ctx.blob(1).ndim - 1, ctx.shape(0)
    ids = _inside(ctx, _long(ctx, 1), ctx.constant(np.asarray(count, np.int64)))
    ids = ctx.unsqueeze(ids, list(range(axis + 1, len(shape))))
    zeros = _zeros(ctx, (*shape[:axis], count + 1, *shape[axis + 1 :]), 0)
    spread = ctx.emit("Expand", ids, ctx.sizes(shape))
    sums = ctx.emit("ScatterElements", zeros, spread, ctx.input(0), axis=axis, reduction="add")
    return ctx.slice(sums, [axis], [0], [count], [1])


# --- matrices


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


@rule("matmul")
def _matmul(ctx: Emitter) -> Result:
    a = ctx.attrs
    element, ranks = ctx.dtype(), [ctx.blob(i).ndim for i in (0, 1)]
    if ranks == [2, 2] and element.is_floating_point:
        return ctx.emit(
            "Gemm", *ctx.inputs(), transA=int(a["transpose_a"]) or None, transB=int(a["transpose_b"]) or None,
            alpha=float(a["alpha"]) if a["alpha"] != 1 else None,
        )  # fmt: skip
    x, y = (
        ctx.wide(i, _swapped(rank) if turned else None)
        for i, rank, turned in zip((0, 1), ranks, (a["transpose_a"], a["transpose_b"]), strict=True)
    )
    product = ctx.emit("MatMul", x, y)
    if a["alpha"] != 1:
        wide = dtypes.int32 if element.bytes == 1 else element
        product = ctx.emit("Mul", product, ctx.number(a["alpha"], wide))
    return ctx.narrowed(product, element)


def _masked(ctx: Emitter, x: str) -> str:
    """The lower triangle of a tensor, the rest filled."""
    rows, columns = ctx.shape(0)[-2:]
    k, fill, element = ctx.attrs["diagonal"], ctx.attrs["fill_value"], ctx.dtype()
    if not (is_open(rows) or is_open(columns)):
        mask = ctx.constant(np.tri(rows, columns, k, dtype=np.bool_))
    else:
        whole = ctx.emit("Expand", ctx.constant(np.array([1], np.int64)), ctx.sizes((rows, columns)))
        mask = ctx.emit("Cast", ctx.emit("Trilu", whole, ctx.constant(np.asarray(k, np.int64)), upper=0), to=9)
    return ctx.emit("Where", mask, x, ctx.number(fill, element))


@rule("tril")
def _tril(ctx: Emitter) -> Result:
    element = ctx.dtype()
    if ctx.attrs["fill_value"] == 0 and element.name in ("float32", "float64", "int64"):
        return ctx.emit("Trilu", ctx.input(0), ctx.constant(np.asarray(ctx.attrs["diagonal"], np.int64)), upper=0)
    return _masked(ctx, ctx.input(0))


@rule("fused_scale_tril")
def _fused_scale_tril(ctx: Emitter) -> Result:
    element = ctx.dtype()
    wide = dtypes.int32 if element.bytes == 1 else element
    scaled = ctx.narrowed(ctx.emit("Mul", ctx.wide(0), ctx.number(ctx.attrs["scale"], wide)), element)
    return _masked(ctx, scaled)


@rule("diag")
def _diag(ctx: Emitter) -> Result:
    shape, diagonal = ctx.shape(0), ctx.attrs["diagonal"]
    down, right = max(-diagonal, 0), max(diagonal, 0)
    if len(shape) == 1:
        line = ctx.emit("Pad", ctx.widened(ctx.input(0), ctx.dtype()), ctx.ints([down, right]))
        wide = dtypes.int32 if ctx.dtype().bytes == 1 else ctx.dtype()
        made = ctx.emit("Where", _on_diagonal(ctx, shape[0] + abs(diagonal)), ctx.unsqueeze(line, [1]), ctx.number(0, wide))
        return ctx.narrowed(made, ctx.dtype())
    if any(map(is_open, shape)):
        raise Inexpressible("the diagonal of a matrix of open size")
    count = min(shape[0] - down, shape[1] - right)
    places = [(down + i) * shape[1] + right + i for i in range(count)]
    return ctx.emit("Gather", ctx.reshape(ctx.input(0), (math.prod(shape),)), ctx.ints(places), axis=0)


def _on_diagonal(ctx: Emitter, size: Size) -> str:
    """Where a square matrix's column is its row plus the op's offset."""
    diagonal = ctx.attrs["diagonal"]
    if not is_open(size):
        return ctx.constant(np.eye(size, k=diagonal, dtype=np.bool_))
    zero, one = (ctx.constant(np.asarray(n, np.int64)) for n in (0, 1))
    numbers = ctx.emit("Range", zero, ctx.squeeze(ctx.size(size), [0]), one)
    rows = ctx.emit("Add", ctx.unsqueeze(numbers, [1]), ctx.constant(np.asarray(diagonal, np.int64)))
    return ctx.emit("Equal", ctx.unsqueeze(numbers, [0]), rows)


@rule("fused_self_attention_query_mul_key_and_value")
def _query_mul_key_and_value(ctx: Emitter) -> list[Result]:
    size = ctx.attrs["head_size"]
    length, batch, hidden = ctx.shape(0)
    heads = hidden // (3 * size)
    parts = ctx.reshape(ctx.input(0), (length, batch, heads, 3, size), ctx.shape(0))
    query, key, value = (ctx.emit("Gather", parts, ctx.constant(np.asarray(i, np.int64)), axis=3) for i in range(3))

    def turned(name: str, order: Sequence[int]) -> str:
        return ctx.emit("Transpose", name, perm=list(order))

    scores = ctx.emit("MatMul", turned(query, (1, 2, 0, 3)), turned(key, (1, 2, 3, 0)))
    return [ctx.emit("Mul", scores, ctx.like(ctx.attrs["alpha"])), turned(value, (1, 2, 0, 3))]


@rule("einsum")
def _einsum(ctx: Emitter) -> Result:
    equation = ctx.attrs["equation"]
    inputs = [ctx.wide(i) for i in range(len(ctx.node.inputs))]
    y = ctx.narrowed(ctx.emit("Einsum", *inputs, equation=equation), ctx.dtype())
    return ctx.unsqueeze(y, [0]) if equation.rstrip().endswith("->") else y
