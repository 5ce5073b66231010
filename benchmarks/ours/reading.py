"""Training that reads its own data, the same step fed from memory, and reading alone. No ``from __future__ import annotations``
here: a job's annotations are values."""

from collections.abc import Callable
from typing import Any

import oneflow as flow
import oneflow.typing as tp

from ..data import BATCH, Losses
from .lenet import lenet
from .loops import training_loop


def _read(folder: str, parts: int) -> tuple[Any, Any]:
    records = flow.data.ofrecord_reader(folder, BATCH, data_part_num=parts)
    images = flow.data.OFRecordImageDecoder(records, "encoded", color_space="GRAY")
    whole, _, _ = flow.image.Resize(images, target_size=(28, 28), channels=1)
    images = flow.image.CropMirrorNormalize(whole, color_space="GRAY", std=[255.0])
    return images, flow.data.OFRecordRawDecoder(records, "class/label", shape=(), dtype=flow.int32)


def _train(images: Any, labels: Any) -> Any:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, lenet(images, train=True), name="softmax_loss")
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    return loss


def make(folder: str, parts: int, source: str) -> tuple[Callable[[int], None], Losses]:
    """``source``: "memory", "parts", or "reading alone"."""
    if source == "memory":

        @flow.global_function(type="train")
        def train_job(
            images: tp.Numpy.Placeholder((BATCH, 1, 28, 28), dtype=flow.float),
            labels: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
        ) -> tp.Callback[tp.Numpy]:
            return _train(images, labels)

        return training_loop(train_job, asynchronous=True, passes=None)

    losses = Losses()
    if source == "parts":

        @flow.global_function(type="train")
        def reading_job() -> tp.Callback[tp.Numpy]:
            return _train(*_read(folder, parts))
    else:

        @flow.global_function()
        def reading_job() -> tp.Callback[tp.Numpy]:
            images, labels = _read(folder, parts)
            flow.watch(images, lambda _: None)  # else nobody would need them
            return labels

    def run(steps: int) -> None:
        for _ in range(steps):
            reading_job()(losses)
        flow.sync_default_session()

    return run, losses
