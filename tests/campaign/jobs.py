"""The training that several parts interrupt, and what it must compute."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp

WIDTH = 32


def batch(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal((8, WIDTH)).astype(np.float32)


def declare(annotation: Any = tp.Numpy, split: bool = False) -> Callable[[np.ndarray], Any]:
    """A train job with dropout and Adam: its losses depend on variables, optimizer state, step counter and random state."""
    flow.manual_seed(5)
    normal = flow.random_normal_initializer(stddev=0.2)

    def train(x: tp.Numpy.Placeholder((8, WIDTH))) -> Any:
        if split:
            w = flow.get_variable("split", (WIDTH, WIDTH), initializer=normal, distribute=flow.distribute.split(1))
            x = flow.math.tanh(flow.matmul(x, w))
        h = flow.nn.dropout(flow.layers.dense(x, WIDTH, flow.math.tanh, kernel_initializer=normal, name="a"), rate=0.3)
        loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(h, 4, kernel_initializer=normal, name="b")))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    train.__annotations__["return"] = annotation
    return flow.global_function(type="train")(train)


STEP = "System-Train-TrainStep-train"


def digest(values: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(values):
        whole.update(name.encode() + b"\0" + values[name])
    return whole.hexdigest()


def state() -> dict[str, bytes]:
    """All variables, as the bytes that a checkpoint holds."""
    return {name: np.ascontiguousarray(v.numpy()).tobytes() for name, v in flow.get_all_variables().items()}


def stored(path: str) -> dict[str, bytes]:
    """The same of a checkpoint, read without the library."""
    found = {}
    for folder, _, files in os.walk(path):
        if "out" in files:
            with open(os.path.join(folder, "out"), "rb") as file:
                found[os.path.relpath(folder, path)] = file.read()
    return found
