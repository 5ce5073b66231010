"""Small jobs that the tests of several devices share: one training run, placed in any way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp

STEPS, BATCH, WIDTH, HIDDEN, CLASSES = 3, 16, 6, 10, 4


@dataclass
class Outcome:
    """Losses of each step, predictions, and all variables after training."""

    losses: np.ndarray
    predictions: np.ndarray
    variables: dict[str, np.ndarray]


def begin(devices: int) -> None:
    """A new session with that many devices."""
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    flow.manual_seed(7)


def train(
    devices: int = 1,
    *,
    stages: tuple[str, str] | None = None,
    split: bool = False,
    batch: int = BATCH,
    dropout: float = 0.0,
    normalize: bool = False,
    micro_batches: int = 1,
    optimizer: Callable[[], Any] | None = None,
    config: Callable[[flow.FunctionConfig], None] | None = None,
    checkpointing: bool = False,
) -> Outcome:
    """Trains a small classifier on made data, in a session of its own.

    ``stages`` are the devices of its two layers; ``split`` cuts the first layer's units over its devices.
    """
    begin(devices)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((STEPS, batch, WIDTH)).astype(np.float32)
    labels = rng.integers(0, CLASSES, (STEPS, batch)).astype(np.int32)
    function_config = flow.FunctionConfig()
    if config is not None:
        config(function_config)

    def at(stage: int) -> Any:
        return flow.scope.placement("gpu", stages[stage]) if stages else contextlib.nullcontext()

    def network(x: Any, *, training: bool) -> Any:
        begin_with = flow.random_normal_initializer(stddev=0.3)
        with at(0):
            scope = flow.experimental.scope.config(checkpointing=True) if checkpointing else contextlib.nullcontext()
            with scope:
                kind = flow.distribute.split(0) if split else flow.distribute.broadcast()
                h = flow.layers.dense(x, HIDDEN, kernel_initializer=begin_with, name="first", model_distribute=kind)
                if normalize:
                    h = flow.layers.batch_normalization(h, axis=1, training=training, name="norm")
                h = flow.nn.relu(h)
                if dropout and training:
                    h = flow.nn.dropout(h, dropout)
        with at(1):
            return flow.layers.dense(h, CLASSES, kernel_initializer=begin_with, name="second")

    @flow.global_function(type="train", function_config=function_config)
    def step(x: tp.Numpy.Placeholder((batch, WIDTH)), y: tp.Numpy.Placeholder((batch,), dtype=flow.int32)) -> tp.Numpy:
        if micro_batches > 1:
            x, y = flow.unpack(x, micro_batches), flow.unpack(y, micro_batches)
        logits = network(x, training=True)
        with at(1):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        chosen = optimizer() if optimizer else flow.optimizer.SGD(constant(0.1), momentum=0.9)
        chosen.minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def predict(x: tp.Numpy.Placeholder((batch, WIDTH))) -> tp.Numpy:
        return network(x, training=False)

    losses = np.stack([step(images[i], labels[i]) for i in range(STEPS)])
    predictions = predict(images[0])
    return Outcome(losses, predictions, {name: v.numpy() for name, v in flow.get_all_variables().items()})


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def assert_same(found: Outcome, expected: Outcome, atol: float = 2e-6) -> None:
    """The same training run, up to rounding."""
    np.testing.assert_allclose(found.losses, expected.losses, atol=atol, rtol=1e-5)
    np.testing.assert_allclose(found.predictions, expected.predictions, atol=atol, rtol=1e-4)
    assert found.variables.keys() == expected.variables.keys()
    for name, value in expected.variables.items():
        np.testing.assert_allclose(found.variables[name], value, atol=atol, rtol=1e-4, err_msg=name)
