"""The interface of loggers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from .._base import check
from .._base.files import absolute
from .._base.refuse import refuse, shown
from .._base.terse_repr import terse_repr
from ..errors import ArgumentError, ModeError


def as_number(value: Any) -> Any:
    """A single number of NumPy, PyTorch or JAX as Python's; other values as they are."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """The single numbers among what is logged."""
    plain = {name: as_number(value) for name, value in metrics.items()}
    return {name: value for name, value in plain.items() if isinstance(value, (int, float))}


class Logger:
    """The protocol of loggers: what a trainer calls. A logger of your own defines what it can do.

    All methods run on the delivery thread, in the order of steps.

    Example:
      >>> class Printed(flow.loggers.Logger):
      ...     def log_metrics(self, metrics, step):
      ...         print(step, metrics)
    """

    def __repr__(self) -> str:
        return terse_repr(self)

    def prepare(self, root: str, resumed: Mapping[str, Any] | None) -> None:
        """Chooses where to log. Called for all loggers of a trainer before any begins.

        Args:
          root: the trainer's directory.
          resumed: what ``state_dict()`` returned in the run that goes on; None for a new one.
        """

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """A run begins.

        Args:
          resumed: as ``prepare`` was given it.
          step: the first step to come; what was logged of it and later ones is of a run that was cut off.
        """

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Keeps the numbers of a step."""

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Keeps what the run was made with, and perhaps what came of it."""
        self._cannot("log_hyperparams")

    def log_image(self, key: str, images: Any, step: int) -> None:
        """Keeps an image or a batch of them: (height, width), with channels last or first; uint8, or floats in [0, 1]."""
        self._cannot("log_image")

    def log_histogram(self, key: str, values: Any, step: int) -> None:
        """Keeps how the elements of an array are distributed."""
        self._cannot("log_histogram")

    def log_graph(self, job: Any) -> None:
        """Keeps the ops of a job."""
        self._cannot("log_graph")

    def save(self) -> None:
        """Writes what was logged so far to where a kill does not reach it."""

    def finalize(self, status: str) -> None:
        """The run has ended; ``status`` is "success", "interrupted" or "failed"."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state that ``prepare`` and ``begin`` need to continue in a later process."""
        return {}

    def _cannot(self, method: str) -> None:
        refuse(
            ModeError,
            f"{type(self).__name__} has no {method}",
            hint="TensorBoardLogger has; a trainer with several loggers has them all in trainer.loggers",
        )


class FileLogger(Logger):
    """A logger with a directory for each run: ``<save_dir>/<name>/version_0``, ``version_1``, ...

    Args:
      save_dir: None: the trainer's ``default_root_dir``.
      name: a directory in it.
      version: of the run; a number, or a name. None: the number behind the highest there, one for all loggers of a trainer
        that share the directory. A run that goes on keeps its own.
    Raises:
      ArgumentError: a name that is not one of a directory.
    """

    def __init__(self, save_dir: str | os.PathLike[str] | None = None, name: str = "logs", version: int | str | None = None):
        if not isinstance(name, str) or os.path.isabs(name) or ".." in name.split(os.sep) or "\0" in name:
            refuse(ArgumentError, f"{type(self).__name__}: name must be the name of a directory, got {shown(name)}")
        if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str))):
            refuse(ArgumentError, f"{type(self).__name__}: version must be an int or a str, got {shown(version)}")
        if isinstance(version, str) and (version in ("", ".", "..") or os.path.basename(version) != version or "\0" in version):
            refuse(ArgumentError, f'{type(self).__name__}: version must be an int or a name without "/", got {shown(version)}')
        self.save_dir: str | None = None
        if save_dir is not None:
            self.save_dir = check.checked(self, "save_dir", check.path(save_dir))
        self.name, self.version = name, version
        self._directory: str | None = None
        self._start = absolute(os.curdir)  # relative paths stay below it when the program changes its directory

    @property
    def log_dir(self) -> str:
        """The directory of the run. Raises ModeError before there is one."""
        if self._directory is None:
            refuse(ModeError, f"{type(self).__name__} has no directory before its trainer has begun a run")
        return absolute(os.path.join(self._start, self._directory))

    def prepare(self, root: str, resumed: Mapping[str, Any] | None) -> None:
        """Chooses the directory, or finds that of the run that goes on."""
        if resumed is not None and os.path.isdir(os.path.join(self._start, str(resumed.get("log_dir")))):
            self._directory = str(resumed["log_dir"])
            return
        parent = os.path.join(root if self.save_dir is None else self.save_dir, self.name)
        self._directory = os.path.join(parent, self._version_in(os.path.join(self._start, parent)))

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Makes the directory."""
        os.makedirs(self.log_dir, exist_ok=True)

    def _version_in(self, parent: str) -> str:
        if self.version is not None:
            return self.version if isinstance(self.version, str) else f"version_{self.version}"
        used = [n for n in (os.listdir(parent) if os.path.isdir(parent) else []) if re.fullmatch(r"version_\d+", n)]
        return f"version_{max((int(n.removeprefix('version_')) for n in used), default=-1) + 1}"

    def state_dict(self) -> Mapping[str, Any]:
        """The directory of the run."""
        return {"log_dir": self._directory}
