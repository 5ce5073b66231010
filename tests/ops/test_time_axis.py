"""unpack, pack, repeat, acc: parts of a job that run several times per call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from table import floats, trace

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ShapeError

X = floats(4, 3).astype(np.float32)


def _value_and_gradient(build: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """``build`` of X, and the gradient to X of half the sum of its squares."""
    gradients: list[np.ndarray] = []

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        whole = x * flow.get_variable("one", (1,), initializer=flow.ones_initializer())
        flow.watch_diff(whole, lambda g: gradients.append(g.numpy()))
        y = build(whole)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(flow.math.reduce_sum(y * y) * 0.5)
        return y

    value = job(X)
    return value, gradients[0]


def test_in_pieces_as_at_once() -> None:
    value, gradient = _value_and_gradient(lambda x: flow.pack(flow.math.tanh(flow.unpack(x, 2)), 2))
    np.testing.assert_allclose(value, np.tanh(X), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.tanh(X) * (1 - np.tanh(X) ** 2), rtol=1e-5, atol=1e-6)


def test_the_sum_of_the_pieces() -> None:
    value, gradient = _value_and_gradient(lambda x: flow.acc(flow.unpack(x, 2), 2))
    np.testing.assert_allclose(value, X[:2] + X[2:], rtol=1e-6)
    np.testing.assert_allclose(gradient, np.concatenate([value, value]), rtol=1e-6)


def test_repeated_and_summed() -> None:
    value, gradient = _value_and_gradient(lambda x: flow.acc(flow.repeat(x, 4), 4))
    np.testing.assert_allclose(value, 4 * X, rtol=1e-6)
    np.testing.assert_allclose(gradient, 16 * X, rtol=1e-6)


def test_what_is_made_once_is_used_each_time() -> None:
    value, _ = _value_and_gradient(lambda x: flow.pack(flow.unpack(x, 2) + flow.slice(x, [0, 0], [2, 3]), 2))
    np.testing.assert_allclose(value, X + np.concatenate([X[:2], X[:2]]), rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda x: flow.unpack(x, 3), ShapeError, "does not divide into 3 pieces"),
        (lambda x: flow.pack(flow.unpack(x, 2), 4), ArgumentError, "pack_num=4"),
        (lambda x: flow.acc(flow.unpack(x, 2), 3), ArgumentError, "max_acc_num=3"),
        (lambda x: flow.repeat(x, 0), ArgumentError, "repeat_num"),
    ],
)
def test_refusals(build: Callable[[Any], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        trace(build, [(X.shape, X.dtype)])
