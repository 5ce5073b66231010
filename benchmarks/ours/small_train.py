"""A small train job called asynchronously very many times: does memory stay flat?"""

from collections.abc import Callable

import numpy as np

import oneflow as flow
import oneflow.typing as tp

ROWS, COLUMNS = 20, 32


def make() -> tuple[Callable[[int], None], None]:
    @flow.global_function(type="train")
    def small_job(x: tp.Numpy.Placeholder((ROWS, COLUMNS), dtype=flow.float)) -> tp.Callback[tp.Numpy]:
        out = flow.layers.dense(x, 10, kernel_initializer=flow.truncated_normal(0.1), name="dense")
        loss = flow.math.square(out)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.001]), momentum=0).minimize(loss)
        return loss

    random = np.random.default_rng(0)

    def run(steps: int) -> None:
        delivered = 0

        def deliver(result: tp.Numpy) -> None:
            nonlocal delivered
            delivered += 1

        for _ in range(steps):
            small_job(random.standard_normal((ROWS, COLUMNS), np.float32))(deliver)
        flow.sync_default_session()
        if delivered != steps:
            raise RuntimeError(f"{steps} calls, but {delivered} callbacks")

    return run, None
