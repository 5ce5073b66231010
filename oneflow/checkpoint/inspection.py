"""Reports on checkpoints and safetensors files on disk: which there are, their contents, whether they are whole, how two differ.

Without a session: nothing here starts JAX.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CheckpointError, CheckpointNotFoundError
from . import hidden, safetensors
from .format import Checkpoint, FileValue, MissingMetaError
from .layout import DONE, EXTRA, OUT, complain, describe

Value = FileValue | safetensors.StoredTensor


def opened(path: str, *, unfinished: bool = False) -> Checkpoint | safetensors.File:
    """The checkpoint, or the safetensors file, at a path; what each raises."""
    return safetensors.File(path) if safetensors.is_one(path) else Checkpoint(path, unfinished=unfinished)


def size_of(value: Value) -> int:
    """The bytes that a value takes on disk."""
    if isinstance(value, FileValue):
        return os.path.getsize(value.file_path)
    return value.nbytes


def extra_of(stored: Checkpoint | safetensors.File) -> dict[str, Any]:
    """What a checkpoint holds beside its variables; of a safetensors file its metadata, texts by name."""
    if isinstance(stored, safetensors.File):
        return dict(stored.metadata)
    return {} if stored.is_single else stored.extra()


def checkpoints_in(path: str) -> list[str]:
    """The checkpoint or safetensors file at a path; or, of a directory of them, all of them, by name.

    Raises:
      CheckpointNotFoundError: there are none.
    """
    if _is_safetensors(path):  # also a damaged one
        return [path]
    if not os.path.isdir(path) or is_checkpoint(path):
        return [opened(path, unfinished=True).path]
    found = _children(path)
    if not found:
        deeper = [child for child in sorted(entry.path for entry in os.scandir(path) if entry.is_dir()) if _children(child)]
        complain(
            CheckpointNotFoundError, f"there is no checkpoint at {path!r}, nor in it", f"{deeper[0]!r}" if deeper else "",
            full_path=os.path.abspath(path),
        )  # fmt: skip
    return found


def _children(path: str) -> list[str]:
    """The checkpoints and safetensors files directly in a directory, by name."""

    def is_shown(name: str) -> bool:
        child = os.path.join(path, name)
        return not hidden.is_hidden(name) and (is_checkpoint(child) or _is_safetensors(child))

    return [os.path.join(path, name) for name in sorted(filter(is_shown, os.listdir(path)))]


def _is_safetensors(path: str) -> bool:
    return os.path.isfile(path) and safetensors.is_one(path)


def is_checkpoint(path: str) -> bool:
    """Whether a directory looks like a checkpoint, be it a damaged one, or like one variable of a checkpoint."""
    if not os.path.isdir(path):
        return False
    names = os.listdir(path)
    return bool({DONE, EXTRA, OUT} & {*names}) or any(os.path.lexists(os.path.join(path, name, OUT)) for name in names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of verifying a checkpoint.

    Attributes:
      errors: what is damaged; empty where nothing is.
      variables: how many were verified.
      bytes: how long their files are.
      has_digests: whether their content could be compared; without digests only sizes can.
    """

    errors: list[CheckpointError]
    variables: int
    bytes: int
    has_digests: bool


def verify(path: str) -> Verdict:
    """Reads all files of a checkpoint and compares them with their digests; of a safetensors file, which has none, all values.

    Raises:
      CheckpointNotFoundError: there is no checkpoint.
    """
    if safetensors.is_one(path):
        return _verify_safetensors(path)
    try:
        stored = Checkpoint(path)
        digests = None if stored.is_single else stored.description.digests
    except CheckpointNotFoundError:
        raise
    except CheckpointError as error:
        return Verdict([error], 0, 0, True)
    if stored.is_single:
        return _verify_one(path)
    names = {*stored, *(file.rpartition("/")[0] for file in (digests.files if digests is not None else ()))}
    errors, size = [], 0
    for name in sorted(names):
        try:
            value = stored[name]
            value.verify()
            size += os.path.getsize(value.file_path)
        except KeyError:
            errors.append(CheckpointError(f"variable {name!r} of checkpoint {path!r} is missing: its directory is gone"))
        except CheckpointError as error:
            errors.append(error)
    return Verdict(errors, len(names), size, digests is not None)


def _verify_one(path: str) -> Verdict:
    try:
        value = FileValue(path)
        value.verify()
    except CheckpointError as error:
        return Verdict([error], 1, 0, True)
    return Verdict([], 1, os.path.getsize(value.file_path), value.is_verifiable)


def _verify_safetensors(path: str) -> Verdict:
    errors, size = [], 0
    try:
        values = list(safetensors.File(path).values())
    except CheckpointNotFoundError:
        raise
    except CheckpointError as error:
        return Verdict([error], 0, 0, False)
    for value in values:
        try:
            if value.is_of_blobs:
                value.numpy()
            size += size_of(value)
        except CheckpointError as error:
            errors.append(error)
    return Verdict(errors, len(values), size, False)


@dataclass(frozen=True, slots=True)
class Difference:
    """How a variable of one checkpoint differs from that of another.

    Attributes:
      name: of the variable.
      what: in words.
    """

    name: str
    what: str


def differences(one: str, other: str) -> Iterator[Difference]:
    """How two checkpoints differ, variable by variable; values are compared bit for bit, one variable at a time in memory.

    Raises:
      CheckpointError: one of them is damaged.
    """
    first, second = opened(one), opened(other)
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            yield Difference(name, f"only in {one if name in first else other}")
            continue
        if what := _difference(first[name], second[name]):
            yield Difference(name, what)
    if type(first) is not type(second):
        return
    mine, theirs = extra_of(first), extra_of(second)
    for key in sorted({*mine, *theirs}):
        if mine.get(key) != theirs.get(key):
            yield Difference(EXTRA, f"{key!r} differs")


def _difference(first: Value, second: Value) -> str:
    """Empty where they are the same."""
    try:
        a, b = first.numpy(), second.numpy()
    except MissingMetaError:
        with open(first.file_path, "rb") as one, open(second.file_path, "rb") as other:
            return "" if one.read() == other.read() else "their bytes differ; there is no meta file with shape and dtype"
    if first.shape != second.shape or first.dtype != second.dtype:
        return f"{described(first)} and {described(second)}"
    bits = f"V{a.dtype.itemsize}"
    different = np.ascontiguousarray(a).reshape(-1).view(bits) != np.ascontiguousarray(b).reshape(-1).view(bits)
    count = int(np.count_nonzero(different))
    if not count:
        return ""
    with np.errstate(all="ignore"):
        distances = np.abs(a.astype(np.float64) - b.astype(np.float64)).reshape(-1)[different]
    return f"{count} of {a.size} elements differ, by at most {np.fmax.reduce(distances, initial=0.0):.6g}"


def described(value: Value) -> str:
    """``float32[8, 128]``, where that is known."""
    if isinstance(value, safetensors.StoredTensor):
        return value.described()
    return "of unknown shape" if value.shape is None or value.dtype is None else describe(value.shape, value.dtype)
