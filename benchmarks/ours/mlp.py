"""The MLP of the tutorials. No ``from __future__ import annotations`` here: a job's annotations are values."""

from collections.abc import Callable
from typing import Any

import oneflow as flow
import oneflow.typing as tp

from ..data import BATCH, Losses
from .loops import training_loop


def declare(asynchronous: bool, hidden: int = 512) -> Any:
    """The train job, with first values."""
    returns = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((BATCH, 1, 28, 28), dtype=flow.float),
        labels: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
    ) -> returns:
        initializer = flow.truncated_normal(0.1)
        reshape = flow.reshape(images, [images.shape[0], -1])
        h = flow.layers.dense(reshape, hidden, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
        logits = flow.layers.dense(h, 10, kernel_initializer=initializer, name="output")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    flow.train.CheckPoint().init()
    return train_job


def make(asynchronous: bool = False, passes: int | None = None, hidden: int = 512) -> tuple[Callable[[int], None], Losses]:
    return training_loop(declare(asynchronous, hidden), asynchronous=asynchronous, passes=passes)
