"""Observers over several calls, and quantization-aware training."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 6)).astype(np.float32)


def fake(x, magnitude, q=127):
    scale = np.float32(magnitude / q)
    return np.clip(np.sign(x) * np.floor(np.abs(x / scale) + np.float32(0.5)), -q, q) * scale


def quantized(**settings):
    config = flow.FunctionConfig()
    config.enable_qat(True)
    for name, value in settings.items():
        getattr(config.qat, name)(value)
    return config


def test_moving_averages():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tuple[tp.Numpy, tp.Numpy]:
        scale, zero = flow.quantization.moving_average_min_max_observer(
            x, quantization_scheme="affine", momentum=0.75, name="obs"
        )
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(w)
        return scale, zero

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.quantization.moving_average_min_max_observer(x, quantization_scheme="affine", momentum=0.75, name="obs")

    high = low = np.float32(0)
    for i in range(3):
        x = (RNG.standard_normal((2, 3)) + i).astype(np.float32)
        high = x.max() if high == 0 else np.float32(0.75) * high + np.float32(0.25) * x.max()
        low = x.min() if low == 0 else np.float32(0.75) * low + np.float32(0.25) * x.min()
        scale, zero = train(x)
        np.testing.assert_allclose(scale, [(high - low) / 255], rtol=1e-5)
        np.testing.assert_allclose(zero, -low / scale, rtol=1e-5)
    again = predict(np.full((2, 3), 100, np.float32))
    np.testing.assert_allclose(again[0], scale)
    assert {"obs-moving_max", "obs-moving_min", "obs-current_train_step"} <= flow.get_all_variables().keys()
    assert flow.get_all_variables()["obs-current_train_step"].numpy() == 0


def test_unnamed_observers_are_numbered():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        first, _ = flow.quantization.moving_average_min_maxObserver(x)
        second, _ = flow.quantization.moving_average_min_maxObserver(x)
        return first + second

    assert [n for n in job.graph.variables if n.endswith("moving_max")] == [
        "MovingAverageMinMaxObserver_0-moving_max", "MovingAverageMinMaxObserver_1-moving_max",
    ]  # fmt: skip


def test_aware_training():
    weight = RNG.standard_normal((5, 6)).astype(np.float32)

    @flow.global_function("train", quantized(moving_min_max_momentum=0.5))
    def train(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        y = flow.layers.dense(x, 5, use_bias=False, name="d")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(y)
        return y

    @flow.global_function("predict", quantized())
    def predict(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return flow.layers.dense(x, 5, use_bias=False, name="d")

    flow.load_variables({"d-weight": weight})
    fx, fw = fake(X, np.abs(X).max()), fake(weight, np.abs(weight).max())
    assert not np.allclose(fx, X, atol=1e-4)
    np.testing.assert_allclose(train(X), fx @ fw.T, rtol=1e-5, atol=1e-5)
    updated = flow.get_all_variables()["d-weight"].numpy()
    np.testing.assert_allclose(weight - updated, np.tile(fx.sum(0) / 20, (5, 1)), rtol=1e-4, atol=1e-5)  # straight through
    magnitude = 0.5 * np.abs(X).max() + 0.5 * 3 * np.abs(X).max()
    train(3 * X)
    updated = flow.get_all_variables()["d-weight"].numpy()
    np.testing.assert_allclose(predict(X), fake(X, magnitude) @ fake(updated, np.abs(updated).max()).T, rtol=1e-5, atol=1e-5)


def test_settings_of_aware_training():
    def names(config, body=None):
        def job(x: tp.Numpy.Placeholder((2, 3, 8, 8))) -> tp.Numpy:
            with flow.experimental.scope.config(quantization_aware_training=False):
                x = flow.layers.conv2d(x, 4, 1, name="left_alone")
            return flow.nn.relu(flow.layers.conv2d(x, 4, 3, name="c"))

        return flow.global_function("predict", config)(job).graph

    graph = names(quantized(per_channel_weight_quantization=True, symmetric=False))
    assert [n.name for n in graph.nodes if n.op.name == "fake_quantization"] == [
        "left_alone-bias_add-fake-quant",
        "c-weight-fake-quant",
    ]
    observer = graph.node("c-weight-fake-quant-observer")
    assert observer.outputs[0].shape == (4,) and observer.attrs["scheme"] == "affine"
    assert names(quantized(target_backend="cambricon")).node("c-weight-fake-quant-observer").attrs["formula"] == "cambricon"


def test_averages_that_stop():
    @flow.global_function("train", quantized(moving_min_max_stop_update_after_iters=1))
    def train(x: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
        w = flow.get_variable("w", (2, 2), initializer=flow.ones_initializer())
        y = flow.matmul(x, w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(y)
        return y

    seen = []
    for i in range(1, 5):
        train(np.full((2, 2), i, np.float32))
        seen.append(float(flow.get_all_variables()["Input_0-fake-quant-observer-moving_max"].numpy()[0]))
    assert seen == pytest.approx([1.0, 1.05, 1.05, 1.05])


# --- stale reads


def counting(update, buffer_size, calls):
    @flow.global_function("predict")
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        var = flow.get_variable("v", (1,), flow.int32, flow.zeros_initializer(), trainable=False)
        ref, value = flow.experimental.ssp_variable_proxy(var, buffer_size)
        flow.assign(ref, update(ref, value))
        return value, ref

    return [int(job()[0][0]) for _ in range(calls)]


def test_ssp_variable_proxy():
    assert counting(lambda ref, value: ref + 1, 4, 8) == [0, 0, 0, 0, 1, 2, 3, 4]
    flow.clear_default_session()
    assert counting(lambda ref, value: value + 1, 4, 9) == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    flow.clear_default_session()
    assert counting(lambda ref, value: ref + 1, 1, 3) == [0, 1, 2]


def test_ssp_variable_proxies_of_two_jobs_are_apart():
    def first() -> tp.Numpy:
        return body("a")

    def second() -> tp.Numpy:
        return body("b")

    def body(variable):
        var = flow.get_variable(variable, (1,), flow.int32, flow.zeros_initializer(), trainable=False)
        ref, value = flow.experimental.ssp_variable_proxy(var, 4)
        flow.assign(ref, ref + 1)
        return value

    jobs = [flow.global_function("predict")(job) for job in (first, second)]
    for job in jobs:
        assert [int(job()[0]) for _ in range(8)] == [0, 0, 0, 0, 1, 2, 3, 4]


def ssp_job(**options):
    config = flow.FunctionConfig()
    config.enable_ssp(True)

    @flow.global_function("train", config)
    def job() -> tp.Numpy:
        with flow.experimental.scope.config(**options):
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        loss = flow.math.square(w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.25]), momentum=0).minimize(loss)
        return w

    return job


def test_enable_ssp_trains_with_stale_reads():
    job = ssp_job(ssp_num_stages=3, ssp_stage_id=0)
    read = [float(job()[0]) for _ in range(5)]
    w = [1.0]
    for t in range(5):  # w[t] is the variable before call t; a call reads w[t - 2]
        w.append(w[-1] - 0.25 * 2 * w[max(t - 2, 0)])
    np.testing.assert_allclose(read, [w[max(t - 2, 0)] for t in range(5)])
    assert "w_ssp_variable_proxy" in {n.name for n in job.graph.nodes}


def test_enable_ssp_needs_a_stage():
    with pytest.raises(ArgumentError, match="0 <= ssp_stage_id < ssp_num_stages"):
        ssp_job(ssp_num_stages=2, ssp_stage_id=2)()
