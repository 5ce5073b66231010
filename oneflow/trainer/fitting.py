"""One run of ``Trainer.fit``: epochs of asynchronous calls, with everything else on the delivery thread.

The thread that called ``fit`` takes batches and submits steps, up to a window ahead of the device. The delivery thread takes
the results in order and calls hooks and loggers. Both meet at pauses: at the end of an epoch, at a validation, and after steps
that a callback waits for. There the variables, the place in the data and everything that was counted belong to one moment,
so that a checkpoint made there goes on bit for bit.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from .._base.refuse import refuse, warn
from ..callbacks.base import Callback
from ..callbacks.monitor import Monitor
from ..checkpoint.api import steps_of
from ..errors import ArgumentError, CheckpointWarning
from ..job import JobFunction
from ..job.step_checks import LOSS
from ..loggers.csv import refuse_shared_files
from ..runtime.process import process
from ..runtime.session import manual_seed
from . import checkpoints
from .evaluation import Evaluation, Stage, limited, located
from .history import History
from .hooks import Hooks, guarded
from .input_watch import InputWatch
from .settings import Settings
from .sources import source_of
from .state import decoded, encoded
from .steps import Steps
from .tally import idle_metrics, tell_of_idle_metrics

_log = logging.getLogger("oneflow")


class Fit:
    """The jobs, the data and the position of one training."""

    def __init__(
        self,
        trainer: Settings,
        jobs: list[JobFunction[..., Any]],
        data: Any,
        val_job: JobFunction[..., Any] | None,
        val_data: Any,
    ):
        self.trainer, self.jobs = trainer, jobs
        self._want_different_names()
        self.stage = Stage()
        self.hooks = Hooks(trainer.callbacks)
        self.steps = Steps(trainer, jobs, self.stage, self.hooks)
        self.validation_logs: dict[str, Any] = {}  # of the last validation
        arguments = self.steps.arguments
        seed = 0 if trainer.seed is None else trainer.seed
        first = max(range(len(jobs)), key=lambda i: len(arguments[i].names))  # what the data are read for
        self.source = source_of(data, jobs[first], arguments[first], shuffle=True, seed=seed, what="training data")
        if trainer.limit_train_batches == 0:
            refuse(ArgumentError, "limit_train_batches=0 leaves nothing to train with")
        self.count = limited(trainer.limit_train_batches, self.source.length, "training data")
        self.evaluation = self._evaluation(val_job, val_data)
        if (evaluation := self.evaluation) is not None:
            for tally in self.steps.tallies:
                tally.refuse_names(evaluation.tally.logged, f"a number of job {evaluation.job.name!r}, which validates")
        self._check_metrics()
        self._validates_every = self._validation_interval()
        self.epoch = self.batch = self.step = 0
        self.shown_epoch = 0  # that of the last step
        self.validated = -1  # the step that the last validation followed
        self.is_at_rest = False
        self.input_watch = InputWatch(jobs)
        self._is_dropping = False  # a short batch was met
        self._waiters = [c.waits_after for c in trainer.callbacks if type(c).waits_after is not Callback.waits_after]

    def _want_different_names(self) -> None:
        """Results are logged under the names of the jobs."""
        named: dict[str, JobFunction[..., Any]] = {}
        for job in self.jobs:
            if named.setdefault(job.name, job) is not job:
                refuse(ArgumentError, f"two of the jobs to train are called {job.name!r}, under which their results are logged",
                       hint="give their functions different names", source=job.source)  # fmt: skip

    def _evaluation(self, job: JobFunction[..., Any] | None, data: Any) -> Evaluation | None:
        trainer = self.trainer
        if job is None or trainer.limit_val_batches == 0:
            return None
        return Evaluation(
            job, data, limit=trainer.limit_val_batches, what="validation data", prefix="val_", metrics=trainer.metrics
        )

    def _check_metrics(self) -> None:
        """Refuses metrics that neither job has the inputs of; without a validation they may be of a job that is tested later."""
        tallies = [*self.steps.tallies, *([self.evaluation.tally] if self.evaluation is not None else [])]
        if self.evaluation is None:
            tell_of_idle_metrics(self.trainer.metrics, tallies)
            return
        for name, metric in idle_metrics(self.trainer.metrics, tallies):
            known = sorted({n for tally in tallies for n in tally.known})
            rule = f"metric {name!r} is computed of {' and '.join(map(repr, metric.inputs))}, and no job has these"
            hint = 'return a dictionary, e.g. {"loss": loss, "logits": logits}, and name what the metric takes'
            refuse(ArgumentError, rule, found=[("jobs have", ", ".join(known))], hint=hint)

    def _validation_interval(self) -> int | None:
        """Steps or, for a share, batches of an epoch between validations; None for the ends of epochs."""
        interval = self.trainer.val_check_interval
        if isinstance(interval, int):
            return interval
        if interval == 1.0:
            return None
        if self.count is None:
            refuse(ArgumentError, f"val_check_interval={interval} is a share of an epoch, and the training data have no length",
                   hint="give an int: a number of steps")  # fmt: skip
        return max(int(self.count * interval), 1)

    # --- the whole run

    def run(self, checkpoint: str | None) -> None:
        """Trains until the end, or until somebody stops it."""
        if len(self.jobs) > 1:  # no number is called "loss"
            self._train(checkpoint)
            return
        warned = self.jobs[0].graph.warned
        is_ours = LOSS not in warned
        warned.add(LOSS)  # here every step is looked at
        try:
            self._train(checkpoint)
        finally:
            if is_ours and not self.steps.is_loss_bad:
                warned.discard(LOSS)

    def _train(self, checkpoint: str | None) -> None:
        trainer = self.trainer
        state = self._begin(checkpoint)
        self.steps.begin(self.step)
        self._wait_for(partial(self._begin_loggers, state["loggers"] if state is not None else None))
        self._wait_for(lambda: self.hooks("on_train_begin", self.latest))
        if self.batch and self._owes_validation():  # Ctrl-C had cut it off
            self.shown_epoch = self.steps.epoch = self.epoch
            self._pause(self.step - 1)
        while self._goes_on():
            self._run_epoch()
        if trainer.interrupt.came:
            trainer.interrupted = True
            self._wait_for(lambda: self.hooks("on_interrupt", self.step - 1, self.latest))
        self._wait_for(lambda: self.hooks("on_train_end", self.latest))

    def _goes_on(self) -> bool:
        trainer = self.trainer
        if self._is_stopped() or self._is_over():
            return False
        return trainer.max_epochs is None or trainer.max_epochs < 0 or self.epoch < trainer.max_epochs

    def _is_stopped(self) -> bool:
        return self.trainer.should_stop or self.trainer.interrupt.came

    def _is_over(self) -> bool:
        most = self.trainer.max_steps
        return most is not None and 0 <= most <= self.step

    def _begin(self, checkpoint: str | None) -> dict[str, Any] | None:
        """Starts the session, and the training where it was left. Returns the state it goes on from."""
        for callback in self.trainer.callbacks:
            if isinstance(callback, Monitor):
                callback.begin_anew()
        if self.trainer.seed is not None and checkpoint is None:
            manual_seed(self.trainer.seed)
        if checkpoint is None:
            return None
        saved = checkpoints.load(checkpoint)
        if saved is None:
            self._go_on_from_step_counter()
            return None
        state: dict[str, Any] = decoded(saved)
        self.load_state_dict(state)
        return state

    def _go_on_from_step_counter(self) -> None:
        """Of a checkpoint that no trainer made, the train job's own counter says how far it was."""
        self.step = steps_of(self.jobs[0].name)
        if self.count:
            self.epoch, self.batch = divmod(self.step, self.count)

    def _begin_loggers(self, resumed: Mapping[str, Any] | None) -> None:
        for key, logger in self.trainer.named_loggers():
            guarded(logger.prepare, self.trainer.default_root_dir, None if resumed is None else resumed.get(key))
        refuse_shared_files(self.trainer.loggers)
        if process.stops_at_first_call in (True, self.jobs[0].name):
            return  # no step will be made, nor anything logged
        for key, logger in self.trainer.named_loggers():
            guarded(logger.begin, None if resumed is None else resumed.get(key), self.step)
            if getattr(logger, "is_graph_wanted", False):
                guarded(logger.log_graph, self.jobs[0])

    def _wait_for(self, function: Any) -> None:
        """Runs a function on the delivery thread behind everything before it, while training rests."""
        self.is_at_rest = True
        self.input_watch.pause()
        try:
            self.stage.wait_for(function)
        finally:
            self.is_at_rest = False

    # --- an epoch

    def _run_epoch(self) -> None:
        trainer = self.trainer
        self._seed_generators()
        self.shown_epoch = self.steps.epoch = self.epoch
        self._wait_for(lambda: self.hooks("on_epoch_begin", self.epoch, {}))
        started, before = self.step, self.batch
        is_whole = self._submit_steps(self.source.batches(self.epoch, self.batch))
        self.settle()
        process.delivery.raise_error()
        if is_whole and self.step == started and not before:
            job, taken = self.jobs[0], f"; {self.batch} were shorter than its batch size" if self.batch else ""
            rule = f"the training data gave no batch in epoch {self.epoch} that job {job.name!r} could take{taken}"
            refuse(ArgumentError, rule, hint="give a function that returns a new iterator for each epoch" if self.epoch else "")
        is_interrupted = trainer.interrupt.came or trainer.interrupted
        if is_whole or (self.step > started and not is_interrupted):  # or max_steps or a callback has ended the training
            self._end_epoch(is_whole)

    def _seed_generators(self) -> None:
        """Makes data sets that use global generators draw the same numbers in a resumed run."""
        if self.trainer.seed is None:
            return
        words = np.random.SeedSequence((self.trainer.seed, self.epoch)).generate_state(1)
        random.seed(int(words[0]))
        np.random.seed(words)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(int(words[0]))

    def _submit_steps(self, iterator: Iterator[Any]) -> bool:
        """Submits steps until the pass is over, or the training. Returns whether the pass is over."""
        stage, count = self.stage, self.count
        take = self.trainer.measured("next(batch)", iterator.__next__)
        submit = self.trainer.measured("submitting the step", self.steps.submitter())
        pauses = self._validates_every is not None or bool(self._waiters)
        while count is None or self.batch < count:
            if self._is_over() or self._is_stopped():
                return False
            try:
                batch = take()
            except StopIteration:
                return True
            try:
                is_submitted = submit(batch)
            except Exception as error:
                located(error, f"batch {self.batch} of epoch {self.epoch} of the training data")
                raise
            self.batch += 1
            if not is_submitted:
                if is_submitted is False:
                    self._tell_of_short_batch()
                if self._counts_batches and self._owes_validation():
                    self._pause(self.step - 1)
                continue
            self.step += 1
            if stage.error is not None:
                return False
            if pauses:
                self._pause(self.step - 1)
        if self.batch == self.source.length:
            next(iterator, None)  # lets a loader that keeps its position see its end
        return True

    def _tell_of_short_batch(self) -> None:
        if not self._is_dropping:
            self._is_dropping = True
            _log.warning(
                "oneflow: a short batch of the training data is left out: job %r takes %s rows\n"
                '  try        give the job a parameter sample_weight, or leave such batches out: ArrayLoader(..., last="drop")',
                self.jobs[0].name, self.steps.arguments[0].batch_size,
            )  # fmt: skip

    @property
    def history(self) -> History:
        """The numbers that were logged."""
        return self.steps.history

    @property
    def latest(self) -> dict[str, Any]:
        """The latest numbers of all kinds."""
        return {**self.validation_logs, **self.steps.logs}

    def settle(self) -> None:
        """Waits for the results of all steps so far, and for everything that is done with them."""
        process.delivery.drain()
        self.stage.wait_for(self.steps.settle)

    # --- pauses

    def _pause(self, step: int) -> None:
        """Waits where something is due after a step, and does it."""
        validates = self._is_validation_due(step)
        if not validates and not any(waits(step) for waits in self._waiters):
            return
        self.settle()
        if validates:
            if not self._validate(step):
                return
            self._wait_for(partial(self._add_row, step, {**self._means(), **self.validation_logs}))
        if not self._ends_here():
            self._wait_for(lambda: self.hooks("on_checkpoint", step, self.latest))

    def _ends_here(self) -> bool:
        """Whether it is known that the epoch, or the training, ends with this step: then its end is what is saved."""
        return not self._is_stopped() and (self.batch == self.count or self._is_over())

    @property
    def _counts_batches(self) -> bool:
        """Whether validations are due after batches of an epoch, and not after steps of the training."""
        return not isinstance(self.trainer.val_check_interval, int)

    def _is_validation_due(self, step: int) -> bool:
        every = self._validates_every
        if self.evaluation is None or every is None:
            return False
        return (self.batch if self._counts_batches else step + 1) % every == 0

    def _owes_validation(self) -> bool:
        """Whether one is due after the last step, and was not done."""
        return self.step > 0 and self.validated != self.step - 1 and self._is_validation_due(self.step - 1)

    def _means(self) -> dict[str, Any]:
        return {name: number for tally in self.steps.tallies for name, number in tally.result().items()}

    def _validate(self, step: int) -> bool:
        """Validates; False where Ctrl-C came meanwhile, and nothing is made of the part that was done."""
        trainer, evaluation = self.trainer, self.evaluation
        assert evaluation is not None
        trainer.state, trainer.num_evaluation_batches = "validating", evaluation.count
        evaluate = trainer.measured("validation", evaluation.evaluate)
        logs = evaluate(self.stage, self.hooks, lambda: trainer.interrupt.came, trainer.count_evaluated)
        trainer.state = "training"
        if trainer.interrupt.came:
            return False
        self.validated, self.validation_logs = step, logs
        self._wait_for(lambda: self._after_validation(step, logs))
        return True

    def _after_validation(self, step: int, logs: dict[str, Any]) -> None:
        self.steps.log({**logs, "epoch": self.shown_epoch}, step)
        self.hooks("on_validation_end", step, logs)

    def _end_epoch(self, is_whole: bool) -> None:
        """After the last step of an epoch, or of the training in the midst of one."""
        step, epoch = self.step - 1, self.shown_epoch
        if self.evaluation is not None and self._validates_every is None and self.validated != step and not self._validate(step):
            return
        if self._owes_validation():  # Ctrl-C has cut it off: the epoch ends after it, when the training goes on
            return
        means = self._means()
        logs = {**means, **self.validation_logs}
        if is_whole:
            self.epoch, self.batch = epoch + 1, 0

        def end() -> None:
            self.steps.log({**{f"{name}_epoch": number for name, number in means.items()}, "epoch": epoch}, step)
            self._add_row(step, logs)  # a checkpoint that on_epoch_end saves has it, and counts anew
            if is_whole:
                for tally in self.steps.tallies:
                    tally.reset()
            self.hooks("on_epoch_end", epoch, logs)
            self._add_row(step, logs)  # with what hooks have added
            self.steps.logs = {**self.steps.logs, **logs}
            self.hooks("on_checkpoint", step, self.latest)

        self._wait_for(end)

    def _add_row(self, step: int, logs: Mapping[str, Any]) -> None:
        rows, stale = self.history.rows, () if self.validated == step else self.validation_logs
        row = {"epoch": self.shown_epoch, "step": step, **{name: value for name, value in logs.items() if name not in stale}}
        if rows and rows[-1]["step"] == step:
            rows.pop()
        rows.append(row)

    # --- the position

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint keeps beside variables and random state; JSON-able."""
        trainer = self.trainer
        for logger in trainer.loggers:
            if trainer.state == "idle":
                logger.save()
            else:
                guarded(logger.save)
        state = {
            "epoch": self.epoch, "batch": self.batch, "step": self.step, "validated": self.validated, "seed": trainer.seed,
            "validation": self.validation_logs, "rows": self.history.rows,
            "rates": [_rates(job) for job in self.jobs], "tallies": [tally.state_dict() for tally in self.steps.tallies],
        }  # fmt: skip
        made = encoded(state, "the trainer")
        made["data"] = encoded(self.source.state(), "the training data")
        made["callbacks"] = {key: encoded(dict(c.state_dict()), f"callback {key}") for key, c in trainer.named_callbacks()}
        made["loggers"] = {key: encoded(dict(g.state_dict()), f"logger {key}") for key, g in trainer.named_loggers()}
        return dict(made)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict()`` was taken."""
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]
        self.validated = state["validated"]
        self.validation_logs = dict(state["validation"])
        self.steps.history = History(state["rows"])
        for tally, saved in zip(self.steps.tallies, state["tallies"], strict=False):
            tally.load_state_dict(saved)
        for job, saved in zip(self.jobs, state.get("rates", ()), strict=False):
            declared, now = saved
            if declared == _rates(job)[0]:  # else the program has been given another rate since
                job.learning_rate = now
        if state["data"] is not None:
            self.source.restore(state["data"], self.batch)
        callbacks = dict(self.trainer.named_callbacks())
        for key, callback in callbacks.items():
            if state["callbacks"].get(key):
                callback.load_state_dict(state["callbacks"][key])
        lost = [key for key, saved in state["callbacks"].items() if saved and key not in callbacks]
        if lost:
            warn(CheckpointWarning, f"the checkpoint has the state of callbacks that this trainer lacks: {', '.join(lost)}")


def _rates(job: JobFunction[..., Any]) -> tuple[list[float | None], list[float | None]]:
    """The constant learning rates of a job as declared, and as they are now; None for others."""
    declared = [optimizer.constant_rate for optimizer in job.graph.objective.optimizers]
    return declared, list(job.constant_learning_rates)
