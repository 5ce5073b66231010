"""int8 inference: calibrated jobs, jobs trained for it, what they refuse, and their export."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, FeedError, ModeError

RNG = np.random.default_rng(7)
BATCH = 4


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def normal() -> Any:
    return flow.random_normal_initializer(0, 0.2)


def convolutional(x: Any) -> Any:
    """Convolutions with bias, normalization, a residual and pooling, then dense layers."""
    y = flow.layers.conv2d(x, 8, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=normal(), name="first")
    y = flow.nn.max_pool2d(y, 2, 2, "VALID")
    z = flow.layers.conv2d(y, 8, 3, padding="SAME", use_bias=False, kernel_initializer=normal(), name="second")
    z = flow.layers.batch_normalization(z, axis=1, training=False, name="normal")
    y = flow.nn.relu(z + y)
    y = flow.reshape(y, (BATCH, -1))
    y = flow.layers.dense(y, 16, activation=flow.math.gelu, kernel_initializer=normal(), name="third")
    return flow.layers.dense(y, 5, kernel_initializer=normal(), name="last")


def cnn() -> Any:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        return convolutional(x)

    return predict


def close(fast: Any, exact: Any, share: float = 0.05) -> None:
    """Equal up to a share of the largest value: that of 8 bits, several times."""
    assert fast.shape == exact.shape and fast.dtype == exact.dtype
    assert np.abs(fast - exact).max() <= share * np.abs(exact).max()


def test_a_calibrated_job_computes_nearly_the_same() -> None:
    predict = cnn()
    batches = [drawn(BATCH, 3, 8, 8) for _ in range(3)]
    fast = flow.quantization.calibrate(predict, batches)
    assert fast.name == "predict_int8" and not fast.train
    for x in batches:
        y = fast(x)
        close(y, predict(x))
        assert np.abs(y - predict(x)).max() > 0  # it is not the same computation
    text = str(fast.summary())
    assert "4 products" in text and "3 with integer results" in text


def test_the_numbers_are_those_of_integers() -> None:
    """Two dense layers with ReLU between, against NumPy's integers."""

    @flow.global_function("predict")
    def dense(x: tp.Numpy.Placeholder((6, 32))) -> tp.Numpy:
        y = flow.layers.dense(x, 24, activation=flow.nn.relu, kernel_initializer=normal(), name="a")
        return flow.layers.dense(y, 7, kernel_initializer=normal(), bias_initializer=normal(), name="b")

    x = drawn(6, 32)
    fast = flow.quantization.calibrate(dense, [x])
    values = {name: v.numpy() for name, v in flow.get_all_variables().items()}

    def weights(name: str) -> tuple[np.ndarray, np.ndarray]:
        w = values[name]  # (units, inputs)
        scale = np.abs(w).max(1) / np.float32(127)
        return np.clip(np.rint(w / scale[:, None]), -127, 127).astype(np.int64), scale

    def grid(low: float, high: float) -> tuple[float, int]:
        scale = float(np.float32((max(high, 0) - min(low, 0)) / 255))
        return scale, round(-min(low, 0) / scale)

    w1, s1 = weights("a-weight")
    w2, s2 = weights("b-weight")
    hidden = np.maximum(x @ values["a-weight"].T + values["a-bias"], 0)
    gx, zx = grid(float(x.min()), float(x.max()))
    gh, zh = grid(float(hidden.min()), float(hidden.max()))
    qx = np.clip(np.rint(x / np.float32(gx)) + zx, 0, 255).astype(np.int64)
    real = ((qx - zx) @ w1.T) * (gx * s1) + values["a-bias"]
    qh = np.clip(np.rint(np.maximum(real, 0) / gh) + zh, 0, 255).astype(np.int64)
    expected = ((qh - zh) @ w2.T) * (gh * s2) + values["b-bias"]
    step = gh * s2.max() * 127  # one value of the hidden layer that was rounded to the other side
    np.testing.assert_allclose(fast(x), expected, atol=1.01 * step)
    assert np.median(np.abs(fast(x) - expected)) < 1e-4


def test_weights_follow_their_variables() -> None:
    predict = cnn()
    x = drawn(BATCH, 3, 8, 8)
    fast = flow.quantization.calibrate(predict, [x])
    before = fast(x)
    np.testing.assert_array_equal(fast(x), before)
    flow.load_variables({"last-bias": np.full(5, 2, np.float32)})
    np.testing.assert_allclose(fast(x), before + 2, rtol=1e-5, atol=1e-5)


