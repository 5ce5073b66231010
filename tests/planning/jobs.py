"""The job that the stored programs of ``data/`` were compiled from."""

from __future__ import annotations

from typing import Any

import oneflow as flow
import oneflow.typing as tp


def small_body(x: Any) -> Any:
    """The loss of two dense layers, the first split over the devices, trained."""
    start = flow.random_normal_initializer()
    split = flow.distribute.split(0)
    h = flow.layers.dense(x, 128, activation=flow.nn.relu, kernel_initializer=start, name="first", model_distribute=split)
    loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(h, 32, kernel_initializer=start, name="second")), axis=[1])
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss


def small(batch: int = 16, name: str = "small") -> Any:
    """Two dense layers, the first split over the devices."""

    def body(x: tp.Numpy.Placeholder((batch, 64))) -> tp.Numpy:
        return small_body(x)

    body.__name__ = name
    return flow.global_function(type="train")(body)
