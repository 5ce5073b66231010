"""Saving while training goes on: the best, the last, and every n-th step."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from .._base import check
from .._base.files import absolute
from .._base.refuse import refuse, shown
from ..errors import ArgumentError
from .base import Logs
from .monitor import Monitor

LAST = "last"
_FIELD = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")  # of a filename: a name and its format
_OF_NUMBERS = re.compile(r"[0-9a-fA-FinINoxX+\-.,_% ]*")  # what formatted numbers consist of


class ModelCheckpoint(Monitor):
    """Saves checkpoints from which ``fit(..., ckpt_path=...)`` goes on bit for bit, and keeps the best of them.

    A checkpoint holds all variables, optimizer state, random state, the place in the data, and the state of callbacks,
    metrics and loggers. It is one of ``flow.checkpoint``, too: programs without a trainer load it. Where one of that name
    exists, it is replaced.

    Args:
      dirpath: a directory, made where it does not exist; None: ``checkpoints`` in the trainer's ``default_root_dir``.
      filename: the names of checkpoints; ``{epoch}``, ``{step}`` (the number of steps done) and names of numbers in ``logs``
        are filled in, with formats as in ``"{epoch:02d}-{val_loss:.3f}"``. None: ``"{epoch}-{step}"``.
      monitor: the name of the number by which checkpoints are compared; None: the newest are best.
      save_top_k: how many to keep; -1 keeps all, 0 saves none but ``last``.
      save_last: keeps, besides, the newest as ``last``, which ``ckpt_path="last"`` finds.
      mode: ``"min"`` or ``"max"``; ``"auto"`` decides by the name of ``monitor``.
      every_n_steps: saves after every so many steps; None: after each validation that makes ``monitor``, else after each
        epoch.
      every_n_epochs: saves after every so many epochs only; None: after each.
      asynchronous: writes the files in the background while training goes on.
    Raises:
      ArgumentError: an argument outside its range.
    Example: >>> flow.callbacks.ModelCheckpoint("./runs", monitor="val_loss", save_top_k=3, save_last=True)
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        save_top_k: int = 1,
        save_last: bool = False,
        mode: str = "auto",
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        asynchronous: bool = False,
    ):
        super().__init__(monitor, mode)
        if every_n_steps is not None and every_n_epochs is not None:
            refuse(ArgumentError, "ModelCheckpoint: give every_n_steps or every_n_epochs, not both")
        if filename is not None:
            _check_filename(filename)
        self.dirpath = None if dirpath is None else check.checked(self, "dirpath", check.path(dirpath))
        self._directory = None if self.dirpath is None else absolute(self.dirpath)
        self.filename = filename or "{epoch}-{step}"
        self.save_top_k = check.checked(self, "save_top_k", check.integer(save_top_k, low=-1))
        self.save_last = check.checked(self, "save_last", check.flag(save_last))
        self.every_n_steps = self._interval("every_n_steps", every_n_steps)
        self.every_n_epochs = self._interval("every_n_epochs", every_n_epochs)
        self.asynchronous = check.checked(self, "asynchronous", check.flag(asynchronous))

    def begin_anew(self) -> None:
        """Forgets an earlier training; the checkpoints that it kept stay."""
        super().begin_anew()
        self.best_model_path = self.last_model_path = ""
        self.best_model_score: float | None = None
        self.best_k_models: dict[str, float | None] = {}
        self._score: float | None = None
        self._is_due = False
        self._saved_at = -1  # the last step that was saved
        self._saved_batch = -1  # and how many batches of its epoch had been taken then

    def _interval(self, argument: str, value: Any) -> int | None:
        return None if value is None else int(check.checked(self, argument, check.integer(value, low=1)))

    @property
    def directory(self) -> str:
        """Where it saves."""
        return self._directory or os.path.join(self.trainer.root_dir, "checkpoints")

    @property
    def last_path(self) -> str:
        """Where the newest checkpoint is kept."""
        return os.path.join(self.directory, LAST)

    # --- when

    def waits_after(self, step: int) -> bool:
        """Whether this step is saved."""
        return self.every_n_steps is not None and (step + 1) % self.every_n_steps == 0

    def take_value(self, value: float, step: int) -> None:
        """Notes the value by which the next checkpoint is compared."""
        self._score = value
        self._is_due = self._is_due or (self.every_n_steps is None and self.every_n_epochs is None)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Notes that an epoch has ended."""
        super().on_epoch_end(epoch, logs)
        if self.every_n_steps is not None:
            return
        if self.every_n_epochs is not None:
            self._is_due = (epoch + 1) % self.every_n_epochs == 0
        elif self.monitor is None:
            self._is_due = True

    def on_checkpoint(self, step: int, logs: Logs) -> None:
        """Saves, where that is due."""
        if not self._is_due and not self.waits_after(step):
            return
        self._is_due = False
        before = self._saved_at, self._saved_batch, self._score
        if self.every_n_steps is not None and self.monitor in logs:
            self._score = logs[self.monitor]
        self._saved_at, self._saved_batch = step, self.trainer.batch_in_epoch
        # A step is saved again where it turned out to be an epoch's last: else that end would come again in a resumed run.
        if before != (step, self._saved_batch, self._score):
            self._save(logs)

    def on_interrupt(self, step: int, logs: Logs) -> None:
        """Saves ``last`` after Ctrl-C, where it is kept."""
        if self.save_last:
            self._save_last()

    # --- what

    def _save(self, logs: Logs) -> None:
        path, dropped = self._place(logs)
        if path is not None:
            self.trainer.save_checkpoint(path, overwrite=True, asynchronous=self.asynchronous, remove=dropped)
        if self.save_last:
            self._save_last()

    def _save_last(self) -> None:
        self.last_model_path = self.last_path
        self.trainer.save_checkpoint(self.last_path, overwrite=True, asynchronous=self.asynchronous)

    def _place(self, logs: Logs) -> tuple[str | None, list[str]]:
        """The path of the checkpoint to save, None where it is not good enough, and those that give way to it."""
        if self.save_top_k == 0 or (self.monitor is not None and self._score is None):
            return None, []
        path = os.path.join(self.directory, self._name(logs))
        if self.monitor is not None and path in self.best_k_models and self._beats(self.best_k_models[path], self._score):
            return None, []  # a better one has this name
        kept = {k: v for k, v in self.best_k_models.items() if k != path}
        dropped = []
        if 0 < self.save_top_k <= len(kept):
            worst = self._worst(kept)
            if self.monitor is not None and not self._beats(self._score, kept[worst]):
                return None, []
            dropped.append(worst)
            del kept[worst]
        kept[path] = self._score
        self.best_k_models = kept
        self.last_model_path = path
        self.best_model_path = self._best(kept)
        self.best_model_score = kept[self.best_model_path]
        return path, dropped

    def _beats(self, score: float | None, other: float | None) -> bool:
        """Whether a checkpoint of that score takes the place of another. NaN is worse than any number."""
        if score is None or score != score:
            return False
        return other is None or other != other or self.is_better(score, other)

    def _worst(self, kept: dict[str, float | None]) -> str:
        if self.monitor is None:
            return next(iter(kept))  # the oldest
        worst = next(iter(kept))
        for path, score in kept.items():
            if self._beats(kept[worst], score):
                worst = path
        return worst

    def _best(self, kept: dict[str, float | None]) -> str:
        paths = list(kept)
        if self.monitor is None:
            return paths[-1]
        best = paths[0]
        for path in paths:
            if self._beats(kept[path], kept[best]):
                best = path
        return best

    def _name(self, logs: Logs) -> str:
        numbers: dict[str, Any] = {**logs, "epoch": self.trainer.current_epoch, "step": self.trainer.global_step}
        missing = [found[1] for found in _FIELD.finditer(self.filename) if found[1] not in numbers]
        if missing:
            rule = f"ModelCheckpoint: filename {self.filename!r} asks for {missing[0]!r}, which nothing has logged"
            refuse(ArgumentError, rule, found=[("logged", ", ".join(numbers))])

        def filled(found: re.Match[str]) -> str:
            return f"{found[1].replace('/', '_')}={format(numbers[found[1]], found[2] or '')}"

        return _FIELD.sub(filled, self.filename)

    # --- its own state

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints that it keeps."""
        return {
            **super().state_dict(), "best_k_models": {self._as_given(path): s for path, s in self.best_k_models.items()},
            "best_model_path": self._as_given(self.best_model_path), "best_model_score": self.best_model_score,
            "last_model_path": self._as_given(self.last_model_path), "score": self._score,
            "saved_at": self._saved_at, "saved_batch": self._saved_batch,
        }  # fmt: skip

    @property
    def _given(self) -> str:
        return os.path.join(self.trainer.default_root_dir, "checkpoints") if self.dirpath is None else self.dirpath

    def _as_given(self, path: str) -> str:
        """A path below a directory that was given relative to the working directory is saved so: the run may be moved."""
        directory, name = os.path.split(path)
        return os.path.join(self._given, name) if path and directory == self.directory else path

    def _found_again(self, path: str) -> str:
        directory, name = os.path.split(path)
        is_below = directory == self._given.rstrip(os.sep)
        return os.path.join(self.directory, name) if is_below else absolute(path) if path else path

    def load_state_dict(self, state: Any) -> None:
        """Goes on with the checkpoints that it had kept."""
        super().load_state_dict(state)
        kept = {self._found_again(path): score for path, score in state["best_k_models"].items()}
        self.best_k_models = {path: score for path, score in kept.items() if os.path.isdir(path)}
        self.best_model_path, self.best_model_score = self._found_again(state["best_model_path"]), state["best_model_score"]
        self.last_model_path, self._score = self._found_again(state["last_model_path"]), state["score"]
        self._saved_at = int(state.get("saved_at", -1))
        self._saved_batch = int(state.get("saved_batch", self._saved_batch))


