"""Writing a checkpoint: at every instant the target is as it was, or whole. Knows no session."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
from zlib_ng.zlib_ng import crc32

from .._base.refuse import refuse
from .._base.threads import on_threads
from ..errors import CheckpointError, CheckpointExistsError
from ..runtime.process import process
from . import hidden, meta
from .blocks import Runs, runs_of
from .description import text_of
from .digests import CHUNK, ChunkHasher, Digests, chunk_count
from .hidden import STAGING as _STAGING
from .hidden import Hidden
from .layout import DONE, EXTRA, META, OUT, as_path, complain
from .team import Alone, Team, on_leader, together
from .values import Block, Value, bytes_of, whole_values

if sys.platform != "win32":
    import fcntl

_ABANDONED_AFTER = 60.0  # seconds; earlier versions locked their hidden directory a moment after it was there

Extra = Callable[[], Mapping[str, Any]]


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], extra: Mapping[str, Any] | None = None) -> None:
    """Saves arrays as a checkpoint. At every instant the path is as before, or the whole checkpoint.

    Args:
      path: does not exist (parents are made), or is an empty directory.
      arrays: values by variable name.
      extra: goes into the JSON file, with the digests of all others; None writes no such file.
    Raises:
      CheckpointExistsError: the path is a file or a directory that is not empty.
      CheckpointError: a name or dtype that the layout has no place for, or the disk refused.
    """
    shown = as_path(path)
    values = whole_values(arrays)
    Save(shown).write(values, None if extra is None else lambda: extra)


class Save:
    """A checkpoint on its way to the disk.

    Everything is written to a hidden directory beside the target and flushed to the disk; one rename makes it the target. Of
    several processes the leader makes the directories, each writes the blocks that it has, and the leader commits.

    Args:
      path: does not exist (parents are made), or is an empty directory.
      overwrite: it may also be a checkpoint, which the new one replaces in one step.
      team: the processes that save together; all make one.
    Raises:
      CheckpointExistsError: the path is something else.
      CheckpointError: the disk refused.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, team: Team | None = None):
        self._shown = as_path(path)
        self._target = os.path.realpath(self._shown)
        self._overwrite = overwrite
        self._team = team or Alone()
        self._hidden: Hidden | None = None
        self._directories: list[str] = []
        self._files: list[str] = []  # of the leader, to be flushed when all are written
        self._hasher = ChunkHasher()
        self._bytes: dict[str, int] = {}  # by file: how many this process has written
        self.directory = on_leader(self._team, f"the beginning of a save to {self._shown!r}", self._prepare)
        self.is_shared = all(self._team.gather("the directory of a save", hidden.is_visible(self.directory)))

    def write(self, values: Mapping[str, Value], extra: Extra | None, *, team: Team | None = None) -> None:
        """Writes values, all of whose blocks the processes have together, and commits.

        Args:
          values: by variable name; the same names, shapes and dtypes in every process.
          extra: returns what goes into the JSON file, beside the digests of all other files; None writes no such file.
          team: the same processes, where they meet in another way from now on.
        """
        self._team = team or self._team
        try:
            self._write(values, extra)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            _refuse_disk(self._shown, error)
        finally:
            self._hasher.close()
            self._team.finish()
            self.abandon()

    def abandon(self) -> None:
        """Removes what was written, but for the target."""
        if self._hidden is not None:
            self._hidden.remove()
            self._hidden = None

    # --- the steps

    def _prepare(self) -> str:
        parent = os.path.dirname(self._target)
        hidden.clean(parent)
        _remove_abandoned(parent)
        self._vacant()
        try:
            _make_parents(parent)
            self._hidden = Hidden(self._target)
            os.mkdir(self._hidden.checkpoint)
        except OSError as error:
            self.abandon()
            _refuse_disk(self._shown, error)
        return self._hidden.path

    def _write(self, values: Mapping[str, Value], extra: Extra | None) -> None:
        team = self._team
        on_leader(team, "laying out a save", lambda: self._lay_out(values, with_digests=extra is not None))
        written = together(team, "writing a save", lambda: self._write_blocks(values, with_digests=extra is not None))
        found = _merged(values, written)
        if extra is not None:
            missing = _missing(values, found)
            for part in together(team, "verifying a save", lambda: self._read_digests(values, missing[team.rank :: team.count])):
                for file, index, digest in part:
                    found[file][index] = digest
        on_leader(team, "committing a save", lambda: self._commit(found, extra))

    def _lay_out(self, values: Mapping[str, Value], with_digests: bool) -> None:
        """Makes all directories and files, the latter with what this process has whole."""
        assert self._hidden is not None
        root = self._hidden.checkpoint
        self._directories = [root]
        for name, value in values.items():
            directory = os.path.join(root, name)
            os.mkdir(directory)
            self._directories.append(directory)
            out = os.path.join(directory, OUT)
            if value.is_whole:
                data = self._elements(name, value.blocks[0])
                if with_digests:
                    self._hasher.add(f"{name}/{OUT}", 0, data)
                self._files.append(_write_file(out, data))
                self._bytes[name] = len(data)
            else:
                self._files.append(_write_file(out, b""))
                os.truncate(out, value.bytes)
            text = meta.text_of(value.shape, value.element).encode()
            if with_digests:
                self._hasher.add(f"{name}/{META}", 0, text)
            self._files.append(_write_file(os.path.join(directory, META), text))

    def _write_blocks(self, values: Mapping[str, Value], with_digests: bool) -> list[Any]:
        """Writes the blocks of this process into files that the leader has made. Returns what it wrote, and its digests."""
        for name, value in values.items():
            if not value.blocks or name in self._bytes:
                continue
            path = os.path.join(self.directory, hidden.CHECKPOINT, name, OUT)
            descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                for block in value.blocks:
                    data = self._elements(name, block)
                    runs = runs_of(value.shape, block.start, block.extent, value.element.bytes)
                    if with_digests and runs.is_contiguous:
                        self._hash_whole_chunks(f"{name}/{OUT}", runs, data, value.bytes)
                    _write_runs(descriptor, runs, data)
                    self._bytes[name] = self._bytes.get(name, 0) + len(data)
                if self._team.rank > 0:  # the leader flushes all its files when all are written
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return [self._bytes, self._hasher.results()]

    def _hash_whole_chunks(self, file: str, runs: Runs, data: memoryview, size: int) -> None:
        """Of a stretch of a file: the digests of chunks that are entirely in it."""
        begin, end = runs.offsets[0], runs.offsets[0] + len(data)
        first, last = chunk_count(begin), chunk_count(end) if end == size else end // CHUNK
        if first < last:
            self._hasher.add(file, first, data[first * CHUNK - begin : last * CHUNK - begin])

    def _read_digests(self, values: Mapping[str, Value], chunks: Sequence[tuple[str, int]]) -> list[tuple[str, int, int]]:
        """The digests of chunks that several blocks share."""
        root = os.path.join(self.directory, hidden.CHECKPOINT)
        return on_threads(lambda chunk: (*chunk, _read_digest(root, *chunk)), chunks)

    def _commit(self, found: Mapping[str, Mapping[int, int]], extra: Extra | None) -> None:
        assert self._hidden is not None
        root = self._hidden.checkpoint
        if extra is not None:
            files = {file: [digest for _, digest in sorted(each.items())] for file, each in found.items()}
            self._files.append(_write_file(os.path.join(root, EXTRA), text_of(extra(), Digests(files))))
        # all are flushed after all are written: the first flush then carries most of the others with it
        for file in self._files:
            _flush(file)
        for directory in reversed(self._directories):
            _flush_directory(directory)
        _flush(_write_file(os.path.join(root, DONE), b""))
        _flush_directory(root)
        self._publish()
        try:
            _flush_directory(os.path.dirname(self._target))
        except OSError as error:
            status = os.stat(self._target)
            process.unconfirmed_saves[self._target] = status.st_dev, status.st_ino
            rule = f"{self._shown!r} was saved, but the disk did not confirm it: {error.strerror}; a further save may replace it"
            raise CheckpointError(rule) from error
        process.unconfirmed_saves.pop(self._target, None)

    def _publish(self) -> None:
        """Makes what was written the target, in one step."""
        assert self._hidden is not None
        target, mode = self._target, self._vacant()
        if mode is not None:
            os.chmod(self._hidden.checkpoint, mode)
        in_place = mode is not None and os.path.samefile(target, os.curdir)
        try:
            if mode is not None and os.listdir(target):
                self._hidden.replace(target)
            else:
                os.rename(self._hidden.checkpoint, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                _refuse_occupied(self._shown, target)
            if error.errno in (errno.EBUSY, errno.EXDEV):
                rule = f"cannot save to {self._shown!r}: it is a mount point, which cannot be replaced in one step"
                complain(CheckpointError, rule, "save to a directory inside it", full_path=target)
            raise
        if in_place:  # otherwise the working directory would be the one that was replaced
            os.chdir(target)

    def _vacant(self) -> int | None:
        """The mode of the directory that is replaced, None where nothing is there. Refuses what must not be replaced."""
        shown, target = self._shown, self._target
        try:
            with os.scandir(target) as entries:
                occupied = any(True for _ in entries)
            status = os.stat(target)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            if os.path.lexists(target):
                _refuse_occupied(shown, target)
            rule = f"cannot save to {shown!r}: a part of the path is a file"
            complain(CheckpointError, rule, "choose another path", full_path=target)
        except OSError as error:
            _refuse_disk(shown, error)
        if occupied:
            unconfirmed = process.unconfirmed_saves.get(target) == (status.st_dev, status.st_ino)
            if not self._overwrite and not unconfirmed:
                _refuse_occupied(shown, target)
            _check_replaceable(shown, target)
        return stat.S_IMODE(status.st_mode)

    def _elements(self, name: str, block: Block) -> memoryview:
        try:
            return bytes_of(block.numpy())
        except OSError:
            raise
        except Exception as error:
            rule = f"cannot save to {self._shown!r}: variable {name!r} cannot be read from its device; nothing was changed"
            raise CheckpointError(f"{rule}\n  found      {type(error).__name__}: {error}") from error


def make_root(path: str) -> None:
    """Makes a directory for checkpoints, with its parents. Raises CheckpointError where a file is in the way."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        complain(CheckpointExistsError, f"{path!r} is a file, and checkpoints need a directory", full_path=os.path.abspath(path))
    except OSError as error:
        _refuse_disk(path, error)


def _merged(values: Mapping[str, Value], written: Sequence[Any]) -> dict[str, dict[int, int]]:
    """The digests that all processes have found, by file and chunk. Raises CheckpointError where not all was written."""
    found: dict[str, dict[int, int]] = {f"{name}/{file}": {} for name in values for file in (OUT, META)}
    for _, digests in written:
        for file, index, digest in digests:
            found[file][index] = digest
    for name, value in values.items():
        total = sum(counts.get(name, 0) for counts, _ in written)
        if total != value.bytes:
            rule = f"variable {name!r} cannot be saved: the processes have {total} of its {value.bytes} bytes"
            raise CheckpointError(f"{rule}; nothing was changed")
    return found


def _missing(values: Mapping[str, Value], found: Mapping[str, Mapping[int, int]]) -> list[tuple[str, int]]:
    """The chunks whose digests nobody knows yet."""
    files = ((f"{name}/{OUT}", chunk_count(value.bytes)) for name, value in values.items())
    return [(file, index) for file, count in files for index in range(count) if index not in found[file]]


def _read_digest(root: str, file: str, index: int) -> int:
    descriptor = os.open(os.path.join(root, file), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        return crc32(os.pread(descriptor, CHUNK, index * CHUNK))
    finally:
        os.close(descriptor)


def _check_replaceable(shown: str, target: str) -> None:
    """Refuses to replace a directory that holds anything but a checkpoint."""
    own = {DONE, EXTRA}
    strangers = []
    with os.scandir(target) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                strangers += [f"{entry.name}/{name}" for name in os.listdir(entry.path) if name not in (OUT, META)]
            elif entry.name not in own:
                strangers.append(entry.name)
    if strangers:
        rule = f"cannot save to {shown!r}: it holds other things than a checkpoint, and those are never overwritten"
        complain(CheckpointExistsError, rule, "choose another path", full_path=target, found=", ".join(sorted(strangers)[:5]))


def _refuse_occupied(shown: str, target: str) -> NoReturn:
    found = "is not empty" if os.path.isdir(target) else "is a file"
    complain(
        CheckpointExistsError, f"cannot save to {shown!r}: it exists already and {found}",
        f"remove {shown!r} first, or choose another path; overwrite=True replaces a checkpoint", full_path=target,
    )  # fmt: skip


def _refuse_disk(shown: str, error: OSError) -> NoReturn:
    rule = f"cannot save to {shown!r}: {error.strerror or error}; nothing was changed"
    refuse(CheckpointError, rule, found=[("full path", os.path.abspath(shown))], cause=error)


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


def _write_runs(descriptor: int, runs: Runs, data: memoryview) -> None:
    at = 0
    for offset in runs.offsets:
        rest = data[at : at + runs.length]
        at += runs.length
        while len(rest):
            done = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[done:], offset + done


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


# --- what earlier versions left


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
    """Frees the space of killed saves of earlier versions: they locked their directory itself, a moment after it was there."""
    with suppress(OSError):
        with os.scandir(parent) as entries:
            staged = [e for e in entries if e.name.startswith(_STAGING) and not hidden.is_new(e.name)]
        for entry in staged:
            old = time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_AFTER
            lock = _lock(entry.path) if old and entry.is_dir(follow_symlinks=False) else None
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)
