"""Parses OFRecord's wire format, vectorised over many records.

All records of a block advance together, one map entry per step. A step is some thirty NumPy calls, whatever the number of
records. Only the encoding that protobuf's own writers produce is accepted here. A record in another legal encoding, or a damaged
one, is put aside (``Scan.irregular``); the protobuf library then decides which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np

PAD = 64  # bytes that must follow the last record in a buffer, because words are read beyond its end
BYTES, FLOAT, DOUBLE, INT32, INT64 = range(1, 6)  # field numbers in Feature
KINDS = {0: "no value", BYTES: "bytes_list", FLOAT: "float_list", DOUBLE: "double_list", INT32: "int32_list", INT64: "int64_list"}
_NUMPY: dict[int, np.dtype] = {
    FLOAT: np.dtype("<f4"),
    DOUBLE: np.dtype("<f8"),
    INT32: np.dtype(np.int32),
    INT64: np.dtype(np.int64),
}
_PATIENCE = 8  # different keys in one step, before a record counts as irregular
# Sizes of pieces of work: their temporary arrays stay in the cache, and malloc does not map memory for each of them.
_PIECE = 4096  # records
_PIECE_BYTES = 1 << 17  # of packed integers
_LONG = 256  # average length in bytes from which spans are copied one by one
_EQUAL = 1 << 20  # bytes; spans of one length up to this are copied together
_MANY_STEPS = 64
_MOST_STEPS = 4096  # features of one record, before it counts as irregular
_PAYLOAD = 0x7F7F7F7F7F7F7F7F


@dataclass(slots=True)
class Column:
    """One feature of every record: its kind (0: missing), and the place of its list's body."""

    kind: np.ndarray
    start: np.ndarray
    length: np.ndarray


Rows = slice | np.ndarray  # of a block


def nothing(count: int) -> Column:
    """The column of a feature that no record has."""
    return Column(np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))


@dataclass(slots=True)
class Scan:
    """The features located in a block: by key, pieces of columns in the order they were found; and the irregular records.

    A key that few records have takes little memory: whole columns are only made of requested keys.
    """

    count: int
    pieces: dict[bytes, list[tuple[Rows, Column]]] = field(default_factory=dict)
    irregular: list[np.ndarray] = field(default_factory=list)
    late: dict[bytes, list[tuple[Rows, Column]]] = field(default_factory=dict)  # of the irregular records

    def add(self, key: bytes, rows: Rows, column: Column) -> None:
        """Notes a column of some rows under its key."""
        self.pieces.setdefault(key, []).append((rows, column))

    def keys(self, begin: int, end: int) -> list[bytes]:
        """The keys of the records from ``begin`` to ``end``."""

        def is_there(rows: Rows, column: Column) -> bool:
            if isinstance(rows, slice):
                return bool(column.kind[max(begin - rows.start, 0) : max(end - rows.start, 0)].any())
            return bool(column.kind[(rows >= begin) & (rows < end)].any())

        found = (key for pieces in (self.pieces, self.late) for key, rest in pieces.items() if any(is_there(*p) for p in rest))
        return list(dict.fromkeys(found))

    def column(self, key: bytes) -> Column:
        """The feature of all records; of entries with the same key the last one counts."""
        early = self.pieces.get(key, [])
        if len(early) == 1 and not self.irregular and isinstance(early[0][0], slice):
            return early[0][1]
        made = nothing(self.count)
        for rows, piece in early:
            made.kind[rows], made.start[rows], made.length[rows] = piece.kind, piece.start, piece.length
        for rows in self.irregular:
            made.kind[rows] = 0
        for rows, piece in self.late.get(key, []):
            made.kind[rows], made.start[rows], made.length[rows] = piece.kind, piece.start, piece.length
        return made


def words_of(data: np.ndarray) -> np.ndarray:
    """Eight bytes from every position, as little-endian integers; a view, and not aligned."""
    return np.ndarray((max(len(data) - 7, 0),), "<i8", data, strides=(1,))


