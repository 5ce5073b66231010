"""Convolutions with 3 x 3 packed weights by Winograd's minimal filtering, against PyTorch in float64."""

from __future__ import annotations

import math
from typing import Any

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

pytestmark = pytest.mark.usefixtures("kernels")
PLAIN = Epilogue(high=0.0)
SAME = ((1, 1), (1, 1))
Padding = tuple[tuple[int, int], tuple[int, int]]


def convolution(padding: Padding = SAME) -> IntegerProduct:
    return IntegerProduct(None, (0, 1, 2, 3), (1, 1), (1, 1), padding)


def problem(
    rng: np.random.Generator, data: tuple[int, ...], out: int, padding: Padding = SAME, epilogue: Epilogue = PLAIN
) -> tuple[Any, ...]:
    """Data of this shape, weights, an offset, a residual or None, and what is computed of them."""
    w = rng.normal(size=(out, 3, 3, data[-1])) / math.sqrt(9 * data[-1])
    x, offset = rng.normal(size=data).astype(np.float32), rng.normal(size=out).astype(np.float32)
    shape = packed.result_shape(data, convolution(padding), w.shape)
    residual = rng.normal(size=shape).astype(np.float32) if epilogue.has_residual else None
    return x, w.astype(np.float32), offset, residual, convolution(padding), epilogue


