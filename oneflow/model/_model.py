"""``flow.Model`` and its training loop."""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Sequence
from typing import Any

from .._base import check
from .._base.frames import shows_user_frames
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, CheckpointNotFoundError
from ..ops.module import Module, not_defined
from ..optimizer.base import Optimizer
from ..runtime.session import clear_default_session
from ._parts import Callback, CheckpointConfig, TrainingConfig, ValidationConfig

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

    @shows_user_frames
    def fit(
        self,
        training_config: TrainingConfig | None = None,
        validation_config: ValidationConfig | None = None,
        checkpoint_config: CheckpointConfig | None = None,
        callbacks: Callback | list[Callback] | None = None,
        max_steps: int = 100,
    ) -> None:
        """Trains, validates and saves in a new session, by a ``flow.Trainer``: after each step validation, then saving.

        Steps are submitted ahead of their results, so that data are made while the device computes. Callbacks run on the
        delivery thread, in the order of steps. A configuration that lacks something is logged and left out; where neither
        training nor validation is left, the call returns and the session stays.

        Args:
          training_config: data and settings of training; one job for each optimizer.
          validation_config: data and settings of validation, and how often it happens.
          checkpoint_config: the checkpoint to begin with, whose steps are counted on, and where and how often to save.
          callbacks: called after each step.
          max_steps: the number of steps of this call.
        Raises:
          ArgumentError: an argument of another type.
          CheckpointNotFoundError: there is no checkpoint at the path to load.
          CheckpointExistsError: there is a checkpoint at a path to save to.
        """
        self._check(training_config, TrainingConfig), self._check(validation_config, ValidationConfig)
        self._check(checkpoint_config, CheckpointConfig)
        steps, problem = check.integer(max_steps, low=0)
        if problem:
            refuse(ArgumentError, f"max_steps {problem}")
        given = callbacks if isinstance(callbacks, list) else [] if callbacks is None else [callbacks]
        if not all(isinstance(c, Callback) for c in given):
            refuse(ArgumentError, f"callbacks must be flow.model.Callback objects, got {shown(callbacks)}")
        files = checkpoint_config if checkpoint_config is not None else CheckpointConfig()
        if checkpoint_config is not None and not files.check_valid() and files.load_dirpath is not None:
            refuse(CheckpointNotFoundError, f"there is no directory {files.load_dirpath!r} to load", hint="config_load(path)")
        trains = self._usable("training", training_config, ("training_step", "configure_optimizers"))
        validates = self._usable("validation", validation_config, ("validation_step",))
        if not trains and not validates:
            _log.warning("%s.fit: there is nothing to do", type(self).__name__)
            return
        clear_default_session()
        from ._fitting import Fitting  # the trainer is imported when it is used

        training, validation = training_config if trains else None, validation_config if validates else None
        Fitting(self, training, validation, files, given, steps).run()

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
