"""The arguments of ``Model.fit``: data, settings of training, validation and checkpoints, callbacks."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np

from .. import typing as tp
from .._base import check
from .._base import dtype as dtypes
from .._base.refuse import refuse, shown
from ..config import FunctionConfig
from ..errors import ArgumentError
from ..ops.module import Module, not_defined

_log = logging.getLogger("oneflow")


class DataModule(Module):
    """Data made inside the job: ``forward`` is called once, while the job is described, and returns Blobs.

    A validation takes as many batches as ``__len__`` says; one where a subclass does not define it.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def forward(self, step_idx: int = 0, optimizer_idx: int = 0) -> Any:
        """The batch, as Blobs; to be overridden."""
        not_defined(self, "forward")

    def infer_oneflow_data_placeholder(self, batch: tuple[Any, ...] | None = None, optimizer_idx: int = 0) -> list[Any]:
        """The inputs of the job: none, because the data are made inside."""
        return []


class NumpyDataModule(DataModule):
    """Data made on the host: ``forward`` is called for every step and returns a tuple of ndarrays.

    The first batch fixes shapes and dtypes, unless ``infer_oneflow_data_placeholder`` is overridden. Training counts
    ``step_idx`` over all steps, on from a checkpoint. A validation asks for the batches 0 to ``__len__() - 1``, or, where a
    subclass does not define ``__len__``, for the one of the step before it.
    """

    def infer_oneflow_data_placeholder(self, batch: tuple[np.ndarray, ...] | None = None, optimizer_idx: int = 0) -> list[Any]:
        """A placeholder for each array of a batch. Raises ArgumentError where the batch is something else."""
        if not isinstance(batch, tuple) or not batch or not all(isinstance(a, np.ndarray) for a in batch):
            refuse(ArgumentError, f"{type(self).__name__}.forward must return a tuple of ndarrays, got {shown(batch)}")
        return [tp.Numpy.Placeholder(a.shape, dtypes.from_numpy(a.dtype)) for a in batch]


class TrainingConfig:
    """Data and settings of training, for ``Model.fit``."""

    def __init__(self) -> None:
        self.exe_cfg = FunctionConfig()
        self.data: DataModule | None = None

    def config_execution(self, exe_cfg: FunctionConfig | None = None) -> None:
        """The settings of its jobs."""
        if not isinstance(exe_cfg, FunctionConfig):
            refuse(ArgumentError, f"exe_cfg must be a flow.ExecutionConfig, got {shown(exe_cfg)}")
        self.exe_cfg = exe_cfg

    def config_data(self, data: DataModule | None = None) -> None:
        """The source of its batches."""
        if not isinstance(data, DataModule):
            refuse(ArgumentError, f"data must be a flow.model.DataModule, got {shown(data)}")
        self.data = data

    def _lacks(self) -> str:
        return "it has no data: call config_data" if self.data is None else ""

    def check_valid(self) -> bool:
        """Whether nothing is missing; a warning in the log says what is."""
        if reason := self._lacks():
            _log.warning("%s: %s", type(self).__name__, reason)
        return not reason


class ValidationConfig(TrainingConfig):
    """Data and settings of validation, for ``Model.fit``."""

    def __init__(self) -> None:
        super().__init__()
        self.step_interval = 10

    def config_step_interval(self, step_interval: int = 1) -> None:
        """Validates every ``step_interval`` steps; every 10 without this call."""
        self.step_interval = _interval(step_interval)


class CheckpointConfig:
    """The checkpoint that ``Model.fit`` begins with, and where it saves others."""

    def __init__(self) -> None:
        self.load_dirpath: str | None = None
        self.save_dirpath: str | None = None
        self.save_interval = 1

    def config_load(self, dirpath: str | None = None) -> None:
        """Begins with this checkpoint, and numbers steps on from it."""
        self.load_dirpath = _directory(dirpath)

    def config_save(self, dirpath: str | None = None, step_interval: int = 1) -> None:
        """Saves to ``<dirpath>-<step>`` every ``step_interval`` steps."""
        self.save_dirpath, self.save_interval = _directory(dirpath), _interval(step_interval)

    def _lacks(self) -> str:
        if self.load_dirpath is not None and not os.path.isdir(self.load_dirpath):
            return f"there is no directory {self.load_dirpath!r} to load"
        return "" if self.load_dirpath or self.save_dirpath else "it neither loads nor saves"

    def check_valid(self) -> bool:
        """Whether nothing is missing; a warning in the log says what is."""
        if reason := self._lacks():
            _log.warning("CheckpointConfig: %s", reason)
        return not reason


def _interval(steps: Any) -> int:
    found, problem = check.integer(steps, low=1)
    if problem:
        refuse(ArgumentError, f"step_interval {problem}")
    return found


def _directory(path: Any) -> str:
    found, problem = check.path(path)
    if problem:
        refuse(ArgumentError, f"dirpath {problem}")
    return found


class Callback:
    """Methods that ``Model.fit`` calls after each step, on the delivery thread; to be overridden.

    ``outputs`` are the step's, as local tensors. Later steps may be under way.
    """

    def on_training_step_end(self, outputs: Any, step_idx: int = 0, optimizer_idx: int = 0) -> None:
        """After a training step, which is numbered from 0."""

    def on_validation_step_end(self, outputs: Any, step_idx: int = 0) -> None:
        """After each batch of a validation; ``step_idx`` is the training step before it."""
