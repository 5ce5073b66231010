"""Reading OneFlow's checkpoint layout: what is on disk is verified and never trusted. Knows no session."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import FileIO
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .._base.dtype import dtype as Dtype
from .._base.files import absolute
from .._base.frames import shows_user_frames
from ..errors import CheckpointError, CheckpointNotFoundError
from ..runtime.aligned import aligned_empty
from ..runtime.pieces import BlockRange
from . import hidden, meta
from .blocks import runs_of
from .description import Description
from .digests import Digests, Expected, Mismatch, text_of
from .layout import DONE, EXTRA, LARGEST_META, META, OUT, as_path, complain, describe, open_inside, read_inside
from .reading import DamageError, TooShortError, VerifiedFile

_ANOTHER = "load another checkpoint, or save this one again"


class MissingMetaError(CheckpointError, RuntimeError):
    """A stored value has no ``meta`` file, so that its shape and dtype are unknown."""


class Share(NamedTuple):
    """The chunks of a file that this process verifies, where several read parts of it: every ``step``-th, from ``begin`` on."""

    begin: int
    step: int


class FileValue:
    """A variable's value on disk. Its elements are read, and verified, when they are asked for.

    Args:
      var_dir: the directory that has the file ``out`` and, usually, ``meta``.
      dtype: element type, for a directory without ``meta``.
      shape: sizes, for a directory without ``meta``.
      root: the checkpoint; symbolic links may not lead outside it. Defaults to ``var_dir``.
      digests: those of the checkpoint. Without ``root``, they are looked for beside ``var_dir``.
    Raises:
      CheckpointError: a file is missing, damaged, a link to elsewhere, or has another size than ``meta`` says.
    """

    __slots__ = (
        "name",
        "_directory",
        "_root",
        "_shown",
        "_shown_root",
        "_real_name",
        "_shape",
        "_dtype",
        "_digests",
        "has_meta_info_",
    )

    def __init__(
        self,
        var_dir: str | os.PathLike[str],
        dtype: Dtype | None = None,
        shape: Sequence[int] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        digests: Digests | None = None,
    ):
        self._shown = as_path(var_dir)
        self._shown_root = self._shown if root is None else as_path(root)
        self._directory, self._root = absolute(self._shown), absolute(self._shown_root)
        self.name = os.path.basename(os.path.abspath(self._directory))
        if root is None:
            digests = Description.read(self._described_in).digests
        self._digests = digests
        self._real_name = self.name
        if os.path.islink(self._directory):  # to another variable, whose digests are its own
            real = os.path.realpath(self._directory)
            if os.path.dirname(real) == os.path.realpath(self._root):
                self._real_name = os.path.basename(real)
        if digests is not None and self._expected(OUT) is None:
            rule = f"{self._what}: it has no digests, although the checkpoint has some: it was put there after the save"
            hint = f"remove the directory; or remove {EXTRA} to load everything unverified"
            complain(CheckpointError, rule, hint, full_path=os.path.abspath(self._directory))
        self._shape = None if shape is None else tuple(shape)
        self._dtype = dtype
        data = self._meta_bytes()
        self.has_meta_info_ = data is not None
        expected = self._expected(META)
        damage = expected.check(data) if expected is not None and data is not None else None
        altered = "; it is not what was saved" if damage is not None else ""
        if data is not None:
            try:
                self._shape, self._dtype = meta.parse(data.decode())
            except ValueError as error:
                wanted = "a text protobuf with shape and data_type"
                self._refuse(f"its meta cannot be understood: {error}{altered}", META, wanted, repr(data[:80]))
        with self._open() as out:
            if self._shape is not None and self._dtype is not None:
                because = f"its meta says{altered}" if self.has_meta_info_ else "was given"
                self._check_size(out, self._shape, self._dtype, because)
        if damage is not None and expected is not None and data is not None:
            self._refuse_damage(META, damage, expected.chunk, len(data))

    @property
    def _what(self) -> str:
        return f"variable {self.name!r} of checkpoint {self._shown_root!r}"

    @property
    def root(self) -> str:
        """The checkpoint that it is in."""
        return self._root

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
        """Raises NotImplementedError: checkpoints hold no quantization info."""
        raise NotImplementedError("checkpoints hold no quantization info")

    @shows_user_frames
    def numpy(self) -> np.ndarray:
        """The value, as a fresh array.

        Raises:
          MissingMetaError: there is no ``meta``; ``flow.load_variables`` can load it all the same.
          CheckpointError: the file is damaged, or has changed since, and its size no longer fits.
        """
        if self._shape is None or self._dtype is None:
            rule = f"{self._what} has no meta file: its shape and dtype are unknown"
            hint = "pass it to flow.load_variables, which knows them from the program's variable"
            complain(MissingMetaError, rule, hint, file=self.file_path)
        return self.read_as(self._shape, self._dtype, "its meta says")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"the value of {self.name!r} is in a file: an array of it is always a copy")
        return np.asarray(self.numpy(), dtype)

    def read_as(self, shape: tuple[int, ...], element: Dtype, because: str = "the program declares") -> np.ndarray:
        """The elements as an array of this shape and dtype. Raises CheckpointError unless they fill it exactly."""
        with self._open() as out:
            self._check_size(out, shape, element, because)
            array = aligned_empty(shape, element.numpy_dtype)
            file = VerifiedFile(out, self._expected(OUT))
            self._explained(file.size, lambda: file.read(0, _bytes_of(array)))
        return _native(array)

    def read_blocks(
        self, shape: tuple[int, ...], element: Dtype, blocks: Sequence[BlockRange], share: Share | None
    ) -> list[np.ndarray]:
        """Blocks of the value, each given by the index where it begins and its shape; nothing else is held in memory.

        Args:
          share: what this process verifies, apart from what it reads; None where each block is one stretch of the file: then all
            that is read is verified.
        """
        arrays = []
        with self._open() as out:
            size = self._check_size(out, shape, element, "the program declares")
            file = VerifiedFile(out, self._expected(OUT))
            for start, extent in blocks:
                runs = runs_of(shape, start, extent, element.bytes)
                assert share is not None or runs.is_contiguous
                array = aligned_empty(extent, element.numpy_dtype)
                read = file.read_runs if share is not None else file.read_run
                self._explained(size, partial(read, runs, _bytes_of(array)))
                arrays.append(_native(array))
            if share is not None:
                self._explained(size, lambda: file.verify(share.begin, share.step))
        return arrays

    def may_be(self, shape: Sequence[int], element: Dtype) -> bool:
        """Whether the value was saved with this shape and dtype, as far as is known: without ``meta`` its digest shows it."""
        if self._shape is not None and self._dtype is not None:
            return (self._shape, self._dtype) == (tuple(shape), element)
        expected = self._expected(META)
        return expected is None or expected.check(meta.text_of(tuple(shape), element).encode()) is None

    @property
    def is_verifiable(self) -> bool:
        """Whether its elements have digests."""
        return self._expected(OUT) is not None

    def verify(self) -> None:
        """Compares the file with its digests, without holding it in memory. Raises CheckpointError where it is damaged."""
        with self._open() as out:
            file = VerifiedFile(out, self._expected(OUT))
            self._explained(file.size, file.verify)

    # --- what is wrong with it

    def _open(self) -> FileIO:
        return open_inside(self._root, self.file_path, self._what)

    def _expected(self, file: str) -> Expected | None:
        return None if self._digests is None else self._digests.of(f"{self._real_name}/{file}")

    def _meta_bytes(self) -> bytes | None:
        path = os.path.join(self._directory, META)
        return read_inside(self._root, path, self._what, LARGEST_META) if os.path.lexists(path) else None

    def _check_size(self, out: FileIO, shape: Sequence[int], element: Dtype, because: str) -> int:
        found, expected = os.fstat(out.fileno()).st_size, math.prod(shape) * element.bytes
        if found != expected:
            state = "truncated" if found < expected else "longer than its value"
            wanted = f"{expected} bytes, for {describe(shape, element)} ({because})"
            self._refuse(f"its file is {state}", OUT, wanted, f"{found} bytes")
        return found

    def _explained(self, size: int, read: Callable[[], None]) -> None:
        """Reads elements; what goes wrong becomes a CheckpointError. ``size`` is that of the file."""
        try:
            read()
            return
        except (DamageError, TooShortError, OSError) as error:
            found = error
        # here: what is raised below is all that users see
        if isinstance(found, DamageError):
            self._refuse_damage(OUT, found.mismatch, found.chunk, size)
        if isinstance(found, TooShortError):
            self._refuse("its file became shorter while it was read", OUT, f"{size} bytes", "fewer")
        rule = f"{self._what}: its file cannot be read: {found.strerror}"
        complain(CheckpointError, rule, "load another checkpoint", file=self.file_path)

    def _refuse_damage(self, file: str, mismatch: Mismatch, chunk: int, size: int) -> NoReturn:
        """A chunk is not what was saved. It may be that of another variable, where directories were exchanged."""
        begin, end = mismatch.index * chunk, min((mismatch.index + 1) * chunk, size)
        assert self._digests is not None
        others = self._digests.files_with(mismatch)
        whose = f"; they are those of {others[0]!r}, as if directories had been exchanged" if len(others) == 1 else ""
        rule = f"its file {file!r} is damaged: bytes {begin} to {end - 1} are not those that were saved{whose}"
        expected, found = (f"crc32 {text_of(d)}" if d is not None else "nothing" for d in (mismatch.expected, mismatch.found))
        self._refuse(rule, file, expected, found)

    def _refuse(self, rule: str, file: str, expected: str, found: str) -> NoReturn:
        path = os.path.join(self._directory, file)
        if self._was_replaced():
            again = "read the new one: flow.checkpoint.get(...) or a load by its path, once more"
            complain(CheckpointError, f"{self._what}: the checkpoint was replaced after it had been opened", again, file=path)
        complain(CheckpointError, f"{self._what}: {rule}", _ANOTHER, file=path, expected=expected, found=found)

    @property
    def _described_in(self) -> str:
        """The folder of the checkpoint's JSON file."""
        return os.path.dirname(os.path.abspath(self._directory)) if self._root == self._directory else self._root

    def _was_replaced(self) -> bool:
        try:
            return Description.read(self._described_in).digests != self._digests
        except (CheckpointError, OSError):
            return False

    def __repr__(self) -> str:
        kind = "no meta" if self._shape is None or self._dtype is None else describe(self._shape, self._dtype)
        return f"<FileValue {self.name!r} {kind} in {self._shown!r}>"


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _native(array: np.ndarray) -> np.ndarray:
    return array if sys.byteorder == "little" else array.byteswap(inplace=True)


