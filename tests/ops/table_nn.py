"""Activations, softmax, moments, random ops, and what else is under ``flow.nn``."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special
from table import Gradient, Refusal, Row, floats, ints

import oneflow as flow
from oneflow import layers, nn, random
from oneflow.errors import ArgumentError, AxisError, DtypeError, ShapeError
from oneflow.ops import ordinal
from oneflow.ops.variable import get_variable

X = floats(3, 4)
Y = floats(3, 4, seed=1)
PROBABILITIES = floats(3, 4, low=0.05, high=0.95)
LABELS = np.array([2, 0, 3], np.int32)
IMAGES = floats(2, 3, 7, 6)


def _softmax(x: Any, axis: int = -1) -> Any:
    return special.softmax(x, axis=axis)


def _variables(*shapes: Any) -> Any:
    zeros = flow.zeros_initializer()
    return [get_variable(f"v{i}", shape, flow.int64, zeros, trainable=False) for i, shape in enumerate(shapes)]


def _attention(x: Any, heads: int, size: int) -> Any:
    parts = x.reshape(*x.shape[:2], heads, 3, size)
    query, key, value = (parts[:, :, :, i] for i in range(3))
    return np.einsum("sbhd,tbhd->bhst", query, key) * 0.5, value.transpose(1, 2, 0, 3)


ROWS = [
    Row(
        "hardtanh",
        lambda x: nn.hardtanh(x, -0.5, 1.5),
        lambda x: np.clip(x, -0.5, 1.5),
        [X],
        torch=lambda t, x: t.nn.functional.hardtanh(x, -0.5, 1.5),
    ),
    Row("relu6", nn.relu6, lambda x: np.clip(x, 0, 6), [X * 5], torch=lambda t, x: t.nn.functional.relu6(x)),
    Row(
        "leaky_relu",
        nn.leaky_relu,
        lambda x: np.where(x > 0, x, 0.2 * x),
        [X],
        torch=lambda t, x: t.nn.functional.leaky_relu(x, 0.2),
    ),
    Row(
        "elu",
        lambda x: nn.elu(x, 0.7),
        lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)),
        [X],
        torch=lambda t, x: t.nn.functional.elu(x, 0.7),
    ),
    Row(
        "hardsigmoid",
        nn.hardsigmoid,
        lambda x: np.clip(x / 6 + 0.5, 0, 1),
        [3 * X],
    ),
    Row(
        "hardswish",
        nn.hardswish,
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        [3 * X],
        torch=lambda t, x: t.nn.functional.hardswish(x),
    ),
    Row("mish", nn.mish, lambda x: x * np.tanh(np.logaddexp(x, 0)), [X], torch=lambda t, x: t.nn.functional.mish(x)),
    Row("swish", nn.swish, lambda x: x * special.expit(x), [X], torch=lambda t, x: t.nn.functional.silu(x)),
    Row("swish beta", lambda x: nn.swish(x, 0.3), lambda x: x * special.expit(0.3 * x), [X]),
    Row("softmax", nn.softmax, _softmax, [X], torch=lambda t, x: t.softmax(x, -1)),
    Row("softmax axis", lambda x: nn.softmax(x, 0), lambda x: _softmax(x, 0), [X], torch=lambda t, x: t.softmax(x, 0)),
    Row("logsoftmax", nn.logsoftmax, lambda x: special.log_softmax(x, -1), [X], torch=lambda t, x: t.log_softmax(x, -1)),
    Row("logsoftmax of large numbers", lambda x: nn.logsoftmax(x, 0), lambda x: special.log_softmax(x, 0), [X * 500], rtol=1e-5),
    Row("softmax_grad", nn.softmax_grad, lambda y, dy: y * (dy - (y * dy).sum(-1, keepdims=True)), [PROBABILITIES, Y]),
    Row("moments", lambda x: nn.moments(x, [0, 2, 3]), lambda x: (x.mean((0, 2, 3)), x.var((0, 2, 3))), [IMAGES]),
    Row(
        "moments keepdims",
        lambda x: nn.moments(x, [-1], True),
        lambda x: (x.mean(-1, keepdims=True), x.var(-1, keepdims=True)),
        [X],
    ),
    Row("moments of all", lambda x: nn.moments(x, [0, 1]), lambda x: (x.mean().reshape(1), x.var().reshape(1)), [X]),
    Row("dropout", lambda x: nn.dropout(x, 0.5), None, [X]),
    Row("dropout in a predict job", lambda x: nn.dropout(x, 0.5), lambda x: x, [X], train=False),
    Row("random_mask_like", lambda x: nn.random_mask_like(x, 0.3), None, [X], out="int8", grad=False),
    Row("bernoulli", lambda p: random.bernoulli(p), lambda p: p, [np.array([0.0, 1.0, 1.0, 0.0])], grad=False),
    Row(
        "bernoulli int8",
        lambda p: random.bernoulli(p, dtype=flow.int8),
        lambda p: p,
        [np.array([0.0, 1.0])],
        out="int8",
        grad=False,
    ),
    Row(
        "coin_flip", lambda x: random.coin_flip(5, probability=1.0), lambda x: np.ones(5), [X], out="int8", half=False, grad=False
    ),
    Row(
        "uniform",
        lambda x: random.uniform((3, 2), -1.0, 2.0),
        None,
        [np.zeros((3, 2))],
        dtypes=["float32"],
        half=False,
        grad=False,
    ),
    Row(
        "normal",
        lambda x: random.normal((3, 2), 1.0, 0.0),
        lambda x: np.ones((3, 2)),
        [np.zeros((3, 2))],
        dtypes=["float32"],
        half=False,
        grad=False,
    ),
    Row("categorical", random.categorical, None, [np.zeros((3, 5))], out="int32", grad=False),
    Row(
        "categorical of one class",
        lambda x: random.categorical(x, 0.1, top_k=1),
        lambda x: x.argmax(-1),
        [X],
        out="int32",
        grad=False,
        half=False,
        wide=True,
    ),
    Row("stop_gradient", flow.stop_gradient, lambda x: x, [X], grad=False),
    Row("permutation", random.generate_random_batch_permutation_indices, None, [X], out="int32", grad=False),
    Row("shuffle", random.shuffle, None, [X]),
    Row(
        "pixel_shuffle",
        lambda x: nn.PixelShuffle(x, 2),
        None,
        [floats(2, 12, 3, 2)],
        torch=lambda t, x: t.nn.functional.pixel_shuffle(x, 2),
    ),
    Row("PixelShufflev2", lambda x: nn.PixelShufflev2(x, 2, 3), None, [floats(2, 12, 3, 2)]),
    Row(
        "upsample",
        layers.upsample_2d,
        lambda x: x.repeat(2, 2).repeat(2, 3),
        [IMAGES],
        torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=2),
    ),
    Row(
        "upsample bilinear",
        lambda x: layers.upsample_2d(x, (2, 3), interpolation="bilinear"),
        None,
        [IMAGES],
        torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=(2, 3), mode="bilinear"),
    ),
    Row(
        "upsample bilinear corners",
        lambda x: layers.upsample_2d(x, 2.5, interpolation="bilinear", align_corners=True),
        None,
        [IMAGES],
        torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=2.5, mode="bilinear", align_corners=True),
    ),
    Row(
        "upsample by a fraction",
        lambda x: layers.upsample_2d(x, 1.5),
        lambda x: x[:, :, [0, 1, 1, 2, 3, 3, 4, 5, 5, 6]][..., [0, 1, 1, 2, 3, 3, 4, 5, 5]],
        [IMAGES],
    ),
    Row(
        "upsample by 17 and by 5",
        lambda x: layers.upsample_2d(x, (17, 5)),
        lambda x: x.repeat(17, 2).repeat(5, 3),
        [IMAGES],
    ),
    Row(
        "upsample bilinear by 5 and by 17",
        lambda x: layers.upsample_2d(x, (5, 17), interpolation="bilinear"),
        None,
        [IMAGES],
        torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=(5, 17), mode="bilinear"),
    ),
    Row(
        "upsample NHWC",
        lambda x: layers.upsample_2d(x, 2, "NHWC", "bilinear"),
        None,
        [floats(2, 3, 4, 2)],
        torch=lambda t, x: t.nn.functional.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode="bilinear").permute(
            0, 2, 3, 1
        ),
    ),
    Row(
        "fused_bias_add_gelu",
        nn.fused_bias_add_gelu,
        lambda x, b: (x + b[:, None, None]) * 0.5 * (1 + special.erf((x + b[:, None, None]) / 2**0.5)),
        [IMAGES, floats(3)],
        rtol=1e-5,
    ),
    Row(
        "fused_bias_add_dropout",
        lambda x, b: nn.fused_bias_add_dropout(x, b, rate=0.0),
        lambda x, b: x + b[:, None, None],
        [IMAGES, floats(3)],
    ),
    Row(
        "fused_scale_tril_softmax_dropout",
        lambda x: nn.fused_scale_tril_softmax_dropout(x, 0, -1e4, 0.5, 0.3),
        lambda x: _softmax(np.where(np.tri(4, 4) > 0, x * 0.5, -1e4)),
        [floats(2, 4, 4)],
        train=False,
    ),
    Row(
        "fused_self_attention_query_mul_key_and_value",
        lambda x: nn.fused_self_attention_query_mul_key_and_value(x, 2, 0.5),
        lambda x: _attention(x, 3, 2),
        [floats(5, 2, 18)],
        rtol=1e-5,
    ),
    Row(
        "categorical_ordinal_encode",
        lambda k: ordinal.categorical_ordinal_encode(*_variables((16,), (1,)), k),
        lambda k: np.array([1, 2, 1, 0, 3, 2]),
        [np.array([17, 9, 17, 0, 25, 9])],
        dtypes=("int64",),
        grad=False,
    ),
]

GRADIENTS = [
    Gradient("relu6 at its bounds", nn.relu6, [np.array([0.0, 3.0, 6.0, 7.0])], [np.array([0.0, 1.0, 0.0, 0.0])]),
    Gradient("hardtanh at its bounds", nn.hardtanh, [np.array([-1.0, 0.5, 1.0])], [np.array([0.0, 1.0, 0.0])]),
    Gradient("hardsigmoid at its bounds", nn.hardsigmoid, [np.array([-3.0, 0.0, 3.0])], [np.array([0.0, 1 / 6, 0.0])]),
    Gradient("hardswish at its bounds", nn.hardswish, [np.array([-3.0, 0.0, 3.0])], [np.array([0.0, 0.5, 1.0])]),
    Gradient("leaky_relu at 0", nn.leaky_relu, [np.array([0.0])], [np.array([0.2])]),
    Gradient("elu at 0 and far below", lambda x: nn.elu(x, 0.5), [np.array([0.0, -1000.0])], [np.array([0.5, 0.0])]),
]

REFUSALS = [
    Refusal("hardtanh", lambda x: nn.hardtanh(x, 1.0, -1.0), [X], ArgumentError, "min_val must be < max_val"),
    Refusal("relu6 of integers", nn.relu6, [LABELS], DtypeError, "floating-point"),
    Refusal("softmax axis", lambda x: nn.softmax(x, 2), [X], AxisError, "axis=2 is outside [-2, 2)"),
    Refusal("softmax rank", nn.softmax, [floats(3)], ShapeError, "rank at least 2"),
    Refusal("logsoftmax axis", lambda x: nn.logsoftmax(x, "last"), [X], ArgumentError, "axis must be an int"),
    Refusal("moments axes", lambda x: nn.moments(x, 0), [X], ArgumentError, "axes must be a list"),
    Refusal("dropout rate", lambda x: nn.dropout(x, 1.0), [X], ArgumentError, "rate must be a number in [0, 1), got 1.0"),
    Refusal("dropout noise_shape", lambda x: nn.dropout(x, 0.5, (3, 1)), [X], ArgumentError, "noise_shape"),
    Refusal("dropout seed", lambda x: nn.dropout(x, 0.5, seed=1), [X], ArgumentError, "needs a name"),
    Refusal("uniform bounds", lambda x: random.uniform((2,), 1.0, 0.0), [X], ArgumentError, "high must be a number >= 1"),
    Refusal("uniform shape", lambda x: random.uniform((0,)), [X], ArgumentError, "only ints > 0"),
    Refusal("normal dtype", lambda x: random.normal((2,), dtype=flow.int32), [X], DtypeError, "dtype must be a floating one"),
    Refusal("categorical top_p", lambda x: random.categorical(x, top_p=0.0), [X], ArgumentError, "top_p must be"),
    Refusal("categorical temperature", lambda x: random.categorical(x, 0.0), [X], ArgumentError, "temperature must be"),
    Refusal("coin_flip", lambda x: random.coin_flip(3, probability=1.5), [X], ArgumentError, "probability"),
    Refusal("PixelShuffle", lambda x: nn.PixelShuffle(x, 2), [IMAGES], ShapeError, "divisible by 2 * 2"),
    Refusal(
        "upsample_2d", lambda x: layers.upsample_2d(x, interpolation="cubic"), [IMAGES], ArgumentError, "'nearest', 'bilinear'"
    ),
    Refusal(
        "attention",
        lambda x: nn.fused_self_attention_query_mul_key_and_value(x, 5),
        [floats(5, 2, 18)],
        ShapeError,
        "divisible by 3 * head_size",
    ),
    Refusal("ordinal", lambda k: ordinal.categorical_ordinal_encode(k, k, k), [ints(4)], ArgumentError, "must be a variable"),
]
