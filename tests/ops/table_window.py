"""Convolution and pooling, against loops over windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from table import Gradient, Refusal, Row, floats

import oneflow as flow
from oneflow import layers, nn
from oneflow.errors import ArgumentError, DtypeError, ShapeError

X = floats(3, 4)
IMAGES = floats(2, 3, 7, 6)
DISTINCT = np.random.default_rng(0).permutation(2 * 3 * 7 * 6).reshape(2, 3, 7, 6) / 50.0
SIGNAL = floats(2, 4, 9)
VOLUME = floats(2, 2, 5, 4, 6)
TIES = np.array([[[[1.0, 1.0, 0.0, 3.0], [1.0, 0.0, 3.0, 3.0]]]])


def _pads(padding: Any, sizes: Any, kernel: Any, strides: Any, dilations: Any) -> list[tuple[int, int]]:
    if not isinstance(padding, str):
        return [(p, p) if isinstance(p, int) else tuple(p) for p in padding[2:]]
    found = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size) if padding != "VALID" else 0
        small, large = total // 2, total - total // 2
        found.append((small, large) if padding == "SAME_UPPER" else (large, small))
    return found


def _conv(x: Any, w: Any, strides: Any = 1, padding: Any = "VALID", dilations: Any = 1, groups: int = 1) -> Any:
    n = x.ndim - 2
    strides, dilations = ((v,) * n if isinstance(v, int) else v for v in (strides, dilations))
    kernel = w.shape[2:]
    pads = _pads(padding, x.shape[2:], kernel, strides, dilations)
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    out = [(size - (k - 1) * d - 1) // s + 1 for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    per = w.shape[0] // groups
    for group in range(groups):
        channels = x[:, group * w.shape[1] : (group + 1) * w.shape[1]]
        filters = w[group * per : (group + 1) * per]
        for at in np.ndindex(*out):
            window = tuple(
                slice(o * s, o * s + (k - 1) * d + 1, d) for o, s, k, d in zip(at, strides, kernel, dilations, strict=True)
            )
            piece = channels[(slice(None), slice(None), *window)].reshape(x.shape[0], -1)
            y[(slice(None), slice(group * per, (group + 1) * per), *at)] = piece @ filters.reshape(per, -1).T
    return y


def _pool(x: Any, k: Any, s: Any, padding: Any, reduce: Any, ceil: bool = False) -> Any:
    n = x.ndim - 2
    k, s = ((v,) * n if isinstance(v, int) else v for v in (k, s))
    pads = _pads(padding, x.shape[2:], k, s, (1,) * n)
    extra = [stride - 1 if ceil else 0 for stride in s]
    sizes = x.shape[2:]
    out = [(size + a + b - kk + ss + e) // ss for size, (a, b), kk, ss, e in zip(sizes, pads, k, s, extra, strict=True)]
    y = np.zeros((*x.shape[:2], *out))
    for at in np.ndindex(*out):
        window = [
            slice(max(o * ss - a, 0), max(min(o * ss - a + kk, size), 0))
            for o, ss, (a, _), kk, size in zip(at, s, pads, k, sizes, strict=True)
        ]
        y[(slice(None), slice(None), *at)] = reduce(x[(slice(None), slice(None), *window)], axis=tuple(range(2, 2 + n)))
    return y


def _last(x: Any) -> Any:
    return np.moveaxis(x, 1, -1)


def _deconv(x: Any, w: Any, strides: list[int], padding: list[int], extra: list[int]) -> Any:
    n = len(strides)
    op = flow.user_op_builder("up").Op(f"deconv{n}d").Input("in", [x]).Input("weight", [w]).Output("out")
    op = op.Attr("filters", w.shape[1]).Attr("padding_before", padding).Attr("data_format", "channels_first")
    op = op.Attr("kernel_size", list(w.shape[2:])).Attr("strides", strides).Attr("dilation_rate", [1] * n)
    return op.Attr("output_padding", extra).Attr("groups", 1).Build().InferAndTryRun().RemoteBlobList()[0]


def _first(x: Any) -> Any:
    return np.moveaxis(x, -1, 1)


def _conv_row(name: str, x: Any, w: Any, **k: Any) -> Row:
    n = x.ndim - 2
    options = {"strides": 1, "padding": "VALID", **k}
    call = getattr(nn, f"conv{n}d")
    return Row(name, lambda a, b: call(a, b, **options), lambda a, b: _conv(a, b, **options), [x, w], rtol=1e-5, atol=1e-5)


def _pool_row(name: str, kind: str, x: Any, k: Any, s: Any, padding: Any, ceil: bool = False, **more: Any) -> Row:
    n = x.ndim - 2
    call = getattr(nn, f"{kind}_pool{n}d")
    options = {"ceil_mode": True} if ceil else {}
    if n == 1:
        options["data_format"] = "NCW"
    reduce = np.max if kind == "max" else np.mean
    return Row(
        name,
        lambda a: call(a, k, s, padding, **options),
        lambda a: _pool(a, k, 1 if s is None else s, padding, reduce, ceil),
        [x],
        **more,
    )


ROWS = [
    _conv_row("conv1d", SIGNAL, floats(3, 4, 3), padding="SAME"),
    _conv_row("conv1d dilated", SIGNAL, floats(3, 4, 3), strides=2, dilations=2, padding=[0, 0, (2, 1)]),
    _conv_row("conv2d", IMAGES, floats(4, 3, 3, 2)),
    _conv_row("conv2d same", IMAGES, floats(4, 3, 2, 4), padding="SAME", strides=(1, 2)),
    _conv_row("conv2d same_upper", IMAGES, floats(4, 3, 2, 4), padding="SAME_UPPER", strides=2),
    _conv_row("conv2d padded", IMAGES, floats(4, 3, 3, 3), padding=[0, 0, (1, 2), (0, 1)], strides=2, dilations=(2, 1)),
    _conv_row("conv2d groups", floats(2, 4, 6, 5), floats(6, 2, 3, 3), groups=2, padding="SAME"),
    _conv_row("conv2d depthwise", floats(2, 4, 6, 5), floats(4, 1, 3, 3), groups=4),
    _conv_row("conv2d one channel", floats(2, 1, 8, 7), floats(3, 1, 5, 5), padding="SAME"),
    _conv_row("conv2d one channel, strided", floats(2, 1, 8, 7), floats(3, 1, 3, 3), padding="SAME", strides=2),
    _conv_row("conv3d", VOLUME, floats(3, 2, 2, 2, 3), padding="SAME", strides=(1, 2, 2)),
    Row(
        "conv2d NHWC",
        lambda x, w: nn.conv2d(x, w, 2, "SAME", "NHWC"),
        lambda x, w: _last(_conv(_first(x), _first(w), 2, "SAME")),
        [floats(2, 7, 6, 3), floats(4, 3, 3, 3)],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row(
        "conv2d NHWC groups",
        lambda x, w: nn.conv2d(x, w, 1, "VALID", "NHWC", groups=2),
        lambda x, w: _last(_conv(_first(x), _first(w), groups=2)),
        [floats(2, 7, 6, 4), floats(4, 3, 3, 2)],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row(
        "conv1d NWC",
        lambda x, w: nn.conv1d(x, w, 1, [0, 1, 0], "NWC"),
        lambda x, w: _last(_conv(_first(x), _first(w), 1, [0, 0, 1])),
        [floats(2, 9, 4), floats(3, 3, 4)],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row(
        "compat_conv2d",
        lambda x, w: nn.compat_conv2d(x, w, 2, "same"),
        lambda x, w: _conv(x, w, 2, "SAME_UPPER"),
        [IMAGES, floats(4, 3, 3, 4)],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row(
        "conv2d_transpose",
        lambda x, w: nn.torch_conv2d_transpose(x, w, (1, 0), 2, (2, 0)),
        None,
        [floats(2, 3, 4, 5), floats(3, 2, 3, 4)],
        torch=lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, stride=2, padding=(1, 0), output_padding=(1, 0)),
    ),
    Row(
        "conv2d_transpose dilated",
        lambda x, w: nn.torch_conv2d_transpose(x, w, None, (2, 1), (0, 0), dilations=2),
        None,
        [floats(2, 3, 4, 5), floats(3, 2, 3, 2)],
        torch=lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, stride=(2, 1), dilation=2),
    ),
    Row(
        "conv2d_transpose NHWC",
        lambda x, w: nn.torch_conv2d_transpose(x, w, None, 2, (2, 2), "NHWC"),
        None,
        [floats(2, 4, 5, 3), floats(3, 3, 4, 2)],
        torch=lambda t, x, w: t.nn.functional.conv_transpose2d(
            x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=2, padding=1
        ).permute(0, 2, 3, 1),
    ),
    Row(
        "deconv1d",
        lambda x, w: _deconv(x, w, [2], [1], [1]),
        None,
        [floats(2, 3, 5), floats(3, 2, 3)],
        torch=lambda t, x, w: t.nn.functional.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1),
    ),
    Row(
        "deconv3d",
        lambda x, w: _deconv(x, w, [2, 1, 2], [0, 1, 0], [0, 0, 1]),
        None,
        [floats(2, 3, 3, 4, 2), floats(3, 2, 2, 3, 2)],
        torch=lambda t, x, w: t.nn.functional.conv_transpose3d(x, w, None, (2, 1, 2), (0, 1, 0), (0, 0, 1)),
    ),
    Row("bias_add", nn.bias_add, lambda x, b: x + b[:, None, None], [IMAGES, floats(3)]),
    Row("bias_add last", lambda x, b: nn.bias_add(x, b, "NHWC"), lambda x, b: x + b, [IMAGES, floats(6)]),
    Row("bias_add of sequences", lambda x, b: nn.bias_add(x, b, "NHC"), lambda x, b: x + b, [floats(2, 3, 4), floats(4)]),
    _pool_row("max_pool2d", "max", DISTINCT, 2, 2, "VALID", torch=lambda t, x: t.nn.functional.max_pool2d(x, 2)),
    _pool_row("max_pool2d same", "max", DISTINCT, 2, 2, "SAME"),
    _pool_row("max_pool2d same_upper", "max", DISTINCT, (2, 4), (2, 4), "SAME_UPPER"),
    _pool_row(
        "max_pool2d overlapping", "max", DISTINCT, 3, 2, [0, 0, 1, 1], torch=lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1)
    ),
    _pool_row("max_pool2d stride 1", "max", DISTINCT, (2, 3), None, "SAME"),
    _pool_row("max_pool2d gaps", "max", DISTINCT, 2, 3, "VALID", torch=lambda t, x: t.nn.functional.max_pool2d(x, 2, 3)),
    _pool_row(
        "max_pool2d large",
        "max",
        np.random.default_rng(1).permutation(800).reshape(1, 2, 20, 20) / 9.0,
        9,
        3,
        [0, 0, 4, 4],
        torch=lambda t, x: t.nn.functional.max_pool2d(x, 9, 3, 4),
    ),
    _pool_row(
        "max_pool2d ceil",
        "max",
        DISTINCT,
        3,
        2,
        [0, 0, 1, 1],
        True,
        torch=lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    ),
    Row(
        "max_pool2d NHWC",
        lambda x: nn.max_pool2d(x, 2, 2, "SAME", "NHWC"),
        lambda x: _last(_pool(_first(x), 2, 2, "SAME", np.max)),
        [_last(DISTINCT)],
    ),
    _pool_row("max_pool1d", "max", SIGNAL, 3, 2, "SAME"),
    _pool_row("max_pool3d", "max", VOLUME, 2, 2, "SAME"),
    _pool_row("avg_pool2d", "avg", IMAGES, 2, 2, "VALID", torch=lambda t, x: t.nn.functional.avg_pool2d(x, 2)),
    _pool_row("avg_pool2d same", "avg", IMAGES, 2, 2, "SAME"),
    _pool_row(
        "avg_pool2d padded",
        "avg",
        IMAGES,
        3,
        2,
        [0, 0, 1, 1],
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    _pool_row("avg_pool2d ceil", "avg", IMAGES, 3, 2, [0, 0, 0, (1, 1)], True),
    _pool_row("avg_pool2d large", "avg", floats(1, 2, 20, 20), 9, 3, "SAME", rtol=1e-5),
    _pool_row("avg_pool1d", "avg", SIGNAL, 3, 2, "SAME"),
    _pool_row("avg_pool3d", "avg", VOLUME, (2, 1, 3), (2, 1, 3), "SAME"),
]

GRADIENTS = [
    Gradient(
        "max_pool2d gives to the first maximum",
        lambda x: nn.max_pool2d(x, 2, 2, "VALID"),
        [TIES],
        [np.array([[[[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]])],
    ),
    Gradient(
        "max_pool2d, overlapping windows, gives to the first maximum",
        lambda x: nn.max_pool2d(x, 2, 1, "VALID"),
        [TIES],
        [np.array([[[[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]]])],
    ),
    Gradient(
        "max_pool2d of -inf at a border",
        lambda x: nn.max_pool2d(x, 2, 2, [0, 0, 1, 1]),
        [np.full((1, 1, 1, 1), -np.inf)],
        [np.ones((1, 1, 1, 1))],
    ),
]

REFUSALS = [
    Refusal(
        "conv2d padding", lambda x, w: nn.conv2d(x, w, 1, "FULL"), [IMAGES, floats(4, 3, 3, 3)], ArgumentError, '"SAME_LOWER"'
    ),
    Refusal(
        "conv2d padding number",
        lambda x, w: nn.conv2d(x, w, 1, 1),
        [IMAGES, floats(4, 3, 3, 3)],
        ArgumentError,
        "[[0, 0], [0, 0], [1, 1], [1, 1]]",
    ),
    Refusal(
        "conv2d padding of PyTorch",
        lambda x, w: nn.conv2d(x, w, 1, (1, 2)),
        [IMAGES, floats(4, 3, 3, 3)],
        ArgumentError,
        "[[0, 0], [0, 0], [1, 1], [2, 2]]",
    ),
    Refusal(
        "conv2d padding channels",
        lambda x, w: nn.conv2d(x, w, 1, [0, 1, 1, 1]),
        [IMAGES, floats(4, 3, 3, 3)],
        ArgumentError,
        "must be 0",
    ),
    Refusal(
        "conv2d padding negative",
        lambda x, w: nn.conv2d(x, w, 1, [0, 0, -1, 1]),
        [IMAGES, floats(4, 3, 3, 3)],
        ArgumentError,
        "negative",
    ),
    Refusal(
        "conv2d format",
        lambda x, w: nn.conv2d(x, w, 1, "SAME", "nchw"),
        [IMAGES, floats(4, 3, 3, 3)],
        ArgumentError,
        "'NCHW', 'NHWC'",
    ),
    Refusal(
        "conv2d rank",
        lambda x, w: nn.conv2d(x, w, 1, "SAME"),
        [X, floats(4, 3, 3, 3)],
        ShapeError,
        "input must have rank 4, got rank 2",
    ),
    Refusal(
        "conv2d channels", lambda x, w: nn.conv2d(x, w, 1, "SAME"), [IMAGES, floats(4, 2, 3, 3)], ShapeError, "= 3 / 1, got 2"
    ),
    Refusal(
        "conv2d groups",
        lambda x, w: nn.conv2d(x, w, 1, "SAME", groups=2),
        [IMAGES, floats(4, 2, 3, 3)],
        ArgumentError,
        "groups=2 must divide",
    ),
    Refusal(
        "conv2d strides",
        lambda x, w: nn.conv2d(x, w, 0, "SAME"),
        [IMAGES, floats(4, 3, 3, 3)],
        ArgumentError,
        "strides must be > 0",
    ),
    Refusal("conv2d window", lambda x, w: nn.conv2d(x, w, 1, "VALID"), [IMAGES, floats(4, 3, 9, 9)], ShapeError, "does not fit"),
    Refusal(
        "conv2d dtypes",
        lambda x, w: nn.conv2d(x, flow.cast(w, flow.float64), 1, "SAME"),
        [IMAGES.astype("f"), floats(4, 3, 3, 3).astype("f")],
        DtypeError,
        "float32 and float64",
    ),
    Refusal(
        "conv2d_transpose both",
        lambda x, w: nn.conv2d_transpose(x, w, (2, 3, 8, 8), 2, input=x),
        [IMAGES, floats(3, 3, 2, 2)],
        ArgumentError,
        "exactly one of value and input",
    ),
    Refusal(
        "conv2d_transpose shape",
        lambda x, w: nn.conv2d_transpose(x, w, (2, 3, 99, 8), 2),
        [IMAGES, floats(3, 3, 2, 2)],
        ShapeError,
        "does not fit",
    ),
    Refusal(
        "torch_conv2d_transpose odd",
        lambda x, w: nn.torch_conv2d_transpose(x, w, None, 2, (1, 1)),
        [IMAGES, floats(3, 3, 2, 2)],
        ArgumentError,
        "must be even",
    ),
    Refusal("bias_add", nn.bias_add, [IMAGES, floats(6)], ShapeError, "bias must have shape (3,)"),
    Refusal("bias_add format", lambda x, b: nn.bias_add(x, b, "CHWN"), [IMAGES, floats(3)], ArgumentError, "data_format"),
    Refusal(
        "max_pool2d ksize",
        lambda x: nn.max_pool2d(x, (2, 2, 2), 2, "SAME"),
        [IMAGES],
        ArgumentError,
        "ksize must be an int or 2 ints",
    ),
    Refusal("avg_pool2d rank", lambda x: nn.avg_pool2d(x, 2, 2, "SAME"), [X], ShapeError, "rank 4, got rank 2"),
    Refusal("max_pool2d window", lambda x: nn.max_pool2d(x, 8, 8, "VALID"), [IMAGES], ShapeError, "does not fit"),
    Refusal("max_pool3d format", lambda x: nn.max_pool3d(x, 2, 2, "SAME", "NCHW"), [VOLUME], ArgumentError, "'NCDHW', 'NDHWC'"),
    Refusal("conv2d layer groups", lambda x: layers.conv2d(x, 4, groups=2), [IMAGES], ArgumentError, "groups=2 must divide"),
]