def _length(word: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
    """The varint in the second and following bytes, and its number of bytes; -1 for more than five."""
    rest = word >> 8
    if not (rest & 0x80).any():
        return rest & 0x7F, 1
    more = (rest >> 7) & 1
    value, size = rest & 0x7F, 1 + more
    for i in range(1, 5):
        value += ((rest >> i) & (0x7F << 7 * i)) * more
        more = more & (rest >> (8 * i + 7))
        size += more
    return np.where(size > 5, -1, value), size


def scan(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, patience: int = _PATIENCE) -> Scan:
    """Finds every feature of every record. ``data`` has PAD bytes behind the last record."""
    count = len(starts)
    if count <= _PIECE:
        return _scan(data, starts, lengths, patience)
    made = Scan(count)
    for i in range(0, count, _PIECE):
        found = _scan(data, starts[i : i + _PIECE], lengths[i : i + _PIECE], patience)
        made.irregular += [irregular + i for irregular in found.irregular]
        for key, pieces in found.pieces.items():
            for rows, column in pieces:
                made.add(key, slice(i, i + found.count) if isinstance(rows, slice) else rows + i, column)
    return made


def _scan(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, patience: int) -> Scan:
    return _scan_alike(data, starts, lengths) or _scan_any(data, starts, lengths, patience)


def _scan_alike(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Scan | None:
    """The scan of records that have the same bytes around the bodies of their lists as the first one; None for others."""
    if len(starts) < 2 or not lengths[0] or not (lengths == lengths[0]).all():
        return None
    begin, made, at = int(starts[0]), Scan(len(starts)), 0
    try:
        entries = list(islice(walk(data, begin, int(lengths[0])), _MOST_STEPS + 1))
    except (ValueError, IndexError):
        return None
    if len(entries) > _MOST_STEPS or len({key for key, *_ in entries}) < len(entries):
        return None
    for key, kind, body, size in entries:
        around = spans(data, starts + at, body - begin - at).reshape(len(starts), -1)
        if not (around == around[0]).all():
            return None
        at = body - begin + size
        column = Column(np.full(len(starts), kind, np.uint8), starts + (body - begin), np.full(len(starts), size))
        made.add(key, slice(0, len(starts)), column)
    return made


def _scan_any(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, patience: int) -> Scan:
    words, made, steps = words_of(data), Scan(len(starts)), 0
    rows: np.ndarray | None = None  # None: all
    p, end = starts, starts + lengths
    if not (lengths > 0).all():
        rows = np.flatnonzero(lengths > 0)
        p, end = p[rows], end[rows]
    while len(p):
        steps += 1
        # a few records have far more features than the others, or so many that stepping through them would take long
        if steps > _MOST_STEPS or (steps > _MANY_STEPS and len(p) * steps < len(starts)):
            _put_aside(made, np.zeros(len(p), bool), rows)
            break
        word = words[p]
        size, n = _length(word)
        ok = ((word & 0xFF) == 0x0A) & (size >= 0)
        q = p + 1 + n
        stop = q + size
        ok &= stop <= end
        word = words[q]
        size, n = _length(word)
        key = q + 1 + n
        ok &= ((word & 0xFF) == 0x0A) & (size >= 0) & (key + size + 2 <= stop)
        if not ok.all():
            rows = _put_aside(made, ok, rows)
            p, end, stop, key, size = p[ok], end[ok], stop[ok], key[ok], size[ok]
        key_size, r = size, key + size
        word = words[r]
        size, n = _length(word)
        s = r + 1 + n
        ok = ((word & 0xFF) == 0x12) & (s + size == stop)
        empty = size == 0
        word = words[s]
        size, n = _length(word)
        body = s + 1 + n
        tag = word & 0xFF
        kind = (tag >> 3).astype(np.uint8)
        ok &= ((tag & 7) == 2) & (kind >= BYTES) & (kind <= INT64) & (size >= 0) & (body + size == stop) | empty
        if empty.any():
            kind[empty], size, body = 0, np.where(empty, 0, size), np.where(empty, stop, body)
        if not ok.all():
            rows = _put_aside(made, ok, rows)
            end, stop, key, key_size, kind, body, size = (a[ok] for a in (end, stop, key, key_size, kind, body, size))
        ok = _assign(made, data, words, rows, key, key_size, Column(kind, body, size), patience)
        if ok is not None:
            rows = _put_aside(made, ok, rows)
            end, stop = end[ok], stop[ok]
        going = stop < end
        if going.all():
            p = stop
        else:
            rows = np.flatnonzero(going) if rows is None else rows[going]
            p, end = stop[going], end[going]
    return made


def _put_aside(made: Scan, ok: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    made.irregular.append(np.flatnonzero(~ok) if rows is None else rows[~ok])
    return np.flatnonzero(ok) if rows is None else rows[ok]


def _assign(
    made: Scan,
    data: np.ndarray,
    words: np.ndarray,
    rows: np.ndarray | None,
    key: np.ndarray,
    key_size: np.ndarray,
    found: Column,
    patience: int,
) -> np.ndarray | None:
    """Puts one entry of each record into the column of its key. Returns a mask of the records that are done, None for all."""
    left: np.ndarray | None = None
    for _ in range(patience if len(key) else 0):
        first = 0 if left is None else int(np.argmax(left))
        name = data[key[first] : key[first] + key_size[first]].tobytes()
        same = _equal(words, key, key_size, name)
        if left is not None:
            same &= left
        if same.all():
            made.add(name, slice(0, made.count) if rows is None else rows, found)
            return None
        target = np.flatnonzero(same) if rows is None else rows[same]
        made.add(name, target, Column(found.kind[same], found.start[same], found.length[same]))
        left = ~same if left is None else left & ~same
        if not left.any():
            return None
    return ~left if left is not None else None


def walk(data: np.ndarray, start: int, length: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Key, kind (0: no value), start and length of each entry of one record. Raises ValueError for encodings of other writers."""
    view, at, end = data.data, start, start + length

    def entry(at: int, tags: Sequence[int], end: int) -> tuple[int, int, int]:
        """Tag, begin and end of the field at ``at``."""
        tag, size, shift, p = view[at], 0, 0, at + 1
        while True:
            byte = view[p]
            size, shift, p = size | (byte & 0x7F) << shift, shift + 7, p + 1
            if byte < 0x80 or shift > 28:
                break
        if tag not in tags or byte >= 0x80 or p + size > end:
            raise ValueError("not an encoding that the protobuf library writes")
        return tag, p, p + size

    while at < end:
        _, key_at, at = entry(at, (0x0A,), end)
        _, key, value_at = entry(key_at, (0x0A,), at)
        _, kind_at, stop = entry(value_at, (0x12,), at)
        tag, body = 0, at
        if stop == at > kind_at:
            tag, body, stop = entry(kind_at, (0x0A, 0x12, 0x1A, 0x22, 0x2A), at)
        if stop != at:
            raise ValueError("not an encoding that the protobuf library writes")
        yield view[key:value_at].tobytes(), tag >> 3, body, stop - body


def _equal(words: np.ndarray, key: np.ndarray, key_size: np.ndarray, name: bytes) -> np.ndarray:
    """A mask of the keys that equal ``name``."""
    size = len(name)
    same = key_size == size
    if size < 8:
        if size:
            mask = (1 << 8 * size) - 1
            same &= (words[key] & mask) == int.from_bytes(name, "little")
        return same
    for at in (*range(0, size - 8, 8), size - 8):
        if same.all():
            same = words[key + at] == int.from_bytes(name[at : at + 8], "little", signed=True)
        else:  # shorter keys may be at the end of the data
            which = np.flatnonzero(same)
            same[which] = words[key[which] + at] == int.from_bytes(name[at : at + 8], "little", signed=True)
    return same


def packed(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Payloads of packed lists: start, length, and a mask of those that are one packed field (or empty)."""
    word = words_of(data)[start]
    size, n = _length(word)
    at = start + 1 + n
    empty = length == 0
    ok = ((word & 0xFF) == 0x0A) & (size >= 0) & (at + size == start + length) | empty
    return np.where(empty, start, at), np.where(empty, 0, size), ok


def gather(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Concatenates the bytes of the spans, followed by PAD zeros."""
    total = int(length.sum())
    made = np.empty(total + PAD, np.uint8)
    made[total:] = 0
    if not total:
        return made
    if total > _LONG * len(start):  # long ones: indices of single bytes would take far more memory than the bytes
        source, target, at = data.data, made.data, 0
        for first, n in zip(start.tolist(), length.tolist(), strict=True):
            target[at : at + n] = source[first : first + n]
            at += n
        return made
    if (length == length[0]).all():
        made[:total] = spans(data, start, int(length[0]))
        return made
    before = np.cumsum(length) - length
    made[:total] = data.take(np.repeat(start - before, length) + np.arange(total))
    return made


def spans(data: np.ndarray, start: np.ndarray, size: int) -> np.ndarray:
    """The bytes of spans of one length, one after the other."""
    if not size:
        return np.zeros(0, np.uint8)
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))[start].view(np.uint8)


def gathered(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """``gather`` without the zeros, which spares a copy of spans of one length."""
    if len(length) and 0 < length[0] <= _EQUAL and (length == length[0]).all():
        return spans(data, start, int(length[0]))
    return gather(data, start, length)[: int(length.sum())]


def fixed(data: np.ndarray, start: np.ndarray, length: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of float or double payloads, flat, and their number in each. Lengths are multiples of the item size."""
    dtype = _NUMPY[kind]
    flat = gathered(data, start, length).view(dtype)
    return flat, length // dtype.itemsize


def varints(data: np.ndarray, start: np.ndarray, length: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of int32 or int64 payloads, flat, their number in each, and a mask of well-formed payloads (others count 0)."""
    dtype = _NUMPY[kind]
    if len(start) and int(length.max()) <= 4:  # a few bytes each: the word at the start holds them
        short = _short_varints(data, start, length)
        if short is not None:
            return short.astype(dtype), np.ones(len(start), np.int64), np.ones(len(start), bool)
    ends = np.cumsum(length)
    if len(start) and ends[-1] > _PIECE_BYTES:
        long = np.flatnonzero(length > _PIECE_BYTES)
        even = np.searchsorted(ends, np.arange(_PIECE_BYTES, ends[-1], _PIECE_BYTES))
        cuts = np.unique(np.concatenate([even, long, long + 1, np.array([0, len(start)])]))
        pieces = [_piece(data, start[i:j], length[i:j]) for i, j in pairwise(cuts.tolist())]
        values, counts, good = zip(*pieces, strict=True)
        # cast as they are joined, which spares a pass over them
        return np.concatenate(values, dtype=dtype, casting="unsafe"), np.concatenate(counts), np.concatenate(good)
    values, counts, good = _varints(data, start, length)
    return values.astype(dtype, copy=False), counts, good


def _varints(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ``varints``; the values are int64, or unsigned and narrower where all are below 256 or 2^14."""
    flat, total = gather(data, start, length), int(length.sum())
    goes_on = flat[:total] >= 0x80
    ends = np.cumsum(length)
    if total and not goes_on[ends[length > 0] - 1].any() and not (goes_on[1:] & goes_on[:-1]).any():
        if (goes_on[:-1] & (flat[1:total] != 1)).any():
            value, place = _of_two_bytes(flat[:total], goes_on)
        else:
            value, place = _below_256(flat[:total], goes_on)
        count = np.diff(np.searchsorted(place, ends, side="left"), prepend=0)
        return value, count, np.ones(len(start), bool)
    last = np.flatnonzero(~goes_on)  # the last byte of each number
    size = np.diff(last, prepend=-1)
    count = np.diff(np.searchsorted(last, ends, side="left"), prepend=0) if len(start) else np.zeros(0, np.int64)
    closed = np.ones(len(start), bool)
    full = length > 0
    closed[full] = flat[ends[full] - 1] < 0x80
    if closed.all() and (size > 10).any():  # a number that is cut off would seem to go on in the next payload
        closed[np.searchsorted(ends, last[size > 10], side="right")] = False
    if not closed.all():
        rows = np.flatnonzero(closed)
        count = np.zeros(len(start), np.int64)
        value, count[rows], closed[rows] = _varints(data, start[rows], length[rows])
        return value, count, closed
    first = last - size + 1
    value = words_of(flat)[first]
    widest = int(size.max()) if len(size) else 0
    value &= (1 << (8 * np.minimum(size, 7))) - 1 | np.where(size > 7, -1 << 56, 0) if widest > 7 else (1 << (8 * size)) - 1
    value = _squeezed(value)
    if widest > 8:
        for extra, shift in ((8, 56), (9, 63)):
            longer = size > extra
            value[longer] |= (flat[first[longer] + extra].astype(np.int64) & 0x7F) << shift
    return value, count, closed


def _below_256(flat: np.ndarray, goes_on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers below 256, such as pixels, and where each begins: the first byte is the number; where it goes on, a 1 follows."""
    begins = np.ones(len(flat), bool)
    np.logical_not(goes_on[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    return flat.take(first), first


def _of_two_bytes(flat: np.ndarray, goes_on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of at most two bytes each, and where each ends; ``goes_on`` marks the first of two."""
    value, is_first = flat.astype(np.uint16), goes_on[:-1].view(np.uint8)
    second = value[1:]  # what follows a first byte counts 128 times
    second *= is_first * np.uint8(127) + np.uint8(1)
    second |= (flat[:-1] & np.uint8(0x7F)) * is_first
    last = np.flatnonzero(~goes_on)
    return value.take(last), last


def _piece(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``varints`` of short payloads together, or of one long payload a piece at a time."""
    if len(starts) > 1 or int(lengths[0]) <= _PIECE_BYTES:
        return _varints(data, starts, lengths)
    start = int(starts[0])
    end, cuts = start + int(lengths[0]), [start]
    while cuts[-1] < end:
        cut = min(cuts[-1] + _PIECE_BYTES, end)
        last = np.flatnonzero(data[max(cut - 10, cuts[-1]) : cut] < 0x80)
        if not len(last):
            return np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(1, bool)  # a number of more than ten bytes
        cuts.append(cut if cut == end else max(cut - 10, cuts[-1]) + int(last[-1]) + 1)
    begin = np.array(cuts, np.int64)
    values, good = [], True
    for i in range(len(cuts) - 1):
        piece, _, closed = _varints(data, begin[i : i + 1], np.diff(begin[i : i + 2]))
        values.append(piece)
        good &= bool(closed[0])
    flat = np.concatenate(values) if good else np.zeros(0, np.int64)
    return flat, np.array([len(flat)]), np.array([good])


def _squeezed(x: np.ndarray) -> np.ndarray:
    """Removes the continuation bits from eight bytes."""
    x &= _PAYLOAD
    x = (x & 0x007F007F007F007F) | ((x & 0x7F007F007F007F00) >> 1)
    x = (x & 0x00003FFF00003FFF) | ((x & 0x3FFF00003FFF0000) >> 2)
    return (x & 0x0FFFFFFF) | ((x & 0x0FFFFFFF00000000) >> 4)


def _short_varints(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray | None:
    """The numbers of payloads that hold one number of at most four bytes each; None where one does not."""
    if not length.all():
        return None
    bits = 8 * length
    word = words_of(data)[start] & ((1 << bits) - 1)
    if not ((word & 0x80808080) == (0x80808080 & ((1 << (bits - 8)) - 1))).all():
        return None
    return _squeezed(word)


def bytes_spans(data: np.ndarray, start: int, length: int) -> list[tuple[int, int]] | None:
    """Start and length of every value of one bytes list; None for an irregular encoding."""
    spans, end = [], start + length
    while start < end:
        if data[start] != 0x0A:
            return None
        size, shift, start = 0, 0, start + 1
        while True:
            if start >= end or shift > 28:
                return None
            byte = int(data[start])
            size, shift, start = size | (byte & 0x7F) << shift, shift + 7, start + 1
            if byte < 0x80:
                break
        if start + size > end:
            return None
        spans.append((start, size))
        start += size
    return spans
