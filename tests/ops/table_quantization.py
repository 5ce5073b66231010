"""Rows for observers, fake quantization and stale reads."""

from __future__ import annotations

import numpy as np
from table import Gradient, Refusal, Row, floats

import oneflow as flow
from oneflow.errors import ArgumentError, DtypeError, ModeError, ShapeError
from oneflow.quantization import (
    fake_quantization,
    min_max_observer,
    moving_average_min_max_observer,
    moving_average_min_maxObserver,
)

X = floats(3, 4)


def away(x):
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def symmetric(x, bits=8):
    scale = np.abs(x).max(keepdims=True).reshape(1) / (2 ** (bits - 1) - 1)
    return scale, np.zeros(1)


def affine(x, bits=8):
    scale = (x.max() - x.min()).reshape(1) / (2**bits - 1)
    return scale, -x.min() / scale


def fake_affine(x, bits=8):
    scale, zero = affine(x, bits)
    return (np.clip(away(x / scale + zero), 0, 2**bits - 1) - zero) * scale


def fake_symmetric(x, bits):
    scale, _ = symmetric(x, bits)
    return np.clip(away(x / scale), -(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1) * scale


ROWS = [
    Row("min_max_observer", lambda x: min_max_observer(x), symmetric, [X], grad=False),
    Row("min_max_observer affine 4 bits", lambda x: min_max_observer(x, 4, "affine"), lambda x: affine(x, 4), [X], grad=False),
    Row("min_max_observer a channel", lambda x: min_max_observer(x, per_layer_quantization=False),
        lambda x: (np.abs(x).max(1) / 127, np.zeros(3)), [X], grad=False),
    Row("min_max_observer cambricon", lambda x: min_max_observer(x, quantization_formula="cambricon"),
        lambda x: (np.floor(np.log2(np.abs(x).max(keepdims=True))).reshape(1) - 6, np.zeros(1)), [X], grad=False, half=False),
    Row("moving_average, its first batch", lambda x: moving_average_min_max_observer(x, name="o"), symmetric, [X], grad=False,
        wide=True),
    Row("moving_average affine", lambda x: moving_average_min_maxObserver(x, 8, "affine", name="o"), affine, [X], grad=False,
        wide=True),
    Row("moving_average in a predict job", lambda x: moving_average_min_max_observer(x, name="o"),
        lambda x: (np.zeros(1), np.zeros(1)), [X], grad=False, train=False, wide=True),
    Row("fake_quantization", lambda x: fake_quantization(x, *min_max_observer(x, 4), quantization_bit=4),
        lambda x: fake_symmetric(x, 4), [X], grad=False),
    Row("fake_quantization affine", lambda x: fake_quantization(x, *min_max_observer(x, 8, "affine"), 8, "affine"),
        fake_affine, [X], grad=False),
    Row("fake_quantization a channel",
        lambda x: fake_quantization(x, *min_max_observer(x, 8, "affine", False), 8, "affine"),
        lambda x: np.stack([fake_affine(row) for row in x]), [X], grad=False),
    Row("fake_quantization cambricon",
        lambda x: fake_quantization(x, *min_max_observer(x, quantization_formula="cambricon"), quantization_formula="cambricon"),
        lambda x: np.clip(away(x * 64), -127, 127) / 64, [np.array([[1.5, -0.3], [0.2, 1.99]])], grad=False, half=False),
    Row("fake_quantization of nothing but zeros", lambda x: fake_quantization(x, *min_max_observer(x, 8, "affine"), 8, "affine"),
        lambda x: x, [np.zeros((2, 3))], grad=False),
    Row("ssp_variable_proxy",
        lambda x: flow.experimental.ssp_variable_proxy(
            flow.get_variable("v", (2, 3), initializer=flow.ones_initializer()), 3, name="proxy")[1] + flow.cast(x, flow.float32),
        lambda x: x + 1, [np.array([[0.5, 1.0, 2.0], [3.0, 4.0, 5.0]])], out="float32", grad=False, wide=True, half=False),
]  # fmt: skip

GRADIENTS = [
    Gradient("fake_quantization passes it straight through", lambda x, s: fake_quantization(x, s, s),
             [floats(2, 3), np.array([0.01])], [np.ones((2, 3)), None]),
    Gradient("observers have none", lambda x: min_max_observer(x)[0], [floats(2, 3)], [None]),
]  # fmt: skip

REFUSALS = [
    Refusal("9 bits", lambda x: min_max_observer(x, 9), [X], ArgumentError, "quantization_bit must be an int in [2, 8], got 9"),
    Refusal("another scheme", lambda x: min_max_observer(x, 8, "Affine"), [X], ArgumentError, "'symmetric', 'affine'"),
    Refusal("integers", lambda x: min_max_observer(x), [np.ones((2, 2), np.int32)], DtypeError, "floating-point"),
    Refusal("cambricon a channel", lambda x: min_max_observer(x, 8, "symmetric", False, None, "cambricon"), [X], ModeError,
            "one scale for the whole tensor"),
    Refusal("scale of another shape", lambda x: fake_quantization(x, x, x), [X], ShapeError,
            "scale must have shape (1,) or (3,)"),
    Refusal("momentum", lambda x: moving_average_min_max_observer(x, momentum=1.5), [X], ArgumentError, "momentum must be"),
    Refusal("a proxy of no variable", lambda x: flow.experimental.ssp_variable_proxy(x), [X], ArgumentError,
            "must be a variable"),
    Refusal("a buffer of 0", lambda x: flow.experimental.ssp_variable_proxy(
        flow.get_variable("v", (2,), initializer=flow.ones_initializer()), 0), [X], ArgumentError, "buffer_size must be"),
]  # fmt: skip

ROWS += [
    Row("nvtx_start", lambda x: flow.profiler.nvtx_start(x, "mark"), lambda x: x, [X]),
    Row("nvtx_end", lambda x: flow.profiler.nvtx_end(x, "mark"), lambda x: x, [X]),
    Row("sleep_identity", lambda x: flow.sleep_identity(x, 0), lambda x: x, [X]),
]
REFUSALS += [
    Refusal(
        "nvtx_start without a name", lambda x: flow.profiler.nvtx_start(x, 3), [X], ArgumentError, "mark_prefix must be a str"
    ),
    Refusal("sleep backwards", lambda x: flow.sleep_identity(x, -1), [X], ArgumentError, "seconds must be a number >= 0"),
]

LABELS = np.array([4, 1, 4, 6], np.int32)


def _first_classes(weight, label):
    """With as many samples as classes the choice is certain: the labels that occur, then all others in some order."""
    mapped, sampled, rows = flow.distributed_partial_fc_sample(weight, label, 3)
    return mapped, sampled, rows


ROWS.append(
    Row("distributed_partial_fc_sample", _first_classes,
        lambda w, y: (np.array([1, 0, 1, 2]), np.array([1, 4, 6]), w[[1, 4, 6]]), [floats(8, 2), LABELS],
        out=("int32", "int32", "same"), grad=False, wide=True)
)  # fmt: skip
GRADIENTS.append(
    Gradient("distributed_partial_fc_sample", lambda w, y: flow.distributed_partial_fc_sample(w, y, 3)[2],
             [floats(8, 2), LABELS], [np.isin(np.arange(8), LABELS)[:, None] * np.ones((8, 2)), None])
)  # fmt: skip
REFUSALS += [
    Refusal("more samples than classes", lambda w, y: flow.distributed_partial_fc_sample(w, y, 9), [floats(8, 2), LABELS],
            ArgumentError, "num_sample must be an int in [1, 8]"),
    Refusal("labels in floats", lambda w, y: flow.distributed_partial_fc_sample(w, w, 2), [floats(8), LABELS], DtypeError,
            "label must be int32 or int64"),
]  # fmt: skip
