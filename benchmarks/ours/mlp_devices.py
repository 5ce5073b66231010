"""The MLP on several virtual CPU devices: its batch split over them, or its layers on one each."""

from collections.abc import Callable
from contextlib import nullcontext

import oneflow as flow
import oneflow.typing as tp

from ..data import BATCH, Losses
from .loops import training_loop


def make(devices: int, stages: bool = False, micro_batches: int = 1) -> tuple[Callable[[int], None], Losses]:
    flow.config.cpu_device_num(devices)

    def at(stage: int):
        return flow.scope.placement("cpu", f"0:{stage}") if stages else nullcontext()

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((BATCH, 1, 28, 28), dtype=flow.float),
        labels: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
    ) -> tp.Numpy:
        initializer = flow.truncated_normal(0.1)
        if micro_batches > 1:
            images, labels = flow.unpack(images, micro_batches), flow.unpack(labels, micro_batches)
        with at(0):
            hidden = flow.reshape(images, [images.shape[0], -1])
            hidden = flow.layers.dense(hidden, 512, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
        with at(1):
            logits = flow.layers.dense(hidden, 10, kernel_initializer=initializer, name="output")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    return training_loop(train_job, asynchronous=False, passes=None)
