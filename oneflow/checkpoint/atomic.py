"""Writing a checkpoint: at every instant the target is as it was, or whole. Knows no session."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from .._base.dtype import dtype as Dtype
from .._base.dtype import from_numpy
from ..errors import ArgumentError, CheckpointError, CheckpointExistsError
from . import meta
from .format import DONE, EXTRA, META, OUT, as_path, check_name, complain

if sys.platform != "win32":
    import fcntl

_STAGING = ".oneflow-saving-"
_ABANDONED_AFTER = 60.0  # seconds; longer than the moment between making a staging directory and locking it


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], extra: Mapping[str, Any] | None = None) -> None:
    """Saves arrays as a checkpoint. At every instant the path is as before, or the whole checkpoint.

    Everything is written to a hidden directory beside the target and flushed to the disk; one rename makes it the target.

    Args:
      path: does not exist (parents are made), or is an empty directory.
      arrays: values by variable name.
      extra: goes into the JSON file; left out where None.
    Raises:
      CheckpointExistsError: the path is a file or a directory that is not empty.
      CheckpointError: a name or dtype that the layout has no place for, or the disk refused.
    """
    shown = as_path(path)
    target = os.path.realpath(shown)
    kinds = {check_name(name): _element(name, array) for name, array in arrays.items()}
    mode = _vacant(shown, target)
    parent = os.path.dirname(target)
    staging = None
    try:
        _make_parents(parent)
        _remove_abandoned(parent)
        staging = _Staging(target)
        staging.write(arrays, kinds, extra)
        staging.publish(shown, target, mode)
    except BaseException as error:
        if staging is not None:
            staging.remove()
        if isinstance(error, OSError) and not isinstance(error, CheckpointError):
            _refuse_disk(shown, error)
        raise
    finally:
        if staging is not None:
            staging.unlock()
    try:
        _flush_directory(parent)
    except OSError as error:
        raise CheckpointError(f"{shown!r} was saved, but the disk did not confirm it: {error.strerror}") from error


def refuse_occupied(path: str | os.PathLike[str]) -> None:
    """Raises what ``write`` would raise for a target that is taken, before anything is read for it."""
    _vacant(as_path(path), os.path.realpath(as_path(path)))


def make_root(path: str) -> None:
    """Makes a directory for checkpoints, with its parents. Raises CheckpointError where a file is in the way."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        complain(CheckpointExistsError, f"{path!r} is a file, and checkpoints need a directory", full_path=os.path.abspath(path))
    except OSError as error:
        _refuse_disk(path, error)


class _Staging:
    """The hidden directory that becomes the checkpoint. It stays locked while its process lives."""

    def __init__(self, target: str):
        parent, base = os.path.split(target)
        self.path = os.path.join(parent, f"{_STAGING}{base[:40]}-{secrets.token_hex(6)}")
        os.mkdir(self.path)
        self._lock = _lock(self.path)

    def write(self, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, Dtype], extra: Mapping[str, Any] | None) -> None:
        files, directories = [], [self.path]
        for name, array in arrays.items():
            directory = os.path.join(self.path, name)
            os.mkdir(directory)
            directories.append(directory)
            files.append(_write_file(os.path.join(directory, OUT), _bytes(array)))
            files.append(_write_file(os.path.join(directory, META), meta.text_of(array.shape, kinds[name]).encode()))
        if extra is not None:
            text = json.dumps({"format": 1, **extra}, indent=1, allow_nan=False)
            files.append(_write_file(os.path.join(self.path, EXTRA), text.encode()))
        # all are flushed after all are written: the first flush then carries most of the others with it
        for file in files:
            _flush(file)
        for directory in reversed(directories):
            _flush_directory(directory)
        _flush(_write_file(os.path.join(self.path, DONE), b""))
        _flush_directory(self.path)

    def publish(self, shown: str, target: str, mode: int | None) -> None:
        """Makes it the target, in one step; ``mode`` is that of the empty directory it replaces."""
        if mode is not None:
            os.chmod(self.path, mode)
        in_place = mode is not None and os.path.samefile(target, os.curdir)
        try:
            os.rename(self.path, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                _refuse_occupied(shown, target)
            if error.errno in (errno.EBUSY, errno.EXDEV):
                rule = f"cannot save to {shown!r}: it is a mount point, which cannot be replaced in one step"
                complain(CheckpointError, rule, "save to a directory inside it", full_path=target)
            raise
        if in_place:  # otherwise the working directory would be the one that the rename replaced
            os.chdir(target)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)


