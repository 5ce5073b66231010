"""Convolution, pooling, resampling, padding of images. ONNX wants channels first; other layouts are moved there and stay so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...export._axes import Shape, Size, is_open
from ...ops._window import Padding, sides
from .._emitter import Emitter, Perm, Result, identity
from . import Inexpressible, rule


def channels_first(rank: int, are_first: bool) -> Perm:
    """The order of axes that ONNX wants of a Blob."""
    return identity(rank) if are_first else (0, rank - 1, *range(1, rank - 1))


# --- convolution


@rule("conv1d", "conv2d", "conv3d")
def _conv(ctx: Emitter) -> Result:
    a = ctx.attrs
    x_spec, w_spec = a["x_spec"], a["w_spec"]
    rank = len(x_spec)
    perm = channels_first(rank, x_spec[1] == "C")
    space = [axis for axis in x_spec if axis not in "NC"]
    kernel = [ctx.blob(1).shape[w_spec.index(axis)] for axis in space]
    weight_perm = tuple(w_spec.index(axis) for axis in ("O", "I", *space))
    sizes = [ctx.shape(0)[x_spec.index(axis)] for axis in space]
    y = ctx.emit(
        "Conv", ctx.input(0, perm), ctx.input(1, weight_perm), kernel_shape=kernel, strides=list(a["strides"]),
        dilations=list(a["dilations"]), group=a["groups"],
        **_padding(a["padding"], sizes, kernel, a["strides"], a["dilations"]),
    )  # fmt: skip
    return ctx.moved(y, perm)


def _padding(
    padding: Padding,
    sizes: Sequence[Size],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool = False,
) -> dict[str, Any]:
    """Padding as attributes of a node: numbers, or ONNX's own words where they depend on a size that is left open."""
    if isinstance(padding, str) and any(is_open(size) and stride > 1 for size, stride in zip(sizes, strides, strict=True)):
        return {"auto_pad": padding}
    pads = sides(padding, [0 if is_open(s) else s for s in sizes], kernel, strides, dilations, ceil_mode)
    return {"pads": [low for low, _ in pads] + [high for _, high in pads]}