def test_by_xla_the_numbers_are_the_same() -> None:
    x = drawn(BATCH, 3, 8, 8)
    predict = cnn()
    fast = flow.quantization.calibrate(predict, [x])
    expected = fast(x)
    variables = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    flow.clear_default_session()
    flow.config.enable_native_cpu(False)
    predict = cnn()
    predict.build()
    flow.load_variables(variables)
    by_xla = flow.quantization.calibrate(predict, [x])
    assert "by XLA (switched off" in str(by_xla.summary())
    close(by_xla(x), expected, 0.02)  # the ranges are measured by other kernels, too


def test_channels_last_and_groups() -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((2, 9, 9, 4))) -> tp.Numpy:
        w = flow.get_variable("w", (8, 3, 3, 2), initializer=normal())
        y = flow.nn.relu(flow.nn.conv2d(x, w, 2, "SAME", "NHWC", groups=2))
        v = flow.get_variable("v", (6, 1, 1, 8), initializer=normal())
        return flow.nn.conv2d(y, v, 1, "VALID", "NHWC")

    x = drawn(2, 9, 9, 4)
    close(flow.quantization.calibrate(predict, [x])(x), predict(x))


def test_several_results_and_inputs() -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((3, 16)), y: tp.Numpy.Placeholder((3, 16))) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (16, 16), initializer=normal())
        h = flow.matmul(x + y, w)
        return h, flow.matmul(flow.math.tanh(h), w, transpose_b=True)

    a, b = drawn(3, 16), drawn(3, 16)
    fast = flow.quantization.calibrate(predict, [(a, b), {"x": a, "y": b}], name="fast")
    assert fast.name == "fast"
    for got, want in zip(fast(a, b), predict(a, b), strict=True):
        close(got, want)


