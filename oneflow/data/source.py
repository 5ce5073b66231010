"""The order of records: shards, shuffling, epochs; and positions that can be saved.

The order is a function of the arguments alone. Random numbers come from a counter: the k-th draw of an instance is a function of
(seed, shard, k). So a position is a few numbers and the places of the records in the shuffle buffer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .._base import check
from .._base.files import absolute
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, DataError
from . import _mt19937
from ._positions import WITHOUT_POSITIONS, whole
from ._split import balanced
from .crops import uniform_words
from .parts import CHUNK, MAX_RECORD_BYTES, PartFile
from .records import Records

SHUFFLE_SEED = 524287  # of the order of the files, as in OneFlow
_AHEAD = 1024  # the most records that are drawn from a buffer at once
_DRAWN_BYTES = 2 * CHUNK  # the most bytes of them, unless a batch has more
_LARGE_CHUNK = 16 << 20  # bytes; a chunk holds at least two batches, and up to eight where they are small


_Place = list[int]  # file, record, offset


class _Units:
    """Units of the shuffle buffer, immutable. A unit is one record, or a batch of them.

    Attributes:
      records: serialised, object array (units, records per unit).
      places: int64 (units, records per unit, 3): file, record, offset.
    """

    __slots__ = ("records", "places")

    def __init__(self, records: np.ndarray, places: np.ndarray):
        self.records, self.places = records, places

    @classmethod
    def of(cls, records: Sequence[bytes], places: np.ndarray, unit: int) -> _Units:
        """From a flat list, ``unit`` records each."""
        array = np.empty(len(records), object)
        array[:] = records
        return cls(array.reshape(-1, unit), places.reshape(-1, unit, 3))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, part: slice) -> _Units:
        return _Units(self.records[part], self.places[part])

    def extended(self, more: _Units) -> _Units:
        """These units, followed by more."""
        if not len(more):
            return self
        if not len(self):
            return more
        return _Units(np.concatenate([self.records, more.records]), np.concatenate([self.places, more.places]))

    def exchanged(self, slots: np.ndarray, fresh: _Units) -> tuple[_Units, _Units]:
        """Replaces unit ``slots[k]`` by unit k of ``fresh``, one k after the other. Returns the new units, and those replaced."""
        order = np.argsort(slots, kind="stable")
        again = slots[order[1:]] == slots[order[:-1]]  # a slot that an earlier k has filled
        last = np.ones(len(slots), bool)
        last[order[:-1][again]] = False
        replaced = _Units(self.records[slots], self.places[slots])
        replaced.records[order[1:][again]] = fresh.records[order[:-1][again]]
        replaced.places[order[1:][again]] = fresh.places[order[:-1][again]]
        made = _Units(self.records.copy(), self.places.copy())
        made.records[slots[last]], made.places[slots[last]] = fresh.records[last], fresh.places[last]
        return made, replaced


_NONE = _Units(np.zeros((0, 1), object), np.zeros((0, 1, 3), np.int64))


def _size(path: str) -> dict[str, int]:
    """A file's size, for a saved position; empty where the file is gone."""
    try:
        return {"size": os.path.getsize(path)}
    except OSError:
        return {}


def _want(argument: str, value: Any, least: int = 0) -> int:
    found, problem = check.integer(value, low=least, high=2**63 - 1)
    if problem:
        refuse(ArgumentError, f"{argument} {problem}")
    return found


