"""The safetensors format: one file of named arrays, with a JSON header of shapes, dtypes and offsets. Knows no session.

The header's metadata have one entry of our own, a JSON text under ``oneflow-jax``: which jobs the arrays belong to, and the
state of random ops. Files of other programs need not have it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype as Dtype
from .._base.extras import need
from .._base.files import absolute, check_replaceable, open_regular
from .._base.refuse import refuse, shown
from .._base.whole_files import replacing
from ..errors import ArgumentError, CheckpointError, CheckpointExistsError, CheckpointNotFoundError
from .layout import as_path

Path = str | os.PathLike[str]
Rename = Mapping[str, str] | Callable[[str], str | None]

_SUFFIX = ".safetensors"
_METADATA = "oneflow-jax"
_MOST_OF_HEADER = 100_000_000  # bytes; the library refuses larger ones
_DTYPES: Mapping[str, Dtype] = {
    "F64": dtypes.float64, "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "I64": dtypes.int64, "I32": dtypes.int32, "I8": dtypes.int8, "U8": dtypes.uint8,
}  # fmt: skip


def is_one(path: Path) -> bool:
    """Whether a path is that of a safetensors file: by its suffix, whether or not one exists; or by how the file begins."""
    text = as_path(path)
    return not os.path.isdir(text) and (text.endswith(_SUFFIX) or _begins_as_one(text))


def _begins_as_one(path: str) -> bool:
    """Whether a file begins with the size of a header and with one of JSON."""
    length, size = _sizes(path)
    return 0 <= size <= length - 8


def _may_be_replaced(path: str) -> bool:
    """Whether a file holds nothing but arrays, whole or cut off."""
    length, size = _sizes(path)
    return length == 0 or 0 <= size <= _MOST_OF_HEADER


def _sizes(path: str) -> tuple[int, int]:
    """The bytes of a file, and of the header of JSON that it begins with. -1 where there is none, or it cannot be read."""
    try:
        with open_regular(path) as file:
            size, first = int.from_bytes(file.read(8), "little"), file.read(1)
            return os.fstat(file.fileno()).st_size, size if first == b"{" else -1
    except OSError:
        return -1, -1


def write(path: Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any], *, replace: bool = True) -> None:
    """Writes arrays to one file. At every instant the path is as before, or the whole file.

    Args:
      path: the file; missing parents are made.
      arrays: values by name.
      header: goes into the file's metadata, as JSON.
      replace: whether an existing file is replaced.
    Raises:
      CheckpointExistsError: the path exists, and ``replace`` is False; or it is a directory, or a file of another kind.
      CheckpointError: a name or dtype that the format has no place for, or the disk refused.
    """
    text = as_path(path)
    refuse_occupied(text, replace=replace)
    for name, array in arrays.items():
        _check(name, array)
    library = need("safetensors.numpy", f"writing {text!r}")
    metadata = {_METADATA: json.dumps({"format": 1, **header}, allow_nan=False)}
    target = os.path.realpath(text)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        check_replaceable(target)
        whole = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
        with replacing(target, durable=True) as staged:
            library.save_file(whole, staged, metadata=metadata)
            refuse_occupied(text, replace=replace)
    except CheckpointError:
        raise
    except Exception as error:  # of the library, too
        refuse(CheckpointError, f"cannot save to {text!r}: {_reason(error)}; nothing was changed", cause=error)


def refuse_occupied(path: Path, *, replace: bool = False) -> None:
    """Raises what ``write`` would raise for a path that is taken, before any value is read."""
    text = as_path(path)
    kind = ""
    if os.path.isdir(text):
        kind = "is a directory"
    elif os.path.lexists(text) and not replace:
        kind = "exists already"
    elif os.path.exists(text) and not _may_be_replaced(text):
        kind = "exists already and is not a safetensors file"
    if kind:
        refuse(CheckpointExistsError, f"cannot save to {text!r}: it {kind}",
               found=[("full path", os.path.abspath(text))],
               hint=f"remove {text!r} first, or choose another path; overwrite=True replaces safetensors files only")  # fmt: skip


def _check(name: object, array: np.ndarray) -> None:
    if not isinstance(name, str) or not name or name == "__metadata__":
        refuse(CheckpointError, f"variable {shown(name)} cannot be saved: safetensors has no place for that name")
    if not isinstance(array, np.ndarray):
        refuse(CheckpointError, f"variable {name!r} cannot be saved: its value is a {type(array).__name__}, not an array")
    if not any(d.numpy_dtype == array.dtype for d in _DTYPES.values()):
        refuse(CheckpointError, f"variable {name!r} cannot be saved: its dtype is NumPy's {array.dtype}",
               found=[("expected", ", ".join(d.name for d in _DTYPES.values()))], hint="convert it with astype")  # fmt: skip


class StoredTensor:
    """One array of a safetensors file. Its elements are read when they are asked for.

    Attributes:
      name, shape: of the array.
      kind: its dtype, as the format calls it: ``"F32"``, ``"BOOL"``.
    """

    __slots__ = ("name", "shape", "kind", "_file")

    def __init__(self, file: File, name: str, shape: tuple[int, ...], kind: str):
        self._file = file
        self.name = name
        self.shape = shape
        self.kind = kind

    @property
    def dtype(self) -> Dtype:
        """Of its elements. Raises CheckpointError for one that no Blob has."""
        if not self.is_of_blobs:
            refuse(CheckpointError, f"{shown(self.name)} in {self.file_path!r} is of {self.kind}, which is not a dtype of Blobs",
                   found=[("expected", ", ".join(_DTYPES))],
                   hint="leave it out: rename=lambda name: None for it, in flow.load_variables")  # fmt: skip
        return _DTYPES[self.kind]

    @property
    def file_path(self) -> str:
        """The file with the elements."""
        return self._file.place

    def numpy(self) -> np.ndarray:
        """The value, as a fresh array.

        Raises: CheckpointError (the file has changed since it was opened, or the disk refused).
        """
        dtype = self.dtype
        array = self._file.read(self.name)
        if array.shape != self.shape or array.dtype != dtype.numpy_dtype:
            refuse(CheckpointError, f"{self.name!r} in {self.file_path!r} has changed since the file was opened",
                   found=[("expected", _described(self.shape, dtype.name)),
                          ("found", _described(array.shape, array.dtype))])  # fmt: skip
        return array

    def __repr__(self) -> str:
        return f"<StoredTensor {self.name!r} {self.described()} in {self.file_path!r}>"

    def described(self) -> str:
        """``float32[8, 128]``."""
        return _described(self.shape, _DTYPES[self.kind].name if self.is_of_blobs else self.kind)

    @property
    def is_of_blobs(self) -> bool:
        """Whether Blobs can have its dtype."""
        return self.kind in _DTYPES

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        bits = re.search(r"\d+", self.kind)  # BOOL has none
        return prod(self.shape) * (8 if bits is None else int(bits[0])) // 8


class File(Mapping[str, StoredTensor]):
    """The arrays of a safetensors file by name. Opening it reads the header only.

    Attributes:
      path: of the file, as it was given.
      place: the same from the root.
      metadata: texts by name, as the file has them.
    Raises:
      CheckpointNotFoundError: there is no such file.
      CheckpointError: it is damaged.
    """

    def __init__(self, path: Path):
        self.path = as_path(path)
        self.place = absolute(self.path)
        try:
            open_regular(self.place).close()  # the library waits for FIFOs
        except OSError as error:
            kind = CheckpointNotFoundError if isinstance(error, FileNotFoundError) else CheckpointError
            rule = f"{self.path!r} cannot be read: {error.strerror}"
            if not os.path.lexists(self.path):
                rule = f"there is no file {self.path!r}"
            refuse(kind, rule, found=[("full path", os.path.abspath(self.path))])
        with self._opened() as file:
            self.metadata: dict[str, str] = dict(file.metadata() or {})
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            self._tensors = {n: StoredTensor(self, n, tuple(t.get_shape()), t.get_dtype()) for n, t in found.items()}

    @property
    def random_state(self) -> Any:
        """The state of random ops when the file was saved; None where it has none."""
        return self._header().get("random")

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The jobs that the file belongs to: the names of their variables by the job's name."""
        jobs = self._header().get("jobs", {})
        if not isinstance(jobs, dict) or not all(isinstance(names, list) for names in jobs.values()):
            refuse(CheckpointError, f"the metadata of {self.path!r} do not list jobs as a dict of lists")
        return jobs

    def read(self, name: str) -> np.ndarray:
        """The elements of one array."""
        with self._opened() as file:
            try:
                return np.asarray(file.get_tensor(name))
            except Exception as error:
                refuse(CheckpointError, f"{name!r} cannot be read from {self.path!r}: {_reason(error)}", cause=error)

    def _opened(self) -> Any:
        library = need("safetensors", f"reading {self.path!r}")
        try:
            return library.safe_open(self.place, framework="np")
        except Exception as error:
            refuse(CheckpointError, f"{self.path!r} is not a safetensors file, or is damaged: {_reason(error)}", cause=error)

    def _header(self) -> dict[str, Any]:
        try:
            value = json.loads(self.metadata.get(_METADATA, "{}"))
        except (ValueError, RecursionError) as error:
            refuse(CheckpointError, f"the metadata of {self.path!r} are not JSON: {error}", cause=error)
        if not isinstance(value, dict) or value.get("format", 1) != 1:
            refuse(CheckpointError, f"the metadata of {self.path!r} have a format that this version does not know",
                   found=[("expected", "format 1"), ("found", shown(value))])  # fmt: skip
        return value

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def renamed(values: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    """Values under other names.

    Args:
      values: by their present names.
      rename: a dict, where names that it lacks stay; or a function, which may return None for a value to leave out.
    Raises: ArgumentError (``rename`` is neither, returns something else than a str or None, has one name for two values, or
      leaves out all).
    """
    if not callable(rename) and not isinstance(rename, Mapping):
        refuse(ArgumentError, f"rename must be a dict of names, or a function of a name, got {shown(rename)}")
    made: dict[str, Any] = {}
    old: dict[str, str] = {}
    for name, value in values.items():
        new = rename.get(name, name) if isinstance(rename, Mapping) else rename(name)
        if new is None:
            continue
        if not isinstance(new, str):
            refuse(ArgumentError, f"rename must return a str or None, got {shown(new)} for {shown(name)}")
        if new in made:
            refuse(ArgumentError, f"rename calls both {old[new]!r} and {shown(name)} {new!r}")
        made[new], old[new] = value, name
    if values and not made:
        refuse(ArgumentError, f"rename leaves out all {len(values)} values", hint="return the new name; None leaves a value out")
    return made


def _described(shape: tuple[int, ...], element: object) -> str:
    return f"{element}[{', '.join(map(str, shape))}]"


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
