"""Rows of registered ops: convolution, pooling, padding of windows, upsampling."""

from __future__ import annotations

from typing import Any

from .._base.jax import jnp
from ..graph.graph import current
from ..graph.node import Blob
from ..ops import array, conv, pool
from ..ops.padding import reflected, same_padding
from ..ops.upsample import upsample_2d
from .gradient import gradient, pulled_back
from .registry import Attributes, Inputs, call, emit_arrays, row

_FORMATS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def _format(a: Attributes, dims: int) -> str:
    """``channels_first`` and ``channels_last`` in the spelling of ``data_format``."""
    return _FORMATS[dims][a["data_format"] == "channels_last"]


def _pairs(before: Any, after: Any, a: Attributes) -> list[tuple[int, int]]:
    spatial = list(zip(before, after, strict=True))
    return [(0, 0), *spatial, (0, 0)] if a["data_format"] == "channels_last" else [(0, 0), (0, 0), *spatial]


# --- convolution

_WINDOW = "padding_before: list[int32]; data_format: str; kernel_size: list[int32]; strides: list[int32]; "
_WINDOW += "dilation_rate: list[int32]"


def convolved(dims: int, x: Blob, weight: Blob, a: Attributes, name: str | None) -> Blob:
    function = {1: conv.conv1d, 2: conv.conv2d, 3: conv.conv3d}[dims]
    padding: Any = _pairs(a["padding_before"], a["padding_before"], a)
    return function(x, weight, list(a["strides"]), padding, _format(a, dims), list(a["dilation_rate"]), a["groups"], name=name)


def _conv(dims: int) -> Any:
    def build(i: Inputs, a: Attributes, n: str) -> Any:
        y = convolved(dims, i["in"], i["weight"], a, n)
        bias = i.get("bias")
        return y if bias is None else conv.bias_add(y, bias, _format(a, dims), name=f"{n}-bias_add")

    return build


def _of_weight(i: Inputs, a: Attributes, channels: int, filters: int) -> tuple[int, ...]:
    each = channels // a["groups"]
    last = a["data_format"] == "channels_last"
    return (filters, *a["kernel_size"], each) if last else (filters, each, *a["kernel_size"])


def _data_grad(i: Inputs, a: Attributes, n: str) -> Any:
    dims, like = a["num_spatial_dims"], i["x_like"]
    made = _transposed(i["dy"], i["filter"], a, dims, like.shape, n)
    extra = i.get("_add_to_output")
    return made if extra is None else call("math.add", "a", "b")({"a": made, "b": extra}, {}, f"{n}-add_to_output")


def _transposed(dy: Blob, weight: Blob, a: Attributes, dims: int, shape: tuple[int, ...], n: str) -> Blob:
    """The gradient of a convolution with respect to its input, which has that shape."""
    scope = current("user op").scope

    def run(g: Any, w: Any) -> Any:
        x = jnp.zeros(shape, g.dtype)
        return pulled_back(lambda b: convolved(dims, b["x"], b["w"], a, None), ["x", "w"], (x, w), g, ["x"], scope)[0]

    return emit_arrays(run, [dy, weight], {}, n, differentiable=True, op_name="conv_data_grad")[0]


def _filter_grad(i: Inputs, a: Attributes, n: str) -> Any:
    scope, dims, last = current("user op").scope, a["num_spatial_dims"], a["data_format"] == "channels_last"
    x, dy = i["x"], i["dy"]
    shape = _of_weight(i, a, x.shape[-1 if last else 1], dy.shape[-1 if last else 1])

    def run(g: Any, x: Any) -> Any:
        w = jnp.zeros(shape, g.dtype)
        return pulled_back(lambda b: convolved(dims, b["x"], b["w"], a, None), ["x", "w"], (x, w), g, ["w"], scope)[0]

    return emit_arrays(run, [dy, x], {}, n, op_name="conv_filter_grad")


def _bias_grad(i: Inputs, a: Attributes, n: str) -> Any:
    channel = i["dy"].ndim - 1 if a["data_format"] == "channels_last" else 1
    axes = [k for k in range(i["dy"].ndim) if k != channel]
    return call("math.reduce_sum", "dy", "axes")(i, {"axes": axes}, n)


def _deconv(dims: int) -> Any:
    def build(i: Inputs, a: Attributes, n: str) -> Any:
        x, weight, last = i["in"], i["weight"], a["data_format"] == "channels_last"
        spatial = x.shape[1:-1] if last else x.shape[2:]
        sizes = [
            (s - 1) * a["strides"][k] - 2 * a["padding_before"][k] + (a["kernel_size"][k] - 1) * a["dilation_rate"][k] + 1
            + a["output_padding"][k]
            for k, s in enumerate(spatial)
        ]  # fmt: skip
        return conv.transposed(x, weight, a["strides"], a["dilation_rate"], a["padding_before"], sizes, not last, n, a["groups"])

    return build


for _dims in (1, 2, 3):
    row(
        f"conv{_dims}d (in, weight, bias?, bias_multiplier?) -> (out) {{filters: int32; {_WINDOW}; groups: int32 = 1}}",
        _conv(_dims),
    )
    row(f"deconv{_dims}d (in, weight) -> (out) {{filters: int32; {_WINDOW}; output_padding: list[int32]; groups: int32 = 1}}",
        _deconv(_dims))  # fmt: skip
