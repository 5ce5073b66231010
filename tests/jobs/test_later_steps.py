"""Only the first call of a job compiles, wherever the values of its variables come from and whichever job is called next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

X = np.ones((8, 16), np.float32)
# as large as what NumPy lends to devices without a copy, and smaller
SHAPES = {"large": (16, 1024), "small": (16, 4)}


@contextmanager
def compiled() -> Iterator[list[str]]:
    found: list[str] = []
    listening = True

    def note(event: str, seconds: float, **names: str) -> None:
        if listening and "backend_compile" in event:
            found.append(names.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield found
    finally:
        listening = False


def jobs(shape, placement="0:0", mixed=False):
    config = flow.function_config()
    if mixed:
        config.enable_auto_mixed_precision(True)

    def output(x):
        with flow.scope.placement("cpu", placement):
            w = flow.get_variable("w", shape, initializer=flow.random_normal_initializer())
            mean = flow.get_variable("mean", shape[1:], initializer=flow.zeros_initializer(), trainable=False)
            return flow.matmul(x, w) - mean

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(output(x)))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([3], [0.1, 0.01])).minimize(loss)
        return loss

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return output(x)

    return train, predict


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("values", ["drawn", "loaded", "from a checkpoint"])
@pytest.mark.parametrize(("placement", "mixed"), [("0:0", False), ("0:0", True), ("0:1", False), ("0:0-1", False)])
def test_later_calls_compile_nothing(size, values, placement, mixed, tmp_path):
    if placement != "0:0":
        flow.config.cpu_device_num(2)
    train, predict = jobs(SHAPES[size], placement, mixed)
    if values == "loaded":
        flow.load_variables({"w": np.full(SHAPES[size], 0.1, np.float32)})
    elif values == "from a checkpoint":
        flow.checkpoint.save(str(tmp_path / "saved"))
        flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    with compiled() as first:
        train(X)
        predict(X)
    assert len(first) >= 2
    with compiled() as later:
        for _ in range(3):
            train(X)
            predict(X)
        flow.load_variables({"w": np.full(SHAPES[size], 0.2, np.float32)})
        predict(X)
        train(X)
    assert later == []
