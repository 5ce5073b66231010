"""Convolution, pooling, normalization, matrix products, resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import math as fm
from ... import nn
from ...graph.graph import current
from ...graph.node import Blob
from ...ops import matrix
from ...ops._window import sides
from ...ops.array import reshape
from ...ops.conv import transposed
from ...ops.indexing import gather
from ...ops.norm import normalize_batch
from ...ops.padding import pad
from ...ops.upsample import upsample_2d
from . import Reader, reads

_CONV = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}
_MAX = {1: nn.max_pool1d, 2: nn.max_pool2d, 3: nn.max_pool3d}
_AVERAGE = {1: nn.avg_pool1d, 2: nn.avg_pool2d, 3: nn.avg_pool3d}
_FORMATS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _space(ctx: Reader, blob: Blob) -> int:
    n = blob.ndim - 2
    if n not in _FORMATS:
        ctx.refuse(f"{n} spatial axes")
    return n


def _padding(ctx: Reader, n: int) -> Any:
    """Padding as the layers here take it: a word, or a pair for each axis."""
    auto = ctx.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        return auto
    pads = ctx.attr("pads", [0] * (2 * n))
    return [[0, 0], [0, 0], *([low, high] for low, high in zip(pads[:n], pads[n:], strict=True))]


def _explicit(blob: Blob, padding: str, kernel: Sequence[int], strides: Sequence[int]) -> Any:
    """What a word for padding means, as pairs."""
    return [[0, 0], [0, 0], *map(list, sides(padding, blob.shape[2:], kernel, strides))]


def _moved_back(ctx: Reader, y: Blob, bias: Any) -> Blob:
    return y if bias is None else nn.bias_add(y, ctx.blob(bias), _FORMATS[y.ndim - 2])


@reads("Conv")
def _conv(ctx: Reader, x: Any, w: Any, b: Any = None) -> Blob:
    blob, weight = ctx.blob(x), ctx.blob(w)
    n = _space(ctx, blob)
    y = _CONV[n](
        blob, weight, ctx.attr("strides", [1] * n), _padding(ctx, n), _FORMATS[n], ctx.attr("dilations", [1] * n),
        groups=ctx.attr("group", 1),
    )  # fmt: skip
    return _moved_back(ctx, y, b)


@reads("ConvTranspose")
def _conv_transpose(ctx: Reader, x: Any, w: Any, b: Any = None) -> Blob:
    blob, weight, groups = ctx.blob(x), ctx.blob(w), ctx.attr("group", 1)
    n = _space(ctx, blob)
    if not 1 <= n <= 3 or ctx.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        ctx.refuse("only one to three spatial axes with explicit padding are known here")
    strides, dilations = ctx.attr("strides", [1] * n), ctx.attr("dilations", [1] * n)
    pads, extra = ctx.attr("pads", [0] * 2 * n), ctx.attr("output_padding", [0] * n)
    whole = [
        (o - 1) * s + (k - 1) * d + 1 + e
        for o, s, k, d, e in zip(blob.shape[2:], strides, weight.shape[2:], dilations, extra, strict=True)
    ]
    wanted = ctx.attr("output_shape")
    if wanted is not None and blob.is_dynamic:
        ctx.refuse("output_shape, where the size of the input varies")
    if wanted is not None:
        total = [max(size - want, 0) for size, want in zip(whole, wanted, strict=True)]
        pads = [t - t // 2 for t in total] + [t // 2 for t in total]
    sizes = wanted or [size - low - high for size, low, high in zip(whole, pads[:n], pads[n:], strict=True)]
    return _moved_back(ctx, transposed(blob, weight, strides, dilations, pads[:n], sizes, True, None, groups), b)


# --- pooling


@reads("MaxPool")
def _max_pool(ctx: Reader, x: Any) -> Blob:
    if len(ctx.node.output) > 1 or any(d != 1 for d in ctx.attr("dilations", [])):
        ctx.refuse("dilations, and the places of the maxima, have no counterpart")
    return _pooled(ctx, ctx.blob(x), _MAX)


@reads("AveragePool")
def _average_pool(ctx: Reader, x: Any) -> Blob:
    blob = ctx.blob(x)
    n = _space(ctx, blob)
    if any(d != 1 for d in ctx.attr("dilations", [])):
        ctx.refuse("dilations have no counterpart")
    padding = _padding(ctx, n)
    if ctx.attr("count_include_pad", 0) and padding in ("SAME_UPPER", "SAME_LOWER"):
        padding = _explicit(blob, padding, ctx.attr("kernel_shape"), ctx.attr("strides", [1] * n))
    if ctx.attr("count_include_pad", 0) and not isinstance(padding, str) and any(map(any, padding)):
        if ctx.attr("ceil_mode", 0):
            ctx.refuse("ceil_mode together with count_include_pad")
        return _pooled(ctx, pad(blob, padding), _AVERAGE, "VALID")
    return _pooled(ctx, blob, _AVERAGE)


def _pooled(ctx: Reader, blob: Blob, functions: Any, padding: Any = None) -> Blob:
    n = _space(ctx, blob)
    padding = _padding(ctx, n) if padding is None else padding
    kernel, strides = ctx.attr("kernel_shape"), ctx.attr("strides", [1] * n)
    if ctx.attr("ceil_mode", 0) and padding == "VALID":
        padding = [[0, 0]] * (n + 2)
    if ctx.attr("ceil_mode", 0) and not isinstance(padding, str):
        axes = zip(blob.shape[2:], kernel, strides, padding[2:], strict=True)
        padding = [*padding[:2], *([low, _up_to_the_last(size, k, s, low, high)] for size, k, s, (low, high) in axes)]
    return functions[n](blob, kernel, strides, padding, _FORMATS[n])


def _up_to_the_last(size: int, kernel: int, stride: int, low: int, high: int) -> int:
    """The padding behind an axis with which windows end where ``ceil_mode`` ends them; none begins in that padding."""
    count = -(-(size + low + high - kernel) // stride) + 1
    if (count - 1) * stride >= size + low:
        count -= 1
    return max((count - 1) * stride + kernel - size - low, 0)


@reads("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(ctx: Reader, x: Any) -> Blob:
    blob = ctx.blob(x)
    function = fm.reduce_mean if ctx.node.op_type == "GlobalAveragePool" else fm.reduce_max
    return function(blob, axis=list(range(2, blob.ndim)), keepdims=True)


# --- normalization


@reads("BatchNormalization")
def _batch_normalization(ctx: Reader, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Blob:
    blob = ctx.blob(x)
    if ctx.attr("training_mode", 0) or len([n for n in ctx.node.output if n]) > 1:
        ctx.refuse("the model was exported in training mode")
    gamma, beta = ctx.blob(scale), ctx.blob(offset)
    statistics = [ctx._reading.statistic(v) for v in (mean, variance)]
    return normalize_batch(
        blob, gamma, beta, *statistics, axis=1, epsilon=ctx.attr("epsilon", 1e-5), momentum=ctx.attr("momentum", 0.9),
        training=current().train and ctx._reading.trains(scale), name=None,
    )  # fmt: skip


@reads("InstanceNormalization")
def _instance_normalization(ctx: Reader, x: Any, scale: Any, offset: Any) -> Blob:
    blob = ctx.blob(x)
    return _affine(ctx, _normalized(ctx, blob, blob.shape[1]), scale, offset)


@reads("GroupNormalization")
def _group_normalization(ctx: Reader, x: Any, scale: Any, offset: Any) -> Blob:
    blob, groups = ctx.blob(x), ctx.attr("num_groups")
    gamma = ctx.blob(scale)
    y = _normalized(ctx, blob, groups)
    if gamma.shape[0] == blob.shape[1]:
        return _affine(ctx, y, scale, offset)
    parts = reshape(y, [blob.shape[0], groups, -1])
    column = [1, groups, 1]
    return reshape(parts * reshape(gamma, column) + reshape(ctx.blob(offset), column), blob.shape)


def _normalized(ctx: Reader, blob: Blob, groups: int) -> Blob:
    return nn.GroupNorm(blob, groups, ctx.attr("epsilon", 1e-5), affine=False)


def _affine(ctx: Reader, y: Blob, scale: Any, offset: Any) -> Blob:
    column = [1, -1, *[1] * (y.ndim - 2)]
    return y * reshape(ctx.blob(scale), column) + reshape(ctx.blob(offset), column)


@reads("LayerNormalization")
def _layer_normalization(ctx: Reader, x: Any, scale: Any, offset: Any = None) -> Blob:
    blob, gamma = ctx.blob(x), ctx.blob(scale)
    if len([n for n in ctx.node.output if n]) > 1:
        ctx.refuse("mean and deviation as results")
    begin = ctx.attr("axis", -1) % blob.ndim
    beta = None if offset is None else ctx.blob(offset)
    params = blob.ndim - gamma.ndim
    if gamma.shape == blob.shape[params:] and (beta is None or beta.shape == gamma.shape):
        return nn.layer_norm(blob, gamma, beta, begin, params, ctx.attr("epsilon", 1e-5))
    y = nn.layer_norm(blob, None, None, begin, begin, ctx.attr("epsilon", 1e-5)) * gamma
    return y if beta is None else y + beta


# --- matrices


@reads("Gemm")
def _gemm(ctx: Reader, a: Any, b: Any, c: Any = None) -> Blob:
    alpha, beta = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0)
    left, right = ctx.blob(a), ctx.blob(b)
    y = matrix.matmul(left, right, bool(ctx.attr("transA", 0)), bool(ctx.attr("transB", 0)), alpha=alpha)
    if c is None or beta == 0:
        return y
    offset = ctx.blob(c)
    if beta == 1 and offset.shape == y.shape[-1:]:
        return nn.bias_add(y, offset)
    return y + (offset if beta == 1 else offset * beta)


@reads("MatMul")
def _matmul(ctx: Reader, a: Any, b: Any) -> Blob:
    left, right = ctx.blob(a), ctx.blob(b)
    x = reshape(left, [1, -1]) if left.ndim == 1 else left
    y = reshape(right, [-1, 1]) if right.ndim == 1 else right
    product = matrix.matmul(x, y)
    shape = list(product.shape)
    if right.ndim == 1:
        shape.pop(-1)
    if left.ndim == 1:
        shape.pop(-1 if right.ndim == 1 else -2)
    return product if len(shape) == product.ndim else reshape(product, shape or [1])


@reads("Einsum")
def _einsum(ctx: Reader, *xs: Any) -> Blob:
    return matrix.einsum(ctx.attr("equation"), *(ctx.blob(x) for x in xs))


@reads("Resize", "Upsample")
def _resize(ctx: Reader, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Blob:
    blob = ctx.blob(x)
    if ctx.node.op_type == "Upsample" or ctx.opset < 11:
        roi, scales = None, roi
    if blob.ndim != 4 or ctx.attr("antialias", 0) or ctx.attr("axes") is not None:
        ctx.refuse("only (N, C, H, W) without antialiasing is known here")
    if ctx.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        ctx.refuse("sizes that keep the aspect ratio are not known here")
    factors = ctx.attr("scales") if scales is None else ctx.array(scales)
    if factors is not None and len(factors):
        pair = [float(f) for f in factors]
        out = [int(np.float32(s) * np.float32(f)) for s, f in zip(blob.shape, pair, strict=True)]  # as runtimes compute it
    elif sizes is not None:
        out = ctx.ints(sizes, "the size") or []
        pair = [w / s for w, s in zip(out, blob.shape, strict=True)]
    else:
        ctx.refuse("its factors depend on the model's inputs")
    if pair[:2] != [1.0, 1.0]:
        ctx.refuse("it changes the number of samples or channels")
    mode = ctx.attr("mode", "nearest")
    place = ctx.attr("coordinate_transformation_mode", "asymmetric" if ctx.opset < 11 else "half_pixel")
    # the layer takes factors only; one that rounds to a smaller size is made a little larger
    sizes_of = zip(blob.shape, pair, out, strict=True)
    whole = [f if int(s * f) == w else float(np.nextafter(max(f, w / s), np.inf)) for s, f, w in sizes_of]
    # exporters write the attributes of other modes, too, which mean nothing then
    rule = ctx.attr("nearest_mode", "floor" if ctx.opset < 11 else "round_prefer_floor")
    ctx.attr("cubic_coeff_a")
    if mode == "nearest" and place in _PLACES:
        axes = list(zip(blob.shape[2:], out[2:], pair[2:], strict=True))
        chosen = [_nearest(*axis, place, rule) for axis in axes]
        layers = [_nearest(*axis, "half_pixel", "round_prefer_ceil") for axis in axes]
        if blob.dtype.is_floating_point and all(map(np.array_equal, chosen, layers)):
            return upsample_2d(blob, whole[2:], "NCHW", "nearest", False, None)
        for axis, places in enumerate(chosen, 2):
            blob = gather(blob, ctx.numbers(places, f"axis_{axis}"), axis=axis)
        return blob
    ends = place == "pytorch_half_pixel" and any(
        w == 1 < s for s, w in zip(blob.shape, out, strict=True)
    )  # takes the first element
    if mode == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners") and not ends:
        return upsample_2d(blob, whole[2:], "NCHW", "bilinear", place == "align_corners", None)
    ctx.refuse(f"mode {mode!r} with {place!r} places")


_PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _nearest(size: int, out: int, factor: float, place: str, rule: str) -> np.ndarray:
    """Which element of an axis each one of the result is, as ONNX defines it; in float32, as runtimes compute it."""
    x, scale, half = np.arange(out, dtype=np.float32), np.float32(factor), np.float32(0.5)
    if place == "asymmetric":
        source = x / scale
    elif place == "align_corners":
        source = x * np.float32(size - 1) / np.float32(max(out - 1, 1))
    elif place == "pytorch_half_pixel" and out == 1:
        source = np.zeros_like(x)
    else:
        source = (x + half) / scale - half
    rounded = {
        "round_prefer_floor": np.ceil(source - half),
        "round_prefer_ceil": np.floor(source + half),
        "floor": np.floor(source),
        "ceil": np.ceil(source),
    }[rule]
    return np.clip(rounded, 0, size - 1).astype(np.int64)