row(
    f"conv_data_grad (dy, filter, x_like, _add_to_output?) -> (dx) {{num_spatial_dims: int32; {_WINDOW}; groups: int32}}",
    _data_grad,
)
row(f"conv_filter_grad (dy, x) -> (filter_diff) {{num_spatial_dims: int32; {_WINDOW}; groups: int32}}", _filter_grad)
row("conv_bias_grad (dy) -> (bias_diff) {data_format: str; num_spatial_dims: int32}", _bias_grad)

# --- pooling

_POOL = "padding: str; padding_before: list[int32]; padding_after: list[int32]; data_format: str; pool_size: list[int32]; "
_POOL += "strides: list[int32]; ceil_mode: bool"


def _pooled(kind: str, dims: int) -> Any:
    def build(i: Inputs, a: Attributes, n: str) -> Any:
        x = i["x"]
        if dims == 1:  # as images one pixel high
            last = a["data_format"] == "channels_last"
            wide = {k: (v, *a[k]) for k, v in (("padding_before", 0), ("padding_after", 0), ("pool_size", 1), ("strides", 1))}
            y = _pooled(kind, 2)({"x": array.expand_dims(x, 1 if last else 2)}, {**a, **wide}, f"{n}-2d")
            return array.squeeze(y, [1 if last else 2], name=n)
        function = getattr(pool, f"{kind}_pool{dims}d")
        known = a["padding"].upper() in ("VALID", "SAME_LOWER", "SAME_UPPER", "SAME")
        padding = a["padding"].upper() if known else _pairs(a["padding_before"], a["padding_after"], a)
        return function(x, list(a["pool_size"]), list(a["strides"]), padding, _format(a, dims), a["ceil_mode"], name=n)

    return build


for _kind in ("avg", "max"):
    for _dims in (1, 2, 3):
        _forward = _pooled(_kind, _dims)
        row(f"{_kind}_pool_{_dims}d (x) -> (y) {{{_POOL}}}", _forward)
        row(f"{_kind}_pool_{_dims}d_grad (x, y, dy) -> (dx) {{{_POOL}}}", gradient(_forward, {"x": "x"}, ["x"]))

# --- padding of windows, upsampling


def _same(i: Inputs, a: Attributes, n: str) -> Any:
    x = i["x"]
    kernel, strides, dilations = (list(a[k]) for k in ("kernel_size", "strides", "dilation_rate"))
    return same_padding(x, a["padding"], _format(a, x.ndim - 2), kernel, strides, dilations, name=n)


_SAME = "{padding: str; data_format: str; kernel_size: list[int32]; strides: list[int32]; dilation_rate: list[int32]}"
row(f"same_padding (x) -> (y) {_SAME}", _same)
row(f"same_padding_grad (x_like, dy) -> (dx) {_SAME}", gradient(_same, {"x": "x_like"}, ["x"]))


def _reflected(i: Inputs, a: Attributes, n: str) -> Any:
    return reflected(i["x"], list(a["padding"]), name=n)


row("reflection_pad2d (x) -> (y) {padding: list[int64]}", _reflected)


def _reflected_grad(i: Inputs, a: Attributes, n: str) -> Any:
    left, right, top, bottom = a["padding"]
    dy, scope = i["dy"], current("user op").scope
    batch, channels, height, width = dy.shape
    shape = (batch, channels, height - top - bottom, width - left - right)

    def run(g: Any) -> Any:
        x = jnp.zeros(shape, g.dtype)
        return pulled_back(lambda b: _reflected(b, a, "forward"), ["x"], (x,), g, ["x"], scope)[0]

    return emit_arrays(run, [dy], {}, n, op_name="reflection_pad2d_grad")


row("reflection_pad2d_grad (dy) -> (dx) {padding: list[int64]}", _reflected_grad)

_SCALES = "{height_scale: float; width_scale: float; data_format: str; interpolation: str}"


def _upsampled(x: Blob, a: Attributes, n: str | None) -> Blob:
    return upsample_2d(x, (a["height_scale"], a["width_scale"]), _format(a, 2), a["interpolation"], False, n)


def _upsampled_grad(i: Inputs, a: Attributes, n: str) -> Any:
    dy, scope, last = i["dy"], current("user op").scope, a["data_format"] == "channels_last"
    height, width = dy.shape[1:3] if last else dy.shape[2:]
    sizes = round(height / a["height_scale"]), round(width / a["width_scale"])
    shape = (dy.shape[0], *sizes, dy.shape[3]) if last else (*dy.shape[:2], *sizes)

    def run(g: Any) -> Any:
        return pulled_back(lambda b: _upsampled(b["x"], a, None), ["x"], (jnp.zeros(shape, g.dtype),), g, ["x"], scope)[0]

    return emit_arrays(run, [dy], {}, n, op_name="upsample_grad")


row(f"upsample (x) -> (y) {_SCALES}", lambda i, a, n: _upsampled(i["x"], a, n))
row(f"upsample_grad (dy) -> (dx) {_SCALES}", _upsampled_grad)
