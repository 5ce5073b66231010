"""Thin loggers over the clients of services: Weights & Biases, MLflow, trackio."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._base.extras import need
from ..data.arrays import as_array
from .base import Logger


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float))}


class WandbLogger(Logger):
    """Logs to Weights & Biases; needs ``pip install wandb``.

    Args:
      name: of the run.
      project: it belongs to.
      save_dir: where the client keeps its files; None: the trainer's ``default_root_dir``.
      offline: keeps everything on this machine, for ``wandb sync``.
      options: further arguments of ``wandb.init``.
    Raises:
      MissingExtraError: wandb is not installed.
    """

    def __init__(
        self,
        name: str | None = None,
        project: str | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        offline: bool = False,
        **options: Any,
    ):
        self._wandb: Any = need("wandb", "WandbLogger")
        self._options = {"name": name, "project": project, **options}
        self._save_dir, self._offline = save_dir, offline
        self.experiment: Any = None

    def prepare(self, root: str, resumed: Mapping[str, Any] | None) -> None:
        """Chooses the directory."""
        self._save_dir = self._save_dir or root

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins a run, or goes on with one."""
        if self.experiment is not None:
            return
        options = dict(self._options)
        if resumed is not None and resumed.get("id"):
            options.update(id=resumed["id"], resume="allow")
        mode = {"mode": "offline"} if self._offline else {}
        self.experiment = self._wandb.init(dir=os.fspath(self._save_dir or "."), **mode, **options)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends numbers."""
        self.experiment.log({**_numbers(metrics), "step": step})

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Sends what the run was made with."""
        self.experiment.config.update(dict(params), allow_val_change=True)
        self.experiment.summary.update(dict(metrics or {}))

    def log_image(self, key: str, images: Any, step: int) -> None:
        """Sends images."""
        self.experiment.log({key: self._wandb.Image(as_array(images, "images")), "step": step})

    def log_histogram(self, key: str, values: Any, step: int) -> None:
        """Sends how the elements of an array are distributed."""
        self.experiment.log({key: self._wandb.Histogram(as_array(values, "values")), "step": step})

    def finalize(self, status: str) -> None:
        """Ends the run."""
        if self.experiment is not None:
            self.experiment.finish(exit_code=0 if status == "success" else 1)
            self.experiment = None

    def state_dict(self) -> Mapping[str, Any]:
        """The run's id."""
        return {"id": self.experiment.id if self.experiment is not None else None}


class MLFlowLogger(Logger):
    """Logs to MLflow; needs ``pip install mlflow``.

    Args:
      experiment_name: made where it does not exist.
      run_name: of the run.
      tracking_uri: where to; None: the client's own setting.
      tags: of the run.
    Raises:
      MissingExtraError: mlflow is not installed.
    """

    def __init__(
        self,
        experiment_name: str = "oneflow",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
    ):
        self._mlflow: Any = need("mlflow", "MLFlowLogger")
        self._experiment_name, self._run_name, self._tags = experiment_name, run_name, dict(tags or {})
        self._client: Any = self._mlflow.MlflowClient(tracking_uri)
        self.run_id: str | None = None

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins a run, or goes on with one."""
        if resumed is not None and resumed.get("run_id"):
            self.run_id = str(resumed["run_id"])
            return
        experiment = self._client.get_experiment_by_name(self._experiment_name)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(self._experiment_name)
        self.run_id = self._client.create_run(number, tags=self._tags, run_name=self._run_name).info.run_id

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends numbers."""
        for name, number in _numbers(metrics).items():
            self._client.log_metric(self.run_id, name, number, step=step)

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Sends what the run was made with."""
        for name, value in params.items():
            self._client.log_param(self.run_id, name, value)
        for name, number in (metrics or {}).items():
            self._client.log_metric(self.run_id, name, number)

    def finalize(self, status: str) -> None:
        """Ends the run."""
        if self.run_id is not None:
            ends = {"success": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
            self._client.set_terminated(self.run_id, ends[status])

    def state_dict(self) -> Mapping[str, Any]:
        """The run's id."""
        return {"run_id": self.run_id}


class TrackioLogger(Logger):
    """Logs to trackio, a dashboard on this machine; needs ``pip install trackio``.

    Args:
      project: it belongs to.
      name: of the run; None: the client makes one.
      options: further arguments of ``trackio.init``.
    Raises:
      MissingExtraError: trackio is not installed.
    """

    def __init__(self, project: str = "oneflow", name: str | None = None, **options: Any):
        self._trackio: Any = need("trackio", "TrackioLogger")
        self._options = {"project": project, "name": name, **options}
        self.experiment: Any = None

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins a run, or goes on with one."""
        if self.experiment is not None:
            return
        options = dict(self._options)
        if resumed is not None and resumed.get("name"):
            options.update(name=resumed["name"], resume="allow")
        self.experiment = self._trackio.init(**options)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends numbers."""
        self.experiment.log(_numbers(metrics), step=step)

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Sends what the run was made with."""
        self.experiment.config.update(dict(params))
        if metrics:
            self.experiment.log(_numbers(metrics))

    def finalize(self, status: str) -> None:
        """Ends the run."""
        if self.experiment is not None:
            self.experiment.finish()
            self.experiment = None

    def state_dict(self) -> Mapping[str, Any]:
        """The run's name."""
        return {"name": self.experiment.name if self.experiment is not None else None}
