"""``flow.Model`` and its training loop."""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any

from .._base import check
from .._base.refuse import refuse, shown
from ..checkpoint.api import get, load_variables, save
from ..errors import ArgumentError
from ..job import JobFunction, global_function
from ..ops.module import Module, not_defined
from ..optimizer.base import Optimizer
from ..runtime.session import clear_default_session
from ._parts import Callback, CheckpointConfig, NumpyDataModule, TrainingConfig, ValidationConfig

_log = logging.getLogger("oneflow")


class Model(Module, ABC):
    """A network with its training: override ``training_step``, ``configure_optimizers``, ``validation_step``; then ``fit``.

    Example:
      >>> class Line(flow.Model):
      ...     def training_step(self, batch, optimizer_idx=0):
      ...         x, y = batch
      ...         return flow.math.square(flow.layers.dense(x, 1) - y)
      ...     def configure_optimizers(self):
      ...         return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0)
    """

    def __init__(self, *args: Any, **kwargs: Any):
        """Args: is_deprecated_function_style: not used; job functions are the only style here."""
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of calling the model; to be overridden."""
        not_defined(self, "forward")

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """``training_step(batch, optimizer_idx=0)``: the loss, or a tuple that begins with it; to be overridden."""
        not_defined(self, "training_step")

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """``validation_step(batch)``: the outputs that callbacks get; to be overridden."""
        not_defined(self, "validation_step")

    def configure_optimizers(self) -> Optimizer | Sequence[Optimizer]:
        """One optimizer, or one for each training job; to be overridden."""
        not_defined(self, "configure_optimizers")

    def method_overrided(self, method_name: str | None = None) -> bool:
        """Whether this class overrides the method."""
        if not isinstance(method_name, str):
            refuse(ArgumentError, f"method_overrided takes the name of a method, a str, got {shown(method_name)}")
        return getattr(type(self), method_name, None) is not getattr(Model, method_name, None)

    def fit(
        self,
        training_config: TrainingConfig | None = None,
        validation_config: ValidationConfig | None = None,
        checkpoint_config: CheckpointConfig | None = None,
        callbacks: Callback | list[Callback] | None = None,
        max_steps: int = 100,
    ) -> None:
        """Trains, validates and saves in a new session: for each step every training job, then validation, then saving.

        A configuration that lacks something is logged and left out.

        Args:
          training_config: data and settings of training; one job for each optimizer.
          validation_config: data and settings of validation, and how often it happens.
          checkpoint_config: the checkpoint to begin with, and where and how often to save.
          callbacks: called after each step.
          max_steps: the number of steps.
        Raises: ArgumentError (an argument of another type); the errors of the steps.
        """
        self._check(training_config, TrainingConfig), self._check(validation_config, ValidationConfig)
        self._check(checkpoint_config, CheckpointConfig)
        steps, problem = check.integer(max_steps, low=0)
        if problem:
            refuse(ArgumentError, f"max_steps {problem}")
        told = callbacks if isinstance(callbacks, list) else [] if callbacks is None else [callbacks]
        if not all(isinstance(c, Callback) for c in told):
            refuse(ArgumentError, f"callbacks must be flow.model.Callback objects, got {shown(callbacks)}")
        clear_default_session()
        trains = self._usable("training", training_config, ("training_step", "configure_optimizers"))
        validates = self._usable("validation", validation_config, ("validation_step",))
        if not trains and not validates:
            _log.warning("%s.fit: there is nothing to do", type(self).__name__)
            return
        loop = _Loop(self, training_config if trains else None, validation_config if validates else None)
        files = checkpoint_config if checkpoint_config is not None and checkpoint_config.check_valid() else CheckpointConfig()
        if files.load_dirpath is not None:
            values: Any = get(files.load_dirpath)
            load_variables(values)
        for step in range(steps):
            loop.train(step, told)
            if validates and validation_config is not None and (step + 1) % validation_config.step_interval == 0:
                loop.validate(step, told)
            if files.save_dirpath is not None and (step + 1) % files.save_interval == 0:
                save(f"{files.save_dirpath}-{step}")

    @staticmethod
    def _check(config: Any, kind: type) -> None:
        if config is not None and not isinstance(config, kind):
            refuse(ArgumentError, f"Model.fit needs a flow.model.{kind.__name__}, got {shown(config)}")

    def _usable(self, what: str, config: TrainingConfig | None, methods: Sequence[str]) -> bool:
        if config is None or not config.check_valid():
            return False
        missing = [m for m in methods if not self.method_overrided(m)]
        if missing:
            _log.warning("%s.fit: no %s, as %s is not overridden", type(self).__name__, what, ", ".join(missing))
        return not missing


class _Loop:
    """The jobs of one ``fit``."""

    def __init__(self, model: Model, training: TrainingConfig | None, validation: ValidationConfig | None):
        self._name = f"{type(model).__name__}_Model"
        self._train: list[Callable[[int], Any]] = []
        self._validate: Callable[[int], Any] | None = None
        if training is not None and training.data is not None:
            given: Any = model.configure_optimizers()
            optimizers = list(given) if isinstance(given, (list, tuple)) else [given]
            if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
                refuse(ArgumentError, f"{type(model).__name__}.configure_optimizers must return optimizers, got {shown(given)}")
            for i, optimizer in enumerate(optimizers):
                self._train.append(self._job("train", f"_{i}", training, i, self._training_body(model, optimizer, i)))
        if validation is not None:
            self._validate = self._job("eval", "", validation, 0, model.validation_step)

    @staticmethod
    def _training_body(model: Model, optimizer: Optimizer, i: int) -> Callable[[Any], Any]:
        def body(batch: Any) -> Any:
            outputs = model.training_step(batch, optimizer_idx=i)
            optimizer.minimize(outputs[0] if isinstance(outputs, tuple) else outputs)
            return outputs

        return body

    def _job(self, kind: str, suffix: str, config: TrainingConfig, i: int, body: Callable[[Any], Any]) -> Callable[[int], Any]:
        data = config.data
        assert data is not None
        on_host = isinstance(data, NumpyDataModule)
        first: list[Any] = [data(0, i)] if on_host else []
        places = data.infer_oneflow_data_placeholder(first[0], i) if on_host else []

        def with_arrays(batch: Any) -> Any:
            return body(batch)

        def with_blobs() -> Any:
            return body(data(0, i))

        function: Any = with_arrays if on_host else with_blobs
        function.__name__ = f"{self._name}_{kind}_{'numpy_' if on_host else ''}job{suffix}"
        if on_host:
            function.__annotations__ = {"batch": tuple[tuple(places)]}  # type: ignore[misc]
        else:
            function.__annotations__ = {}
        job: JobFunction = global_function("train" if kind == "train" else "predict", config.exe_cfg)(function)

        def run(step: int) -> Any:
            batch = first.pop() if first else data(step, i) if on_host else None
            return job(batch).get() if on_host else job().get()

        return run

    def train(self, step: int, callbacks: Sequence[Callback]) -> None:
        for i, run in enumerate(self._train):
            outputs = run(step)
            for told in callbacks:
                told.on_training_step_end(outputs, step, i)

    def validate(self, step: int, callbacks: Sequence[Callback]) -> None:
        if self._validate is not None:
            outputs = self._validate(step)
            for told in callbacks:
                told.on_validation_step_end(outputs, step)
