"""``Model.fit`` by ``flow.Trainer``: data modules become batches, the model's callbacks and checkpoints become one callback."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from .._base.refuse import refuse, shown
from .._base.source import of_function
from ..callbacks.base import Callback as TrainerCallback
from ..callbacks.base import Logs
from ..checkpoint.program import CheckPoint
from ..errors import ArgumentError, CallbackError, CheckpointExistsError, FeedShapeError
from ..graph.node import Blob
from ..job import JobFunction, global_function
from ..optimizer.base import Optimizer
from ..trainer import Trainer
from ..trainer.checkpoints import has_files
from ._parts import Callback, CheckpointConfig, DataModule, NumpyDataModule, TrainingConfig, ValidationConfig


class Fitting:
    """The jobs and the data of one ``Model.fit``.

    Args:
      model: has ``training_step``, ``configure_optimizers`` and ``validation_step``, as far as they are needed.
      training: complete, or None.
      validation: complete, or None; not both are None.
    """

    def __init__(
        self,
        model: Any,
        training: TrainingConfig | None,
        validation: ValidationConfig | None,
        files: CheckpointConfig,
        callbacks: list[Callback],
        steps: int,
    ):
        self._name = f"{type(model).__name__}_Model"
        self._steps, self._files = steps, files
        self._train_jobs: list[JobFunction[..., Any]] = []
        self._train_data = self._val_data = None
        self._val_job: JobFunction[..., Any] | None = None
        self._interval = validation.step_interval if validation is not None else None
        limit = None
        if training is not None:
            optimizers = _optimizers(model)
            self._train_data = data = _batches_of(training.data, len(optimizers))
            for i, optimizer in enumerate(optimizers):
                self._train_jobs.append(self._job("train", f"_{i}", training, data, i, _training_body(model, optimizer, i)))
        if validation is not None:
            self._val_data = data = _batches_of(validation.data, 1)
            self._val_job = self._job("eval", "", validation, data, 0, model.validation_step)
            limit = _length(validation.data)
        self._shell = _Shell(callbacks, files, steps, self._train_data)
        self._trainer = _ModelTrainer(
            max_steps=steps,
            callbacks=self._shell,
            val_check_interval=self._interval or 1.0,
            limit_val_batches=limit,
            enable_progress_bar=False,
        )

    def _job(
        self, kind: str, suffix: str, config: TrainingConfig, batches: _Batches | None, i: int, body: Callable[[Any], Any]
    ) -> JobFunction[..., Any]:
        data = config.data
        assert data is not None

        def function(*batch: Any) -> Any:
            return body(*batch) if batches is not None else body(data(0, i))

        made: Any = function
        made.__name__ = f"{self._name}_{kind}_{'' if batches is None else 'numpy_'}job{suffix}"
        made.__signature__ = inspect.Signature([] if batches is None else [batches.parameter(i)])
        job: JobFunction[..., Any] = global_function("train" if kind == "train" else "predict", config.exe_cfg)(made)
        return job

    def run(self) -> None:
        """Trains and validates. Raises the error of a callback of the model itself."""
        failed: BaseException | None = None
        try:
            if self._train_jobs:
                self._train()
            else:
                self._validate_only()
        except CallbackError as error:
            failed = error.__cause__ or error
        if failed is not None:
            raise failed

    def _train(self) -> None:
        val_data = None if self._val_data is None else self._validation_batches
        self._trainer.fit(self._train_jobs, self._train_data, self._val_job, val_data, self._files.load_dirpath)

    def _validation_batches(self) -> Iterator[Any]:
        assert self._val_data is not None
        return self._val_data.of_validation(self._shell.validates_after)

    def _validate_only(self) -> None:
        assert self._val_job is not None and self._interval is not None
        if self._files.load_dirpath is not None:
            CheckPoint().load(self._files.load_dirpath)
        self._shell.refuse_earlier_files(0)
        for step in range(self._steps):
            self._shell.step = step
            if (step + 1) % self._interval == 0:
                self._trainer.validate(self._val_job, None if self._val_data is None else self._validation_batches)
            if self._shell.waits_after(step):
                self._trainer.save_checkpoint(f"{self._files.save_dirpath}-{step}")


def _optimizers(model: Any) -> list[Optimizer]:
    given = model.configure_optimizers()
    optimizers = list(given) if isinstance(given, (list, tuple)) else [given]
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        refuse(ArgumentError, f"{type(model).__name__}.configure_optimizers must return optimizers, got {shown(given)}")
    return optimizers


def _training_body(model: Any, optimizer: Optimizer, i: int) -> Callable[[Any], Any]:
    def body(batch: Any) -> Any:
        outputs = model.training_step(batch, optimizer_idx=i)
        loss = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
        if not isinstance(loss, (Blob, list)):  # a list is of losses
            refuse(ArgumentError, f"{type(model).__name__}.training_step must return the loss, or a tuple that begins with it, "
                   f"got {shown(outputs)}", source=of_function(model.training_step))  # fmt: skip
        optimizer.minimize(loss)
        return outputs

    return body


# --- data


def _length(data: Any) -> int:
    """The number of batches of a validation: 1 for a module without ``__len__``."""
    length = len(data) if hasattr(data, "__len__") else 1
    if length < 1:
        refuse(ArgumentError, f"the length of {type(data).__name__} is {length}, which leaves nothing to validate with")
    return length


def _batches_of(data: DataModule | None, jobs: int) -> _Batches | None:
    """The batches of data made on the host; None for data made inside the jobs."""
    return _Batches(data, jobs) if isinstance(data, NumpyDataModule) else None


class _Batches:
    """The batches of a ``NumpyDataModule``, for one job or several, which each get batches of their own.

    Attributes:
      step: of the next batch.
    """

    def __init__(self, data: NumpyDataModule, jobs: int):
        self._data, self.step = data, 0
        self._names = ["batch"] if jobs == 1 else [f"batch_{i}" for i in range(jobs)]
        self._first: list[Any] = []
        self._places: list[list[Any]] = []
        for i in range(jobs):
            batch = data(0, i)
            self._places.append(data.infer_oneflow_data_placeholder(batch, i))
            self._first.append(copy.deepcopy(batch))  # the module may fill the same arrays again

    def parameter(self, i: int) -> inspect.Parameter:
        """The parameter of job number ``i``."""
        annotation: Any = tuple.__class_getitem__(tuple(self._places[i]))
        return inspect.Parameter(self._names[i], inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch = self._at(self.step)
            self.step += 1
            yield batch

    def of_validation(self, step: int) -> Iterator[Any]:
        """All batches of a module with a length, else the one of a step."""
        steps = range(_length(self._data)) if hasattr(self._data, "__len__") else [step]
        return map(self._at, steps)

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where ``state_dict()`` was taken."""
        self.step = state["step"]

    def _at(self, step: int) -> dict[str, Any]:
        first, self._first = self._first, []  # taken before the jobs were declared
        batches = {}
        for i, (name, places) in enumerate(zip(self._names, self._places, strict=True)):
            batch = first[i] if first and step == 0 else self._made(step, i)
            self._check(batch, places, step)
            batches[name] = batch if len(self._names) == 1 else copy.deepcopy(batch)  # all are made before one is fed
        return batches

    def _made(self, step: int, index: int) -> Any:
        try:
            return self._data(step, index)
        except StopIteration:  # of an iterator inside
            rule = f"{type(self._data).__name__}.forward({step}) has no batch: StopIteration was raised in it"
            refuse(ArgumentError, rule, hint="give a batch for every step, or a smaller max_steps")

    def _check(self, batch: Any, places: list[Any], step: int) -> None:
        who = f"{type(self._data).__name__}.forward({step})"
        if not isinstance(batch, (tuple, list)) or len(batch) != len(places):
            refuse(ArgumentError, f"{who} must return {len(places)} arrays, got {shown(batch)}")
        for i, (array, place) in enumerate(zip(batch, places, strict=True)):
            wanted = place.definition.shape
            if place.definition.kind == "Numpy" and getattr(array, "shape", wanted) != wanted:
                refuse(FeedShapeError, f"{who}: array {i} is {array.shape}, and the job takes {wanted}",
                       hint="give all batches the shapes of the first one")  # fmt: skip