def trained_with_fake_quantization(symmetric: bool, per_channel: bool) -> tuple[Any, np.ndarray]:
    config = flow.FunctionConfig()
    config.enable_qat(True)
    config.qat.symmetric(symmetric)
    config.qat.per_channel_weight_quantization(per_channel)

    def body(x: Any) -> Any:
        y = flow.layers.conv2d(x, 8, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=normal(), name="first")
        y = flow.layers.conv2d(y, 6, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=normal(), name="second")
        return flow.layers.dense(flow.reshape(y, (BATCH, -1)), 5, kernel_initializer=normal(), name="last")

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(body(x)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1e-3])).minimize(loss)
        return loss

    @flow.global_function("predict", config)
    def predict(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        return body(x)

    x = drawn(BATCH, 3, 8, 8)
    for _ in range(2):
        train(x)
    return predict, x


@pytest.mark.parametrize("per_channel", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_job_trained_with_fake_quantization_is_converted(per_channel: bool) -> None:
    predict, x = trained_with_fake_quantization(True, per_channel)
    fast = flow.quantization.convert(predict)
    text = str(fast.summary())
    assert "3 products" in text and "2 with integer results" in text
    close(fast(x), predict(x), 0.02)  # the same grids: but for values on a border, the same numbers


def test_grids_with_a_zero_point_in_weights_stay_in_floating_point(tmp_path: Path) -> None:
    predict, _ = trained_with_fake_quantization(False, False)
    with pytest.raises(ModeError, match=r"(?s)the grid of its weights has a zero point.*try .*qat.symmetric\(True\)"):
        flow.quantization.convert(predict)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow.checkpoint.save(str(tmp_path / "weights"))  # warns of jobs that cannot be built: what was refused is none


def test_another_job_keeps_its_name_and_variables_where_int8_jobs_are_made_or_refused() -> None:
    predict, _ = trained_with_fake_quantization(False, False)

    def scaled(size: int) -> Any:
        def body(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
            return flow.math.reduce_sum(x) * flow.get_variable("v", (size,), initializer=flow.ones_initializer())

        return body

    jobs = []
    for name in ("other", f"{predict.name}_ranges"):
        body = scaled(1)
        body.__name__ = name
        jobs.append(flow.global_function("predict")(body))
        jobs[-1](np.ones(2, np.float32))
    flow.load_variables({"v": np.full(1, 7, np.float32)})
    with pytest.raises(ModeError, match="the grid of its weights"):
        flow.quantization.convert(predict, "other")
    conflicting = flow.global_function("predict")(scaled(3))
    with pytest.raises(flow.errors.VariableConflictError):
        conflicting(np.ones(2, np.float32))
    for job in jobs:
        np.testing.assert_allclose(job(np.ones(2, np.float32)), [14])


def test_what_cannot_be_of_integers_is_refused() -> None:
    predict = cnn()
    batch = drawn(BATCH, 3, 8, 8)

    @flow.global_function("predict")
    def elementwise(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.math.tanh(x)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = flow.layers.dense(x, 2, name="d")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    calibrate, convert = flow.quantization.calibrate, flow.quantization.convert
    for call, error, text in [
        (lambda: calibrate(print, [batch]), ArgumentError, "needs a job function"),
        (lambda: calibrate(train, [batch]), ArgumentError, r"(?s)needs a predict job.*the job .*your line .*lambda: calibrate"),
        (lambda: calibrate(predict, batch), ArgumentError, "an iterable of batches"),
        (lambda: calibrate(predict, []), ArgumentError, "no batches"),
        (lambda: calibrate(predict, [batch], name=3), ArgumentError, "name must be a str"),
        (lambda: calibrate(predict, [batch[:, :2]]), FeedError, "x"),
        (lambda: calibrate(predict, [batch * np.nan]), ArgumentError, "are not numbers"),
        (lambda: calibrate(predict, [np.where(batch == batch.min(), np.nan, batch)]), ArgumentError, "are not numbers"),
        (lambda: calibrate(elementwise, [batch]), ModeError, "no products or convolutions"),
        (lambda: convert(predict), ModeError, "no fake quantization"),
        (
            lambda: calibrate(calibrate(predict, [batch]), [batch]),
            ArgumentError,
            r"(?s)8-bit integers already.*the job .*your line .*lambda",
        ),
    ]:
        with pytest.raises(error, match=text):
            call()
    close(calibrate(predict, [batch])(batch), predict(batch))  # the session is as it was


def test_errors_of_batches_name_the_users_job() -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 2, name="d")

    x = np.zeros((2, 3), np.float32)
    for batch in (x[:1], (x, x), {"y": x}):
        with pytest.raises(FeedError, match="job 'predict'") as raised:
            flow.quantization.calibrate(predict, [batch])
        assert "predict_ranges" not in str(raised.value)


def test_ops_on_several_places_are_refused() -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function("predict")
    def spread(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            y = flow.layers.conv2d(x, 8, 3, kernel_initializer=normal(), name="here")
        with flow.scope.placement("cpu", "0:1"):
            return flow.layers.conv2d(y, 8, 3, kernel_initializer=normal(), name="there")

    x = drawn(BATCH, 3, 8, 8)
    fast = flow.quantization.calibrate(spread, [x])
    with pytest.raises(ModeError, match="lies on several places") as raised:
        fast(x)
    assert "there" in str(raised.value) and "test_int8.py" in str(raised.value)
    assert spread(x).shape == (BATCH, 8, 4, 4)  # the session is unharmed


def test_all_ops_on_one_other_place() -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function("predict")
    def elsewhere(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:1"):
            return flow.layers.conv2d(x, 8, 3, kernel_initializer=normal(), name="there")

    x = drawn(BATCH, 3, 8, 8)
    want = elsewhere(x)
    got = flow.quantization.calibrate(elsewhere, [x])(x)
    assert np.abs(got - want).max() <= 0.03 * np.abs(want).max()


def test_onnx_has_the_same_scales(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    predict = cnn()
    batches = [drawn(BATCH, 3, 8, 8) for _ in range(2)]
    fast = flow.quantization.calibrate(predict, batches)
    path = tmp_path / "int8.onnx"
    flow.export.onnx(fast, path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # else sums overflow on CPUs with AVX2 and without VNNI
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert b"QuantizeLinear" in path.read_bytes()
    for x in batches:
        (got,) = session.run(None, {session.get_inputs()[0].name: x})
        close(got, fast(x), 0.02)
        assert np.abs(got - fast(x)).mean() < 0.2 * np.abs(predict(x) - fast(x)).mean()  # not merely another approximation


@pytest.mark.parametrize("kind", ["conv2d", "dense"])
def test_onnx_keeps_biases_beside_tiny_weights(kind: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        given = {"kernel_initializer": normal(), "bias_initializer": normal(), "activation": flow.nn.relu, "name": "first"}
        if kind == "conv2d":
            y = flow.flatten(flow.layers.conv2d(x, 8, 3, **given), 1)
        else:
            y = flow.layers.dense(flow.reshape(x, (BATCH, -1)), 8, **given)
        return flow.layers.dense(y, 4, kernel_initializer=normal(), name="last")

    x = drawn(BATCH, 3, 8, 8)
    predict(x)
    variables = {name: variable.numpy().copy() for name, variable in flow.get_all_variables().items()}
    variables["first-weight"][1] *= 1e-7  # so that the bias is more than 2**31 steps of an integer product
    variables["first-bias"][:] = 1
    flow.load_variables(variables)
    fast = flow.quantization.calibrate(predict, [x])
    flow.export.onnx(fast, tmp_path / "int8.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(tmp_path / "int8.onnx"), options, providers=["CPUExecutionProvider"])
    close(session.run(None, {session.get_inputs()[0].name: x})[0], fast(x), 0.02)


def test_what_cannot_be_of_integers_is_told_by_the_jobs_own_name() -> None:
    @flow.global_function("predict")
    def exponentials(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        return flow.math.exp(x)

    with pytest.raises(ModeError, match="job 'exponentials' cannot be of 8-bit integers"):
        flow.quantization.calibrate(exponentials, [np.zeros((4, 8), np.float32)])


@pytest.mark.parametrize("behind", ["relu", "gelu", "residual", "bias"])
def test_whatever_follows_a_residual(behind: str) -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((BATCH, 8, 6, 6))) -> tp.Numpy:
        a = flow.layers.conv2d(x, 8, 3, padding="SAME", kernel_initializer=normal(), activation=flow.nn.relu, name="a")
        b = flow.layers.conv2d(a, 8, 3, padding="SAME", kernel_initializer=normal(), name="b") + a
        if behind == "relu":
            b = flow.nn.relu(b)
        elif behind == "gelu":
            b = flow.math.gelu(b)
        elif behind == "residual":
            b = b + a
        else:
            b = flow.nn.bias_add(b, flow.get_variable("offset", (8,), initializer=normal()))
        return flow.layers.conv2d(b, 8, 3, padding="SAME", kernel_initializer=normal(), name="c")

    x = drawn(BATCH, 8, 6, 6)
    close(flow.quantization.calibrate(predict, [x])(x), predict(x))


def test_products_whose_sums_may_overflow_stay_in_floating_point() -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((2, 70_000))) -> tp.Numpy:
        y = flow.layers.dense(x, 4, kernel_initializer=flow.constant_initializer(0.01), name="long")
        return flow.layers.dense(y, 4, kernel_initializer=flow.constant_initializer(1), name="short")

    x = np.ones((2, 70_000), np.float32)
    fast = flow.quantization.calibrate(predict, [x])
    np.testing.assert_allclose(fast(x), 2800, rtol=0.01)
    assert "sums of 70000 terms may not fit in 32 bits" in str(fast.summary())


def test_batches_for_calibration_are_not_watched() -> None:
    seen: list[Any] = []

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        y = flow.layers.dense(x, 8, kernel_initializer=normal(), name="dense")
        flow.watch(y, seen.append)
        return y

    flow.quantization.calibrate(predict, [drawn(4, 8), drawn(4, 8)])
    assert not seen
    predict(drawn(4, 8))
    assert len(seen) == 1


def test_batches_for_calibration_change_no_variable() -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        calls = flow.get_variable("calls", (1,), initializer=flow.zeros_initializer(), trainable=False)
        flow.assign(calls, calls + 1.0)
        return flow.layers.dense(x, 8, kernel_initializer=normal(), name="dense")

    fast = flow.quantization.calibrate(predict, [drawn(4, 8), drawn(4, 8)])
    assert flow.get_all_variables()["calls"].numpy() == 0
    fast(drawn(4, 8))
    assert flow.get_all_variables()["calls"].numpy() == 1


def run_by_onnxruntime(job: Any, path: Path, x: np.ndarray) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    flow.export.onnx(job, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize(("low", "high"), [(3.0, 5.0), (-5.0, -3.0), (-1.0, 2.0), (0.0, 1.0)])
@pytest.mark.parametrize("padding", [None, "VALID", "SAME"])
def test_grids_that_do_not_hold_zero(low: float, high: float, padding: str | None, tmp_path: Path) -> None:
    """A convolution that is padded with zeros stays in floating point there."""
    flow.manual_seed(0)  # of other numbers one may be on the border of two steps
    random = np.random.default_rng(0)
    shape = (8, 12) if padding is None else (4, 3, 6, 6)

    def body(x: Any) -> Any:
        scale, zero = flow.quantization.moving_average_min_max_observer(x, quantization_scheme="affine", name="o")
        x = flow.quantization.fake_quantization(x, scale, zero, quantization_scheme="affine")
        w = flow.get_variable("w", (12, 3) if padding is None else (5, 3, 3, 3), initializer=normal())
        w = flow.quantization.fake_quantization(w, *flow.quantization.min_max_observer(w))
        return flow.matmul(x, w) if padding is None else flow.nn.conv2d(x, w, 1, padding)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(body(x)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1e-4]), momentum=0).minimize(loss)
        return loss

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return body(x)

    for _ in range(5):
        train(random.uniform(low, high, shape).astype(np.float32))
    x = random.uniform(low, high, shape).astype(np.float32)
    if padding == "SAME" and low * high > 0:
        with pytest.raises(ModeError, match="the grid of its data does not hold 0, which it is padded with"):
            flow.quantization.convert(predict)
        return
    fast = flow.quantization.convert(predict)
    close(fast(x), predict(x), 0.01)
    close(run_by_onnxruntime(fast, tmp_path / "job.onnx", x), fast(x), 0.001)


def test_onnx_rounds_the_terms_of_residuals(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((16, 12))) -> tp.Numpy:
        x = flow.math.tanh(flow.layers.dense(x, 12, kernel_initializer=normal(), name="a"))
        y = flow.layers.dense(x, 12, kernel_initializer=normal(), name="b")
        return flow.layers.dense(flow.nn.relu(y + x), 5, kernel_initializer=normal(), name="c")

    batches = [drawn(16, 12) for _ in range(4)]
    fast = flow.quantization.calibrate(predict, batches)
    found = run_by_onnxruntime(fast, tmp_path / "job.onnx", batches[0])
    assert np.isclose(found, fast(batches[0]), rtol=1e-5, atol=1e-6).mean() > 0.8  # the others have numbers on a border


def test_a_model_whose_training_diverged_is_refused() -> None:
    predict, _ = trained_with_fake_quantization(True, True)
    ranges = {name: v.numpy() for name, v in flow.get_all_variables().items() if name.endswith(("moving_max", "moving_min"))}
    assert ranges
    flow.load_variables({name: np.full_like(value, np.nan) for name, value in ranges.items()})
    with pytest.raises(ModeError, match=r"cannot be converted: the grid of '.*' has scale nan(.|\n)*made at"):
        flow.quantization.convert(predict)


def test_jobs_of_a_closed_session_are_refused() -> None:
    predict = cnn()
    flow.clear_default_session()
    with pytest.raises(ModeError, match="session was closed"):
        flow.quantization.calibrate(predict, [drawn(BATCH, 3, 8, 8)])
    with pytest.raises(ModeError, match="session was closed"):
        flow.quantization.convert(predict)


def test_calibration_inside_a_body_is_refused() -> None:
    predict = cnn()

    @flow.global_function("predict")
    def outer(x: tp.Numpy.Placeholder((BATCH, 3, 8, 8))) -> tp.Numpy:
        flow.quantization.calibrate(predict, [drawn(BATCH, 3, 8, 8)])
        return x

    with pytest.raises(ModeError, match="flow.quantization.calibrate was called inside the body of a job"):
        outer(drawn(BATCH, 3, 8, 8))


def test_refusals_say_what_to_do() -> None:
    @flow.global_function("predict")
    def first(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        return flow.matmul(flow.get_variable("w", (3, 8), initializer=normal()), x)

    with pytest.raises(
        ModeError, match=r"its first factor is the one that is a variable\n.*made at .*test_int8(.|\n)*try .*flow.matmul\(x, w\)"
    ):
        flow.quantization.calibrate(first, [drawn(8, 4)])


def test_onnx_of_weights_that_are_computed_of_variables(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((16, 12))) -> tp.Numpy:
        w = flow.get_variable("w", (12, 12), initializer=normal())
        y = flow.nn.relu(flow.matmul(x, w))
        y = flow.nn.relu(flow.matmul(y, flow.transpose(w, (1, 0))))
        return flow.matmul(y, flow.concat([w, flow.reshape(w, (12, 12)) * 0.5], 1))

    x = drawn(16, 12)
    fast = flow.quantization.calibrate(predict, [x])
    found = run_by_onnxruntime(fast, tmp_path / "job.onnx", x)
    assert np.isclose(found, fast(x), rtol=1e-5, atol=1e-6).mean() > 0.8