def refuse_clashes(savers: Sequence[ModelCheckpoint]) -> None:
    """Refuses those that save under the same names in one directory: they would replace and delete each other's checkpoints."""
    for first, second in combinations(dict.fromkeys(savers), 2):
        if os.path.realpath(first.directory) == os.path.realpath(second.directory) and _clash(first, second):
            found = [("first", _described(first)), ("second", _described(second)), ("directory", first.directory)]
            refuse(ArgumentError, "two ModelCheckpoints save under the same names in one directory", found=found,
                   hint='give each its own dirpath, or its own filename, as in filename="best-{epoch}"')  # fmt: skip


def _clash(first: ModelCheckpoint, second: ModelCheckpoint) -> bool:
    for one, other in ((first, second), (second, first)):
        if one.save_top_k and other.save_last and _may_be_equal(one.filename, LAST):
            return True
    if not first.save_top_k or not second.save_top_k or not _may_be_equal(first.filename, second.filename):
        return False
    # where neither deletes and names have the step, a name that both use stands for the same checkpoint
    keep_all = first.save_top_k == second.save_top_k == -1
    return not (keep_all and all(any(found[1] == "step" for found in _FIELD.finditer(c.filename)) for c in (first, second)))


def _may_be_equal(first: str, second: str) -> bool:
    """Whether names of two filenames may be equal. Numbers are taken to be any text of the characters of numbers."""
    one, other = (_FIELD.sub(lambda found: f"{found[1].replace('/', '_')}=\0", name).split("=") for name in (first, second))
    return len(one) == len(other) and all(map(_parts_may_be_equal, one, other))


