"""Checkpoints of a training: those of ``flow.checkpoint``, with the trainer's state in their JSON file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..checkpoint import hidden
from ..checkpoint.api import get_all_variables, save_with
from ..checkpoint.format import Checkpoint
from ..checkpoint.layout import DONE, as_path, complain
from ..checkpoint.program import CheckPoint
from ..checkpoint.saving import finish_earlier, listed, own_team
from ..errors import CheckpointError
from ..runtime.process import process

_STATE, _VERSION = "trainer", 1  # the key in the JSON file, and the version of what is there


def save(
    path: str | os.PathLike[str], state: dict[str, Any] | None, *, overwrite: bool, asynchronous: bool, remove: Sequence[str] = ()
) -> None:
    """Saves the variables of this moment and the trainer's state, as ``flow.checkpoint.save`` does.

    Args:
      state: JSON-able; None where no training has begun.
      remove: checkpoints to delete when this one is in place.
    """
    extra = {} if state is None else {_STATE: {"version": _VERSION, **state}}

    def drop() -> None:
        for old in remove:
            hidden.delete(old)

    save_with(as_path(path), None, extra, overwrite=overwrite, asynchronous=asynchronous, then=drop)


def finish() -> None:
    """Waits for a save in the background. Raises its error, in all processes."""
    finish_earlier(own_team())


def found(path: str) -> str | None:
    """The path, where a finished checkpoint is there; else None."""
    process.saves.wait()
    return path if hidden.restore(path) and os.path.isfile(os.path.join(path, DONE)) else None


def has_files(path: str) -> bool:
    """Whether a directory is there that is not empty."""
    return os.path.isdir(path) and bool(os.listdir(path))


def load(path: str) -> dict[str, Any] | None:
    """Restores all variables, and returns the trainer's state as it was saved; None where there is none."""
    finish()
    stored = Checkpoint(path)
    state = stored.extra().get(_STATE)
    if state is not None and (not isinstance(state, dict) or state.get("version") != _VERSION):
        raise CheckpointError(f"checkpoint {path!r}: the state of its training is of another version")
    if state is not None:  # without a state variables may have been removed on purpose
        gone = [name for name in get_all_variables() if name not in stored and stored.was_saved_with(name)]
        if gone:
            rule = f"checkpoint {path!r} was saved with variables whose directories are gone: {listed(gone)}"
            complain(CheckpointError, rule, "load another checkpoint; or flow.load_variables(path), and fit without ckpt_path")
    CheckPoint().load(path)
    return state
