"""Checkpoints of one run below one directory: the last few of them, the best of them, and what the user noted with each."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from .._base import check
from .._base.files import absolute
from .._base.frames import shows_user_frames
from .._base.refuse import shown
from ..errors import ArgumentError, CheckpointError, CheckpointNotFoundError
from . import atomic, hidden, inspection
from .api import save_with
from .description import Description
from .layout import DONE, EXTRA, as_path, complain
from .program import CheckPoint
from .saving import PendingSave, check_metadata, finish_earlier, own_team
from .team import on_leader

_MANAGER = "manager"  # the key of the JSON file
_STEP_DIGITS = 10
_LARGEST_STEP = (1 << 63) - 1
_TIME = re.compile(r"(\d{8}_\d{6})(?:_(\d{6}))?")  # as names of OneFlow's managers have it, in local time


class _Noted(NamedTuple):
    """The JSON file of a checkpoint."""

    step: int | None
    time: float | None  # seconds since the epoch
    metrics: Mapping[str, Any]
    metadata: dict[str, Any]


class CheckpointManager:
    """Saves checkpoints below one directory, keeps the last ones and the best one, and finds them again.

    Args:
      directory: made, with its parents, where it does not exist.
      max_to_keep: how many of the newest are kept; None keeps all. The newest and the best are never deleted.
      monitor: the metric that says which one is the best, a key of the ``metrics`` that are saved with each.
      mode: "min" where the lowest is the best, "max" where the highest is.
      prefix: what the names of checkpoints begin with. Other things in the directory are left alone.
      asynchronous: saves in the background, as ``flow.checkpoint.save(asynchronous=True)`` does.
    Raises:
      ArgumentError: a wrong argument.
      CheckpointExistsError: ``directory`` is a file.
      CheckpointError: the directory cannot be made or, in most methods, read.
    Example:
      >>> manager = flow.checkpoint.CheckpointManager("./run", max_to_keep=3, monitor="loss")
      >>> manager.restore_or_init()
      >>> manager.save(step=100, metrics={"loss": 0.5}, metadata={"epoch": 2})
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = None,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        prefix: str = "snapshot_",
        asynchronous: bool = False,
    ):
        self._shown = as_path(directory)
        self._directory = absolute(self._shown)
        if max_to_keep is not None and (problem := check.integer(max_to_keep, low=1)[1]):
            complain(ArgumentError, f"max_to_keep must be None, or {problem.removeprefix('must be ')}")
        if monitor is not None and not isinstance(monitor, str):
            complain(ArgumentError, f"monitor must be None or the name of a metric, got {shown(monitor)}")
        if not isinstance(mode, str) or mode not in ("min", "max"):
            complain(ArgumentError, f'mode must be "min" or "max", got {shown(mode)}')
        if not isinstance(prefix, str) or (prefix and not _is_name(prefix + "0")):
            complain(ArgumentError, f'prefix must be the beginning of a name, a str without "/", got {shown(prefix)}')
        self._max_to_keep, self._monitor, self._mode, self._prefix = max_to_keep, monitor, mode, prefix
        self._asynchronous = check.checked(self, "asynchronous", check.flag(asynchronous))
        self._known: dict[str, tuple[tuple[int, int, int], _Noted]] = {}
        self._pending: PendingSave | None = None
        on_leader(own_team(), "making a directory for checkpoints", self._make)

    def _make(self) -> None:
        atomic.make_root(self._shown)
        hidden.clean(self._directory)

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        return self._directory

    def path(self, name: str) -> str:
        """The path of a checkpoint."""
        if not isinstance(name, str) or not _is_name(name):
            complain(ArgumentError, f"name must be one that all() returns, got {shown(name)}")
        return os.path.join(self._directory, name)

    # --- which there are

    def all(self) -> list[str]:
        """Names, not paths, of the finished checkpoints, the oldest first.

        Where each was saved with a step they are in the order of their steps, otherwise in that of the times when they were
        saved. Step and time are those that the checkpoint holds; for one without, those in its name.
        """
        names = [name for name in self._listed() if os.path.isfile(os.path.join(self._directory, name, DONE))]
        noted = {name: self._noted_or_named(name) for name in names}
        if all(found.step is not None for found in noted.values()):
            return sorted(names, key=lambda name: (noted[name].step, _natural(name)))
        return sorted(names, key=lambda name: (noted[name].time or 0.0, _natural(name)))

    def _listed(self) -> list[str]:
        try:
            found = os.listdir(self._directory)
        except OSError as error:
            kind = CheckpointNotFoundError if isinstance(error, FileNotFoundError) else CheckpointError
            rule = f"the directory of a CheckpointManager, {self._shown!r}, cannot be read: {error.strerror}"
            complain(kind, rule, full_path=os.path.abspath(self._directory))
        return [name for name in found if name.startswith(self._prefix) and not hidden.is_hidden(name)]

    def latest(self) -> str | None:
        """The name of the newest, the last one of ``all()``; None where there is none."""
        return next(reversed(self.all()), None)

    def best(self) -> str | None:
        """The name of the one with the best value of the monitored metric, of equals the newest; None where none has one.

        Raises ArgumentError where the manager monitors nothing.
        """
        if self._monitor is None:
            complain(ArgumentError, "no checkpoint is the best: the manager monitors no metric", 'pass monitor="loss", say')
        return self._best(self.all())

    def _best(self, names: list[str]) -> str | None:
        sign = 1 if self._mode == "max" else -1
        found = [(sign * value, number, name) for number, name in enumerate(names) if (value := self._value(name)) is not None]
        return max(found)[2] if found else None

    def _value(self, name: str) -> float | None:
        try:
            value = self._noted(name).metrics.get(self._monitor or "")
        except CheckpointError:  # damaged; loading it says so
            return None
        number = check.real(value)
        return None if number is None or math.isnan(number) else number

    def step(self, name: str | None = None) -> int | None:
        """The step that a checkpoint, by default the newest, was saved with; None where it is named by the time."""
        return self._noted(self._find(name)).step

    def metadata(self, name: str | None = None) -> dict[str, Any]:
        """The metadata that was saved with a checkpoint, by default the newest; empty where none was."""
        return dict(self._noted(self._find(name)).metadata)

    def metrics(self, name: str | None = None) -> dict[str, Any]:
        """The metrics that were saved with a checkpoint, by default the newest; None stands for values that are not finite."""
        return dict(self._noted(self._find(name)).metrics)

    def _find(self, name: str | None) -> str:
        found = self.latest() if name is None else name
        if found is None:
            complain(CheckpointNotFoundError, f"there is no checkpoint in {self._shown!r} yet", "save one first")
        path = self.path(found)
        hidden.restore(path)
        if not inspection.is_checkpoint(path):
            self._listed()  # the directory itself may be gone
            complain(CheckpointNotFoundError, f"there is no checkpoint {found!r} in {self._shown!r}", "all() lists them")
        return found

    def _noted(self, name: str) -> _Noted:
        """Read once for each checkpoint: positions of readers can make the file long."""
        path = os.path.join(self._directory, name)
        try:
            status = os.stat(os.path.join(path, EXTRA))
        except OSError:
            return _Noted(None, None, {}, {})
        identity = status.st_ino, status.st_mtime_ns, status.st_size
        known = self._known.get(name)
        if known is None or known[0] != identity:
            extra = Description.read(path).extra
            own, metadata = extra.get(_MANAGER), extra.get("metadata")
            own = own if isinstance(own, dict) else {}
            metrics = own.get("metrics")
            noted = _Noted(
                check.whole(own.get("step")),
                check.real(own.get("time")),
                metrics if isinstance(metrics, dict) else {},
                metadata if isinstance(metadata, dict) else {},
            )
            known = self._known[name] = identity, noted
        return known[1]

    def _noted_or_named(self, name: str) -> _Noted:
        """What is noted with a checkpoint; where nothing is, or it is damaged, step or time from its name."""
        try:
            noted = self._noted(name)
        except CheckpointError:  # loading it says so
            noted = _Noted(None, None, {}, {})
        if noted.time is not None:
            return noted
        time_in_name = _time_of(name)
        if time_in_name is not None:
            return noted._replace(time=time_in_name)
        number = re.search(r"[0-9]+", name.removeprefix(self._prefix))
        try:
            written = os.stat(os.path.join(self._directory, name, DONE)).st_mtime
        except OSError:  # deleted meanwhile
            written = None
        step = int(number[0]) if number and noted.step is None else noted.step
        return noted._replace(step=step, time=written)

    # --- saving

    @shows_user_frames
    def save(
        self,
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> str:
        """Saves all variables, and deletes what is beyond ``max_to_keep``.

        Args:
          step: the number that names it, in [0, 2^63); None names it by the time (UTC).
          metrics: numbers (or arrays of one element) by name; the monitored one decides which checkpoint is the best.
          metadata: a dict of the user's that JSON can hold.
          overwrite: replaces a checkpoint of this step, in one step.
        Returns: its name. In the background the checkpoint is there after ``wait()``.
        Raises:
          CheckpointExistsError: there is one of this step, and ``overwrite`` is False.
          CheckpointError: the disk refused.
        """
        if step is not None and (problem := check.integer(step, low=0, high=_LARGEST_STEP)[1]):
            complain(ArgumentError, f"step must be None, or {problem.removeprefix('must be ')}")
        check.checked("CheckpointManager.save", "overwrite", check.flag(overwrite))
        now = time.time()
        noted = {"step": None if step is None else int(step), "metrics": _numbers(metrics), "time": now}
        extra: dict[str, Any] = {_MANAGER: noted}
        if metadata is not None:
            extra["metadata"] = check_metadata(metadata)
        own = f"{datetime.fromtimestamp(now, UTC):%Y%m%d_%H%M%S_%f}" if step is None else f"{int(step):0{_STEP_DIGITS}d}"
        name = f"{self._prefix}{on_leader(own_team(), 'the name of a save', lambda: own)}"
        path, asynchronous = self.path(name), self._asynchronous
        then = partial(self._delete_old, name)
        pending = save_with(path, None, extra, overwrite=overwrite, asynchronous=asynchronous, then=then)
        self._pending = pending or self._pending
        return name

    def wait(self) -> None:
        """Waits for a save in the background. Raises its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def _delete_old(self, saved: str) -> None:
        """In the first process, after a save, on the thread that saved. What was saved stays, whatever its number."""
        if self._max_to_keep is not None:
            names = self.all()
            kept = {saved, *names[-self._max_to_keep :], self._best(names) if self._monitor is not None else None}
            for name in names:
                if name not in kept:
                    self._known.pop(name, None)
                    hidden.delete(self.path(name))

    # --- restoring

    @shows_user_frames
    def restore(self, name: str | None = None, strict: bool = False) -> str:
        """Loads a checkpoint, by default the newest, as ``CheckPoint().load`` does. Returns its name.

        Raises:
          CheckpointNotFoundError: there is none.
          CheckpointError: it is damaged, or does not fit the program.
        """
        finish_earlier(own_team())
        found = on_leader(own_team(), "which checkpoint to restore", lambda: self._find(name))
        CheckPoint().load(self.path(found), strict)
        return found

    @shows_user_frames
    def restore_or_init(self) -> str | None:
        """Loads the newest checkpoint and returns its name; where there is none, starts the session and returns None."""
        finish_earlier(own_team())
        latest = on_leader(own_team(), "the newest checkpoint", self.latest)
        if latest is None:
            CheckPoint().init()
            return None
        return self.restore(latest)

    def __repr__(self) -> str:
        try:
            state = f"{len(self.all())} checkpoints"
        except CheckpointError:
            state = "which cannot be read"
        return f"<CheckpointManager of {self._shown!r}: {state}>"


class SimpleCheckPointManager:
    """Checkpoints below one directory, named by the time they were saved.

    Args:
      root_path: made, with its parents, where it does not exist.
      prefix: what their names begin with.
    Raises:
      CheckpointExistsError: ``root_path`` is a file.
    Example:
      >>> manager = flow.train.SimpleCheckPointManager("./snapshots")
      >>> manager.initialize_or_restore()
      >>> manager.save()
    """

    def __init__(self, root_path: str | os.PathLike[str], prefix: str = "snapshot_"):
        self._manager = CheckpointManager(root_path, prefix=prefix)

    def list_checkpoints(self) -> list[str]:
        """Names, not paths, of the finished checkpoints, the oldest first."""
        return self._manager.all()

    def latest_checkpoint(self) -> str | None:
        """The name of the newest one; None where there is none."""
        return self._manager.latest()

    @shows_user_frames
    def save(self) -> None:
        """Saves all variables under the current time as the name."""
        self._manager.save()

    @shows_user_frames
    def initialize_or_restore(self) -> None:
        """Loads the newest checkpoint; where there is none, saves the first."""
        if self._manager.restore_or_init() is None:
            self._manager.save()


def _is_name(name: str) -> bool:
    """Whether a name can be that of a checkpoint below the directory, or the beginning of one."""
    if os.path.basename(name) != name or name in ("", ".", "..") or hidden.is_hidden(name):
        return False
    return not check.path(name)[1]


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Names in the order of the numbers in them, so that step 9 comes before step 10 however they are written."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts], name


def _time_of(name: str) -> float | None:
    """The time in a name, in seconds since the epoch."""
    match = _TIME.search(name)
    if match is None:
        return None
    try:
        return datetime.strptime(f"{match[1]}_{match[2] or '0'}", "%Y%m%d_%H%M%S_%f").timestamp()
    except (ValueError, OverflowError, OSError):  # digits that are not a time
        return None


def _numbers(metrics: Any) -> dict[str, float | int | None]:
    """Metrics as JSON holds them. Raises ArgumentError."""
    try:
        given = {} if metrics is None else dict(metrics.items()) if isinstance(metrics, Mapping) else None
    except Exception:  # of the user's object
        given = None
    if given is None or not all(isinstance(name, str) for name in given):
        complain(ArgumentError, f"metrics must be None, or a dict of name -> number, got {shown(metrics)}", '{"loss": 0.5}')
    return {name: _number(name, value) for name, value in given.items()}


def _number(name: str, value: Any) -> float | int | None:
    try:
        single = value.item() if hasattr(value, "item") else value  # of an array of one element, as jobs return losses
        if isinstance(single, (str, bytes, bytearray)):
            raise TypeError
        finite = math.isfinite(single)  # raises for what a float cannot hold
        number = int(single) if isinstance(single, int) and not isinstance(single, bool) else float(single)
    except Exception:  # of the user's objects, too
        rule = f"metric {shown(name)} must be a number that a float can hold, or an array of one element, got {shown(value)}"
        complain(ArgumentError, rule)
    return number if finite else None