# --- callbacks and checkpoints


class _Shell(TrainerCallback):
    """Tells the model's callbacks, numbers steps on from a checkpoint, and saves."""

    def __init__(self, callbacks: list[Callback], files: CheckpointConfig, steps: int, data: _Batches | None):
        self._callbacks, self._files, self._steps, self._data = callbacks, files, steps, data
        self._next_save = 0  # the first step that may be saved: the one that was loaded has been
        self.step: int | None = None  # without training
        self.last_path = ""  # of the last checkpoint

    @property
    def validates_after(self) -> int:
        """The step that a validation follows."""
        return int(self.trainer.global_step) - 1 if self.step is None else self.step

    def on_train_begin(self, logs: Logs) -> None:
        """Counts on from the step at which the training begins."""
        self._next_save = begin = self.trainer.global_step
        self.refuse_earlier_files(begin)
        self.trainer.max_steps = begin + self._steps
        if self._data is not None:
            self._data.step = begin

    def on_train_batch_outputs(self, step: int, outputs: Any) -> None:
        """After the step of each job."""
        each = outputs if len(self.trainer.train_jobs) > 1 else [outputs]
        for i, value in enumerate(each):
            for told in self._callbacks:
                _tell(told.on_training_step_end, value, step, i)

    def on_test_batch_outputs(self, batch: int, outputs: Any) -> None:
        """After each batch of a validation."""
        for told in self._callbacks:
            _tell(told.on_validation_step_end, outputs, self.validates_after)

    def refuse_earlier_files(self, begin: int) -> None:
        """Refuses paths to save to that are there already, before hours of training come to the first of them."""
        if self._files.save_dirpath is None:
            return
        parent, name = os.path.split(os.path.abspath(self._files.save_dirpath))
        there = set(os.listdir(parent)) if os.path.isdir(parent) else ()
        for step in range(begin, begin + self._steps) if there else ():
            path = f"{self._files.save_dirpath}-{step}"
            if self.waits_after(step) and f"{name}-{step}" in there and (os.path.isfile(path) or has_files(path)):
                refuse(CheckpointExistsError, f"{path!r} exists, to which step {step} would be saved",
                       hint="config_save another path, or move it away")  # fmt: skip

    def waits_after(self, step: int) -> bool:
        """Whether this step is saved."""
        return self._files.save_dirpath is not None and (step + 1) % self._files.save_interval == 0

    def on_checkpoint(self, step: int, logs: Logs) -> None:
        """Saves, where that is due."""
        if self.waits_after(step) and step >= self._next_save:
            self._next_save = step + 1
            self.trainer.save_checkpoint(path := f"{self._files.save_dirpath}-{step}")
            self.last_path = path

    def way_on(self) -> str:
        """How to continue a training that Ctrl-C has ended."""
        if self.last_path:
            return f"CheckpointConfig.config_load({self.last_path!r}) goes on from the last checkpoint"
        if self._files.save_dirpath is not None:
            return f"nothing was saved yet: config_save saves every {self._files.save_interval} steps"
        return "nothing was saved: CheckpointConfig.config_save(dirpath) saves checkpoints next time"


class _ModelTrainer(Trainer):
    """A trainer whose user has a ``CheckpointConfig`` instead of callbacks."""

    def _way_on_after_interrupt(self) -> str:
        return next(c.way_on() for c in self.callbacks if isinstance(c, _Shell))


def _tell(method: Callable[..., Any], outputs: Any, step: int, *more: int) -> None:
    try:
        method(outputs, step, *more)
    except Exception as error:
        error.add_note(f"in {getattr(method, '__qualname__', method)} after step {step}")
        raise