class RecordSource:
    """Endless records of one reader instance, in the order of OneFlow's readers. One thread at a time may use it.

    Without ``random_shuffle`` records come in the order of the parts and of the records in them, cyclically. With it, a buffer
    is filled first; then each record that is read replaces one drawn at random, which is returned.

    Args:
      paths: all parts of the data set, see ``part_paths``.
      shard: this instance's number, in [0, shards).
      shards: how many instances read the data set; each owns a contiguous range of parts (balanced split).
      random_shuffle: whether there is a buffer.
      buffer_size: its size in records.
      shuffle_after_epoch: when this instance's parts are exhausted, shuffle the order of all parts (in each instance alike) and
        continue with the same range of the new order.
      seed: of the draws from the buffer; the same for all instances of a reader.
      max_record_bytes: of the longest record that is read.
    Raises:
      ArgumentError: fewer parts than shards, or a number outside its range.
    Example: >>> source = flow.data.RecordSource(flow.data.part_paths("train", 4)); batch = source.take(32)
    """

    opener: Any = PartFile
    shuffles_first = False

    def __init__(
        self,
        paths: Sequence[str],
        *,
        shard: int = 0,
        shards: int = 1,
        random_shuffle: bool = False,
        buffer_size: int = 1024,
        shuffle_after_epoch: bool = False,
        seed: int = 0,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ):
        if not isinstance(paths, (list, tuple)) or any(check.path(path)[1] for path in paths):
            refuse(ArgumentError, f"paths must be a list or tuple of paths, got {shown(paths)}")
        self.paths = [absolute(path) for path in paths]
        self._max_record_bytes = _want("max_record_bytes", max_record_bytes, 1)
        shards = _want("shards", shards, 1)
        shard = _want("shard", shard)
        if shard >= shards:
            refuse(ArgumentError, f"shard must be in [0, {shards}), got {shard}")
        if len(self.paths) < shards:
            refuse(
                ArgumentError, f"{len(self.paths)} part files cannot be shared by {shards} readers: each needs one",
                hint=f"use at most {len(self.paths)} devices, or split the data into more parts",
            )  # fmt: skip
        for argument, flag in (("random_shuffle", random_shuffle), ("shuffle_after_epoch", shuffle_after_epoch)):
            if not isinstance(flag, (bool, np.bool_, int)):
                refuse(ArgumentError, f"{argument} must be True or False, got {shown(flag)}")
        buffer_size = _want("shuffle_buffer_size", buffer_size, 1) if random_shuffle else 0
        self._shard, self._seed = shard, _want("seed", seed, -(2**63))
        self._range = range(*balanced(len(self.paths), shards, shard))
        self._buffer_size = buffer_size
        self._shuffles_files = bool(shuffle_after_epoch)
        self._chunk_bytes = CHUNK
        self._file: Any = None
        self._taken = self._drawn = 0
        self._buffer = _NONE
        self._ahead: Records | None = None  # drawn from the buffer, not returned yet
        self._order = list(range(len(self.paths)))
        if self._shuffles_files and self.shuffles_first:
            _mt19937.shuffle(self._order, SHUFFLE_SEED)
        self._epoch = 0
        self._begin()

    # --- reading, part after part

    def _begin(self) -> None:
        self._at, self._offset, self._record = 0, 0, 0  # the part, and the place in it
        self._chunk: Records | None = None  # its records from _used on are not returned yet
        self._used = 0

    def _next_epoch(self) -> None:
        self._epoch += 1
        if self._shuffles_files:
            order = self._order.copy()
            _mt19937.shuffle(order, SHUFFLE_SEED + self._epoch - self.shuffles_first)
            self._order = order
        self._begin()

    def _read(self, count: int) -> list[Records]:
        """The next records of this instance's parts, in pieces. An error leaves the position unchanged."""
        before = self._position()
        try:
            pieces: list[Records] = []
            while count:
                if self._chunk is None or self._used == len(self._chunk):
                    self._read_chunk()
                assert self._chunk is not None
                piece = self._chunk[self._used : self._used + count]
                self._used += len(piece)
                count -= len(piece)
                pieces.append(piece)
            if len(pieces) > 1:  # batches of one chunk are located and decoded together
                size = sum(piece.nbytes for piece in pieces)
                self._chunk_bytes = max(self._chunk_bytes, 2 * size, min(8 * size, _LARGE_CHUNK))
            return pieces
        except BaseException:
            self._go_to(before)
            raise

    def _position(self) -> tuple[Any, ...]:
        return self._epoch, self._order, self._at, self._offset, self._record, self._chunk, self._used

    def _go_to(self, position: tuple[Any, ...]) -> None:
        self._epoch, self._order, self._at, self._offset, self._record, self._chunk, self._used = position

    def _read_chunk(self) -> None:
        while True:
            path = self.paths[self._order[self._range[self._at]]]
            if self._file is None or self._file.path != path:
                self.close()
                self._file = self.opener(path, self._max_record_bytes)
            if self._offset < self._file.size:
                break
            if self._at + 1 < len(self._range):
                self._at, self._offset, self._record = self._at + 1, 0, 0
            else:
                self._next_epoch()
        self._chunk, offset = self._file.chunk(self._offset, self._record, self._chunk_bytes)
        self._used, self._offset, self._record = 0, offset, self._record + len(self._chunk)

    # --- batches

    def take(self, count: int) -> Records:
        """The next ``count`` records (> 0). Raises RecordError, PartNotFoundError; the position is unchanged then."""
        if not self._buffer_size:
            taken = Records.concat(self._read(count))
        else:
            taken = self._from_ahead(count)
        self._taken += count
        return taken

    def _from_ahead(self, count: int) -> Records:
        """Draws records for several batches at once, so that they are located and decoded together."""
        before = self._ahead
        if before is not None and len(before) >= count:
            self._ahead = before[count:]
            return before[:count]
        pieces = [before[:count]] if before is not None else []
        missing = count - sum(map(len, pieces))
        drawn = self._draw(missing)
        pieces.append(drawn[:missing])
        self._ahead = drawn[missing:]
        return Records.concat([piece for piece in pieces if len(piece)])

    def _draw(self, count: int) -> Records:
        sample = self._buffer.records[:16]
        fitting = _DRAWN_BYTES * sample.size // max(sum(map(len, sample.ravel())), 1)  # records
        ahead = min(_AHEAD, fitting) // count * count
        if ahead > count:
            with suppress(DataError):  # of a record that this batch may not need
                return self._shuffled(ahead, 1)
        return self._shuffled(count, 1)

    def _shuffled(self, units: int, unit: int) -> Records:
        """``units`` units of ``unit`` records each, drawn from the buffer."""
        if len(self._buffer) and self._buffer.records.shape[1] != unit:
            rule = f"a shuffle buffer holds units of {self._buffer.records.shape[1]} records, and {unit} are drawn"
            refuse(DataError, rule, hint=f"the batch size as it was when the position was saved; {WITHOUT_POSITIONS}")
        missing = self._buffer_size - len(self._buffer)
        fresh = self._units(self._read((missing + units) * unit), unit)
        self._buffer = self._buffer.extended(fresh[:missing])
        words = uniform_words(self._seed, self._shard, self._drawn, units) >> np.uint64(32)
        slots = (words * np.uint64(self._buffer_size) >> np.uint64(32)).astype(np.int64)
        self._buffer, drawn = self._buffer.exchanged(slots, fresh[missing:])
        self._drawn += units
        return Records.joined(drawn.records.ravel().tolist(), self.paths, drawn.places.reshape(-1, 3))

    def _units(self, pieces: list[Records], unit: int) -> _Units:
        numbers = {path: i for i, path in enumerate(self.paths)}
        places = np.concatenate([piece.origin for piece in pieces])
        files = [np.array([numbers[f] for f in piece.files], np.int64)[piece.origin[:, 0]] for piece in pieces]
        places[:, 0] = np.concatenate(files)
        return _Units.of([record for piece in pieces for record in piece.tolist()], places, unit)

    # --- positions

    @property
    def epoch(self) -> int:
        """How often this instance's parts were exhausted so far."""
        return self._epoch

    def state(self) -> dict[str, Any]:
        """The position before the next record, JSON-able."""
        return self.mark()()

    def mark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the position before the next record. Making it is cheap, whatever the size of the buffer."""
        at, record, offset = self._at, self._record, self._offset
        if self._chunk is not None and self._used < len(self._chunk):
            where = self._chunk.where(self._used)
            record, offset = where.record, where.offset
        made = {"taken": self._taken, "epoch": self._epoch, "order": self._order, "part": at, "record": record, "offset": offset}
        if self._buffer_size:
            made |= {"seed": self._seed, "drawn": self._drawn}
        made |= {"parts": len(self.paths), "shard": [self._shard, self._range.start, self._range.stop]}
        path = self.paths[self._order[self._range[at]]]
        if not len(self._buffer):
            return lambda: made | _size(path)
        places, ahead = self._buffer.places, self._ahead  # they are replaced, never modified

        def spelled_out() -> dict[str, Any]:
            drawn = ahead.origin.tolist() if ahead is not None else []
            return {**made, **_size(path), "buffer": places.tolist(), "ahead": drawn}

        return spelled_out

    def restore(self, state: dict[str, Any]) -> None:
        """Continues exactly where ``state()`` was taken, in this process or another.

        Raises DataError for a state that does not fit this reader; nothing is changed then.
        """
        shard = [self._shard, self._range.start, self._range.stop]
        expected = {"parts": len(self.paths), "shard": shard}
        if not isinstance(state, dict) or any(state.get(key) != value for key, value in expected.items()):
            found = {key: state.get(key) for key in expected} if isinstance(state, dict) else state
            rows = [("expected", str(expected)), ("found", str(found))]
            refuse(
                DataError, "a reader's saved position belongs to other parts or another number of readers", found=rows,
                hint=f"the same data_part_num and as many devices; {WITHOUT_POSITIONS}",
            )  # fmt: skip
        try:
            places = [[_place(place, len(self.paths)) for place in unit] for unit in state.get("buffer", [])]
            if places and len(places) != self._buffer_size:
                raise ValueError(f"its buffer holds {len(places)} records, this one {self._buffer_size}")
            if len({len(unit) for unit in places}) > 1 or [] in places:
                raise ValueError("its buffer holds batches of several sizes")
            ahead = [_place(place, len(self.paths)) for place in state.get("ahead", [])]
            order, at = [whole(i) for i in state["order"]], whole(state["part"], most=len(self._range) - 1)
            epoch, offset, record, taken = (whole(state[key]) for key in ("epoch", "offset", "record", "taken"))
            drawn, seed = whole(state.get("drawn", 0)), whole(state.get("seed", self._seed), least=-(1 << 63))
            if sorted(order) != list(range(len(self.paths))):
                raise ValueError("its order of parts is not one of theirs")
        except (KeyError, ValueError, TypeError) as error:
            hint = f"the reader's settings as they were; {WITHOUT_POSITIONS}"
            refuse(DataError, f"a reader's saved position cannot be used: {error!r}", hint=hint)
        path = self.paths[order[self._range[at]]]
        if "size" in state and _size(path).get("size", state["size"]) != state["size"]:
            rows = [("file", path), ("expected", f"{state['size']} bytes"), ("found", f"{_size(path)['size']} bytes")]
            refuse(DataError, "a reader's saved position belongs to other data", found=rows, hint=WITHOUT_POSITIONS)
        flat = [place for unit in places for place in unit]
        records = self._reread(flat + ahead)
        self._order, self._epoch = order, epoch
        self._begin()
        self._at, self._offset, self._record = at, offset, record
        self._taken, self._drawn, self._seed = taken, drawn, seed
        unit = len(places[0]) if places else 1
        self._buffer = _Units.of(records[: len(flat)], np.array(flat, np.int64), unit) if flat else _NONE
        self._ahead = Records.joined(records[len(flat) :], self.paths, np.array(ahead, np.int64)) if ahead else None

    def _reread(self, places: list[_Place]) -> list[bytes]:
        """The records at these places; each part is opened once."""
        found = [b""] * len(places)
        part: Any = None
        try:
            for (file, record, offset), i in sorted((place, i) for i, place in enumerate(places)):
                if part is None or part.path != self.paths[file]:
                    if part is not None:
                        part.close()
                    part = self.opener(self.paths[file], self._max_record_bytes)
                found[i] = part.one(offset, record)[0]
        finally:
            if part is not None:
                part.close()
        return found

    def close(self) -> None:
        """Closes its file; ``take`` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def _place(value: Any, files: int) -> _Place:
    file, record, offset = value
    return [whole(file, most=files - 1), whole(record), whole(offset)]
