"""Part files: records one after the other, each behind its length (int64, little-endian)."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import numpy as np

from .._base import check
from .._base.files import Path, open_regular
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, DataError, PartNotFoundError, RecordError
from . import wire
from ._fault import Where, fault
from ._split import balanced
from .records import Records, serialised

PREFIX = 8
CHUNK = 1 << 20  # bytes that are read at a time; more for a longer record
_LONG_TAIL = 1 << 18  # bytes; up to that many at the end of a file are copied to be followed by zeros
MAX_RECORD_BYTES = 256 << 20  # of the longest record that is read, by default
_MOST_PARTS = 2**31 - 1
_LENGTH = struct.Struct("<q")
_T = TypeVar("_T")


def part_name(index: int, prefix: str = "part-", suffix_length: int = -1) -> str:
    """The name of a part file: the prefix, then the number, padded with zeros to ``suffix_length`` digits (-1: not padded).

    Raises: ArgumentError.
    Example: >>> flow.data.part_name(7, suffix_length=5)   # 'part-00007'
    """
    prefix, suffix_length = _want_naming(prefix, suffix_length)
    return _part_name(_want("a part's index", check.integer(index, low=0, high=_MOST_PARTS)), prefix, suffix_length)


def _part_name(index: int, prefix: str, suffix_length: int) -> str:
    return f"{prefix}{index:0{max(suffix_length, 0)}d}"


def _want_naming(prefix: Any, suffix_length: Any) -> tuple[str, int]:
    if not isinstance(prefix, str):
        refuse(ArgumentError, f"part_name_prefix must be a str, got {shown(prefix)}")
    return prefix, _want("part_name_suffix_length", check.integer(suffix_length, low=-1, high=255))


def _want(argument: str, checked: tuple[_T, str]) -> _T:
    value, problem = checked
    if problem:
        refuse(ArgumentError, f"{argument} {problem}")
    return value


def part_paths(directory: Path, count: int, prefix: str = "part-", suffix_length: int = -1) -> list[str]:
    """The paths of all parts of a data set, in order. All of them must exist; their contents are not read.

    Args:
      directory: contains the parts; other files in it are ignored.
      count: ``data_part_num``, > 0.
      prefix: of each name.
      suffix_length: the least number of digits; -1 for no padding.
    Raises:
      ArgumentError: an argument of the wrong type or range.
      PartNotFoundError: the directory or a part is missing; the error lists the parts that exist.
    Example: >>> flow.data.part_paths("train", 4)
    """
    count = _want("data_part_num", check.integer(count, low=1, high=_MOST_PARTS))
    folder = _want("ofrecord_dir", check.path(directory))
    prefix, suffix_length = _want_naming(prefix, suffix_length)
    paths = []
    for i in range(count):
        paths.append(os.path.join(folder, _part_name(i, prefix, suffix_length)))
        if not os.path.isfile(paths[-1]):
            _refuse_missing(folder, paths[-1], i, count, prefix, suffix_length)
    return paths


def _refuse_missing(folder: str, path: str, index: int, count: int, prefix: str, suffix_length: int) -> NoReturn:
    if not os.path.isdir(folder):
        refuse(PartNotFoundError, f"there is no directory {folder!r}", hint="check ofrecord_dir", found=[("part", path)])
    there = sorted(n for n in os.listdir(folder) if n.startswith(prefix) and n.removeprefix(prefix).isdigit())
    if there:
        widths = {len(n) - len(prefix) for n in there}
        listing = f"{len(there)} parts, {there[0]} to {there[-1]}"
        padded = len(widths) == 1 and there[0].removeprefix(prefix).startswith("0") and widths != {1}
        width = max(widths) if padded else -1
        tried = {"data_part_num": (len(there), count), "part_name_suffix_length": (width, suffix_length)}
        hint = ", ".join(f"{name}={found}" for name, (found, given) in tried.items() if found != given)
    else:
        names = sorted(os.listdir(folder))[:5]
        listing = f"no file named {prefix!r} and a number; it contains {', '.join(names) or 'nothing'}"
        hint = "check part_name_prefix and the directory"
    if os.path.lexists(path):
        hint = "a regular file in its place"
    rows = [("file", path), ("directory", listing)]
    why = f"{path!r} is not a regular file, or a link to one" if os.path.lexists(path) else f"there is no file {path!r}"
    refuse(PartNotFoundError, f"part {index} of {count} is missing: {why}", found=rows, hint=hint)


def encode(record: Any) -> bytes:
    """The bytes of an OFRecord, message or serialised, behind its length."""
    data = serialised(record)
    return _LENGTH.pack(len(data)) + data


class PartFile:
    """One part, open for reading at any position. May be used by several threads.

    The file is read with ``pread``, not mapped: a file that somebody truncates meanwhile is an error, not a crash.

    Args:
      path: of the part.
      max_record_bytes: of the longest record that is read; no memory is allocated for a longer one.
    """

    def __init__(self, path: Path, max_record_bytes: int = MAX_RECORD_BYTES):
        self.path, self.max_record_bytes = os.fspath(path), max_record_bytes
        try:
            self._file = open_regular(self.path)
            self.size = os.fstat(self._file.fileno()).st_size
        except FileNotFoundError as error:
            raise PartNotFoundError(f"there is no part file {self.path!r}") from error
        except OSError as error:
            raise DataError(f"cannot open part file {self.path!r}: {error.strerror}") from error
        if self.size == 0:
            self.close()
            raise fault(
                RecordError, "a part file is empty: it must hold at least one record", Where(self.path, 0, 0), found="0 bytes",
                hint="leave it out, and give data_part_num the number of parts that are left",
            )  # fmt: skip

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def read(self, offset: int, length: int, record: int = 0) -> np.ndarray:
        """``length`` bytes, of a bytes object, followed by PAD more. Raises RecordError where the file ends earlier."""
        try:
            return self._read(offset, length, record)
        except OSError as error:
            raise fault(RecordError, f"a part file cannot be read: {error.strerror}", Where(self.path, record, offset)) from error
        except MemoryError as error:
            raise fault(
                RecordError, f"there is no memory for {length} bytes of a part file", Where(self.path, record, offset)
            ) from error

    def _read(self, offset: int, length: int, record: int) -> np.ndarray:
        data = b""
        while len(data) < length:
            more = os.pread(self._file.fileno(), length + wire.PAD - len(data), offset + len(data))
            if not more:
                raise self._truncated(record, offset, f"the file ends at byte {offset + len(data)}; it was truncated meanwhile")
            data = data + more if data else more
        missing = length + wire.PAD - len(data)
        return np.frombuffer(data + bytes(missing) if missing else data, np.uint8)

    def chunk(self, offset: int, record: int, chunk_bytes: int = CHUNK) -> tuple[Records, int]:
        """The records from ``offset`` on, at least one, up to about ``chunk_bytes``; and the offset of the record after them.

        Raises RecordError for the record at ``offset``; damage to a later record is reported when that record is read.
        """
        left = max(self.size - offset, 0)
        length = min(max(chunk_bytes, PREFIX), left)
        if length + wire.PAD > left > _LONG_TAIL:  # what must follow a chunk is in the file, too, unless it ends there
            length = left - wire.PAD
        data = self.read(offset, length, record)
        first = self._length_at(data, 0, length, offset, record)
        if PREFIX + first > length:
            length = PREFIX + first
            data = self.read(offset, length, record)
        size, last, step = first, length - PREFIX, PREFIX + first
        same = np.ndarray((last // step + 1,), "<i8", data, strides=(step,)) == first  # records of one length are found together
        at = step * (len(same) if same.all() else int(same.argmin()))
        heads = list(range(0, at, step))
        view, unpack, add = data.data, _LENGTH.unpack_from, heads.append
        while at <= last and size > 0:
            add(at)
            size = unpack(view, at)[0]
            at += PREFIX + size
        if size <= 0 or at > length:  # the last one is damaged, or continues after the chunk
            at = heads.pop()
        begin, count = np.array(heads, np.int64) + PREFIX, len(heads)
        lengths = np.diff(begin, append=at + PREFIX) - PREFIX
        origin = np.zeros((count, 3), np.int64)
        origin[:, 1] = np.arange(record, record + count)
        origin[:, 2] = begin + (offset - PREFIX)
        return Records(data, begin, lengths, [self.path], origin), offset + at

    def one(self, offset: int, record: int) -> Records:
        """The record at ``offset``."""
        prefix = self.read(offset, min(PREFIX, max(self.size - offset, 0)), record)
        size = self._length_at(prefix, 0, len(prefix) - wire.PAD, offset, record)
        data = self.read(offset + PREFIX, size, record)
        origin = np.array([[0, record, offset]], np.int64)
        return Records(data, np.zeros(1, np.int64), np.array([size], np.int64), [self.path], origin)

    def _length_at(self, data: np.ndarray, at: int, length: int, offset: int, record: int) -> int:
        """The length of the record whose prefix is at ``at``. Raises RecordError where the file is too short for it."""
        if at + PREFIX > length:
            raise self._truncated(record, offset, f"{self.size - offset} bytes are left, a length prefix has {PREFIX}")
        size = _LENGTH.unpack_from(data.data, at)[0]
        left = self.size - offset - PREFIX
        if size <= 0:
            raise fault(
                RecordError, "a record's length is not a positive number: the file is damaged, or is not an OFRecord part",
                Where(self.path, record, offset), found=f"length {size} ({size % 2**64} as unsigned)",
            )  # fmt: skip
        if size > left:
            raise self._truncated(record, offset, f"length {size}, but only {left} bytes are left in the file")
        self._check_size(size, record, offset)
        return size

    def _check_size(self, size: int, record: int, offset: int) -> None:
        if size > self.max_record_bytes:
            raise fault(
                RecordError, f"a record is longer than the limit of {self.max_record_bytes} bytes",
                Where(self.path, record, offset), found=f"length {size}",
                hint="flow.config.max_record_mbyte(n) raises the limit",
            )  # fmt: skip

    def _truncated(self, record: int, offset: int, found: str) -> RecordError:
        rule = "a part file ends inside a record: it is truncated or damaged, or is not an OFRecord part"
        return fault(
            RecordError, rule, Where(self.path, record, offset), found=found, hint="create the file again, or copy it again"
        )


def read_part(path: Path, chunk_bytes: int = CHUNK, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Iterator[Records]:
    """Reads all records of one part, a chunk at a time, in the file's order.

    Args:
      path: the part file.
      chunk_bytes: about the size of a chunk.
      max_record_bytes: of the longest record that is read.
    Returns: an iterator of Records; ``records[i]`` is bytes.
    Raises:
      PartNotFoundError: there is no such file.
      RecordError: the file is empty, truncated or damaged, or a record is too long; names record and offset.
    Example: >>> sum(len(records) for records in flow.data.read_part("train/part-0"))
    """
    with PartFile(path, max_record_bytes) as part:
        offset = record = 0
        while offset < part.size:
            records, offset = part.chunk(offset, record, chunk_bytes)
            record += len(records)
            yield records


class PartWriter:
    """Writes one part file. It appears under its name, complete and synced, when the ``with`` block ends without an exception.

    Args:
      path: of the part; a file of that name is replaced.
    Raises: ArgumentError; DataError where no file can be created there, and by ``write`` and at the end of the block where
      the disk refuses, which leaves no file.
    Example: >>> with flow.data.PartWriter("train/part-0") as part: part.write(record)
    """

    def __init__(self, path: Path):
        self.path = _want("the path of a part", check.path(path))
        folder, name = os.path.split(self.path)
        self._temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        self.count = 0
        self.nbytes = 0
        try:
            self._file = open(self._temporary, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by __exit__
        except (OSError, ValueError) as error:  # ValueError: the file system cannot encode it
            refuse(DataError, f"cannot create part {self.path!r}: {getattr(error, 'strerror', None) or error}")

    def write(self, record: Any) -> None:
        """Appends an OFRecord, message or serialised."""
        data = encode(record)
        if len(data) == PREFIX:
            refuse(ArgumentError, "an OFRecord without features has no bytes, and a part file cannot hold it")
        try:
            self._file.write(data)
        except OSError as error:
            self._refuse(error)
        self.count += 1
        self.nbytes += len(data)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as error:
            self._refuse(error)
        finally:
            with suppress(OSError):  # what a full disk has left in the buffer
                self._file.close()
            with suppress(OSError):
                os.unlink(self._temporary)

    def _finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self.count:
            refuse(DataError, f"no record was written to part {self.path!r}, and readers refuse an empty part")
        os.replace(self._temporary, self.path)

    def _refuse(self, error: OSError) -> NoReturn:
        refuse(DataError, f"part {self.path!r} cannot be written: {error.strerror}", cause=error)


def write_parts(
    directory: Path, records: Sequence[Any], parts: int = 1, prefix: str = "part-", suffix_length: int = -1
) -> list[str]:
    """Writes records as a data set, in order, evenly over its parts.

    Args:
      directory: created if it does not exist.
      records: OFRecords, messages or serialised; at least as many as parts.
      parts: number of files.
    Returns: their paths.
    Raises: ArgumentError; DataError where the files cannot be written.
    Example: >>> flow.data.write_parts("train", records, parts=4)
    """
    folder = _want("directory", check.path(directory))
    parts = _want("parts", check.integer(parts, low=1, high=_MOST_PARTS))
    prefix, suffix_length = _want_naming(prefix, suffix_length)
    if not isinstance(records, (Sequence, Records)) or isinstance(records, (str, bytes)):
        refuse(ArgumentError, f"records must be a list or tuple of OFRecords, got {shown(records)}")
    if len(records) < parts:
        refuse(ArgumentError, f"{len(records)} records do not fill {shown(parts)} parts")
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        refuse(DataError, f"cannot create directory {folder!r}: {getattr(error, 'strerror', None) or error}")
    paths = []
    for i in range(parts):
        path = os.path.join(folder, _part_name(i, prefix, suffix_length))
        with PartWriter(path) as part:
            for record in records[slice(*balanced(len(records), parts, i))]:
                part.write(record)
        paths.append(path)
    return paths
