"""Products with packed weights and what is fused behind them: single calls against PyTorch, predict jobs against plain ones."""

from __future__ import annotations

import gc
import math
import threading
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import examples

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.compiler import packed_products as packed
from oneflow.compiler.packed_products import Epilogue
from oneflow.graph.op import IntegerProduct

pytestmark = pytest.mark.usefixtures("native_part")
RNG = np.random.default_rng(3)
INITIAL = flow.glorot_uniform_initializer()


# --- single calls


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    """Data (N, ..., C), weights (O, ..., I), an offset, a residual or None, and what is computed of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    small = st.integers(1, 3)
    n = draw(st.integers(0, 3))
    groups = draw(st.sampled_from([1, 1, 2])) if n else 1
    fan, out, batch = draw(st.integers(1, 20)), groups * draw(st.integers(1, 20)), draw(small)
    window = tuple(draw(small) for _ in range(n))
    strides, dilations = tuple(draw(small) for _ in range(n)), tuple(draw(st.integers(1, 2)) for _ in range(n))
    extents = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    padding = tuple((draw(st.integers(0, e - 1)), draw(st.integers(0, e - 1))) for e in extents)
    x = rng.normal(size=(batch, *(e + draw(st.integers(0, 5)) for e in extents), groups * fan)).astype(np.float32)
    w = rng.normal(size=(out, *window, fan)).astype(np.float32) / math.sqrt(fan * math.prod(window))
    product = IntegerProduct(None, tuple(range(n + 2)), strides, dilations, padding, groups)
    activation = draw(st.sampled_from(["", "rectify", "gate", "bound"]))
    epilogue = Epilogue(False, draw(st.booleans()), activation, low=0.0, high=draw(st.sampled_from([0.5, 6.0])))
    residual = rng.normal(size=packed.result_shape(x.shape, product, w.shape)) if epilogue.has_residual else None
    return x, w.astype(np.float32), rng.normal(size=out).astype(np.float32), residual, product, epilogue


def same_in_float32(problem: tuple[Any, ...], threads: int, parallel: Any, products: Any) -> None:
    with parallel(threads):
        got = products.computed(problem, np.float32)
    np.testing.assert_allclose(got, products.reference(*problem), rtol=2e-5, atol=2e-5)


@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(), threads=st.integers(1, 3))
def test_a_product_in_float32(problem: tuple[Any, ...], threads: int, parallel: Any, products: Any) -> None:
    same_in_float32(problem, threads, parallel, products)


@settings(deadline=None, max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems())
def test_a_product_in_bfloat16(problem: tuple[Any, ...], native_part: Any, products: Any) -> None:
    if not native_part.has_bfloat16:
        pytest.skip("this CPU has neither AVX-512 BF16 nor AMX")
    got = products.computed(problem, ml_dtypes.bfloat16)
    assert got.dtype == ml_dtypes.bfloat16
    x, w, offset, residual, *rest = problem
    rounded = [None if v is None else np.asarray(v, ml_dtypes.bfloat16).astype(np.float64) for v in (x, w, residual)]
    want = products.reference(rounded[0], rounded[1], offset, rounded[2], *rest)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0.02, atol=0.02)


@st.composite
def plain_products(draw: st.DrawFn) -> tuple[Any, ...]:
    """Products of matrices, and convolutions that are such products: windows of one element."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, fan, out = draw(st.integers(1, 9) | st.integers(10, 512)), draw(st.integers(1, 600)), draw(st.integers(1, 300))
    n = draw(st.integers(0, 2))
    size = draw(st.integers(1, 4)) if n else 1
    space = (size, *[max(rows // size, 1)] * (n - 1))
    strides, padding = ((1,) * n, ((0, 0),) * n) if n else ((), ())
    activation = draw(st.sampled_from(["", "rectify", "gate", "bound"]))
    factor, shift = draw(st.sampled_from([(1.0, 0.0), (0.5, 2.0)]))
    epilogue = Epilogue(False, draw(st.booleans()), activation, factor, shift, high=2.0)
    x = rng.normal(size=(max(rows // math.prod(space), 1), *space[:n], fan)).astype(np.float32)
    w, offset = (rng.normal(size=shape).astype(np.float32) for shape in ((out, *[1] * n, fan), (out,)))
    product = IntegerProduct(None, tuple(range(n + 2)), strides, strides, padding)
    residual = rng.normal(size=(*x.shape[:-1], out)).astype(np.float32) if epilogue.has_residual else None
    return x, w / np.float32(math.sqrt(fan)), offset, residual, product, epilogue


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=plain_products(), threads=st.integers(1, 3))
def test_a_product_of_matrices(problem: tuple[Any, ...], threads: int, parallel: Any, products: Any, kernels: str) -> None:
    x, w, *_, product, epilogue = problem
    rows = math.prod(x.shape[:-1])
    with parallel(threads):
        got = products.computed(problem, np.float32)
        name = packed.kernel_name(x.shape, product, epilogue, w.shape, "float32")
    np.testing.assert_allclose(got, products.reference(*problem), rtol=2e-5, atol=2e-5)
    assert (name == _native.FEW_ROWS) == (rows <= 8)
    if kernels == "avx2" and rows > 8:
        assert name == "packed:avx2"


def test_gelu_of_few_rows_is_exact_far_from_zero(products: Any) -> None:
    offset = np.float32([0, 1, -1, 5, -5, 5.3, -5.4, 10, -10, 1e4, -1e4, 1e30, -1e30])
    x, w = np.zeros((2, 4), np.float32), np.zeros((len(offset), 4), np.float32)
    got = products.computed((x, w, offset, None, IntegerProduct(None, (0, 1)), Epilogue(False, False, "gate")), np.float32)
    want = torch.nn.functional.gelu(torch.from_numpy(offset.astype(np.float64))).numpy()
    np.testing.assert_allclose(got, np.tile(want, (2, 1)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("space", [(9,), (8, 7), (3, 5, 2)])
def test_windows_of_one_element_that_skip_pixels(
    space: tuple[int, ...], groups: int, threads: int, parallel: Any, products: Any
) -> None:
    """Of several images; the pixels that are read are copied first."""
    rng, n = np.random.default_rng(4), len(space)
    x = rng.normal(size=(3, *space, 16 * groups)).astype(np.float32)
    w = rng.normal(size=(8 * groups, *[1] * n, 16)).astype(np.float32) / 4
    product = IntegerProduct(None, tuple(range(n + 2)), (2,) * n, (1,) * n, ((0, 0),) * n, groups)
    problem = x, w, np.zeros(len(w), np.float32), None, product, Epilogue(high=0.0)
    with parallel(threads):
        got = products.computed(problem, np.float32)
    np.testing.assert_allclose(got, products.reference(*problem), rtol=2e-5, atol=2e-5)


@st.composite
def many_windows(draw: st.DrawFn) -> tuple[Any, ...]:
    """Of few channels, and of narrow groups: of these oneDNN makes products of matrices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = draw(st.sampled_from([1, 1, 3, 16]))
    n = draw(st.integers(1, 2 if groups == 1 else 3))
    fan, out = draw(st.integers(1, 4)), groups * draw(st.integers(1, 5) | st.integers(30, 40 if groups == 1 else 31))
    if groups > 1 and draw(st.booleans()):
        out = groups * fan
    window = {1: (draw(st.integers(5, 90)),), 2: (draw(st.integers(1, 4)), draw(st.integers(1, 43))), 3: (2, 3, 3)}[n]
    strides, dilations = (tuple(draw(st.integers(1, 2)) for _ in range(n)) for _ in range(2))
    extents = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    padding = tuple((draw(st.integers(0, e // 2)), draw(st.integers(0, e // 2))) for e in extents)
    space = [e + draw(st.integers(0, most)) for e, most in zip(extents, {1: (400,), 2: (6, 40), 3: (3, 6, 14)}[n], strict=True)]
    x = rng.normal(size=(draw(st.integers(1, 2)), *space, groups * fan)).astype(np.float32)
    w = (rng.normal(size=(out, *window, fan)) / math.sqrt(fan * math.prod(window))).astype(np.float32)
    product = IntegerProduct(None, tuple(range(n + 2)), strides, dilations, padding, groups)
    activation = draw(st.sampled_from(["", "rectify", "gate", "bound"]))
    factor, shift = draw(st.sampled_from([(1.0, 0.0), (0.5, 2.0)]))
    epilogue = Epilogue(False, draw(st.booleans()), activation, factor, shift, high=2.0)
    residual = None
    if epilogue.has_residual:
        residual = rng.normal(size=packed.result_shape(x.shape, product, w.shape)).astype(np.float32)
    return x, w, rng.normal(size=out).astype(np.float32), residual, product, epilogue


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=many_windows(), threads=st.integers(1, 3))
def test_many_windows_of_few_channels(problem: tuple[Any, ...], threads: int, parallel: Any, products: Any) -> None:
    same_in_float32(problem, threads, parallel, products)


@pytest.mark.parametrize("shape, weights, groups, kernel", [
    ((2, 500, 1), (64, 80, 1), 1, "packed:avx2"),
    ((2, 60, 60, 3), (24, 11, 11, 3), 1, "packed:avx2"),
    ((2, 300, 16), (16, 5, 1), 16, "brdgmm_dw:avx2"),
    ((2, 30, 30, 64), (64, 3, 3, 4), 16, "grouped:avx2"),
    ((2, 6, 9, 20, 12), (12, 3, 3, 3, 1), 12, "grouped:avx2"),
])  # fmt: skip
def test_kernels_of_few_channels(
    shape: tuple[int, ...], weights: tuple[int, ...], groups: int, kernel: str, products: Any, kernels: str
) -> None:
    n = len(shape) - 2
    padding = tuple((k // 2, k // 2) for k in weights[1:-1])
    product = IntegerProduct(None, tuple(range(n + 2)), (1,) * n, (1,) * n, padding, groups)
    name = packed.kernel_name(shape, product, Epilogue(False, False, "rectify"), weights, "float32")
    if kernels == "avx2":
        assert name.endswith(kernel)
    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=size).astype(np.float32) for size in (shape, weights))
    x[0, 3] = np.nan  # stays one behind the activation
    problem = x, w, np.zeros(len(w), np.float32), None, product, Epilogue(False, False, "rectify")
    np.testing.assert_allclose(products.computed(problem, np.float32), products.reference(*problem), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 7, 20])
@pytest.mark.parametrize("activation", ["rectify", "bound", "gate"])
def test_a_product_passes_on_what_is_not_finite(activation: str, rows: int, products: Any) -> None:
    """In its own column and no other one; columns beyond the last panel's end are not read."""
    x, w, offset = np.ones((rows, 4), np.float32), np.ones((70, 4), np.float32), np.zeros(70, np.float32)
    offset[[3, 65]] = np.nan
    w[69, 1] = np.inf
    product, epilogue = IntegerProduct(None, (0, 1)), Epilogue(False, False, activation, low=0.0, high=3.0)
    got = products.computed((x, w, offset, None, product, epilogue), np.float32)
    assert np.isnan(got[:, [3, 65]]).all()
    finite = np.delete(got, [3, 65, 69], axis=1)
    np.testing.assert_allclose(finite, {"rectify": 4, "bound": 3, "gate": 3.999873}[activation], rtol=1e-6)
    by_onednn = packed.kernel_name(x.shape, product, epilogue, w.shape, "float32").startswith("oneDNN")
    if by_onednn and activation != "rectify":  # which multiplies what is beyond the bound by zero
        assert np.isnan(got[:, 69]).all()
    else:
        np.testing.assert_array_equal(got[:, 69], 3 if activation == "bound" else np.inf)


@pytest.mark.parametrize("activation", ["rectify", "bound"])
def test_not_a_number_stays_so_behind_an_activation(activation: str, products: Any) -> None:
    x, w = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    offset = np.array([np.nan, 1, -9], np.float32)
    product = IntegerProduct(None, (0, 1))
    got = products.computed((x, w, offset, None, product, Epilogue(False, False, activation, low=0.0, high=4.0)), np.float32)
    np.testing.assert_array_equal(got, [[np.nan, 5 if activation == "rectify" else 4, 0]] * 2)


def test_malformed_specs_are_refused(native_part: Any) -> None:
    good = packed.spec((4, 8), IntegerProduct(None, (0, 1)), Epilogue(high=0.0), (8, 8), "float32")
    assert not native_part.describe("product", good).startswith("!")
    bits = packed.spec((4, 8), IntegerProduct(None, (0, 1)), Epilogue(activation="bound", low=1.0, high=6.0), (8, 8), "float32")
    for spec in ([], good[:-1], [*good, 1], [9, *good[1:]], [1, 0, *good[2:]], [0, 2, *good[2:]], bits):
        assert native_part.describe("product", spec).startswith("!")


# --- jobs


def network(x: Any, training: bool = False) -> Any:
    """Convolutions with all that may be fused behind one, and what may not."""
    y = flow.layers.conv2d(x, 8, 3, padding="SAME", use_bias=False, name="a")
    y = flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=training, name="a-bn"))
    z = flow.layers.conv2d(y, 16, 3, strides=2, padding="SAME", name="b")
    z = flow.layers.batch_normalization(z, axis=1, training=training, name="b-bn")
    y = flow.layers.conv2d(y, 16, 1, strides=2, padding="SAME", name="short")
    y = flow.clip_by_value(z + y, 0.0, 6.0)
    y = flow.layers.conv2d(y, 16, 3, padding="SAME", groups=16, use_bias=False, name="depthwise")
    y = flow.layers.batch_normalization(y, axis=1, training=training, name="depthwise-bn")
    y = flow.math.gelu(flow.layers.conv2d(y, 16, 3, padding="SAME", name="c")) + y
    y = flow.nn.avg_pool2d(y, y.shape[2], 1, "VALID")
    y = flow.layers.dense(flow.flatten(y, 1), 512, activation=flow.nn.relu, kernel_initializer=INITIAL, name="hidden")
    return flow.layers.dense(y, 5, kernel_initializer=INITIAL, name="out")


SHAPE = (8, 3, 16, 16)


def a_predict_job(mixed: bool = False) -> Any:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function(type="predict", function_config=config)
    def predict(x: tp.Numpy.Placeholder(SHAPE)) -> tp.Numpy:
        return network(x)

    return predict


def a_train_job() -> Any:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder(SHAPE), labels: tp.Numpy.Placeholder((8,), flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(x, True))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.05]), momentum=0.9).minimize(loss)
        return loss

    return train


def changed(job: Any) -> str:
    return dict(job.executables[-1][1].plan.passes).get("fused products", "")


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Values for all variables, those of the statistics positive."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.uniform(0.5, 1.5, v.shape) if v.ndim == 1 else rng.normal(size=v.shape) / math.sqrt(v[0].size)).astype(v.dtype)
        for name, v in ((name, found.numpy()) for name, found in flow.get_all_variables().items())
        if v.dtype == np.float32
    }


def plainly(x: np.ndarray, *values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What XLA computes with each of these sets of values, in a session of its own."""
    flow.clear_default_session()
    flow.config.enable_native_cpu(False)
    predict = a_predict_job()
    own = list(flow.get_all_variables())
    found = []
    for each in values:
        flow.load_variables({name: each[name] for name in own})
        found.append(predict(x))
    return found


def test_a_predict_job_computes_the_same_fused() -> None:
    x = RNG.normal(size=SHAPE).astype(np.float32)
    predict = a_predict_job()
    values = drawn(0)
    flow.load_variables(values)
    got = predict(x)
    assert "products with packed weights" in changed(predict)
    text = str(predict.summary())
    assert "packed weights" in text and "with a" in text
    np.testing.assert_allclose(got, plainly(x, values)[0], rtol=1e-5, atol=1e-5)


def test_a_small_product_of_few_rows_is_packed(products: Any) -> None:
    """With weights enough; XLA computes it in larger batches, and those with few weights."""

    def declared(rows: int) -> Any:
        @flow.global_function(type="predict")
        def predict(x: tp.Numpy.Placeholder((rows, 200))) -> tp.Numpy:
            y = flow.layers.dense(x, 200, activation=flow.math.gelu, kernel_initializer=INITIAL, name="a")
            y = flow.layers.dense(y, 200, kernel_initializer=INITIAL, name="b") + y
            return flow.layers.dense(y, 10, kernel_initializer=INITIAL, name="small")

        return predict

    one, many = declared(1), declared(12)
    x = RNG.normal(size=(12, 200)).astype(np.float32)
    flow.manual_seed(3)
    want = many(x)
    np.testing.assert_allclose(np.concatenate([one(x[i : i + 1]) for i in range(12)]), want, rtol=1e-4, atol=1e-5)
    assert not changed(many)
    assert changed(one).startswith("2 products")
    assert str(one.summary()).count("few rows, packed weights") == 2


def test_values_of_variables_that_change_between_calls_are_seen(tmp_path: Path) -> None:
    x, labels = RNG.normal(size=SHAPE).astype(np.float32), np.arange(8, dtype=np.int32) % 5
    train, predict = a_train_job(), a_predict_job()
    flow.manual_seed(1)
    flow.train.CheckPoint().init()
    found = []

    def note() -> None:
        found.append((predict(x), {n: np.array(v.numpy()) for n, v in flow.get_all_variables().items()}))

    note()
    for _ in range(2):
        train(x, labels)
        note()
    flow.checkpoint.save(str(tmp_path / "saved"))
    flow.load_variables(drawn(4))
    note()
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    note()
    assert changed(predict) and not changed(train)
    np.testing.assert_array_equal(found[4][0], found[2][0])
    for (got, _), want in zip(found, plainly(x, *(values for _, values in found)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_threads_see_one_set_of_variables() -> None:
    """Each call computes with the variables before or behind a change of all of them, never with some of both."""
    x = RNG.normal(size=SHAPE).astype(np.float32)
    predict = a_predict_job()
    sets = [drawn(seed) for seed in range(2)]
    known = []
    for values in sets:
        flow.load_variables(values)
        known.append(predict(x))
    wrong: list[float] = []

    def call() -> None:
        for _ in range(15):
            got = predict(x)
            distance = min(float(np.abs(got - each).max()) for each in known)
            if distance > 1e-5:
                wrong.append(distance)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for thread in callers:
        thread.start()
    for i in range(10):
        flow.load_variables(sets[i % 2])
    for thread in callers:
        thread.join()
    assert not wrong


def test_mixed_precision_is_near(native_part: Any) -> None:
    x = RNG.normal(size=SHAPE).astype(np.float32)
    predict = a_predict_job(mixed=True)
    values = drawn(0)
    flow.load_variables(values)
    got = predict(x)
    how = "bf16" if native_part.has_bfloat16 else "numbers rounded to bfloat16"
    assert how in str(predict.summary()) and changed(predict)
    want = plainly(x, values)[0]
    assert 0 < np.abs(got - want).max() <= 0.03 * np.abs(want).max()


def test_mixed_precision_rounds_what_it_multiplies_on_any_cpu(native_part: Any) -> None:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)

    @flow.global_function(type="predict", function_config=config)
    def predict(x: tp.Numpy.Placeholder((16, 256))) -> tp.Numpy:
        return flow.layers.dense(x, 256, kernel_initializer=INITIAL, activation=flow.nn.relu, name="d")

    x = np.random.default_rng(3).normal(size=(16, 256)).astype(np.float32)
    got = predict(x)
    assert changed(predict)
    w = flow.get_all_variables()["d-weight"].numpy()
    exact, rounded = (np.maximum(np.matmul(x.astype(t).astype(float), w.T.astype(t).astype(float)), 0)
                      for t in (np.float64, ml_dtypes.bfloat16))  # fmt: skip
    scale = np.abs(rounded).max()
    of_the_result = 1 / 256 if native_part.has_bfloat16 else 1e-5
    assert np.abs(got - rounded).max() <= of_the_result * scale
    assert np.abs(got - exact).max() > 1e-4 * scale


def test_values_that_are_read_elsewhere_are_not_fused() -> None:
    """A result that a job returns, watches or reads twice exists before the activation, too."""
    seen: list[np.ndarray] = []

    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder(SHAPE)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        y = flow.layers.conv2d(x, 8, 3, padding="SAME", name="a")
        z = flow.layers.conv2d(flow.nn.relu(y), 8, 3, padding="SAME", name="b")
        flow.watch(z, lambda v: seen.append(v.numpy()))
        w = flow.layers.conv2d(x, 8, 3, padding="SAME", name="c")
        return y, flow.nn.relu(z), flow.nn.relu(w) + w

    x = RNG.normal(size=SHAPE).astype(np.float32)
    y, z, w = predict(x)
    flow.sync_default_session()
    values = {n: torch.from_numpy(np.array(v.numpy())) for n, v in flow.get_all_variables().items()}

    def conv(v: torch.Tensor, name: str) -> torch.Tensor:
        return torch.conv2d(v, values[f"{name}-weight"], values[f"{name}-bias"], padding=1)

    first, third = conv(torch.from_numpy(x), "a"), conv(torch.from_numpy(x), "c")
    second = conv(torch.relu(first), "b")
    for got, want in ((y, first), (z, torch.relu(second)), (seen[0], second), (w, torch.relu(third) + third)):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_a_variable_that_the_job_assigns_is_not_prepared() -> None:
    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder((4, 8, 8, 8))) -> tp.Numpy:
        w = flow.get_variable("w", (8, 8, 3, 3), initializer=flow.ones_initializer())
        y = flow.nn.conv2d(x, w, 1, "SAME", "NCHW")
        flow.assign(w, w * 2.0)
        return y

    x = np.ones((4, 8, 8, 8), np.float32)
    first, second = predict(x), predict(x)
    np.testing.assert_allclose(second, 2 * first, rtol=1e-6)


def test_the_op_that_makes_a_nan_is_found_behind_fused_ones() -> None:
    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder((4, 8, 8, 8))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 8, 3, padding="SAME", kernel_initializer=INITIAL, name="conv")
        return flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=False, name="normal"))

    x = np.ones((4, 8, 8, 8), np.float32)
    assert np.isfinite(predict(x)).all() and changed(predict)
    flow.load_variables({"normal-moving_variance": -np.ones(8, np.float32)})
    assert np.isnan(predict(x)).any()
    found = predict.find_nonfinite(x)
    assert found is not None and found.name == "normal"


@pytest.mark.parametrize("high", [1e39, 1e-50])
def test_a_bound_that_float32_does_not_hold_is_left_to_the_op(high: float) -> None:
    flow.clear_default_session()

    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder((64, 256))) -> tp.Numpy:
        return flow.clip_by_value(flow.layers.dense(x, 256, kernel_initializer=INITIAL, name="a"), 0.0, high)

    x = RNG.normal(size=(64, 256)).astype(np.float32)
    result, weights = predict(x), flow.get_all_variables()["a-weight"].numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(result, np.clip(x @ weights.T, 0, np.float32(high)), rtol=1e-4, atol=1e-5)


def test_a_closed_session_lets_go_of_what_was_prepared() -> None:
    predict = a_predict_job()
    predict(RNG.normal(size=SHAPE).astype(np.float32))
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    assert any(array.dtype == np.int8 for array in jax.live_arrays())  # packed weights
    flow.clear_default_session()
    gc.collect()
    left = [array for array in jax.live_arrays() if id(array) in before and array.dtype == np.int8]
    assert left == [] and predict.name  # which the program still holds
