"""A train job of many dense layers, to see what building costs."""

from collections.abc import Callable

import numpy as np

import oneflow as flow
import oneflow.typing as tp

WIDTH = 16


def make(layers: int) -> tuple[Callable[[int], None], None]:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def stack_job(x: tp.Numpy.Placeholder((4, WIDTH), dtype=flow.float)) -> tp.Numpy:
        out, initializer = x, flow.truncated_normal(0.1)
        for i in range(layers):
            out = flow.layers.dense(out, WIDTH, activation=flow.nn.relu, kernel_initializer=initializer, name=f"dense{i}")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(out)
        return out

    x = np.ones((4, WIDTH), np.float32)

    def run(steps: int) -> None:
        for _ in range(steps):
            stack_job(x)

    return run, None