def _parts_may_be_equal(a: str, b: str) -> bool:
    if "\0" not in a + b:
        return a == b
    a, b = a.rpartition("\0")[2], b.rpartition("\0")[2]
    short, long = sorted((a, b), key=len)
    return long.endswith(short) and bool(_OF_NUMBERS.fullmatch(long.removesuffix(short)))


def _described(saver: ModelCheckpoint) -> str:
    return f"ModelCheckpoint(monitor={saver.monitor!r}, filename={saver.filename!r}, save_top_k={saver.save_top_k})"


def _check_filename(filename: Any) -> None:
    """Refuses a filename that is a path, or has a format that its numbers cannot be written in."""
    if not isinstance(filename, str) or filename in ("", os.curdir, os.pardir) or os.path.basename(filename) != filename:
        refuse(ArgumentError, f'ModelCheckpoint: filename must be a str without "/", got {shown(filename)}')
    for found in _FIELD.finditer(filename):
        try:
            format(1 if found[1] in ("epoch", "step") else 1.0, found[2] or "")
        except ValueError as error:
            refuse(ArgumentError, f"ModelCheckpoint: filename {shown(filename)} has a format that is not one of numbers: {error}",
                   hint='as in "{epoch:02d}-{val_loss:.3f}"')  # fmt: skip
