"""OneFlow's checkpoint layout: names, and reading with suspicion. Knows no session.

The layout:
    <path>/<variable>/out     the elements, row-major, little-endian, no header
    <path>/<variable>/meta    shape and dtype (absent in checkpoints of OneFlow 0.1 and 0.2)
    <path>/oneflow-jax.json   what that layout has no place for; OneFlow ignores it
    <path>/snapshot_done      empty, written last
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from .._base.dtype import dtype as Dtype
from .._base.files import is_below, open_regular, read_all
from .._base.refuse import refuse
from ..errors import ArgumentError, CheckpointError, CheckpointNotFoundError, OneFlowError
from . import meta

OUT, META, DONE, EXTRA = "out", "meta", "snapshot_done", "oneflow-jax.json"

_LARGEST_TEXT = 1 << 20
_LARGEST_EXTRA = 1 << 28  # positions of readers take 25 bytes per record of a shuffle buffer


class MissingMetaError(CheckpointError, RuntimeError):
    """A stored value has no ``meta`` file, so that its shape and dtype are unknown."""


def complain(kind: type[OneFlowError], rule: str, hint: str = "", **found: str) -> NoReturn:
    """Raises ``kind`` with rows of facts: ``complain(CheckpointError, "...", "try this", file=path, found="...")``."""
    refuse(kind, rule, found=[(label.replace("_", " "), text) for label, text in found.items()], hint=hint)


def describe(shape: Sequence[int], element: Dtype) -> str:
    """``float32[8, 128]``."""
    return f"{element.name}[{', '.join(map(str, shape))}]"


def as_path(path: str | os.PathLike[str]) -> str:
    """The path as text. Raises ArgumentError for anything but a non-empty str or os.PathLike of str."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or not text or "\0" in text:
        complain(ArgumentError, f"a checkpoint's path must be a non-empty str or os.PathLike, got {path!r}"[:300])
    return text


def check_name(name: object) -> str:
    """A variable's name, which is to become a directory's. Raises CheckpointError where it cannot."""
    if not isinstance(name, str) or not name:
        rule = "is not a non-empty str"
    elif "/" in name or "\0" in name or os.sep in name or name in (".", ".."):
        rule = 'contains "/", or is "." or ".."'
    elif name in (DONE, EXTRA):
        rule = "is the name of a file that every checkpoint has"
    elif not _encodes(name):
        rule = "is longer than the 255 bytes of a file's name, or has no encoding"
    else:
        return name
    rule = f"variable {name!r} cannot be saved: its name is that of a directory, and {rule}"
    complain(CheckpointError, rule[:600], "give it another name")


def _encodes(name: str) -> bool:
    try:
        return len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        return False


