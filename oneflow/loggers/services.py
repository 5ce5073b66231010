"""Thin loggers over the clients of services: Weights & Biases, MLflow, trackio."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .._base.extras import need
from ..data.arrays import as_array
from .base import Logger, numbers_of
from .pixels import one_image


class _ServiceLogger(Logger):
    """What is logged before the first run waits for it; for what is logged after a run, the run is opened again.

    Attributes:
      experiment: the client's object of the run while it is open.
    """

    def __init__(self) -> None:
        self.experiment: Any = None
        self._state: dict[str, Any] = {}  # what the run is found by
        self._early: list[Callable[[Any], None]] = []

    def _open(self, resumed: Mapping[str, Any] | None) -> Any:
        """Begins a run, or goes on with one, and sets ``_state``."""
        raise NotImplementedError

    def _close(self, status: str) -> None:
        raise NotImplementedError

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins a run, or goes on with one."""
        if self.experiment is not None:
            return
        known = resumed is not None and any(resumed.values())
        self.experiment = self._open(resumed if known else None)
        early, self._early = self._early, []
        for act in early:
            act(self.experiment)

    def _act(self, act: Callable[[Any], None]) -> None:
        if self.experiment is not None:
            act(self.experiment)
        elif self._state:
            self.experiment = self._open(self._state)
            act(self.experiment)
            self.finalize("success")
        else:
            self._early.append(act)

    def finalize(self, status: str) -> None:
        """Ends the run."""
        if self.experiment is not None:
            self._close(status)
            self.experiment = None

    def state_dict(self) -> Mapping[str, Any]:
        """What the run is found by."""
        return dict(self._state)


class WandbLogger(_ServiceLogger):
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
        super().__init__()
        self._wandb: Any = need("wandb", "WandbLogger")
        self._options = {"name": name, "project": project, **options}
        self._save_dir, self._offline = save_dir, offline

    def prepare(self, root: str, resumed: Mapping[str, Any] | None) -> None:
        """Chooses the directory."""
        self._save_dir = self._save_dir or root

    def _open(self, resumed: Mapping[str, Any] | None) -> Any:
        options = dict(self._options)
        if resumed is not None:
            options.update(id=resumed["id"], resume="allow")
        mode = {"mode": "offline"} if self._offline else {}
        run = self._wandb.init(dir=os.fspath(self._save_dir or "."), **mode, **options)
        run.define_metric("*", step_metric="step")  # else the axis of its charts is the number of the call
        self._state = {"id": run.id}
        return run

    def _close(self, status: str) -> None:
        self.experiment.finish(exit_code=0 if status == "success" else 1)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends numbers."""
        row = {**numbers_of(metrics), "step": step}
        self._act(lambda run: run.log(row))

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Sends what the run was made with."""
        given, found = dict(params), dict(metrics or {})

        def act(run: Any) -> None:
            run.config.update(given, allow_val_change=True)
            run.summary.update(found)

        self._act(act)

    def log_image(self, key: str, images: Any, step: int) -> None:
        """Sends one image, or a batch of them side by side."""
        pixels = as_array(images, "images").copy()
        pixels = one_image(pixels) if pixels.ndim > 2 else pixels
        self._act(lambda run: run.log({key: self._wandb.Image(pixels), "step": step}))

    def log_histogram(self, key: str, values: Any, step: int) -> None:
        """Sends how the elements of an array are distributed."""
        flat = as_array(values, "values").copy()
        self._act(lambda run: run.log({key: self._wandb.Histogram(flat), "step": step}))


class MLFlowLogger(_ServiceLogger):
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
        super().__init__()
        self._mlflow: Any = need("mlflow", "MLFlowLogger")
        self._experiment_name, self._run_name, self._tags = experiment_name, run_name, dict(tags or {})
        self._client: Any = self._mlflow.MlflowClient(tracking_uri)

    @property
    def run_id(self) -> str | None:
        """The run's id; None before the first one."""
        return self._state.get("run_id")

    def _open(self, resumed: Mapping[str, Any] | None) -> Any:
        if resumed is not None:
            number = str(resumed["run_id"])
            self._client.update_run(number, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(self._experiment_name)
            group = found.experiment_id if found is not None else self._client.create_experiment(self._experiment_name)
            number = self._client.create_run(group, tags=self._tags, run_name=self._run_name).info.run_id
        self._state = {"run_id": number}
        return self._client

    def _close(self, status: str) -> None:
        ends = {"success": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self.run_id, ends[status])

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends numbers."""
        numbers = numbers_of(metrics)

        def act(client: Any) -> None:
            for name, number in numbers.items():
                client.log_metric(self.run_id, name, number, step=step)

        self._act(act)

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Sends what the run was made with."""
        given, found = dict(params), dict(metrics or {})

        def act(client: Any) -> None:
            for name, value in given.items():
                client.log_param(self.run_id, name, value)
            for name, number in found.items():
                client.log_metric(self.run_id, name, number)

        self._act(act)


class TrackioLogger(_ServiceLogger):
    """Logs to trackio, a dashboard on this machine; needs ``pip install trackio``.

    Args:
      project: it belongs to.
      name: of the run; None: the client makes one.
      options: further arguments of ``trackio.init``.
    Raises:
      MissingExtraError: trackio is not installed.
    """

    def __init__(self, project: str = "oneflow", name: str | None = None, **options: Any):
        super().__init__()
        self._trackio: Any = need("trackio", "TrackioLogger")
        self._options = {"project": project, "name": name, **options}

    def _open(self, resumed: Mapping[str, Any] | None) -> Any:
        options = dict(self._options)
        if resumed is not None:
            options.update(name=resumed["name"], resume="allow")
        run = self._trackio.init(**options)
        self._state = {"name": run.name}
        return run

    def _close(self, status: str) -> None:
        self.experiment.finish()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends numbers."""
        numbers = numbers_of(metrics)
        self._act(lambda run: run.log(numbers, step=step))

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Sends what the run was made with."""
        given, found = dict(params), numbers_of(metrics or {})

        def act(run: Any) -> None:
            run.config.update(given)
            if found:
                run.log(found)

        self._act(act)