class Checkpoint(Mapping[str, FileValue]):
    """The variables of a checkpoint on disk, by name. Each is checked when it is asked for.

    Args:
      path: of the checkpoint, or of one variable's directory in it.
      unfinished: takes a checkpoint without ``snapshot_done``, too. One that OneFlow wrote need not have it.
    Raises:
      CheckpointNotFoundError: the path is missing, is a file, or is a directory that is not a checkpoint.
      CheckpointError: the checkpoint is not finished.
    """

    def __init__(self, path: str | os.PathLike[str], *, unfinished: bool = False):
        self.path = as_path(path)
        nothing, full_path = f"there is no checkpoint at {self.path!r}", os.path.abspath(self.path)
        hidden.restore(self.path)
        try:
            with os.scandir(self.path) as entries:
                found = sorted((e.name, e.is_dir()) for e in entries)
        except FileNotFoundError:
            complain(CheckpointNotFoundError, f"{nothing}: the path does not exist", full_path=full_path)
        except NotADirectoryError:
            hint = "flow.load_variables reads safetensors files" if self.path.endswith(".safetensors") else ""
            complain(
                CheckpointNotFoundError, f"{nothing}: it is a file, and checkpoints are directories", hint, full_path=full_path
            )
        except OSError as error:
            complain(CheckpointError, f"checkpoint {self.path!r} cannot be read: {error.strerror}", full_path=full_path)
        self._others = {name for name, is_dir in found if not is_dir}
        self.is_single = OUT in self._others
        self._names = {
            name: None for name, is_dir in found
            if is_dir and any(os.path.lexists(os.path.join(self.path, name, file)) for file in (OUT, META))
        }  # fmt: skip
        self._description: Description | None = None
        if not self._names and not self.is_single and not self._others & {DONE, EXTRA}:
            listing = ", ".join(name for name, _ in found[:10]) or "nothing"
            complain(
                CheckpointNotFoundError, f"{nothing}: the directory holds no variables",
                full_path=full_path, expected=f"directories with a file {OUT!r}", found=listing,
            )  # fmt: skip
        self.is_finished = os.path.isfile(os.path.join(self.path, DONE))
        if EXTRA in self._others and not self.is_finished and not unfinished:
            rule = f"checkpoint {self.path!r} is not finished: it has no file {DONE!r}, which is written last"
            complain(CheckpointError, rule, "load another checkpoint, or copy this one again", full_path=full_path)

    @property
    def description(self) -> Description:
        """Its JSON file. Raises CheckpointError if that is damaged."""
        if self._description is None:
            self._description = Description.read(self.path)
        return self._description

    def extra(self) -> dict[str, Any]:
        """The JSON file without the digests; empty if there is none, as in checkpoints that OneFlow wrote."""
        return dict(self.description.extra)

    def __getitem__(self, name: str) -> FileValue:
        directory = os.path.join(self.path, name)
        if name in self._names:
            return FileValue(directory, root=self.path, digests=self.description.digests)
        if name not in self:
            raise KeyError(name)
        nowhere = os.path.islink(directory) and not os.path.exists(directory)
        found = "a symbolic link to nowhere" if nowhere else "a file"
        rule = f"variable {name!r} of checkpoint {self.path!r} is damaged: {found} is in the place of its directory"
        complain(CheckpointError, rule, _ANOTHER, full_path=os.path.abspath(directory))

    def __contains__(self, name: object) -> bool:
        """Whether the variable was saved and not removed; something else may be in its place."""
        return name in self._names or (name in self._others and name not in (DONE, EXTRA))

    def __iter__(self) -> Iterator[str]:
        digests = self.description.digests
        listed = {file.rpartition("/")[0] for file in digests.files} if digests is not None else set()
        return iter(sorted({*self._names, *(self._others & listed)}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def was_saved_with(self, name: str) -> bool:
        """Whether the variable was in the checkpoint when that was saved, as far as is known."""
        digests = self.description.digests
        return digests is not None and digests.of(f"{name}/{OUT}") is not None

    def has_out(self, name: str) -> bool:
        """Whether the variable's directory has the file with its elements."""
        return os.path.lexists(os.path.join(self.path, name, OUT))