class FileValue:
    """A variable's value on disk. Its elements are read when they are asked for.

    Args:
      var_dir: the directory that has the file ``out`` and, usually, ``meta``.
      dtype: element type, for a directory without ``meta``.
      shape: sizes, for a directory without ``meta``.
      root: the checkpoint; symbolic links may not lead outside it. Defaults to ``var_dir``.
    Raises:
      CheckpointError: a file is missing, is a link to elsewhere, or has another size than ``meta`` says.
    """

    __slots__ = ("name", "_directory", "_root", "_shape", "_dtype", "has_meta_info_")

    def __init__(
        self,
        var_dir: str | os.PathLike[str],
        dtype: Dtype | None = None,
        shape: Sequence[int] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ):
        self._directory = as_path(var_dir)
        self._root = self._directory if root is None else as_path(root)
        self.name = os.path.basename(os.path.abspath(self._directory))
        text = self._meta_text()
        self.has_meta_info_ = text is not None
        self._shape = None if shape is None else tuple(shape)
        self._dtype = dtype
        if text is not None:
            try:
                self._shape, self._dtype = meta.parse(text)
            except ValueError as error:
                rule, expected = f"its meta cannot be understood: {error}", "a text protobuf with shape and data_type"
                self._refuse(rule, META, expected, repr(text[:80]))
        with _opened(self._root, self.file_path, self._what) as out:
            if self._shape is not None and self._dtype is not None:
                self._check_size(out, self._shape, self._dtype, "its meta says" if self.has_meta_info_ else "was given")

    @property
    def _what(self) -> str:
        return f"variable {self.name!r} of checkpoint {self._root!r}"

    @property
    def file_path(self) -> str:
        """The file with the elements."""
        return os.path.join(self._directory, OUT)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Sizes; None where there is no ``meta``."""
        return self._shape

    @property
    def dtype(self) -> Dtype | None:
        """Element type; None where there is no ``meta``."""
        return self._dtype

    @property
    def quant_info(self) -> Any:
        raise NotImplementedError("checkpoints hold no quantization info")

    def numpy(self) -> np.ndarray:
        """The value, as a fresh array.

        Raises:
          MissingMetaError: there is no ``meta``; ``flow.load_variables`` can load it all the same.
          CheckpointError: the file has changed since, and its size no longer fits.
        """
        if self._shape is None or self._dtype is None:
            rule = f"{self._what} has no meta file: its shape and dtype are unknown"
            hint = "pass it to flow.load_variables, which knows them from the program's variable"
            complain(MissingMetaError, rule, hint, file=self.file_path)
        return self.read_as(self._shape, self._dtype, "its meta says")

    def read_as(self, shape: tuple[int, ...], element: Dtype, because: str = "the program declares") -> np.ndarray:
        """The elements as an array of this shape and dtype. Raises CheckpointError unless they fill it exactly."""
        with _opened(self._root, self.file_path, self._what) as out:
            self._check_size(out, shape, element, because)
            array = np.empty(shape, element.numpy_dtype)
            rest = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
            while len(rest):
                got = out.readinto(rest)
                if not got:
                    found = f"{array.nbytes - len(rest)} bytes"
                    self._refuse("its file became shorter while it was read", OUT, f"{array.nbytes} bytes", found)
                rest = rest[got:]
        return array if sys.byteorder == "little" else array.byteswap(inplace=True)

    def _meta_text(self) -> str | None:
        path = os.path.join(self._directory, META)
        if not os.path.lexists(path):
            return None
        return _text(self._root, path, self._what)

    def _check_size(self, out: Any, shape: Sequence[int], element: Dtype, because: str) -> None:
        found, expected = os.fstat(out.fileno()).st_size, math.prod(shape) * element.bytes
        if found != expected:
            state = "truncated" if found < expected else "longer than its value"
            wanted = f"{expected} bytes, for {describe(shape, element)} ({because})"
            self._refuse(f"its file is {state}", OUT, wanted, f"{found} bytes")

    def _refuse(self, rule: str, file: str, expected: str, found: str) -> NoReturn:
        path = os.path.join(self._directory, file)
        hint = "load another checkpoint, or save this one again"
        complain(CheckpointError, f"{self._what}: {rule}", hint, file=path, expected=expected, found=found)

    def __repr__(self) -> str:
        kind = "no meta" if self._shape is None or self._dtype is None else describe(self._shape, self._dtype)
        return f"<FileValue {self.name!r} {kind} in {self._directory!r}>"


class Checkpoint(Mapping[str, FileValue]):
    """The variables of a checkpoint on disk, by name. Each is checked when it is asked for.

    Raises:
      CheckpointNotFoundError: the path is missing, is a file, or is a directory that is no checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = as_path(path)
        nothing, full_path = f"there is no checkpoint at {self.path!r}", os.path.abspath(self.path)
        try:
            with os.scandir(self.path) as entries:
                found = sorted((e.name, e.is_dir()) for e in entries)
        except FileNotFoundError:
            complain(CheckpointNotFoundError, f"{nothing}: the path does not exist", full_path=full_path)
        except NotADirectoryError:
            complain(CheckpointNotFoundError, f"{nothing}: it is a file, and checkpoints are directories", full_path=full_path)
        except OSError as error:
            complain(CheckpointError, f"checkpoint {self.path!r} cannot be read: {error.strerror}", full_path=full_path)
        files = {name for name, is_dir in found if not is_dir}
        self.is_single = OUT in files
        self._names = {
            name: None for name, is_dir in found
            if is_dir and any(os.path.lexists(os.path.join(self.path, name, file)) for file in (OUT, META))
        }  # fmt: skip
        if not self._names and not self.is_single and not files & {DONE, EXTRA}:
            listing = ", ".join(name for name, _ in found[:10]) or "nothing"
            complain(
                CheckpointNotFoundError, f"{nothing}: the directory holds no variables",
                full_path=full_path, expected=f"directories with a file {OUT!r}", found=listing,
            )  # fmt: skip

    def __getitem__(self, name: str) -> FileValue:
        if name not in self._names:
            raise KeyError(name)
        return FileValue(os.path.join(self.path, name), root=self.path)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def has_out(self, name: str) -> bool:
        """Whether the variable's directory has the file with its elements."""
        return os.path.lexists(os.path.join(self.path, name, OUT))

    def extra(self) -> dict[str, Any]:
        """What the JSON file says; empty where there is none, as in checkpoints that OneFlow wrote."""
        path = os.path.join(self.path, EXTRA)
        if not os.path.lexists(path):
            return {}
        what = f"checkpoint {self.path!r}"
        text = _text(self.path, path, what, _LARGEST_EXTRA)
        hint = f"remove {EXTRA} to load the variables alone"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            complain(CheckpointError, f"{what}: its {EXTRA} is no JSON: {error}", hint, file=path)
        version = value.get("format") if isinstance(value, dict) else value
        if not isinstance(value, dict) or version != 1:
            rule = f"{what}: its {EXTRA} has a format that this version does not know"
            complain(CheckpointError, rule, hint, file=path, expected="format 1", found=repr(version)[:80])
        return value


def _opened(root: str, path: str, what: str) -> Any:
    """A regular file inside ``root``, opened for reading; links that lead outside, pipes and devices are refused."""
    real, short = os.path.realpath(path), os.path.relpath(path, root)
    if not is_below(path, root):
        rule = f"{what}: {short!r} is a symbolic link that leads outside the checkpoint"
        hint, expected = "put a copy of the file in its place", f"a file below {os.path.realpath(root)}"
        complain(CheckpointError, rule, hint, file=path, expected=expected, found=real)
    try:
        return open_regular(real, follow_symlinks=False)
    except OSError as error:
        complain(CheckpointError, f"{what}: {short!r} cannot be opened: {error.strerror}", file=path)


def _text(root: str, path: str, what: str, largest: int = _LARGEST_TEXT) -> str:
    try:
        with _opened(root, path, what) as file:
            return read_all(file, largest).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        complain(CheckpointError, f"{what}: {os.path.relpath(path, root)!r} cannot be understood: {why}", file=path)
