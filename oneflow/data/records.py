"""A batch of serialised OFRecords, with the origin of each. Features are located in all records together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import numpy as np

from .._base.extras import need
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, FeatureError, RecordError
from . import wire
from ._fault import Where, fault

_FILE, _RECORD, _OFFSET = range(3)
_MISSING: Any = None  # an argument that was left out, so that Records() is refused in our words
_SECOND_PATIENCE = 64  # different keys at one place of the irregular records, before they are read one by one


@dataclass(slots=True)
class Found:
    """One feature of a batch: the kinds of ``wire`` (0: missing), and the place of each list's body in ``data``."""

    data: np.ndarray
    kind: np.ndarray
    start: np.ndarray
    length: np.ndarray


@dataclass(slots=True)
class _Block:
    """Bytes that several batches share, and the features located in them so far."""

    data: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    lock: threading.Lock = field(default_factory=threading.Lock)
    scan: wire.Scan | None = None
    broken: dict[int, str] = field(default_factory=dict)  # by record: the message of the protobuf library
    parsed: np.ndarray | None = None  # data, followed by the irregular records in canonical form
    columns: dict[bytes, wire.Column] = field(default_factory=dict)  # requested so far
    made: dict[Any, Any] = field(default_factory=dict)  # results of Records.once

    def scanned(self) -> wire.Scan:
        with self.lock:
            if self.scan is None:
                scan = wire.scan(self.data, self.starts, self.lengths)
                self.parsed = self.data
                if scan.irregular:
                    self._add_irregular(scan, np.sort(np.concatenate(scan.irregular)))
                self.scan = scan
            return self.scan

    def _add_irregular(self, scan: wire.Scan, irregular: np.ndarray) -> None:
        """Parses the records that the scanner left aside with the protobuf library, which finds out which are broken."""
        plain, rows = [], []
        for i in irregular.tolist():
            start = int(self.starts[i])
            try:
                message = ofrecord().FromString(self.data[start : start + int(self.lengths[i])].tobytes())
                message.DiscardUnknownFields()
                plain.append(message.SerializeToString(deterministic=True))
                rows.append(i)
            except Exception as error:  # noqa: BLE001 - DecodeError, a RuntimeError or a ValueError, by implementation
                self.broken[i] = str(error) or type(error).__name__
        offset, rest = len(self.data), np.frombuffer(b"".join(plain) + bytes(wire.PAD), np.uint8)
        lengths = np.array([len(p) for p in plain], np.int64)
        begin, index = np.cumsum(lengths) - lengths, np.array(rows, np.int64)
        again = wire.scan(rest, begin, lengths, patience=_SECOND_PATIENCE)
        hard = set(np.concatenate(again.irregular).tolist()) if again.irregular else set()
        easy = np.array([i not in hard for i in range(len(rows))], bool)
        for key in again.pieces:
            column = again.column(key)
            there = easy & (column.kind > 0)
            moved = wire.Column(column.kind[there], column.start[there] + offset, column.length[there])
            scan.late.setdefault(key, []).append((index[there], moved))
        entries: dict[bytes, list[tuple[int, int, int, int]]] = {}
        for i in hard:
            try:
                for key, kind, at, size in wire.walk(rest, int(begin[i]), int(lengths[i])):
                    entries.setdefault(key, []).append((rows[i], kind, at + offset, size))
            except (ValueError, IndexError):
                self.broken[rows[i]] = "its features cannot be parsed"
        for key, found in entries.items():
            row, kinds, at, size = np.array(found, np.int64).T
            scan.late.setdefault(key, []).append((row, wire.Column(kinds.astype(np.uint8), at, size)))
        self.parsed = np.concatenate([self.data, rest])

    def column(self, key: bytes) -> wire.Column:
        """The feature of all records."""
        scan = self.scanned()
        found = self.columns.get(key)
        if found is None:
            found = scan.column(key)
            if key in scan.pieces or key in scan.late:  # requests for features that do not exist are not kept
                self.columns[key] = found
        return found


def ofrecord() -> Any:
    """The message class OFRecord. Raises MissingExtraError."""
    need("google.protobuf", "reading OFRecords")
    from ..core.record.record_pb2 import OFRecord

    return OFRecord


def list_message(kind: int) -> Any:
    """The message class of a list: FloatList and the like."""
    ofrecord()
    from ..core.record import record_pb2

    return getattr(record_pb2, ("BytesList", "FloatList", "DoubleList", "Int32List", "Int64List")[kind - 1])


def serialised(record: Any) -> bytes:
    """The bytes of an OFRecord: a message or already serialised. Raises ArgumentError for anything else."""
    if isinstance(record, bytes):
        return record
    try:
        data = record.SerializeToString()
    except Exception:  # of the user's object
        data = None
    if not isinstance(data, bytes):
        refuse(ArgumentError, f"a record must be an OFRecord, as a message or serialised, got {shown(record)}")
    return data


