"""A job of one tiny op, called and awaited, or submitted, with a callback or without; a training step of one small layer."""

from collections.abc import Callable

import numpy as np

import oneflow as flow
import oneflow.typing as tp


def training_step() -> Callable[[int], None]:
    @flow.global_function(type="train")
    def small_step(x: tp.Numpy.Placeholder((20, 32), dtype=flow.float)) -> tp.Numpy:
        out = flow.layers.dense(x, 16, kernel_initializer=flow.truncated_normal(0.1), name="dense")
        loss = flow.math.square(out)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.001]), momentum=0).minimize(loss)
        return loss

    x = np.ones((20, 32), np.float32)

    def run(steps: int) -> None:
        for _ in range(steps):
            small_step(x)

    return run


def make(asynchronous: bool = False, callback: bool = True, trains: bool = False) -> tuple[Callable[[int], None], None]:
    if trains:
        return training_step(), None
    returns = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy

    @flow.global_function(type="predict")
    def tiny_job(x: tp.Numpy.Placeholder((2, 3), dtype=flow.float)) -> returns:
        return flow.math.relu(x)

    x = np.ones((2, 3), np.float32)

    def synchronous_run(steps: int) -> None:
        for _ in range(steps):
            tiny_job(x)

    def asynchronous_run(steps: int) -> None:
        delivered = 0

        def deliver(result: tp.Numpy) -> None:
            nonlocal delivered
            delivered += 1

        for _ in range(steps):
            tiny_job(x)(deliver)
        flow.sync_default_session()
        if delivered != steps:
            raise RuntimeError(f"{steps} calls, but {delivered} callbacks")

    def dispatched_run(steps: int) -> None:
        for _ in range(steps):
            tiny_job(x)
        flow.sync_default_session()

    return ((asynchronous_run if callback else dispatched_run) if asynchronous else synchronous_run), None
