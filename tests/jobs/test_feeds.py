"""Arguments of calls that are not NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.runtime.feed import as_array

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def job():
    @flow.global_function()
    def add(x: tp.Numpy.Placeholder((2, 3)), y: tp.Numpy.Placeholder((2,), flow.int32)) -> tp.Numpy:
        return x + flow.reshape(flow.cast(y, flow.float32), (2, 1))

    return add


class Frame:
    """As pandas' frames: an object with ``__array__``."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X.astype(np.float64)


def torch_tensors() -> list[Any]:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy())
    return [x, x.clone().requires_grad_(), x.double(), x.t().contiguous().t(), x.to(torch.float16)]


def jax_arrays() -> list[Any]:
    jnp = pytest.importorskip("jax.numpy")
    return [jnp.asarray(X), jnp.asarray(X, jnp.bfloat16)]


def python_values() -> list[Any]:
    return [X.tolist(), tuple(map(tuple, X)), Frame(), X[:, ::-1][:, ::-1]]


@pytest.mark.parametrize("make", [python_values, torch_tensors, jax_arrays])
def test_arrays_of_all_kinds(make):
    add, y = job(), [1, -1]
    expected = X + np.array([[1], [-1]], np.float32)
    for x in make():
        np.testing.assert_array_equal(add(x, y), expected)
        np.testing.assert_array_equal(add(y=np.array(y), x=x), expected)
        np.testing.assert_array_equal(add(x, y=tuple(y)), expected)


def test_memory_is_shared_where_it_can_be():
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 3)
    array = as_array(x)
    array[0, 0] = 7
    assert x[0, 0] == 7


def test_asynchronous_calls_copy_what_they_are_given():
    torch = pytest.importorskip("torch")

    @flow.global_function()
    def later(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        return x + 1

    x = torch.ones(2, 3)
    handle = later(x)
    x.fill_(100)
    np.testing.assert_array_equal(handle.get(), np.full((2, 3), 2.0))


@pytest.mark.parametrize("value", [[1.5, 2.0], np.array([1.5, 2.0]), [2**40, 0], "ab", None, object(), [None, 1], {1: 2}])
def test_what_does_not_fit_is_refused_and_changes_nothing(value):
    add = job()
    with pytest.raises(flow.errors.FeedError, match="(?s)input 'y'.*test_feeds.py"):
        add(X, value)
    np.testing.assert_array_equal(add(X, [0, 0]), X)


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16, flow.float32], ids=str)
def test_a_finite_value_does_not_become_infinite(dtype):
    @flow.global_function()
    def same(x: tp.Numpy.Placeholder((2,), dtype)) -> tp.Numpy:
        return flow.cast(x, flow.float32)

    with pytest.raises(flow.errors.FeedDtypeError, match="outside its range"):
        same(np.array([1.0, 1e300]))
    np.testing.assert_array_equal(same(np.array([1.0, np.inf])), [1, np.inf])


def test_a_bfloat16_tensor_of_pytorch():
    torch = pytest.importorskip("torch")

    @flow.global_function()
    def same(x: tp.Numpy.Placeholder((2,), flow.bfloat16)) -> tp.Numpy:
        return flow.cast(x, flow.float32)

    np.testing.assert_array_equal(same(torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)), [1.5, -2.0])
