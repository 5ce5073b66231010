"""``flow.Trainer``: epochs, validation, logging, checkpoints and resuming, around plain jobs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from .._base.frames import shows_user_frames
from .._base.jax import jax
from .._base.refuse import refuse, shown, warn
from ..callbacks.checkpoint import ModelCheckpoint
from ..callbacks.preemption import Preemption
from ..data.arrays import is_array
from ..errors import ArgumentError, CheckpointNotFoundError, CheckpointWarning, ModeError
from ..graph.graph import current_or_none
from ..job import JobFunction, common_session
from ..loggers.base import Logger
from ..runtime.process import process
from ..runtime.session import as_default, default_session
from . import checkpoints
from .evaluation import Evaluation, Prediction, Stage
from .fitting import Fit
from .history import History
from .hooks import Hooks, failure, guarded
from .interrupt import Interrupt
from .settings import Settings
from .tally import tell_of_idle_metrics

Jobs = JobFunction[..., Any] | Sequence[JobFunction[..., Any]]


class Trainer(Settings):
    """Trains jobs on data: epochs, validation, metrics, progress, logging, checkpoints, and going on after an interruption.

    The jobs are plain ones; nothing about them changes, and they can be called by hand before, between and after. A job that
    returns one array logs its mean as ``loss``; a tuple gives ``loss``, ``output_1``, ...; a dictionary gives its keys. In
    validations the names begin with ``val_``, in tests with ``test_``. Means are weighted by rows, and padding does not count.

    Calls are asynchronous, whatever the jobs' return annotations say: callbacks and loggers run on the delivery thread while
    later steps compute.

    Args:
      max_epochs: how many passes over the data; None or -1: until ``max_steps``.
      max_steps: how many steps in all; None or -1: until ``max_epochs``.
      callbacks: ``flow.callbacks.Callback`` objects, called in this order; those that save checkpoints come last.
      logger: one or several of ``flow.loggers``; True: a CSVLogger; None or False: none.
      metrics: of ``flow.metrics``, as a list or by the names they shall have in logs. Each is computed of every job that has
        its inputs.
      val_check_interval: how often to validate: a float is a share of an epoch (1.0: at its end), an int a number of steps.
      log_every_n_steps: how often a step's numbers go to loggers and to ``History.steps``.
      limit_train_batches: an int is a number of batches of each epoch, a float a share of them; likewise
        ``limit_val_batches``, ``limit_test_batches`` and ``limit_predict_batches``.
      default_root_dir: where loggers and checkpoints go that have no directory of their own; None: the working directory.
      profiler: ``"simple"`` prints at the end where the time of the calling thread went.
      enable_progress_bar: adds a ``TQDMProgressBar`` where ``callbacks`` has none.
      seed: as ``flow.manual_seed``, and for the order of arrays; the global generators of Python, NumPy and PyTorch are
        seeded with it again for each epoch, so that data sets which use them repeat theirs when a run goes on.
    Raises:
      ArgumentError: an argument of another kind or outside its range.

    Attributes:
      history: the ``History`` of the last ``fit``.
      global_step: the number of steps done.
      current_epoch: that of the last step, from 0.
      callback_metrics: the latest numbers of all kinds.
      should_stop: a callback sets it to True to end the training, and with it the epoch: as ``max_steps`` does, with a
        validation, a row of the history and ``on_epoch_end``. In a run of several processes it must be set
        after the same step in each, by numbers that callbacks get, for example, which are equal there, not by a clock.

    Example:
      >>> @flow.global_function(type="train")
      ... def train(x: tp.Numpy.Placeholder((10, 4)), y: tp.Numpy.Placeholder((10, 1))) -> tp.Numpy:
      ...     loss = flow.math.square(flow.layers.dense(x, 1, name="line") - y)
      ...     flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
      ...     return loss
      >>> x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
      >>> trainer = flow.Trainer(max_epochs=3, seed=1, enable_progress_bar=False)
      >>> history = trainer.fit(train, (x, x[:, :1]))
      >>> assert history["loss"][-1] < history["loss"][0]
    """

    _fit: Fit | None = None  # the current training, or the last one

    def __repr__(self) -> str:
        return f"<Trainer: {self.state}, epoch {self.current_epoch}, {self.global_step} steps done>"

    # --- what callbacks ask

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self.loggers[0] if self.loggers else None

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first ``ModelCheckpoint``."""
        return next((c for c in self.callbacks if isinstance(c, ModelCheckpoint)), None)

    @property
    def history(self) -> History:
        """The history that the last ``fit`` logged."""
        return self._fit.history if self._fit is not None else History()

    @property
    def global_step(self) -> int:
        """The number of steps done, over the whole training."""
        return self._fit.step if self._fit is not None else 0

    @property
    def current_epoch(self) -> int:
        """The epoch of the last step, from 0."""
        return self._fit.shown_epoch if self._fit is not None else 0

    @property
    def batch_in_epoch(self) -> int:
        """The number of batches of the present epoch that were taken."""
        return self._fit.batch if self._fit is not None else 0

    @property
    def num_training_batches(self) -> int | None:
        """The number of batches of an epoch; None where nobody knows."""
        return self._fit.count if self._fit is not None else None

    @property
    def validates(self) -> bool:
        """Whether ``fit`` has a validation job and data for it."""
        return self._fit is not None and self._fit.evaluation is not None

    @property
    def train_jobs(self) -> list[JobFunction[..., Any]]:
        """The jobs that ``fit`` trains."""
        return self._fit.jobs if self._fit is not None else []

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The latest numbers of all kinds."""
        return self._fit.latest if self._fit is not None else {}

    # --- what users call

    @shows_user_frames
    def fit(
        self,
        train_job: Jobs,
        data: Any = None,
        val_job: JobFunction[..., Any] | None = None,
        val_data: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> History:
        """Trains. Steps, epochs and the place in the data are counted from 0, or go on from a checkpoint.

        Ctrl-C ends the training after its step, has ``ModelCheckpoint(save_last=True)`` save, says how to go on, and raises
        KeyboardInterrupt; a second one interrupts at once.

        Args:
          train_job: a train job; or several, which take turns on each batch, as a GAN's do. Their names begin those in logs.
          data: an iterable of batches: tuples or lists in the order of the job's parameters, or dictionaries by their
            names, of arrays of NumPy, PyTorch, JAX, or pandas. So are a PyTorch ``DataLoader``, Grain's, a
            ``flow.data.ArrayLoader``. Or whole arrays of many rows, a pandas DataFrame, a ``datasets.Dataset``: they are cut
            into batches and shuffled. Or arrays of batches, as ``flow.data.load_mnist`` returns. Or a function that returns
            an iterator, called for each epoch. None for a job that reads by itself. A last batch that is short is left out,
            unless the job has a parameter ``sample_weight`` of one number for each row, which is 0 for padding. Logs weight the
            results of rows with it: the job returns its losses unweighted, and minimizes them times ``sample_weight``.
          val_job: a predict job; its short batches are padded, and padding does not count.
          val_data: as ``data``; not shuffled.
          ckpt_path: a checkpoint to go on from: a path, ``"best"`` for that of the ModelCheckpoint, or ``"last"`` for the newest
            that ``ModelCheckpoint(save_last=True)`` has saved, if any. Of a checkpoint that no trainer made, the train job's
            step counter is the step.
        Returns: the history, of the earlier part of a training that goes on, too.
        Raises:
          ArgumentError: jobs or data of another kind; neither ``max_epochs`` nor ``max_steps`` was given; a result or a metric is
            called ``epoch`` or ``step``, as columns of the history are.
          CheckpointNotFoundError: there is no checkpoint at ``ckpt_path``.
          CallbackError: a callback, a logger or a metric has raised; the error names it.
          KeyboardInterrupt: after Ctrl-C.
          SystemExit: ``Preemption`` is among the callbacks, and a signal came.
        """
        self._check_idle("fit")
        self.check_savers()
        jobs = _train_jobs(train_job)
        if val_job is not None:
            if data is not None and is_array(val_job):
                refuse(
                    ArgumentError,
                    f"val_job must be a job function, got {shown(val_job)}",
                    hint="give arrays as one: fit(job, (x, y))",
                )
            _check_job("val_job", val_job, train=False)
        elif val_data is not None:
            refuse(ArgumentError, "val_data was given, and no val_job", hint="fit(train_job, data, val_job, val_data)")
        unbounded = (self.max_epochs is None or self.max_epochs < 0) and (self.max_steps is None or self.max_steps < 0)
        if unbounded:
            refuse(ArgumentError, "nothing says when the training ends", hint="flow.Trainer(max_epochs=...) or max_steps=")
        preemption = next((c for c in self.callbacks if isinstance(c, Preemption)), None)
        own = as_default(common_session("Trainer.fit", [*jobs, *([] if val_job is None else [val_job])]))
        with own, preemption.in_force() if preemption is not None else contextlib.nullcontext():  # also while jobs are built
            checkpoint = self._checkpoint(ckpt_path)
            self.should_stop = self.interrupted = False
            fit = Fit(self, jobs, data, val_job, val_data)
            if fit.count is None and data is None and (self.max_steps is None or self.max_steps < 0):
                refuse(ArgumentError, f"job {jobs[0].name!r} reads its data by itself, and nothing says how long an epoch is",
                       hint="flow.Trainer(max_steps=...), or limit_train_batches=")  # fmt: skip
            self._fit = fit
            with self._running("training", fit.stage, fit.hooks), fit.input_watch:
                fit.run(checkpoint)
        if self.interrupted:
            self._tell_of_interrupt()
        return fit.history

    @shows_user_frames
    def validate(
        self, job: JobFunction[..., Any], data: Any = None, ckpt_path: str | os.PathLike[str] | None = None
    ) -> dict[str, Any]:
        """Goes over data with a predict job.

        Args:
          job: a predict job.
          data: as for ``fit``; not shuffled. Short batches are padded, and padding does not count.
          ckpt_path: what to load before: a path, ``"best"`` or ``"last"``.
        Returns: means and metrics over all rows; their names begin with ``val_``.
        Raises:
          ArgumentError: a job or data of another kind, or no batch.
        """
        return self._evaluate("validating", "val_", job, data, ckpt_path, self.limit_val_batches)

    @shows_user_frames
    def test(
        self, job: JobFunction[..., Any], data: Any = None, ckpt_path: str | os.PathLike[str] | None = None
    ) -> dict[str, Any]:
        """As ``validate``, with names that begin with ``test_``."""
        return self._evaluate("testing", "test_", job, data, ckpt_path, self.limit_test_batches)

    @shows_user_frames
    def predict(self, job: JobFunction[..., Any], data: Any = None, ckpt_path: str | os.PathLike[str] | None = None) -> Any:
        """The results of a predict job for all rows of data.

        Args:
          job: a predict job.
          data: as for ``fit``; not shuffled. Of tuples with more entries than the job takes, the first ones are taken.
          ckpt_path: what to load before: a path, ``"best"`` or ``"last"``.
        Returns: arrays in the structure that the job returns: those with rows joined to the rows of the data, others stacked.
          Variables and what is reduced over the batch have no rows. Otherwise a result whose axis 0 has the size of the batch
          is taken for rows, also where that is by chance, as of a matrix of classes.
        Raises:
          ArgumentError: a job or data of another kind, or no batch; the job returns a list of tensors.
        """
        self._check_idle("predict")
        _check_job("job", job, train=False)
        with as_default(job.session):
            prediction = Prediction(job, data, limit=self.limit_predict_batches)
            self._load(ckpt_path)
            stage, hooks = Stage(), Hooks(self.callbacks)
            self.num_evaluation_batches = prediction.count
            with self._running("predicting", stage, hooks):
                found = prediction.predict(stage, hooks, lambda: self.interrupt.came, self.count_evaluated)
                self._raise_interrupt()
        return found

    def _evaluate(
        self, state: str, prefix: str, job: JobFunction[..., Any], data: Any, ckpt_path: Any, limit: int | float | None
    ) -> dict[str, Any]:
        self._check_idle("validate" if prefix == "val_" else "test")
        _check_job("job", job, train=False)
        with as_default(job.session):
            evaluation = Evaluation(job, data, limit=limit, what="data", prefix=prefix, metrics=self.metrics)
            tell_of_idle_metrics(self.metrics, [evaluation.tally, *(self._fit.steps.tallies if self._fit is not None else ())])
            self._load(ckpt_path)
            stage, hooks = Stage(), Hooks(self.callbacks)
            self.num_evaluation_batches = evaluation.count
            with self._running(state, stage, hooks):
                found = evaluation.evaluate(stage, hooks, lambda: self.interrupt.came, self.count_evaluated)
                self._raise_interrupt()
        return found

    def save_checkpoint(
        self,
        path: str | os.PathLike[str],
        overwrite: bool = False,
        asynchronous: bool = False,
        remove: Sequence[str] = (),
    ) -> None:
        """Saves a checkpoint from which ``fit(..., ckpt_path=path)`` goes on, now or in another process.

        Args:
          path: does not exist, or is an empty directory.
          overwrite: replaces a checkpoint that is there.
          asynchronous: writes the files in the background, as ``flow.checkpoint.save(asynchronous=True)`` does. ``fit`` raises
            an error at its next step.
          remove: checkpoints to delete after this one is there.
        Raises:
          ModeError: training does not rest: in a hook of a step after which nobody waits.
          CheckpointExistsError, CheckpointError: as ``flow.checkpoint.save``.
        """
        fit = self._fit
        if self.state != "idle" and not (fit is not None and fit.is_at_rest and process.delivery.is_current()):
            refuse(ModeError, "a checkpoint cannot be saved while later steps are under way",
                   hint="save in on_checkpoint, on_epoch_end or on_validation_end, or let waits_after(step) be True")  # fmt: skip
        with as_default(default_session() if fit is None else fit.jobs[0].session):
            state = fit.state_dict() if fit is not None else None
            checkpoints.save(path, state, overwrite=overwrite, asynchronous=asynchronous, remove=remove)

    # --- what they share

    def _check_idle(self, what: str) -> None:
        if self.state != "idle":
            refuse(ModeError, f"Trainer.{what} was called while the trainer is {self.state}")
        if process.delivery.is_current():
            refuse(ModeError, f"Trainer.{what} was called in a callback, on the delivery thread, which it needs")
        if current_or_none() is not None:
            refuse(ModeError, f"Trainer.{what} was called inside the body of a job")

    def _checkpoint(self, given: Any) -> str | None:
        """Where the checkpoint is that was asked for; None for none."""
        if given is None:
            return None
        if not isinstance(given, (str, os.PathLike)) or not str(given):
            refuse(ArgumentError, f'ckpt_path must be a path, "best", "last" or None, got {shown(given)}')
        if given == "last":
            return self._last_checkpoint()
        if given == "best":
            saving = self.checkpoint_callback
            if saving is None or not saving.best_model_path:
                refuse(ArgumentError, 'ckpt_path="best" needs a ModelCheckpoint that has saved')
            return saving.best_model_path
        path = checkpoints.found(os.fspath(given))
        return os.fspath(given) if path is None else path  # errors are reported when it is read

    def _last_checkpoint(self) -> str | None:
        saving = [c for c in self.callbacks if isinstance(c, ModelCheckpoint) and c.save_last]
        if not saving:
            refuse(ArgumentError, 'ckpt_path="last" needs a callback that saves it',
                   hint="flow.Trainer(callbacks=[flow.callbacks.ModelCheckpoint(save_last=True)])")  # fmt: skip
        path = saving[0].last_path
        found = checkpoints.found(path)
        if found is None and checkpoints.has_files(path):
            rule = f"{path!r} is passed over: it is not a finished checkpoint, for it has no file {checkpoints.DONE!r}"
            warn(
                CheckpointWarning, f"{rule}\n  try        copy it again, or ckpt_path= of another one; the next save replaces it"
            )
        return found

    def _load(self, ckpt_path: Any) -> None:
        path = self._checkpoint(ckpt_path)
        if path is None and ckpt_path is not None:
            refuse(CheckpointNotFoundError, "no checkpoint has been saved as the last one")
        if path is not None:
            checkpoints.load(path)

    @contextlib.contextmanager
    def _running(self, state: str, stage: Stage, hooks: Hooks) -> Iterator[None]:
        """The context of a run: set up before it, and cleaned up however it ends."""
        if self.profiler is not None:
            self.profiler.begin()
        self.state, self.interrupt = state, Interrupt()
        trains = state == "training"
        default_session().start()
        jax.devices()  # before the delivery thread: JAX's exit hook must run after ours
        process.start()
        try:
            with self.interrupt:
                yield
            if trains:
                self._finish(stage, "interrupted" if self.interrupted else "success")
        except BaseException as error:
            self._abort(stage, hooks, error, finalizes=trains)
        finally:
            self.state = "idle"
        if self.profiler is not None:
            print(self.profiler.table())

    def _finish(self, stage: Stage, status: str) -> None:
        checkpoints.finish()

        def finalize() -> None:
            for logger in self.loggers:
                guarded(logger.finalize, status)

        stage.wait_for(finalize)

    def _abort(self, stage: Stage, hooks: Hooks, error: BaseException, *, finalizes: bool) -> NoReturn:
        """Ends a run after an error; callbacks and loggers get the chance to close what they have open."""
        step = f"at step {self.global_step - 1}" if self.global_step else "before the first step"
        if self.state != "training":
            step = f"while {self.state}"
        if finalizes and self._fit is not None and stage.error is None and isinstance(error, Exception):
            with contextlib.suppress(Exception):
                self._fit.settle()  # the data have failed: the steps that they were enough for are told
        raised = failure(error, step, self._way_on())
        stage.error = stage.error or error  # results still to arrive are dropped
        closing = Stage()

        def close() -> None:
            with contextlib.suppress(Exception):
                hooks("on_exception", raised)
            for logger in self.loggers if finalizes else ():
                with contextlib.suppress(Exception):
                    logger.finalize("failed")

        with contextlib.suppress(Exception):
            closing.wait_for(close)
        process.saves.wait()
        while (another := process.delivery.take_kept()) is not None:
            raised.add_note(f"another checkpoint failed, too: {another}")
        if raised is error:
            raise error
        raise raised from raised.__cause__

    def _way_on(self) -> str:
        saving = self.checkpoint_callback
        known = [] if saving is None else [saving.last_model_path, *reversed(saving.best_k_models)]
        last = next((path for path in known if path and checkpoints.found(path)), None)  # it may be the last one that has failed
        if last is None:
            return ""
        return f"; its last checkpoint is {last!r}, and fit(..., ckpt_path={last!r}) goes on from it"

    def _tell_of_interrupt(self) -> NoReturn:
        told = f"interrupted after step {self.global_step - 1}; {self._way_on_after_interrupt()}"
        print(told)
        raise KeyboardInterrupt(told)

    def _way_on_after_interrupt(self) -> str:
        saving = next((c for c in self.callbacks if isinstance(c, ModelCheckpoint) and c.save_last), None)
        if saving is not None:
            return f'saved to {saving.last_path!r}: fit(..., ckpt_path="last") goes on from there'
        if saved := next((c.last_model_path for c in self.callbacks if isinstance(c, ModelCheckpoint)), ""):
            return f"fit(..., ckpt_path={saved!r}) goes on from the last checkpoint"
        return "nothing was saved: ModelCheckpoint(save_last=True) among the callbacks saves it next time"

    def _raise_interrupt(self) -> None:
        if self.interrupt.came:
            raise KeyboardInterrupt


# --- arguments


def _train_jobs(given: Any) -> list[JobFunction[..., Any]]:
    jobs = list(given) if isinstance(given, (list, tuple)) else [given]
    if not jobs:
        refuse(ArgumentError, "fit needs a train job, got an empty list")
    for job in jobs:
        _check_job("train_job", job, train=True)
    return jobs


def _check_job(what: str, job: Any, *, train: bool) -> None:
    if not isinstance(job, JobFunction):
        kind = 'type="train"' if train else 'type="predict"'
        refuse(ArgumentError, f"{what} must be a job function, got {shown(job)}", hint=f"@flow.global_function({kind})")
    if job.train != train:
        kinds = "a train job", "a predict job"
        refuse(ArgumentError, f"{what} must be {kinds[not train]}, and {job.name!r} is {kinds[train]}", source=job.source)
