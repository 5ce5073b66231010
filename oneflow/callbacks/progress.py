"""A progress bar that is drawn a few times a second, whatever the number of steps."""

from __future__ import annotations

import sys
import time
from typing import Any

from .._base import check
from .._base.bars import ForgivingFile
from .._base.refuse import refuse, shown
from ..errors import ArgumentError
from .base import Callback, Logs


class TQDMProgressBar(Callback):
    """Shows how far the training is, its speed and its latest numbers; each epoch leaves a line with its means.

    Args:
      refresh_seconds: between two drawings, > 0; None: 0.1 on a terminal or in a notebook, else 10.
      leave: keeps the lines of epochs that have ended.
      file: where it is drawn; None: standard error.
    Raises:
      ArgumentError: ``refresh_seconds`` is not a number > 0.
    Example: >>> flow.callbacks.TQDMProgressBar(refresh_seconds=0.5)
    """

    def __init__(self, refresh_seconds: float | None = None, leave: bool = True, file: Any = None):
        if refresh_seconds is not None:
            refresh_seconds = check.checked(self, "refresh_seconds", check.number(refresh_seconds, above=0))
        if file is not None and not callable(getattr(file, "write", None)):
            refuse(ArgumentError, f"TQDMProgressBar: file must have a method write, got {shown(file)}")
        self._refresh_seconds, self._leave, self._file = refresh_seconds, check.checked(self, "leave", check.flag(leave)), file
        self._is_shown = False  # to somebody who watches
        self._bar: Any = None
        self._inner: Any = None  # of a validation in the midst of an epoch
        self._next = 0.0
        self._pause = 0.1
        self._done = self._ahead = 0  # steps of the epoch; how many more these are than those of the training
        self._latest: Logs = {}

    def _open(self, total: int | None, initial: int, title: str, leave: bool) -> Any:
        from tqdm.auto import tqdm

        tqdm.monitor_interval = 0  # no thread of its own: this one is called at each step
        file = self._file or sys.stderr
        in_notebook = _in_notebook()
        self._is_shown = in_notebook or bool(getattr(file, "isatty", bool)())
        self._pause = self._refresh_seconds or (0.1 if self._is_shown else 10.0)
        target = self._file if in_notebook else ForgivingFile(file)
        bar = tqdm(total=total, initial=initial, desc=title, leave=leave, file=target, dynamic_ncols=True, mininterval=0.0,
                   miniters=0, smoothing=0.1, delay=0.0 if self._is_shown else self._pause)  # fmt: skip
        self._next = time.perf_counter() + self._pause
        return bar

    def _advance(self, bar: Any, count: int, logs: Logs) -> None:
        """Called at each step; draws only now and then."""
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + self._pause
        self._draw(bar, count, logs)

    def _draw(self, bar: Any, count: int, logs: Logs) -> None:
        _describe(bar, logs)
        if not bar.update(count - bar.n):
            bar.refresh()

    def _end(self, bar: Any, count: int, logs: Logs) -> None:
        """Draws a bar for the last time."""
        _describe(bar, logs)
        bar.n, bar.delay = count, 0.0
        bar.close()

    def _close(self) -> None:
        for bar in (self._inner, self._bar):
            if bar is not None:
                bar.close()
        self._inner = self._bar = None

    # --- training

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Begins a line."""
        trainer = self.trainer
        of = f"/{trainer.max_epochs}" if trainer.max_epochs is not None and trainer.max_epochs >= 0 else ""
        self._done = trainer.batch_in_epoch
        self._ahead = self._done - trainer.global_step
        self._bar = self._open(trainer.num_training_batches, self._done, f"Epoch {epoch + 1}{of}", self._leave)

    def on_train_batch_end(self, step: int, logs: Logs) -> None:
        """Counts the steps up to this one; those between two drawings need not be told."""
        self._done = self._ahead + step + 1
        self._latest = logs
        self._advance(self._bar, self._done, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Ends the line with the epoch's means."""
        if self._bar is not None:
            if self._bar.total is not None and self.trainer.batch_in_epoch == 0:
                self._bar.total = self._done  # without a short batch, which was left out
            self._end(self._bar, self._done, logs)
        self._bar = None

    def on_train_end(self, logs: Logs) -> None:
        """Ends a line that is open, as of an epoch that was not finished."""
        if self._bar is not None:
            self._end(self._bar, self._done, self._latest)
        self._bar = None

    def on_exception(self, error: BaseException) -> None:
        """Leaves the terminal as it should be."""
        self._close()

    # --- validation, test, prediction

    def on_test_begin(self, logs: Logs) -> None:
        """Begins a line that goes away when a training goes on."""
        trainer = self.trainer
        if self._bar is not None:
            if not self._is_shown:
                return  # a line within a line is for terminals
            self._draw(self._bar, self._done, self._latest)
        self._inner = self._open(trainer.num_evaluation_batches, 0, trainer.state.capitalize(), self._bar is None and self._leave)

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """Counts a batch."""
        if self._inner is not None:
            self._advance(self._inner, batch + 1, {})

    def on_test_end(self, logs: Logs) -> None:
        """Ends the line."""
        if self._inner is not None:
            self._end(self._inner, self.trainer.evaluated_batches, {} if self._bar is not None else logs)
            self._inner = None
        self._next = time.perf_counter() + self._pause

    def on_predict_begin(self, logs: Logs) -> None:
        """Begins a line."""
        self.on_test_begin(logs)

    def on_predict_batch_end(self, batch: int, logs: Logs) -> None:
        """Counts a batch."""
        self.on_test_batch_end(batch, logs)

    def on_predict_end(self, logs: Logs) -> None:
        """Ends the line."""
        self.on_test_end(logs)


def _in_notebook() -> bool:
    """Whether the program runs in a kernel of Jupyter; a program may import ipykernel for other reasons."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "IPKernelApp" in getattr(shell, "config", ())


def _describe(bar: Any, logs: Logs) -> None:
    bar.set_postfix_str(", ".join(f"{name}={number:.4g}" for name, number in logs.items() if isinstance(number, float)), False)
