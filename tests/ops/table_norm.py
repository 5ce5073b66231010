"""Normalization and the layers' own ops."""

from __future__ import annotations

from typing import Any

import numpy as np
from table import Gradient, Refusal, Row, floats

import oneflow as flow
from oneflow import layers, nn
from oneflow.errors import ArgumentError, ShapeError

X = floats(3, 4)
Y = floats(3, 4, seed=1)
IMAGES = floats(2, 3, 7, 6)
SIGNAL = floats(2, 4, 9)
VOLUME = floats(2, 2, 5, 4, 6)


def _normal(x: Any, axes: Any, eps: float) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


ROWS = [
    Row(
        "prelu",
        lambda x: layers.prelu(x, flow.constant_initializer(0.25), shared_axes=[2, 3]),
        lambda x: np.where(x > 0, x, 0.25 * x),
        [IMAGES],
    ),
    Row(
        "batch_normalization",
        lambda x, m, v, o, s: nn.batch_normalization(x, m, v, o, s, 1e-3),
        lambda x, m, v, o, s: (x - m[:, None, None]) / np.sqrt(v + 1e-3)[:, None, None] * s[:, None, None] + o[:, None, None],
        [IMAGES, floats(3), floats(3, low=0.5, high=2.0), floats(3, seed=1), floats(3, seed=2)],
        rtol=1e-5,
    ),
    Row(
        "batch_normalization of x's rank",
        lambda x, m, v: nn.batch_normalization(x, m, v, axis=-1),
        lambda x, m, v: (x - m) / np.sqrt(v + 1e-5),
        [X, floats(1, 4), floats(3, 1, low=0.5, high=2.0)],
        rtol=1e-5,
    ),
    Row(
        "batch_normalization_training",
        lambda x: layers.batch_normalization(x, 1, epsilon=1e-3),
        lambda x: _normal(x, (0, 2, 3), 1e-3),
        [IMAGES],
        rtol=1e-5,
        atol=1e-5,
        torch=lambda t, x: t.nn.functional.batch_norm(x, None, None, training=True, eps=1e-3),
    ),
    Row(
        "batch_normalization_training without parameters",
        lambda x: layers.batch_normalization(x, center=False, scale=False),
        lambda x: _normal(x, (0, 1, 2), 1e-3),
        [IMAGES],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row(
        "layer_norm",
        lambda x, g, b: nn.layer_norm(x, g, b),
        lambda x, g, b: _normal(x, (1, 2, 3), 1e-5) * g + b,
        [IMAGES, floats(6), floats(6, seed=1)],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row(
        "layer_norm of the last axes",
        lambda x, g, b: nn.layer_norm(x, g, b, -2, -2, 1e-3),
        lambda x, g, b: _normal(x, (2, 3), 1e-3) * g + b,
        [IMAGES, floats(7, 6), floats(7, 6, seed=1)],
        rtol=1e-5,
        atol=1e-5,
        torch=lambda t, x, g, b: t.nn.functional.layer_norm(x, (7, 6), g, b, 1e-3),
    ),
    Row(
        "layer_norm_grad",
        lambda dy, x, m, v: layers.layer_norm_grad(dy, x, m, v),
        None,
        [X, Y, floats(3), floats(3, low=0.5)],
        grad=False,
    ),
    Row(
        "layer_norm_param_grad",
        layers.layer_norm_param_grad,
        lambda dy, n, g: (dy * g, dy.sum(0), (dy * n).sum(0)),
        [X, Y, floats(4)],
        grad=False,
    ),
    Row(
        "instance_norm",
        nn.InstanceNorm2d,
        lambda x: _normal(x, (2, 3), 1e-5),
        [IMAGES],
        rtol=1e-5,
        atol=1e-5,
        torch=lambda t, x: t.nn.functional.instance_norm(x),
    ),
    Row(
        "instance_norm without parameters",
        lambda x: nn.InstanceNorm1d(x, affine=False),
        lambda x: _normal(x, (2,), 1e-5),
        [SIGNAL],
        rtol=1e-5,
        atol=1e-5,
    ),
    Row("InstanceNorm3d", nn.InstanceNorm3d, lambda x: _normal(x, (2, 3, 4), 1e-5), [VOLUME], rtol=1e-5, atol=1e-5),
    Row("GroupNorm", lambda x: nn.GroupNorm(x, 2), None, [SIGNAL], torch=lambda t, x: t.nn.functional.group_norm(x, 2)),
]

GRADIENTS = [
    Gradient(
        "batch_normalization_training at C = 1",
        lambda x: layers.batch_normalization(x),
        [np.array([[1.0], [1.0]])],
        [np.zeros((2, 1))],
    ),
]

REFUSALS = [
    Refusal(
        "batch_normalization",
        lambda x, m: nn.batch_normalization(x, m, m),
        [IMAGES, floats(6)],
        ShapeError,
        "mean must have shape (3,)",
    ),
    Refusal("layer_norm", lambda x, g: nn.layer_norm(x, g), [X, floats(3)], ShapeError, "gamma must have shape (4,)"),
    Refusal("InstanceNorm2d", nn.InstanceNorm2d, [X], ShapeError, "rank 4, got rank 2"),
    Refusal("GroupNorm", lambda x: nn.GroupNorm(x, 3), [SIGNAL], ArgumentError, "divides the 4 channels"),
    Refusal("dense", lambda x: layers.dense(x, 0), [X], ArgumentError, "units must be > 0"),
    Refusal(
        "dense split", lambda x: layers.dense(x, 3, model_distribute=flow.distribute.split(1)), [X], ArgumentError, "split(0)"
    ),
    Refusal(
        "dense initializer",
        lambda x: layers.dense(x, 3, kernel_initializer="zeros"),
        [X],
        ArgumentError,
        "initializer must be one of flow's",
    ),
    Refusal(
        "batch_normalization momentum", lambda x: layers.batch_normalization(x, momentum=1.5), [X], ArgumentError, "momentum"
    ),
    Refusal("prelu", lambda x: layers.prelu(x, shared_axes=[0]), [X], ArgumentError, "shared_axes must be >= 1"),
]