def kernel(x: Any, w: Any, product: IntegerProduct) -> str:
    return packed.kernel_name(x.shape, product, PLAIN, w.shape, "float32")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    side = st.integers(0, 2)
    padding = ((draw(side), draw(side)), (draw(side), draw(side)))
    space = tuple(draw(st.integers(max(1, 3 - sum(sides)), 22)) for sides in padding)
    channels = st.one_of(st.integers(16, 70), st.sampled_from([128, 144]))
    activation = draw(st.sampled_from(["", "rectify", "gate", "bound"]))
    epilogue = Epilogue(False, draw(st.booleans()), activation, low=0.0, high=draw(st.sampled_from([0.5, 6.0])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return problem(rng, (draw(st.integers(1, 4)), *space, draw(channels)), draw(channels), padding, epilogue)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(), threads=st.integers(1, 5))
def test_a_convolution(problem: tuple[Any, ...], threads: int, parallel: Any, products: Any) -> None:
    """Of any size and padding; four tiles or more, of images with several rows and columns, are computed in this way."""
    with parallel(threads):
        got = products.computed(problem, np.float32)
    want = products.reference(*problem)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * max(1.0, np.abs(want).max()))
    tiles = len(got) * -(-got.shape[1] // 2) * -(-got.shape[2] // 2)
    is_thin = min(problem[0].shape[1:3]) == 1
    assert (kernel(problem[0], problem[1], problem[4]) == _native.WINOGRAD) == (tiles >= 4 and not is_thin)


@pytest.mark.parametrize("data", [(8, 8, 8, 128), (8, 14, 14, 256), (8, 2, 2, 512), (1, 8, 8, 64)])
@pytest.mark.parametrize("threads", [1, 2])
def test_how_near_it_is(data: tuple[int, ...], threads: int, parallel: Any, products: Any) -> None:
    """The error beside the largest value; direct sums in float32 are off by some 4e-7."""
    made = problem(np.random.default_rng(5), data, 96)
    assert kernel(made[0], made[1], made[4]) == _native.WINOGRAD
    with parallel(threads):
        got = products.computed(made, np.float32)
    want = products.reference(*made)
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("data", [(8, 8, 8, 128), (3, 15, 9, 20)])
def test_whole_numbers_and_zeros_are_exact(data: tuple[int, ...], products: Any) -> None:
    """As in direct sums: counts of neighbours are whole numbers, and zero is zero."""
    rng = np.random.default_rng(3)
    x, w, offset, _, product, epilogue = problem(rng, data, 40)
    x, w = (rng.random(x.shape) < 0.02).astype(np.float32), rng.integers(-2, 3, w.shape).astype(np.float32)
    x[0] = 0
    changed = x, w, np.zeros_like(offset), None, product, epilogue
    got = products.computed(changed, np.float32)
    assert kernel(x, w, product) == _native.WINOGRAD
    np.testing.assert_array_equal(got, products.reference(*changed))
    assert not got[0].any()


def test_blocks_of_tiles_join(parallel: Any, products: Any) -> None:
    """Images of many tiles, for which threads take turns of several blocks, alone and together."""
    for channels in (16, 144):
        made = problem(np.random.default_rng(6), (2, 67, 70, channels), 40)
        want = products.reference(*made)
        for threads in (1, 3):
            with parallel(threads):
                np.testing.assert_allclose(products.computed(made, np.float32), want, rtol=0, atol=3e-5)


@pytest.mark.parametrize("data", [(1, 6, 7, 20), (4, 16, 18, 32)])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("activation", ["", "rectify"])
def test_what_is_not_finite_stays_where_it_is(data: tuple[int, ...], value: float, activation: str, products: Any) -> None:
    """A value reaches the nine pixels around it, as in direct sums, and no others of its tile."""
    x, w, offset, _, product, _ = problem(np.random.default_rng(7), data, 40)
    assert kernel(x, w, product) == _native.WINOGRAD
    x[0, 2, 3, 5] = x[-1, -1, 0, 1] = x[-1, 0, -1, 3] = value
    w[:, :, :, 1] = np.abs(w[:, :, :, 1])
    changed = x, w, offset, None, product, Epilogue(False, False, activation, high=0.0)
    want = products.reference(*changed)
    got = products.computed(changed, np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert 0 < (~np.isfinite(got)).any(axis=-1).sum() <= 27


@pytest.mark.parametrize("data", [(1, 6, 7, 20), (4, 16, 18, 32)])
def test_large_values_do_not_overflow(data: tuple[int, ...], products: Any) -> None:
    """Where direct sums do not; what is in a tile with them is as near as beside the largest value."""
    x, w, *rest = problem(np.random.default_rng(7), data, 40)
    x[0, 2, 3, 5] = x[0, 2, 4, 5] = -3e38
    x[0, 3, 3, 5] = 3e38
    changed = x, w / np.abs(w).max() / 3, *rest
    want = products.reference(*changed)
    np.testing.assert_allclose(products.computed(changed, np.float32), want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_infinite_weights_reach_their_own_channel(products: Any) -> None:
    x, w, offset, _, product, epilogue = problem(np.random.default_rng(8), (2, 8, 8, 16), 40)
    x, w[35, 1, 1, 3] = np.abs(x), np.inf
    changed = x, w, offset, None, product, epilogue
    np.testing.assert_allclose(products.computed(changed, np.float32), products.reference(*changed), rtol=1e-5, atol=1e-5)


def test_other_convolutions_are_computed_in_other_ways() -> None:
    x, w, *_ = problem(np.random.default_rng(9), (4, 9, 9, 32), 32)
    assert kernel(x, w, convolution()) == _native.WINOGRAD
    others = [
        IntegerProduct(None, (0, 1, 2, 3), (2, 1), (1, 1), SAME),
        IntegerProduct(None, (0, 1, 2, 3), (1, 1), (1, 2), SAME),
    ]
    for product in others:
        assert kernel(x, w, product) != _native.WINOGRAD
    assert kernel(x[..., :16], w, IntegerProduct(None, (0, 1, 2, 3), (1, 1), (1, 1), SAME, 2)) != _native.WINOGRAD
    assert kernel(x, w[:, :1], convolution(((0, 0), (1, 1)))) != _native.WINOGRAD
    assert kernel(x[..., :15], w[..., :15], convolution()) != _native.WINOGRAD
    assert kernel(x[:, :1], w, convolution()) != _native.WINOGRAD


def test_predict_jobs_take_it_with_packed_weights() -> None:
    """Bias, batch normalization, residual and ReLU are computed in the same call; a changed variable is seen."""

    def body(x: Any, training: bool) -> Any:
        y = flow.layers.conv2d(x, 24, 3, padding="SAME", name="a")
        y = flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=training, name="normal"))
        return flow.nn.relu(flow.layers.conv2d(y, 24, 3, padding="SAME", use_bias=False, name="b") + x)

    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder((2, 24, 9, 11))) -> tp.Numpy:
        return body(x, False)

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((2, 24, 9, 11))) -> tp.Numpy:
        loss = flow.math.reduce_mean(body(x, True))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.05]), momentum=0.9).minimize(loss)
        return loss

    x = np.random.default_rng(1).normal(size=(2, 24, 9, 11)).astype(np.float32)
    for _ in range(2):
        got = predict(x)
        values = {n: torch.from_numpy(np.array(v.numpy())) for n, v in flow.get_all_variables().items()}
        y = torch.conv2d(torch.from_numpy(x), values["a-weight"], values["a-bias"], padding=1)
        mean, variance, scale, shift = (
            values[f"normal-{n}"].reshape(-1, 1, 1) for n in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        y = torch.relu((y - mean) / torch.sqrt(variance + 1e-3) * scale + shift)
        want = torch.relu(torch.conv2d(y, values["b-weight"], padding=1) + torch.from_numpy(x))
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
        train(x)
    for table in (predict.summary(), predict.profile(x, steps=1)):
        assert str(table).count("winograd, packed weights") == 2
    assert "winograd, packed weights" not in str(train.summary())