def is_staging(name: str) -> bool:
    """Whether a directory of this name is a save that did not finish, or has not yet."""
    return name.startswith(_STAGING)


def _element(name: str, array: np.ndarray) -> Dtype:
    if not isinstance(array, np.ndarray):
        complain(CheckpointError, f"variable {name!r} cannot be saved: its value is a {type(array).__name__}, not an array")
    try:
        return from_numpy(array.dtype.newbyteorder("=") if array.dtype.kind in "iuf" else array.dtype)
    except ArgumentError:
        rule = f"variable {name!r} cannot be saved: the layout has no place for NumPy's {array.dtype}"
        known = "float16, bfloat16, float32, float64, int8, int32, int64 or uint8"
        complain(CheckpointError, rule, "convert it with astype", expected=known, found=str(array.dtype))


def _bytes(array: np.ndarray) -> memoryview:
    swapped = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
    flat = np.ascontiguousarray(array).reshape(-1)
    return (flat.byteswap() if swapped else flat).view(np.uint8).data if flat.size else memoryview(b"")


def _vacant(shown: str, target: str) -> int | None:
    """The mode of the empty directory at ``target``, None where nothing is there; refuses everything else."""
    try:
        with os.scandir(target) as entries:
            occupied = any(True for _ in entries)
        mode = stat.S_IMODE(os.stat(target).st_mode)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        occupied, mode = os.path.lexists(target), 0
        if not occupied:
            rule = f"cannot save to {shown!r}: a part of the path is a file"
            complain(CheckpointError, rule, "choose another path", full_path=target)
    except OSError as error:
        _refuse_disk(shown, error)
    if occupied:
        _refuse_occupied(shown, target)
    return mode


def _refuse_occupied(shown: str, target: str) -> NoReturn:
    found = "is not empty" if os.path.isdir(target) else "is a file"
    complain(
        CheckpointExistsError, f"cannot save to {shown!r}: it exists already and {found}; a save never overwrites",
        f"remove {shown!r} first, or choose another path", full_path=target,
    )  # fmt: skip


def _refuse_disk(shown: str, error: OSError) -> NoReturn:
    rule = f"cannot save to {shown!r}: {error.strerror or error}; nothing was changed"
    try:
        complain(CheckpointError, rule, full_path=os.path.abspath(shown))
    except CheckpointError as refusal:
        raise refusal from error


def _make_parents(directory: str) -> None:
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        os.makedirs(path, exist_ok=True)
        _flush_directory(os.path.dirname(path))


def _write_file(path: str, data: bytes | memoryview) -> str:
    with open(path, "xb", buffering=0) as file:
        rest = memoryview(data)
        while len(rest):
            rest = rest[file.write(rest) :]
    return path


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_directory(path: str) -> None:
    if sys.platform == "win32":  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(descriptor)


def _lock(directory: str) -> int | None:
    """A descriptor that holds the directory's lock; None where another process has it or locks do not exist."""
    if sys.platform == "win32":
        return None
    descriptor = None
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None


def _remove_abandoned(parent: str) -> None:
    """Frees the space of saves that were killed: old, and no living process holds their lock."""
    with suppress(OSError):
        with os.scandir(parent) as entries:
            staged = [e for e in entries if is_staging(e.name) and e.is_dir(follow_symlinks=False)]
        for entry in staged:
            old = time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_AFTER
            lock = _lock(entry.path) if old else None
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)
