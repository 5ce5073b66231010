"""Tensor buffers and lists, and what a job may do with values of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, DtypeError, HostError, ReturnError, ShapeError

LISTS = tp.ListListNumpy.Placeholder((3, 4, 5))
ARRAYS = [np.arange(1 * (k + 1) * 5, dtype=np.float32).reshape(1, k + 1, 5) for k in range(3)]


def test_a_list_goes_through_buffers_and_comes_back() -> None:
    @flow.global_function()
    def job(x: LISTS) -> tp.ListListNumpy:
        return flow.tensor_buffer_to_tensor_list(flow.tensor_list_to_tensor_buffer(x), (4, 5), flow.int32)

    (found,) = job([ARRAYS])
    for mine, given in zip(found, ARRAYS, strict=True):
        np.testing.assert_array_equal(mine, given.astype(np.int32))
        assert mine.dtype == np.int32 and mine.flags.writeable
        mine[:] = 0  # its own copy
    assert ARRAYS[2].sum() > 0


def test_elements_of_a_list_enter_the_step_with_their_true_shapes() -> None:
    @flow.global_function()
    def job(x: LISTS) -> tuple[tp.ListNumpy, tp.ListNumpy, tp.ListNumpy]:
        first, second, third = flow.tensor_list_split(x)
        return first, second * 2, third + third

    for arrays in (ARRAYS, ARRAYS[::-1]):
        for found, given, factor in zip(job([arrays]), arrays, (1, 2, 2), strict=True):
            np.testing.assert_array_equal(found[0], given[0] * factor)


def test_arrays_to_buffers_and_back() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 4, 5))) -> tuple[tp.Numpy, tp.Numpy]:
        inner = flow.tensor_to_tensor_buffer(x, instance_dims=1)
        assert inner.shape == (2, 3, 4) and inner.dtype == flow.tensor_buffer and not inner.is_dynamic
        outer = flow.tensor_to_tensor_buffer(flow.cast(x, flow.int64), instance_dims=3)  # an op of the device on the way
        return flow.tensor_buffer_to_tensor(inner, flow.float, (5,)), flow.tensor_buffer_to_tensor(outer, flow.int64, [3, 4, 5])

    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32) * 9
    same, whole = job(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(whole, x.astype(np.int64))


def test_generated_buffers_become_blobs() -> None:
    @flow.global_function()
    def job() -> tuple[tp.ListNumpy, tp.ListNumpy]:
        pair = flow.gen_tensor_buffer([2], [[2, 1], [1, 2]], [0.5, 1.5])
        first, second = flow.tensor_buffer_to_list_of_tensors(pair, (2, 2), flow.float, dynamic_out=True)
        return first + first, second

    first, second = job()
    np.testing.assert_array_equal(first[0], [[1], [1]])
    np.testing.assert_array_equal(second[0], [[1.5, 1.5]])


def test_host_values_feed_a_training_step() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4, 1))) -> tuple[tp.Numpy, tp.Numpy]:
        rows = flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(x, 1), flow.float, (3,))
        w = flow.get_variable("w", (3, 1), initializer=flow.zeros_initializer())
        loss = flow.math.reduce_mean(flow.math.square(flow.matmul(rows, w) - y))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss, rows

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 1)).astype(np.float32)
    losses = []
    for _ in range(5):
        loss, rows = job(x, y)
        losses.append(loss.item())
        np.testing.assert_array_equal(rows, x)
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_asynchronous_calls_and_callbacks() -> None:
    found: list[Any] = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        return flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(x, 1), flow.float, (3,))

    x = np.zeros((2, 3), np.float32)
    for i in range(20):
        x[:] = i
        job(x)(found.append)
    flow.sync_default_session()
    assert [a[1, 2] for a in found] == list(range(20))


def test_a_watched_host_value() -> None:
    seen: list[Any] = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        rows = flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(x, 1), flow.float, (3,))
        flow.watch(rows, lambda value: seen.append(value.numpy()))
        return rows

    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(job(x), x)
    np.testing.assert_array_equal(seen[0], x)


BUFFERS = tp.Numpy.Placeholder((2, 3))


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda x: flow.tensor_to_tensor_buffer(x, 2), ArgumentError, "instance_dims must be less than x's rank 2"),
        (lambda x: flow.tensor_to_tensor_buffer(x, 0), ArgumentError, "instance_dims must be at least 1"),
        (lambda x: flow.tensor_buffer_to_tensor(x, flow.float, (3,)), DtypeError, "x must be of tensor buffers"),
        (lambda x: flow.tensor_list_split(x), DtypeError, "must be a list of tensors"),
        (lambda x: flow.nn.relu(flow.tensor_to_tensor_buffer(x, 1)), DtypeError, "is of oneflow.tensor_buffer"),
        (lambda x: flow.tensor_to_tensor_buffer(x, 1), ReturnError, "no array form(?s:.*)flow.tensor_buffer_to_tensor,"),
        (lambda x: flow.gen_tensor_buffer([2], [[1]], [1.0, 2.0]), ArgumentError, "one entry for each of the 2 elements"),
        (lambda x: flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(x, 1), float, (3,)), ArgumentError, "dtype must be"),
        (
            lambda x: flow.tensor_buffer_to_tensor(
                flow.tensor_to_tensor_buffer(flow.layers.dense(x, 3), 1), flow.float, (3,)
            ),
            HostError,
            "needs a value that is computed on the device: it depends on variable 'Dense-weight'",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_when_the_job_is_built(body: Any, error: type[Exception], text: str) -> None:
    @flow.global_function()
    def job(x: BUFFERS) -> tp.Numpy:
        return body(x)

    with pytest.raises(error, match=text):
        job(np.zeros((2, 3), np.float32))


def test_mistakes_of_a_call_leave_the_session_usable() -> None:
    @flow.global_function()
    def job(x: LISTS) -> tp.Numpy:
        return flow.tensor_buffer_to_tensor(flow.tensor_list_to_tensor_buffer(x), flow.float, (1, 5))

    same = [ARRAYS[0]] * 3
    for wrong, text in ((ARRAYS, r"element 1: is float32\[2, 5\]"), (same[:2], "the list has 2 arrays; 3 were declared"),
                        ([np.zeros((2, 1, 5), np.float32)] * 3, "axis 0 must have size 1")):  # fmt: skip
        with pytest.raises(ShapeError, match=text) as caught:
            job([wrong])
        assert "test_tensor_buffers.py" in str(caught.value) and "your line" in str(caught.value)
    assert job([same]).shape == (3, 1, 5)
