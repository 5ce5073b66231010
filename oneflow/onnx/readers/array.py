"""Shapes, joining, slicing, gathering, scattering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import math as fm
from ... import nn
from ..._base import dtype as dtypes
from ..._base.dtype import from_numpy
from ...graph.node import Blob
from ...ops.array import concat, expand, reshape, transpose
from ...ops.constant import constant
from ...ops.elementwise import cast
from ...ops.indexing import dim_gather, gather, gather_nd
from ...ops.masks import where
from ...ops.padding import pad, reflected, replication_pad2d
from ...ops.scatter import scatter_nd, tensor_scatter_nd_add, tensor_scatter_nd_update
from ...ops.slicing import reverse, slice_v2
from . import Reader, reads

_LARGEST = 2**31 - 1


def _shaped(blob: Blob, shape: tuple[int, ...]) -> Blob:
    return reshape(blob, list(shape) or [1])


@reads("Reshape")
def _reshape(ctx: Reader, x: Any, shape: Any = None) -> Blob:
    blob = ctx.blob(x)
    sizes = ctx.attr("shape") if shape is None else ctx.ints(shape, "the shape")
    if not ctx.attr("allowzero", 0):
        sizes = [blob.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return _shaped(blob, tuple(sizes))


@reads("Flatten")
def _flatten(ctx: Reader, x: Any) -> Blob:
    blob = ctx.blob(x)
    axis = ctx.attr("axis", 1)
    axis += blob.ndim if axis < 0 else 0
    return reshape(blob, [math.prod(blob.shape[:axis]), math.prod(blob.shape[axis:])])


@reads("Transpose")
def _transpose(ctx: Reader, x: Any) -> Blob:
    blob = ctx.blob(x)
    return transpose(blob, ctx.attr("perm", list(range(blob.ndim))[::-1]))


@reads("Squeeze")
def _squeeze(ctx: Reader, x: Any, axes: Any = None) -> Blob:
    blob = ctx.blob(x)
    given = ctx.axes(axes)
    gone = [i for i, s in enumerate(blob.shape) if s == 1] if given is None else [a % blob.ndim for a in given]
    return _shaped(blob, tuple(size for i, size in enumerate(blob.shape) if i not in gone))


@reads("Unsqueeze")
def _unsqueeze(ctx: Reader, x: Any, axes: Any = None) -> Blob:
    blob = ctx.blob(x)
    rank = ctx.rank(0, blob)
    given = ctx.axes(axes, []) or []
    new = [a % (rank + len(given)) for a in given]
    old = iter(blob.shape if rank else ())
    return _shaped(blob, tuple(1 if i in new else next(old) for i in range(rank + len(given))))


@reads("Concat")
def _concat(ctx: Reader, *xs: Any) -> Blob:
    blobs = [ctx.blob(x) for x in xs if not (ctx.array(x) is not None and ctx.array(x).size == 0)]  # type: ignore[union-attr]
    return concat(blobs, ctx.attr("axis"))


@reads("Split")
def _split(ctx: Reader, x: Any, sizes: Any = None) -> list[Blob]:
    blob = ctx.blob(x)
    axis, count = ctx.attr("axis", 0) % blob.ndim, len(ctx.node.output)
    if ctx.attr("num_outputs", count) != count:
        ctx.refuse(f"its num_outputs is not the number of its outputs, {count}")
    given = ctx.attr("split") if sizes is None else ctx.ints(sizes, "the sizes")
    if given is None:
        each = -(-blob.shape[axis] // count)
        given = [min(each, blob.shape[axis] - each * i) for i in range(count)]
    made, start = [], 0
    for size in given:
        made.append(slice_v2(blob, ctx.along(axis, start, start + size)))
        start += size
    return made


@reads("Slice")
def _slice(ctx: Reader, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Blob:
    blob = ctx.blob(x)
    begin = ctx.attr("starts") if starts is None else ctx.ints(starts, "the start")
    stop = ctx.attr("ends") if ends is None else ctx.ints(ends, "the end")
    along = ctx.axes(axes, list(range(len(begin))))
    by = ctx.ints(steps, "the step") or [1] * len(begin)
    triples: Any = [(None, None, None)] * blob.ndim
    for axis, b, e, s in zip(along, begin, stop, by, strict=True):
        size = blob.shape[axis % blob.ndim]
        chosen = range(size)[slice(max(b, -_LARGEST), None if s < 0 and e < -size else e, s)]
        if not len(chosen):
            ctx.refuse(f"the slice of axis {axis} is empty, and no Blob is")
        triples[axis % blob.ndim] = (chosen.start, chosen.stop if chosen.stop >= 0 else None, s)
    whole = [i for i, t in enumerate(triples) if t[2] == -1 and len(range(blob.shape[i])[slice(*t)]) == blob.shape[i]]
    if whole and all(t == (None, None, None) or i in whole for i, t in enumerate(triples)):
        return reverse(blob, whole)
    return slice_v2(blob, triples)


@reads("Expand")
def _expand(ctx: Reader, x: Any, shape: Any) -> Blob:
    blob = ctx.blob(x)
    sizes = ctx.ints(shape, "the shape") or []
    wanted = list(np.broadcast_shapes(blob.shape, tuple(sizes)))
    return blob if list(blob.shape) == wanted else expand(blob, wanted)


@reads("Tile")
def _tile(ctx: Reader, x: Any, repeats: Any) -> Blob:
    blob = ctx.blob(x)
    for axis, count in enumerate(ctx.ints(repeats, "the number of repeats") or []):
        if count != 1:
            blob = concat([blob] * count, axis)
    return blob


@reads("ConstantOfShape", "Range", "EyeLike")
def _of_shape(ctx: Reader, *xs: Any) -> Any:
    if ctx.node.op_type == "EyeLike" and xs:
        blob = ctx.blob(xs[0])
        eye = np.eye(blob.shape[0], blob.shape[1], ctx.attr("k", 0))
        return ctx.known(eye.astype(blob.dtype.numpy_dtype))
    ctx.refuse("its size depends on the model's inputs")


@reads("Pad")
def _pad(ctx: Reader, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Blob:
    blob = ctx.blob(x)
    amounts = ctx.attr("pads") if pads is None else ctx.ints(pads, "the padding")
    along = ctx.ints(axes, "the axes") or list(range(blob.ndim))
    pairs = [(0, 0)] * blob.ndim
    for i, axis in enumerate(along):
        pairs[axis % blob.ndim] = (amounts[i], amounts[i + len(along)])
    cut = [(max(0, -a), max(0, -b)) for a, b in pairs]
    if any(map(any, cut)):
        slices: Any = [(a or None, -b or None, None) for a, b in cut]
        blob = slice_v2(blob, slices)
    pairs = [(max(0, a), max(0, b)) for a, b in pairs]
    mode = ctx.attr("mode", "constant")
    if mode == "constant":
        number = ctx.attr("value", 0.0) if value is None else ctx.number(value)
        if number is None:
            ctx.refuse("the value to pad with depends on the model's inputs")
        return pad(blob, pairs, int(number) if blob.dtype.is_integer else number)
    if blob.ndim != 4 or any(pairs[0]) or any(pairs[1]) or mode not in ("reflect", "edge"):
        ctx.refuse(f"padding by {mode!r} is known for the height and width of (N, C, H, W) only")
    (top, bottom), (left, right) = pairs[2:]
    return (reflected if mode == "reflect" else replication_pad2d)(blob, [left, right, top, bottom])


@reads("DepthToSpace")
def _depth_to_space(ctx: Reader, x: Any) -> Blob:
    blob, size = ctx.blob(x), ctx.attr("blocksize")
    if ctx.attr("mode", "DCR") == "CRD":
        return nn.PixelShuffle(blob, size)
    n, c, h, w = blob.shape
    parts = transpose(reshape(blob, [n, size, size, c // size**2, h, w]), [0, 3, 4, 1, 5, 2])
    return reshape(parts, [n, c // size**2, h * size, w * size])


@reads("SpaceToDepth")
def _space_to_depth(ctx: Reader, x: Any) -> Blob:
    blob, size = ctx.blob(x), ctx.attr("blocksize")
    n, c, h, w = blob.shape
    order = [0, 1, 3, 5, 2, 4] if ctx.attr("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    parts = transpose(reshape(blob, [n, c, h // size, size, w // size, size]), order)
    return reshape(parts, [n, c * size**2, h // size, w // size])


@reads("Trilu")
def _trilu(ctx: Reader, x: Any, k: Any = None) -> Blob:
    blob = ctx.blob(x)
    diagonal = 0 if k is None else (ctx.ints(k, "the diagonal") or [0])[0]
    if ctx.attr("upper", 1):
        return blob - fm.tril(blob, diagonal - 1) if not blob.dtype.is_floating_point else _upper(blob, diagonal)
    return fm.tril(blob, diagonal)


def _upper(blob: Blob, diagonal: int) -> Blob:
    """Selected, not subtracted: what is not kept may be infinite."""
    below = fm.tril(constant(1, dtypes.int8, blob.shape), diagonal - 1)
    return where(below, constant(0.0, blob.dtype, blob.shape), blob)


# --- gathering and scattering


def _indices(ctx: Reader, value: Any, size: int) -> Blob:
    """Indices without negative ones, which count from the end in ONNX."""
    array = ctx.array(value)
    if array is not None:
        return ctx.blob(ctx.known(np.where(array < 0, array + size, array)))
    blob = ctx.blob(value)
    return where(blob < 0, blob + size, blob)


@reads("Gather")
def _gather(ctx: Reader, x: Any, indices: Any) -> Blob:
    blob = ctx.blob(x)
    axis = ctx.attr("axis", 0) % blob.ndim
    array = ctx.array(indices)
    if array is not None and array.ndim == 0:  # one slice: the axis vanishes
        place = int(array) % blob.shape[axis]
        piece = slice_v2(blob, ctx.along(axis, place, place + 1))
        return _shaped(piece, (*blob.shape[:axis], *blob.shape[axis + 1 :]))
    made = gather(blob, _indices(ctx, indices, blob.shape[axis]), axis=axis)
    if isinstance(indices, Blob) and ctx.rank(1, indices) == 0:
        return _shaped(made, (*blob.shape[:axis], *blob.shape[axis + 1 :]))
    return made


def _coordinates(ctx: Reader, value: Any, shape: Sequence[int]) -> Blob:
    """Positions on the first axes of a shape, without negative coordinates."""
    array = ctx.array(value)
    count = array.shape[-1] if array is not None else ctx.blob(value).shape[-1]
    sizes = np.asarray(shape[:count], np.int64)
    if array is not None:
        return ctx.blob(ctx.known(np.where(array < 0, array + sizes, array)))
    blob = ctx.blob(value)
    whole: Any = int(sizes[0]) if (sizes == sizes[0]).all() else ctx.numbers(sizes.astype(blob.dtype.numpy_dtype), "sizes")
    return where(blob < 0, blob + whole, blob)


@reads("GatherElements")
def _gather_elements(ctx: Reader, x: Any, indices: Any) -> Blob:
    blob = ctx.blob(x)
    axis = ctx.attr("axis", 0) % blob.ndim
    places = _indices(ctx, indices, blob.shape[axis])
    triples: Any = [(0, p, 1) if i != axis else (None, None, None) for i, p in enumerate(places.shape)]
    if any(p != s for i, (p, s) in enumerate(zip(places.shape, blob.shape, strict=True)) if i != axis):
        blob = slice_v2(blob, triples)
    return dim_gather(blob, axis, places)


@reads("GatherND")
def _gather_nd(ctx: Reader, x: Any, indices: Any) -> Blob:
    blob, paired = ctx.blob(x), ctx.attr("batch_dims", 0)
    places = _coordinates(ctx, indices, blob.shape[paired:])
    if not paired:
        return gather_nd(blob, places)
    if places.shape[-1] != 1 or places.ndim != paired + 2:
        ctx.refuse("batch_dims with several coordinates")
    return gather(blob, reshape(places, places.shape[:-1]), axis=paired, batch_dims=paired)


@reads("ScatterND")
def _scatter_nd(ctx: Reader, x: Any, indices: Any, updates: Any) -> Blob:
    blob, rows = ctx.blob(x), ctx.blob(updates)
    places = _coordinates(ctx, indices, blob.shape)
    reduction = ctx.attr("reduction", "none")
    if reduction == "add":
        array = ctx.array(x)
        if array is not None and not array.any():
            return scatter_nd(places, rows, blob.shape)
        return tensor_scatter_nd_add(blob, places, rows)
    if reduction != "none":
        ctx.refuse(f"reduction {reduction!r}")
    return tensor_scatter_nd_update(blob, places, rows)


@reads("ScatterElements")
def _scatter_elements(ctx: Reader, x: Any, indices: Any, updates: Any) -> Blob:
    """As ScatterND, with the coordinates written out."""
    blob, rows, reduction = ctx.blob(x), ctx.blob(updates), ctx.attr("reduction", "none")
    axis = ctx.attr("axis", 0) % blob.ndim
    places = cast(_indices(ctx, indices, blob.shape[axis]), dtypes.int64)
    grid = np.indices(places.shape)
    coordinates = [places if i == axis else ctx.numbers(grid[i].astype(np.int64), f"axis_{i}") for i in range(blob.ndim)]
    every = concat([reshape(c, [*c.shape, 1]) for c in coordinates], places.ndim)
    if reduction not in ("none", "add"):
        ctx.refuse(f"reduction {reduction!r}")
    return (tensor_scatter_nd_add if reduction == "add" else tensor_scatter_nd_update)(blob, every, rows)


@reads("OneHot")
def _one_hot(ctx: Reader, indices: Any, depth: Any, values: Any) -> Blob:
    from ...ops.indexing import one_hot

    size = (ctx.ints(depth, "the depth") or [0])[0]
    both = ctx.array(values)
    if both is None:
        ctx.refuse("the values depend on the model's inputs")
    off, on = (v.item() for v in both)
    blob = ctx.blob(indices)
    return one_hot(_indices(ctx, blob, size), size, on, off, ctx.attr("axis", -1), from_numpy(both.dtype))
