"""Sums and extremes along the first axes of wide arrays, which XLA's library for CPUs would compute one number at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import jax_versions
from oneflow.compiler import wide_reductions

LIBRARY = "__ynn_fusion"
SHAPES = [((8, 32768), [0]), ((2, 9, 20000), [1]), ((4, 3, 20000), [0, 1]), ((2, 3, 4, 17000), [1, 2]), ((3, 130, 200), [0])]


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the program reduces so much that the library is worth having for it."""
    monkeypatch.setattr(wide_reductions, "_REWRITTEN", 0)


@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
@pytest.mark.parametrize("devices", [1, 2, "rewritten"])
def test_reductions(shape: tuple[int, ...], axes: list[int], devices: int | str, request: pytest.FixtureRequest) -> None:
    if devices == "rewritten":
        request.getfixturevalue("rewritten")
    else:
        flow.config.cpu_device_num(devices)

    @flow.global_function()
    def reduced(x: tp.Numpy.Placeholder(shape)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        y = x * 2.0
        return (
            flow.math.reduce_sum(x, axes),
            flow.math.reduce_mean(y, axes, keepdims=True),
            flow.math.reduce_max(y, axes),
            flow.math.reduce_min(y, axes),
        )

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with_nans = x.copy()
    with_nans.flat[:: x.size // 50] = np.nan
    with_nans.flat[7], with_nans.flat[5007] = np.inf, -np.inf
    for given in (x, with_nans):
        total, mean, largest, least = reduced(given)
        np.testing.assert_allclose(total, given.sum(tuple(axes)), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(mean, 2 * given.mean(tuple(axes), keepdims=True), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(largest, 2 * given.max(tuple(axes)))
        np.testing.assert_array_equal(least, 2 * given.min(tuple(axes)))
    program = reduced.executables[-1][1].hlo()
    assert ("dot(" in program) == (devices == "rewritten")
    if devices != "rewritten" and jax_versions.can_choose_library():
        assert LIBRARY not in program


@pytest.mark.parametrize("devices", [1, 2])
def test_the_library_is_kept_where_it_is_faster(devices: int) -> None:
    flow.config.cpu_device_num(devices)

    @flow.global_function()
    def reduced(x: tp.Numpy.Placeholder((4, 32768)), y: tp.Numpy.Placeholder((4096, 2048))) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.math.reduce_max(x, [0]), flow.math.reduce_sum(flow.math.square(y), [1])

    largest, total = reduced(np.ones((4, 32768), np.float32), np.ones((4096, 2048), np.float32))
    np.testing.assert_array_equal(largest, 1)
    np.testing.assert_array_equal(total, 2048)
    assert (LIBRARY in reduced.executables[-1][1].hlo()) == jax_versions.can_choose_library()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_of_what_all_samples_share(micro_batches: int, devices: int) -> None:
    """Positions that are added to each sequence, as in a transformer."""
    flow.config.cpu_device_num(devices)
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(micro_batches)
    random = np.random.default_rng(1)
    start, x = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 64, 300), (8, 64, 300)))

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        positions = flow.get_variable("positions", start.shape, initializer=flow.zeros_initializer())
        loss = flow.math.reduce_mean(flow.math.square(flow.math.tanh(x + positions)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1e5]), momentum=0).minimize(loss)
        return loss

    flow.load_variables({"positions": start})
    train(x)
    theirs = torch.tensor(start, requires_grad=True)
    torch.tanh(torch.tensor(x) + theirs).square().mean().backward()
    slope = (start - flow.get_all_variables()["positions"].numpy()) / 1e5
    np.testing.assert_allclose(slope, theirs.grad.numpy(), rtol=1e-4, atol=1e-10)
    if devices > 1 and jax_versions.can_choose_library():
        assert LIBRARY not in train.executables[-1][1].hlo()


@pytest.mark.usefixtures("rewritten")
def test_extremes_do_not_look_for_nans_by_a_slow_sum() -> None:
    """The sum that shows whether there are NaNs is inside a condition on the platform."""

    @flow.global_function()
    def largest(x: tp.Numpy.Placeholder((4, 32768))) -> tp.Numpy:
        return flow.math.reduce_max(x, [0])

    x = np.random.default_rng(0).standard_normal((4, 32768)).astype(np.float32)
    np.testing.assert_array_equal(largest(x), x.max(0))
    assert "dot(" in largest.executables[-1][1].hlo()


def test_sums_of_what_repeats_are_left_to_xla() -> None:
    """Which multiplies; otherwise an array of full size would be stored."""

    @flow.global_function()
    def repeated(x: tp.Numpy.Placeholder((1, 32768))) -> tp.Numpy:
        return flow.math.reduce_sum(x * flow.ones((512, 1), flow.float32), [0])

    x = np.random.default_rng(0).standard_normal((1, 32768)).astype(np.float32)
    np.testing.assert_allclose(repeated(x), 512 * x[0], rtol=1e-6)
    assert repeated.executables[-1][1].statistics.temporary_bytes < 1 << 20
