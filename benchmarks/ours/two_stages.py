"""Asynchronous calls of a predict job of two equal halves, on one device or on one each."""

from collections.abc import Callable

import numpy as np

import oneflow as flow
import oneflow.typing as tp

from ..data import Losses

WIDTH, LAYERS, ROWS = 512, 4, 64


def make(places: list[str]) -> tuple[Callable[[int], None], Losses]:
    flow.config.cpu_device_num(2)

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Callback[tp.Numpy]:
        for half, place in enumerate(places):
            with flow.scope.placement("cpu", place):
                for i in range(LAYERS):
                    start = flow.random_normal_initializer(stddev=0.04)
                    x = flow.math.tanh(flow.matmul(x, flow.get_variable(f"w{half}{i}", (WIDTH, WIDTH), initializer=start)))
        return flow.math.reduce_mean(flow.math.square(x), axis=[1])

    losses = Losses()
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)

    def run(steps: int) -> None:
        for _ in range(steps):
            job(rows)(losses)
        flow.sync_default_session()

    return run, losses
