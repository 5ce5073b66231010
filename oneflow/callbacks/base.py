"""The hooks that a callback may define, and callbacks made of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from .._base.refuse import closest, refuse, shown
from .._base.terse_repr import terse_repr
from ..errors import ArgumentError

Logs = dict[str, float]


class Callback:
    """Base of callbacks, whose hooks a trainer calls during a run; define those that you need.

    All hooks run on one thread, the delivery thread, in the order of steps, with numbers that have been fetched. Training
    goes on meanwhile, up to 32 steps ahead, except in hooks at the end of an epoch or a validation and after steps for which
    ``waits_after`` is true: there the variables are as the last step left them. An error stops the run and is raised by
    ``fit`` with the name of the callback.

    ``step`` counts steps and ``epoch`` epochs from 0 over the whole training, also after a resume. ``logs`` maps names to
    numbers; what a hook adds to it reaches the callbacks and loggers behind it.

    Attributes:
      trainer: the ``flow.Trainer`` whose run it is; ``trainer.should_stop = True`` ends it.

    Example:
      >>> class Shout(flow.callbacks.Callback):
      ...     def on_epoch_end(self, epoch, logs):
      ...         print(f"epoch {epoch}: the loss is {logs['loss']:.3f}!")
    """

    trainer: Any = None

    def __repr__(self) -> str:
        return terse_repr(self)

    def on_train_begin(self, logs: Logs) -> None:
        """Before the first step of ``fit``."""

    def on_train_end(self, logs: Logs) -> None:
        """After the last step of ``fit``, also where it was stopped; not after an error."""

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Before the first step of an epoch."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """After an epoch and its validation; ``logs`` are means over the epoch, and the last values of the validation."""

    def on_train_batch_end(self, step: int, logs: Logs) -> None:
        """After each step; ``logs`` are the means of its batch."""

    def on_train_batch_outputs(self, step: int, outputs: Any) -> None:
        """After each step, before ``on_train_batch_end``; ``outputs`` is what the job returned, of several jobs a list."""

    def on_log(self, step: int, logs: Logs) -> None:
        """After every ``log_every_n_steps``-th step, before ``logs`` go to the loggers."""

    def on_test_begin(self, logs: Logs) -> None:
        """Before a validation or a test."""

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """After a batch of a validation or a test; ``batch`` counts from 0 in each."""

    def on_test_batch_outputs(self, batch: int, outputs: Any) -> None:
        """After a batch of a validation or a test; ``outputs`` is what the job returned."""

    def on_test_end(self, logs: Logs) -> None:
        """After a validation or a test; ``logs`` are means over all of its rows."""

    def on_validation_end(self, step: int, logs: Logs) -> None:
        """After a validation that belongs to a training; ``step`` is the last one before it."""

    def on_checkpoint(self, step: int, logs: Logs) -> None:
        """Where a saved run could go on: after a validation, an epoch, or a step that ``waits_after`` named.

        Everything that was due there has been done. ``logs`` are the latest numbers of all kinds.
        """

    def on_predict_begin(self, logs: Logs) -> None:
        """Before ``predict``."""

    def on_predict_batch_end(self, batch: int, logs: Logs) -> None:
        """After a batch of ``predict``."""

    def on_predict_end(self, logs: Logs) -> None:
        """After ``predict``."""

    def on_interrupt(self, step: int, logs: Logs) -> None:
        """After the last step of a training that Ctrl-C ended."""

    def on_exception(self, error: BaseException) -> None:
        """A run was ended by an error."""

    def waits_after(self, step: int) -> bool:
        """Whether training waits after this step until its hooks have run. Called on the thread that called ``fit``."""
        return False

    def state_dict(self) -> Mapping[str, Any]:
        """The state that a checkpoint keeps: numbers, strings, arrays, and lists and dictionaries of these."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict()`` was taken."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


# hooks of Keras and Lightning that have another name here, or none, because steps are submitted ahead of their results
_ELSEWHERE = {
    "on_batch_begin": "", "on_train_batch_begin": "", "on_test_batch_begin": "", "on_predict_batch_begin": "",
    "on_validation_batch_begin": "", "on_batch_end": "on_train_batch_end", "on_train_epoch_begin": "on_epoch_begin",
    "on_train_epoch_end": "on_epoch_end", "on_validation_begin": "on_test_begin", "on_validation_epoch_end": "on_validation_end",
    "on_validation_batch_end": "on_test_batch_end", "on_test_epoch_end": "on_test_end",
    "on_save_checkpoint": "state_dict", "on_load_checkpoint": "load_state_dict",
}  # fmt: skip
_WORDS = {"start": "begin", "finish": "end", "stop": "end", "fit": "train", "training": "train", "val": "validation"}


def check_hooks(callback: Any) -> None:
    """Raises ArgumentError for what is not a callback, or has a method that was meant as a hook and would never be called."""
    if not isinstance(callback, Callback):
        refuse(ArgumentError, f"callbacks must be flow.callbacks.Callback objects, got {shown(callback)}")
    for name in dir(callback):
        if not name.startswith("on_") or name in HOOKS or not callable(getattr(callback, name)):
            continue
        ours = "_".join(_WORDS.get(word, word) for word in name.split("_"))
        near = get_close_matches(ours, HOOKS, n=1, cutoff=0.9)
        if ours in _ELSEWHERE or near:
            meant = _ELSEWHERE.get(ours, "".join(near))
            hint = f"call it {meant}" if meant else "steps are submitted ahead of their results: use on_train_batch_end"
            refuse(ArgumentError, f"{type(callback).__name__}.{name} is not a hook, and nothing would call it", hint=hint)


class LambdaCallback(Callback):
    """A callback made of functions.

    Args:
      hooks: functions by the names of hooks, with their arguments.
    Raises:
      ArgumentError: there is no such hook, or something is not a function.
    Example: >>> flow.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))
    """

    def __init__(self, **hooks: Callable[..., Any]):
        for name, function in hooks.items():
            if name not in HOOKS:
                near = closest(name, HOOKS, count=3)
                refuse(ArgumentError, f"there is no hook {name!r}", hint=f"did you mean {' or '.join(near)}?" if near else "")
            if not callable(function):
                refuse(ArgumentError, f"{name} must be a function, got {shown(function)}")
            setattr(self, name, function)
