"""Small jobs for the tests of this folder. No ``from __future__ import annotations``: a job's annotations are values."""

from typing import Any, Dict, Tuple  # noqa: UP035

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH = 10


def data(rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """x float32 (rows, 4), and labels int32 (rows,) of three classes that x decides."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 4)).astype(np.float32)
    return x, np.argmax(x[:, :3], axis=1).astype(np.int32)


def network(x: Any, dropout: bool = False) -> Any:
    initializer = flow.random_normal_initializer(stddev=0.5)
    hidden = flow.layers.dense(x, 8, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
    if dropout:
        hidden = flow.nn.dropout(hidden, rate=0.25, name="dropout")
    return flow.layers.dense(hidden, 3, kernel_initializer=initializer, name="out")


def sgd(rate: float = 0.1, momentum: float = 0.9) -> Any:
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=momentum)


def train_job(batch: int = BATCH, returns: Any = tp.Numpy, dropout: bool = False, name: str = "train") -> Any:
    """Returns the loss of each row."""

    def train(x: tp.Numpy.Placeholder((batch, 4)), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)) -> returns:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(x, dropout))
        sgd().minimize(loss)
        return loss

    train.__name__ = name
    return flow.global_function(type="train")(train)


def eval_job(batch: int = BATCH) -> Any:
    """Returns a dictionary of losses and logits."""

    @flow.global_function()
    def evaluate(
        x: tp.Numpy.Placeholder((batch, 4)), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> Dict[str, tp.Numpy]:  # noqa: UP006
        logits = network(x)
        return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}

    return evaluate


def pair_job(batch: int = BATCH) -> Any:
    """Returns a tuple of the losses and their mean."""

    @flow.global_function()
    def pair(
        x: tp.Numpy.Placeholder((batch, 4)), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> Tuple[tp.Numpy, tp.Numpy]:  # noqa: UP006
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(x))
        return loss, flow.math.reduce_mean(loss)

    return pair


class Notes(flow.callbacks.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.steps: list[int] = []
        self.told: list[Any] = []
        self.threads: set[str] = set()

    def on_train_batch_end(self, step: int, logs: Dict[str, float]) -> None:  # noqa: UP006
        import threading

        self.threads.add(threading.current_thread().name)
        self.steps.append(step)
        self.losses.append(logs["loss"])


def quiet(**options: Any) -> Any:
    """A trainer without a progress bar."""
    return flow.Trainer(enable_progress_bar=False, **options)
