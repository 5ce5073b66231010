"""The safetensors format: one file of named arrays, whose JSON header tells shapes, dtypes and places. Knows no session.

What the format has no place for is in the header's metadata, a JSON text under ``oneflow-jax``: which jobs the arrays belong
to, and the state of random ops. Files of other programs need not have it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype as Dtype
from .._base.extras import need
from ..errors import CheckpointError, CheckpointExistsError, CheckpointNotFoundError
from .format import as_path, complain, describe

SUFFIX = ".safetensors"
_METADATA = "oneflow-jax"
_DTYPES: Mapping[str, Dtype] = {
    "F64": dtypes.float64, "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "I64": dtypes.int64, "I32": dtypes.int32, "I8": dtypes.int8, "U8": dtypes.uint8,
}  # fmt: skip


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], extra: Mapping[str, Any] | None = None, *,
    replace: bool = True,
) -> None:  # fmt: skip
    """Writes arrays to one file. At every instant the path is as before, or the whole file.

    Args:
      path: the file; its directory is made where it does not exist.
      arrays: values by name.
      extra: goes into the header, as JSON.
      replace: whether an existing file is replaced.
    Raises:
      CheckpointExistsError: the path exists, and ``replace`` is False; or it is a directory.
      CheckpointError: a name or dtype that the format has no place for, or the disk refused.
    """
    shown = as_path(path)
    refuse_occupied(shown, replace=replace)
    for name, array in arrays.items():
        _check(name, array)
    library = need("safetensors.numpy", f"writing {shown!r}")
    header = {_METADATA: json.dumps({"format": 1, **(extra or {})}, allow_nan=False)}
    target = os.path.realpath(shown)
    staged = f"{target}.{secrets.token_hex(6)}.saving"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        whole = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
        library.save_file(whole, staged, metadata=header)
        with open(staged, "rb+") as file:
            os.fsync(file.fileno())
        refuse_occupied(shown, replace=replace)
        os.replace(staged, target)
    except BaseException as error:
        with suppress(OSError):
            os.remove(staged)
        if isinstance(error, CheckpointError) or not isinstance(error, Exception):
            raise
        _refuse(f"cannot save to {shown!r}: {_reason(error)}; nothing was changed", target, error)


def refuse_occupied(path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Raises what ``write`` would raise for a target that is taken, before anything is read for it."""
    shown = as_path(path)
    if os.path.isdir(shown) or (os.path.lexists(shown) and not replace):
        kind = "is a directory" if os.path.isdir(shown) else "exists already"
        rule = f"cannot save to {shown!r}: it {kind}; a save never overwrites"
        complain(CheckpointExistsError, rule, f"remove {shown!r} first, or choose another path", full_path=os.path.abspath(shown))


def _check(name: object, array: np.ndarray) -> None:
    if not isinstance(name, str) or not name or name == "__metadata__":
        complain(CheckpointError, f"variable {name!r} cannot be saved: safetensors has no place for that name"[:600])
    if not isinstance(array, np.ndarray):
        complain(CheckpointError, f"variable {name!r} cannot be saved: its value is a {type(array).__name__}, not an array")
    if not any(d.numpy_dtype == array.dtype for d in _DTYPES.values()):
        rule = f"variable {name!r} cannot be saved: its dtype is NumPy's {array.dtype}"
        complain(CheckpointError, rule, "convert it with astype", expected=", ".join(d.name for d in _DTYPES.values()))


class StoredTensor:
    """One array of a safetensors file. Its elements are read when they are asked for."""

    __slots__ = ("name", "shape", "dtype", "_file")
    has_meta_info_ = True

    def __init__(self, file: SafeTensors, name: str, shape: tuple[int, ...], dtype: Dtype):
        self._file = file
        self.name = name
        self.shape = shape
        self.dtype = dtype

    @property
    def file_path(self) -> str:
        """The file with the elements."""
        return self._file.path

    def numpy(self) -> np.ndarray:
        """The value, as a fresh array.

        Raises: CheckpointError (the file has changed since, or the disk refused).
        """
        array = self._file.read(self.name)
        if array.shape != self.shape or array.dtype != self.dtype.numpy_dtype:
            rule = f"{self.name!r} in {self.file_path!r} has changed since the file was opened"
            complain(CheckpointError, rule, expected=describe(self.shape, self.dtype), found=f"{array.dtype}{list(array.shape)}")
        return array

    def read_as(self, shape: tuple[int, ...], element: Dtype, because: str = "the program declares") -> np.ndarray:
        """The value, which must have this shape and dtype."""
        if (shape, element) != (self.shape, self.dtype):
            rule = f"{self.name!r} in {self.file_path!r} does not fit"
            expected = f"{describe(shape, element)} ({because})"
            complain(CheckpointError, rule, expected=expected, found=describe(self.shape, self.dtype))
        return self.numpy()

    def __repr__(self) -> str:
        return f"<StoredTensor {self.name!r} {describe(self.shape, self.dtype)} in {self.file_path!r}>"


class SafeTensors(Mapping[str, StoredTensor]):
    """The arrays of a safetensors file by name. Opening it reads the header only.

    Raises:
      CheckpointNotFoundError: there is no such file.
      CheckpointError: it is damaged, or holds a dtype that no Blob has.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = as_path(path)
        if not os.path.isfile(self.path):
            complain(CheckpointNotFoundError, f"there is no file {self.path!r}", full_path=os.path.abspath(self.path))
        with self._opened() as file:
            self.metadata: dict[str, str] = dict(file.metadata() or {})
            self._tensors = {name: self._tensor(name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118

    def _tensor(self, name: str, found: Any) -> StoredTensor:
        kind = _DTYPES.get(found.get_dtype())
        if kind is None:
            rule = f"{name!r} in {self.path!r} is of {found.get_dtype()}, which no Blob is"
            complain(CheckpointError, rule, expected=", ".join(_DTYPES))
        return StoredTensor(self, name, tuple(found.get_shape()), kind)

    def _opened(self) -> Any:
        library = need("safetensors", f"reading {self.path!r}")
        try:
            return library.safe_open(self.path, framework="np")
        except Exception as error:
            _refuse(f"{self.path!r} is not a safetensors file, or is damaged: {_reason(error)}", self.path, error)

    def read(self, name: str) -> np.ndarray:
        """The elements of one array."""
        with self._opened() as file:
            try:
                return file.get_tensor(name)
            except Exception as error:
                _refuse(f"{name!r} cannot be read from {self.path!r}: {_reason(error)}", self.path, error)

    def extra(self) -> dict[str, Any]:
        """What this library wrote into the header; empty for files of other programs."""
        try:
            value = json.loads(self.metadata.get(_METADATA, "{}"))
        except (ValueError, RecursionError) as error:
            _refuse(f"the metadata of {self.path!r} are not JSON: {error}", self.path, error)
        if not isinstance(value, dict) or value.get("format", 1) != 1:
            rule = f"the metadata of {self.path!r} have a format that this version does not know"
            complain(CheckpointError, rule, expected="format 1", found=repr(value)[:80])
        return value

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _refuse(rule: str, path: str, error: BaseException) -> NoReturn:
    try:
        complain(CheckpointError, rule, full_path=os.path.abspath(path))
    except CheckpointError as refusal:
        raise refusal from error
