"""Shapes, joining, slicing, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..._base.dtype import from_numpy
from ...export._axes import Shape, Size, is_open
from .._emitter import TYPES, Emitter, Moved, Result, Static, identity
from . import Inexpressible, rule

_END = int(np.iinfo(np.int64).max)
_SMALL = 1024  # elements: larger constants of one value are written as that value and a shape


@rule("reshape", "dynamic_reshape", "expand_dims", "squeeze", "reshape_like")
def _reshape(ctx: Emitter) -> Result:
    return ctx.reshape(ctx.input(0), ctx.out_shape(), ctx.shape(0))


@rule("flatten")
def _flatten(ctx: Emitter) -> Result:
    if ctx.attrs["first"] == 1 and ctx.attrs["last"] == ctx.blob(0).ndim - 1:
        return ctx.emit("Flatten", ctx.input(0), axis=1)
    return ctx.reshape(ctx.input(0), ctx.out_shape(), ctx.shape(0))


@rule("transpose")
def _transpose(ctx: Emitter) -> Result:
    perm, stored = ctx.attrs["perm"], ctx.layout(0)
    if stored is not None:  # it is stored in another order anyway: the new one is a matter of names
        new = tuple(perm.index(axis) for axis in stored)
        return (
            ctx.moved(ctx.emit("Identity", ctx.input(0, stored)), new)
            if new == identity(len(new))
            else Moved(ctx.input(0, stored), new)
        )
    return ctx.emit("Transpose", ctx.input(0), perm=list(perm))


# --- joining


@rule("concat")
def _concat(ctx: Emitter) -> Result:
    names, perm = ctx.aligned(*range(len(ctx.node.inputs)))
    return ctx.moved(ctx.emit("Concat", *names, axis=perm.index(ctx.attrs["axis"])), perm)


@rule("stack")
def _stack(ctx: Emitter) -> Result:
    axis = ctx.attrs["axis"]
    return ctx.emit("Concat", *(ctx.unsqueeze(name, [axis]) for name in ctx.inputs()), axis=axis)


@rule("join_runs")
def _join_runs(ctx: Emitter) -> Result:
    return ctx.emit("Concat", *ctx.inputs(), axis=0)


@rule("pack")
def _pack(ctx: Emitter) -> Result:
    names = ctx.inputs()
    return ctx.emit("Concat", *(names if len(names) > 1 else names * ctx.attrs["pack_num"]), axis=0)


@rule("unpack")
def _unpack(ctx: Emitter) -> Result:
    count, index = ctx.attrs["unpack_num"], ctx.attrs.get("index", 0)
    size = ctx.shape(0)[0]
    if is_open(size):
        raise Inexpressible("a batch of open size that is cut into pieces")
    piece = size // count
    return ctx.slice(ctx.input(0), [0], [index * piece], [(index + 1) * piece], [1])


@rule("distribute_split")
def _split(ctx: Emitter) -> Result | list[Result]:
    axis = ctx.attrs["axis"]
    sizes = [ctx.out_shape(i)[axis] for i in range(len(ctx.node.outputs))]
    if len(sizes) == 1:
        return ctx.emit("Identity", ctx.input(0))
    if any(map(is_open, sizes)):
        raise Inexpressible("an open size that is cut into pieces")
    return list(ctx.emit("Split", ctx.input(0), ctx.ints(sizes), outputs=len(sizes), axis=axis))


@rule("broadcast_like")
def _broadcast_like(ctx: Emitter) -> Result:
    x, old, new = ctx.input(0), ctx.shape(0), ctx.out_shape()
    if len(old) < len(new):
        axes = ctx.attrs["axes"]
        missing = len(new) - len(old)
        x = ctx.unsqueeze(x, list(axes if len(axes) == missing else range(missing)))
    return ctx.emit("Expand", x, ctx.sizes(new))


@rule("broadcast_to_compatible_with", "expand")
def _expand(ctx: Emitter) -> Result:
    return ctx.emit("Expand", ctx.input(0), ctx.sizes(ctx.out_shape()))


# --- slicing


Triple = tuple[int | None, int | None, int | None]


def _cut(ctx: Emitter, name: str, slices: Sequence[Triple]) -> str:
    """Slices of the first axes of a tensor, as (start, stop, step)."""
    axes, starts, stops, steps = [], [], [], []
    for axis, (start, stop, step) in enumerate(slices):
        step = 1 if step is None else step
        if step > 0 and not start and stop is None and step == 1:
            continue
        axes.append(axis)
        starts.append((0 if step > 0 else _END) if start is None else start)
        stops.append((_END if step > 0 else -_END) if stop is None else stop)
        steps.append(step)
    return ctx.slice(name, axes, starts, stops, steps) if axes else name


def _normal(slices: Sequence[Triple], shape: Sequence[Size]) -> list[Triple]:
    """Slices without those that take everything; where sizes are known, without negative numbers."""
    made = []
    for triple, size in zip(slices, shape, strict=False):
        if is_open(size):
            made.append(triple)
            continue
        chosen = range(size)[slice(*triple)]
        if len(chosen) == size and chosen.step == 1:
            made.append((None, None, None))
        else:
            made.append((chosen.start, chosen.stop if chosen.stop >= 0 else None, chosen.step))
    return made


@rule("slice")
def _slice(ctx: Emitter) -> Result:
    made = _cut(ctx, ctx.input(0), _normal(ctx.attrs["slices"], ctx.shape(0)))
    return made if made != ctx.input(0) else ctx.emit("Identity", made)


@rule("getitem")
def _getitem(ctx: Emitter) -> Result:
    index, x = ctx.attrs["index"], ctx.input(0)
    slices = [e if isinstance(e, tuple) else (e, None if e == -1 else e + 1, None) for e in index if e is not None]
    y = _cut(ctx, x, _normal(slices, ctx.shape(0)))
    kept = [e for e in index if e is not None]
    y = ctx.squeeze(y, [axis for axis, e in enumerate(kept) if not isinstance(e, tuple)])
    added, place = [], 0
    for e in index:
        if e is None:
            added.append(place)
        place += e is None or isinstance(e, tuple)
    rank = ctx.blob(0).ndim - sum(not isinstance(e, tuple) for e in kept)
    if not rank and not added:
        added = [0]
    y = ctx.unsqueeze(y, added)
    return y if y != x else ctx.emit("Identity", y)


@rule("reverse")
def _reverse(ctx: Emitter) -> Result:
    axes = list(ctx.attrs["axes"])
    return ctx.slice(ctx.input(0), axes, [_END] * len(axes), [-_END] * len(axes), [-1] * len(axes))


@rule("slice_update")
def _slice_update(ctx: Emitter) -> Result:
    """Axis by axis: the axes before the region, the region with its own axes replaced, the axes after it."""
    shape, slices = ctx.shape(0), ctx.attrs["slices"]
    regions: list[tuple[int, range | None, int]] = []
    for axis, triple in enumerate(slices):
        size = shape[axis]
        if is_open(size):
            if triple not in ((None, None, None), (None, None, -1)):
                raise Inexpressible("a region of an open size")
            regions.append((axis, None, triple[2] or 1))
            continue
        chosen = range(size)[slice(*triple)]
        regions.append((axis, chosen, chosen.step))
    update = ctx.input(1)
    turned = [axis for axis, _, step in regions if step < 0]
    if turned:
        update = ctx.slice(update, turned, [_END] * len(turned), [-_END] * len(turned), [-1] * len(turned))
    partial = [(axis, r[::-1] if r.step < 0 else r) for axis, r, _ in regions if r is not None and len(r) < shape[axis]]
    if not partial:
        return ctx.emit("Identity", update)
    return _replaced(ctx, ctx.input(0), update, partial, shape)


def _replaced(ctx: Emitter, x: str, update: str, regions: Sequence[tuple[int, range]], shape: Shape) -> str:
    """``x``, of that shape, with a region of some axes replaced."""
    if not regions:
        return update
    (axis, r), *rest = regions
    inside = ctx.slice(x, [axis], [r.start], [r.stop], [r.step]) if rest else x
    inner = (*shape[:axis], len(r), *shape[axis + 1 :])
    made = _replaced(ctx, inside, update, rest, inner)
    if r.step != 1:
        places = np.asarray(r, np.int64).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return ctx.emit("ScatterElements", x, ctx.emit("Expand", ctx.constant(places), ctx.sizes(inner)), made, axis=axis)
    pieces = [made]
    if r.start > 0:
        pieces.insert(0, ctx.slice(x, [axis], [0], [r.start], [1]))
    if r.stop < shape[axis]:
        pieces.append(ctx.slice(x, [axis], [r.stop], [_END], [1]))
    return ctx.emit("Concat", *pieces, axis=axis) if len(pieces) > 1 else made


# --- constants


@rule("constant")
def _constant(ctx: Emitter) -> Result:
    return _filled(ctx, ctx.attrs["value"], ctx.attrs["to"])


@rule("constant_like")
def _constant_like(ctx: Emitter) -> Result:
    return _filled(ctx, ctx.attrs["value"], ctx.attrs["to"])


def _filled(ctx: Emitter, value: float, to: np.dtype) -> Result:
    shape = ctx.out_shape()
    with np.errstate(over="ignore"):
        single = np.asarray(value).astype(to).reshape(1)
    if not any(map(is_open, shape)) and math.prod(shape) <= _SMALL:
        return Static(np.broadcast_to(single, shape).copy())
    return ctx.emit("Expand", ctx.constant(single), ctx.sizes(shape))


@rule("range")
def _range(ctx: Emitter) -> Result:
    a = ctx.attrs
    return Static(np.asarray(a["start"] + a["delta"] * np.arange(a["count"]), a["to"]))


@rule("reduced_shape_elem_cnt")
def _elem_cnt(ctx: Emitter) -> Result:
    a = ctx.attrs
    count = math.prod((ctx.shape(0)[axis] for axis in a["axes"]), start=1)
    if not is_open(count):
        return Static(np.array([count], a["to"]))
    return ctx.emit("Cast", ctx.size(count), to=TYPES[from_numpy(a["to"]).name])
