"""A train job under ``flow.Trainer``: one long training, of which a turn takes a number of steps.

The training runs on a thread of its own, so that neither its beginning nor its end is counted.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import oneflow as flow

from ..data import source
from . import lenet, mlp

MODELS: dict[str, Any] = {"mlp": mlp, "lenet": lenet}


class Latest:
    """The last loss that was logged."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    @property
    def last(self) -> float:
        return float(self._trainer.callback_metrics["loss"])


def make(model: str, reports: bool = True, log_every_n_steps: int = 50, **sizes: int) -> tuple[Callable[[int], None], Latest]:
    """``reports``: with a progress bar, CSV and TensorBoard; else the bare trainer. ``sizes``: of the model."""
    job, batch = MODELS[model].declare(asynchronous=False, **sizes), source(None)
    turns: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    folder = tempfile.mkdtemp()
    trainer = flow.Trainer(
        max_epochs=1,
        logger=[flow.loggers.CSVLogger(folder), flow.loggers.TensorBoardLogger(folder)] if reports else None,
        callbacks=[flow.callbacks.TQDMProgressBar(refresh_seconds=0.1)] if reports else None,  # as on a terminal
        log_every_n_steps=log_every_n_steps,
        enable_progress_bar=reports,
    )

    def batches() -> Iterator[Any]:
        i = 0
        while True:
            for _ in range(turns.get()):
                yield batch(i)
                i += 1
            flow.sync_default_session()
            done.put(None)

    def train() -> None:
        try:
            trainer.fit(job, batches)
        except BaseException as error:
            done.put(error)

    threading.Thread(target=train, daemon=True).start()

    def run(steps: int) -> None:
        turns.put(steps)
        error = done.get()
        if error is not None:
            raise error

    return run, Latest(trainer)