@rule("conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
def _conv_transpose(ctx: Emitter) -> Result:
    a = ctx.attrs
    x_spec, w_spec = a["x_spec"], a["w_spec"]
    rank = len(x_spec)
    perm = channels_first(rank, x_spec[1] == "C")
    space = [axis for axis in x_spec if axis not in "NC"]
    kernel = [ctx.blob(1).shape[w_spec.index(axis)] for axis in space]
    extra, cropped = [max(0, -high) for high in a["pad_high"]], [max(0, high) for high in a["pad_high"]]
    w_perm = tuple(w_spec.index(axis) for axis in ("I", "O", *space))
    y = ctx.emit(
        "ConvTranspose", ctx.input(0, perm), ctx.input(1, w_perm), kernel_shape=kernel,
        strides=list(a["strides"]), dilations=list(a["dilations"]), pads=[*a["pad_low"], *cropped],
        output_padding=extra if any(extra) and all(e < s for e, s in zip(extra, a["strides"], strict=True)) else None,
    )  # fmt: skip
    if any(extra) and any(e >= s for e, s in zip(extra, a["strides"], strict=True)):
        y = ctx.emit("Pad", y, ctx.ints([0] * (rank + 2) + extra))
    return ctx.moved(y, perm)


@rule("bias_add")
def _bias_add(ctx: Emitter) -> Result:
    perm, axis = ctx.perm_of(0), ctx.attrs["axis"]
    x, place = ctx.input(0, perm), perm.index(axis)
    source = ctx.producer(x)
    bias = ctx.static(1)
    joins = source is not None and len(source.inputs) == 2 and ctx.is_read_once(ctx.blob(0)) and bias is not None
    if joins and source is not None and (source.kind in ("Conv", "ConvTranspose") and place == 1 or source.kind == "Gemm"):
        source.inputs.append(ctx.input(1))
        ctx.alias(0, ctx.blob(0))
        return ctx.moved(x, perm)
    behind = len(perm) - 1 - place
    if not behind:
        return ctx.moved(ctx.emit("Add", x, ctx.input(1)), perm)
    return ctx.moved(ctx.emit("Add", x, column(ctx, 1, behind)), perm)


def column(ctx: Emitter, i: int, behind: int) -> str:
    """A vector with axes of size 1 behind it."""
    array = ctx.static(i)
    if array is not None and behind:
        name = ctx.blob(i).node.attrs.get("variable", ctx.blob(i).logical_blob_name)
        return ctx.constant(array.reshape(-1, *[1] * behind), name)
    return ctx.unsqueeze(ctx.input(i), list(range(1, behind + 1)))


# --- pooling


@rule("max_pool_1d", "max_pool_2d", "max_pool_3d")
def _max_pool(ctx: Emitter) -> Result:
    return _pool(ctx, "MaxPool")


@rule("avg_pool_1d", "avg_pool_2d", "avg_pool_3d")
def _avg_pool(ctx: Emitter) -> Result:
    return _pool(ctx, "AveragePool", count_include_pad=0)


def _pool(ctx: Emitter, kind: str, **more: Any) -> Result:
    a = ctx.attrs
    rank = ctx.blob(0).ndim
    perm = channels_first(rank, a["channels_first"])
    shape: Shape = tuple(ctx.shape(0)[axis] for axis in perm)
    sizes, kernel, strides = shape[2:], list(a["ksize"]), list(a["strides"])
    opened = any(map(is_open, sizes))
    padding = _padding(a["padding"], sizes, kernel, strides, [1] * len(kernel), a["ceil_mode"] and not opened)
    if any(p >= k for p, k in zip(padding.get("pads", ()), kernel * 2, strict=False)):
        raise Inexpressible("windows in the padding")
    if a["ceil_mode"] and opened:
        more["ceil_mode"] = 1
    y = ctx.emit(kind, ctx.input(0, perm), kernel_shape=kernel, strides=strides, **padding, **more)
    return ctx.moved(y, perm)


# --- resampling


@rule("upsample")
def _upsample(ctx: Emitter) -> Result:
    a = ctx.attrs
    perm = channels_first(4, a["channels_first"])
    scales = ctx.constant(np.array([1, 1, *a["factors"]], np.float32))
    if a["interpolation"] == "nearest":
        how: dict[str, Any] = {
            "mode": "nearest",
            "coordinate_transformation_mode": "half_pixel",
            "nearest_mode": "round_prefer_ceil",
        }
        if all(float(f).is_integer() for f in a["factors"]):  # which runtimes are faster at
            how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        how = {"mode": "linear", "coordinate_transformation_mode": "align_corners" if a["align_corners"] else "half_pixel"}
    return ctx.moved(ctx.emit("Resize", ctx.input(0, perm), "", scales, **how), perm)


@rule("pixel_shuffle")
def _pixel_shuffle(ctx: Emitter) -> Result:
    h, w = ctx.attrs["h"], ctx.attrs["w"]
    x = ctx.input(0)
    if h == w:
        return ctx.emit("DepthToSpace", x, blocksize=h, mode="CRD")
    n, c, rows, columns = ctx.shape(0)
    parts = ctx.reshape(x, (n, c // (h * w), h, w, rows, columns), ctx.shape(0))
    return ctx.reshape(ctx.emit("Transpose", parts, perm=[0, 1, 4, 2, 5, 3]), ctx.out_shape(), ctx.shape(0))


# --- padding


@rule("pad")
def _pad(ctx: Emitter) -> Result:
    perm = ctx.perm_of(0)
    pairs = [ctx.attrs["paddings"][axis] for axis in perm]
    amounts = ctx.ints([before for before, _ in pairs] + [after for _, after in pairs])
    return ctx.moved(ctx.emit("Pad", ctx.input(0, perm), amounts, ctx.like(ctx.attrs["value"])), perm)


@rule("same_padding")
def _same_padding(ctx: Emitter) -> Result:
    a = ctx.attrs
    rank, first, kernel = ctx.blob(0).ndim, a["first"], a["kernel"]
    sizes = ctx.shape(0)[first : first + len(kernel)]
    if any(map(is_open, sizes)):
        raise Inexpressible("padding that depends on an open size")
    before, after = [0] * rank, [0] * rank
    for axis, pair in enumerate(sides(a["padding"], sizes, kernel, a["strides"], a["dilations"]), first):
        before[axis], after[axis] = pair
    return ctx.emit("Pad", ctx.input(0), ctx.ints([*before, *after]), ctx.like(0))


@rule("pad_grad")
def _pad_grad(ctx: Emitter) -> Result:
    pairs = [(axis, before, after) for axis, (before, after) in enumerate(ctx.attrs["paddings"]) if before or after]
    if not pairs:
        return ctx.emit("Identity", ctx.input(0))
    axes, before, after = (list(v) for v in zip(*pairs, strict=True))
    stops = [-a if a else np.iinfo(np.int64).max for a in after]
    return ctx.slice(ctx.input(0), axes, before, stops, [1] * len(axes))


@rule("reflection_pad2d", "replication_pad2d")
def _mirror_pad(ctx: Emitter) -> Result:
    (top, bottom), (left, right) = ctx.attrs["rows"], ctx.attrs["columns"]
    mode = "reflect" if ctx.node.op.name == "reflection_pad2d" else "edge"
    x = ctx.input(0)
    y = ctx.emit("Pad", ctx.widened(x, ctx.dtype()), ctx.ints([0, 0, top, left, 0, 0, bottom, right]), mode=mode)
    return ctx.narrowed(y, ctx.dtype())