def _are_records(data: Any, starts: Any, lengths: Any, files: Any, origin: Any) -> bool:
    if not all(isinstance(a, np.ndarray) and a.dtype == np.int64 for a in (starts, lengths, origin)):
        return False
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1 or not isinstance(files, (list, tuple)):
        return False
    if starts.ndim != 1 or lengths.shape != starts.shape or origin.shape != (len(starts), 3):
        return False
    if not len(starts):
        return True
    numbers = origin[:, _FILE]
    within = starts.min() >= 0 and lengths.min() >= 0 and (starts + lengths).max() <= len(data) - wire.PAD
    return bool(within and numbers.min() >= 0 and numbers.max() < len(files))


class Records:
    """An immutable sequence of serialised OFRecords.

    ``records[i]`` is bytes; ``records[a:b]`` shares memory and located features. Made by readers, ``Records.of`` and
    ``Records.concat``. May be used by several threads.

    Args:
      data: uint8; at least ``wire.PAD`` bytes follow the last record.
      starts: int64 (N,), positions in ``data``.
      lengths: int64 (N,).
      files: names that ``origin`` refers to.
      origin: int64 (N, 3): number in ``files``, number of the record in that file, offset of its length prefix.
    Raises: ArgumentError.
    """

    __slots__ = ("_block", "_first", "_count", "_files", "_origin")

    def __init__(
        self,
        data: np.ndarray = _MISSING,
        starts: np.ndarray = _MISSING,
        lengths: np.ndarray = _MISSING,
        files: Sequence[str] = _MISSING,
        origin: np.ndarray = _MISSING,
    ):
        if not _are_records(data, starts, lengths, files, origin):
            rule = "Records takes arrays in the layout of its documentation"
            refuse(ArgumentError, rule, hint="flow.data.Records.of(records) makes them from OFRecords")
        self._block = _Block(data, starts, lengths)
        self._first, self._count = 0, len(starts)
        self._files, self._origin = files, origin

    @classmethod
    def of(cls, records: Iterable[Any]) -> Records:
        """From OFRecords, messages or serialised."""
        if not isinstance(records, Iterable) or isinstance(records, (str, bytes)):
            refuse(ArgumentError, f"records must be OFRecords, in a list for example, got {shown(records)}")
        taken = [serialised(record) for record in records]
        count = len(taken)
        origin = np.stack([np.zeros(count, np.int64), np.arange(count), np.zeros(count, np.int64)], axis=1)
        return cls.joined(taken, ["<memory>"], origin)

    @classmethod
    def joined(cls, records: Sequence[bytes], files: Sequence[str], origin: np.ndarray) -> Records:
        """From serialised records, each with its origin."""
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        data = np.frombuffer(b"".join([*records, bytes(wire.PAD)]), np.uint8)
        return cls(data, np.cumsum(lengths) - lengths, lengths, files, origin)

    @classmethod
    def concat(cls, batches: Sequence[Records]) -> Records:
        """Joins batches, in order."""
        if not isinstance(batches, (list, tuple)) or not all(isinstance(batch, Records) for batch in batches):
            refuse(ArgumentError, f"Records.concat takes a list or tuple of Records, got {shown(batches)}")
        if len(batches) == 1:
            return batches[0]
        files: dict[str, int] = {}
        pieces, starts, origins, size = [], [], [], 0
        for batch in batches:
            if not len(batch):
                continue
            numbers = np.array([files.setdefault(f, len(files)) for f in batch._files], np.int64)
            origin = batch.origin.copy()
            origin[:, _FILE] = numbers[origin[:, _FILE]]
            origins.append(origin)
            begin, end = batch.starts.min(), (batch.starts + batch.lengths).max()  # the bytes between its records are copied, too
            pieces.append(batch._block.data[begin:end])
            starts.append(batch.starts + (size - begin))
            size += len(pieces[-1])
        data = np.concatenate([*pieces, np.zeros(wire.PAD, np.uint8)])
        none = np.zeros(0, np.int64)
        lengths = np.concatenate([none, *(batch.lengths for batch in batches)])
        return cls(data, np.concatenate([none, *starts]), lengths, list(files), np.concatenate([none.reshape(0, 3), *origins]))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> bytes: ...
    @overload
    def __getitem__(self, i: slice) -> Records: ...
    def __getitem__(self, i: int | slice) -> bytes | Records:
        if isinstance(i, slice):
            first, last, step = i.indices(self._count)
            if step != 1:
                raise ArgumentError(f"records can be sliced with step 1 only, got {step}")
            part = object.__new__(Records)
            part._block, part._first, part._count = self._block, self._first + first, max(last - first, 0)
            part._files, part._origin = self._files, self._origin
            return part
        start, length = self._span(i)
        return self._block.data[start : start + length].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def tolist(self) -> list[bytes]:
        """All of them."""
        if not self._count:
            return []
        starts, data = self.starts, self._block.data
        begin, stops, base = 0, starts + self.lengths, cast(object, data.base)
        if isinstance(base, bytes) and len(base) == len(data):
            whole = base
        else:  # slices of bytes are made twice as fast as those of a view
            begin = int(starts.min())
            whole = data[begin : int(stops.max())].tobytes()
        return [whole[start:stop] for start, stop in zip((starts - begin).tolist(), (stops - begin).tolist(), strict=True)]

    def __repr__(self) -> str:
        return f"<{self._count} records, {self.nbytes} bytes>"

    @property
    def files(self) -> Sequence[str]:
        """The names that ``origin`` refers to."""
        return self._files

    @property
    def nbytes(self) -> int:
        """Bytes of the records, without their length prefixes."""
        return int(self.lengths.sum())

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of each record, int64 (N,)."""
        return self._block.lengths[self._first : self._first + self._count]

    @property
    def starts(self) -> np.ndarray:
        """Where each record begins in the data, int64 (N,)."""
        return self._block.starts[self._first : self._first + self._count]

    @property
    def origin(self) -> np.ndarray:
        """Where each record came from, int64 (N, 3): number in ``files``, number of the record in that file, its offset."""
        return self._origin[self._first : self._first + self._count]

    def where(self, i: int) -> Where:
        """Where record ``i`` came from."""
        file, record, offset = self._origin[self._first + i].tolist()
        return Where(self._files[file], record, offset)

    def message(self, i: int) -> Any:
        """Record ``i`` as an OFRecord message. Raises RecordError where it is damaged."""
        try:
            return ofrecord().FromString(self[i])
        except RecordError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self._broken(i, str(error)) from error

    def _span(self, i: int) -> tuple[int, int]:
        if not -self._count <= i < self._count:
            raise IndexError(f"record {i} of {self._count}")
        at = self._first + i % self._count
        return int(self._block.starts[at]), int(self._block.lengths[at])

    def _broken(self, i: int, why: str) -> RecordError:
        return fault(
            RecordError, "a record is not a serialised OFRecord: it is damaged, or the file holds something else", self.where(i),
            found=f"{len(self[i])} bytes; {why}", hint="python -m oneflow.data verify FILE lists all of them",
        )  # fmt: skip

    def once(self, key: Any, make: Callable[[Records], Any]) -> tuple[Any, int]:
        """``make`` of all records that share memory with these, computed once; and the index in it of the first of these."""
        block = self._block
        if key not in block.made:
            whole = object.__new__(Records)
            whole._block, whole._first, whole._count = block, 0, len(block.starts)
            whole._files, whole._origin = self._files, self._origin
            block.made[key] = make(whole)  # two threads may compute it at the same time, with equal results
        return block.made[key], self._first

    def features(self) -> list[str]:
        """The names of the features that at least one of the records has."""
        scan = self._block.scanned()
        self._check()
        keys = scan.keys(self._first, self._first + self._count)
        return [key.decode("utf-8", "surrogateescape") for key in keys]

    def _check(self) -> None:
        """Raises RecordError for the first record that is damaged."""
        broken = [i for i in self._block.broken if self._first <= i < self._first + self._count]
        if broken:
            raise self._broken(min(broken) - self._first, self._block.broken[min(broken)])

    def find(self, feature: str, *, missing: bool = False) -> Found:
        """The feature of all records. Raises RecordError for a damaged one, FeatureError where it is missing."""
        column = self._block.column(feature.encode("utf-8", "surrogateescape"))
        self._check()
        assert self._block.parsed is not None
        part = slice(self._first, self._first + self._count)
        found = Found(self._block.parsed, column.kind[part], column.start[part], column.length[part])
        if not missing and not found.kind.all():
            raise self._missing(int(np.argmin(found.kind)), feature)
        return found

    def _missing(self, i: int, feature: str) -> FeatureError:
        keys = self.message(i).feature  # protobuf represents a key that is not UTF-8 as bytes
        there = sorted(k.decode("utf-8", "backslashreplace") if isinstance(k, bytes) else k for k in keys)
        empty = feature in there
        shown = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "") or "no features at all"
        rule = f"feature {feature!r} of a record has no value of any type" if empty else f"Field {feature} not found in a record"
        hint = "" if empty else _likely(feature, there)
        return fault(FeatureError, rule, self.where(i), feature=feature, found=shown, hint=hint)  # type: ignore[return-value]


def _likely(name: str, known: Sequence[str]) -> str:
    from .._base.refuse import closest

    near = closest(name, known) if known else []
    return f"did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""
