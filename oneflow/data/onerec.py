"""OneRec files: framed, checksummed flatbuffers of named tensors."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._base.refuse import refuse, shown
from ..errors import ArgumentError, FeatureError, RecordError
from . import wire
from ._fault import Where, fault
from ._xxh64 import xxh64
from .parts import CHUNK, PartFile
from .parts import Path as PathLike
from .records import Records
from .source import RecordSource

MAGIC = b"^ONEREC$"
HEAD = 24  # magic, reserved, size, digest
_SIZE = struct.Struct("<ii")
_DIGEST = struct.Struct(">Q")
# The flatbuffer schema: table Example { features: [Feature]; }  table Feature { name: string; tensor: Tensor; }
# table Tensor { shape: [int]; data: TensorData; }  union TensorData { Int8List, Int32List, Int64List, Float32List, Float64List }
# and each list a table { values: [...]; }.
_UNION = tuple(map(np.dtype, ("<i1", "<i4", "<i8", "<f4", "<f8")))


class OneRecFile(PartFile):
    """One OneRec file, open for reading at any position; see PartFile. The digests of frames are verified."""

    def chunk(self, offset: int, record: int, chunk_bytes: int = CHUNK) -> tuple[Records, int]:
        """The records from ``offset`` on that about ``chunk_bytes`` hold, and the position after them."""
        length = min(max(chunk_bytes, HEAD), max(self.size - offset, 0))
        data = self.read(offset, length, record)
        first = self._frame(data, 0, length, offset, record)
        if first > length:
            length = first
            data = self.read(offset, length, record)
        starts: list[int] = []
        sizes: list[int] = []
        at = 0
        while at < length:
            try:
                whole = self._frame(data, at, length, offset + at, record + len(starts))
            except RecordError:
                if not starts:
                    raise
                break  # reported when that frame is read
            if at + whole > length:
                break
            starts.append(at + HEAD)
            sizes.append(_SIZE.unpack_from(data.data, at + 8)[1])
            at += whole
        begin, lengths = np.array(starts, np.int64), np.array(sizes, np.int64)
        digests = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
        heads = xxh64(data, begin - HEAD, np.full(len(begin), 16))
        count = _first_false(heads == digests[begin - 8])  # a wrong size must not be hashed
        stored = begin[:count] + (lengths[:count] + 7) // 8 * 8
        count = _first_false(xxh64(data, begin[:count], lengths[:count]) == digests[stored])
        if not count:
            raise fault(
                RecordError, "a OneRec record's digest does not match: the file is damaged", Where(self.path, record, offset)
            )
        if count < len(begin):
            at = int(begin[count]) - HEAD
        origin = np.zeros((count, 3), np.int64)
        origin[:, 1], origin[:, 2] = np.arange(record, record + count), begin[:count] + (offset - HEAD)
        return Records(data, begin[:count], lengths[:count], [self.path], origin), offset + at

    def one(self, offset: int, record: int) -> Records:
        """The record at ``offset``."""
        return self.chunk(offset, record, HEAD)[0]

    def _frame(self, data: np.ndarray, at: int, length: int, offset: int, record: int) -> int:
        """The size of the whole frame at ``at``. Raises RecordError where the file is too short for it."""
        where = Where(self.path, record, offset)
        if self.size - offset < HEAD:
            raise self._truncated(record, offset, f"{self.size - offset} bytes are left, a frame's head has {HEAD}")
        if at + HEAD > length:
            return HEAD
        head = data[at : at + 16].tobytes()
        size = _SIZE.unpack_from(head, 8)[1]
        if head[:8] != MAGIC or size < 0:
            found = f"{head[:8]!r}, size {size}"
            raise fault(RecordError, "a OneRec frame does not begin with its magic bytes and a size", where, found=found)
        whole = HEAD + (size + 7) // 8 * 8 + 8
        if whole > self.size - offset:
            raise self._truncated(record, offset, f"a frame of {whole} bytes, but only {self.size - offset} are left in the file")
        self._check_size(size, record, offset)
        return whole


def _first_false(values: np.ndarray) -> int:
    return len(values) if values.all() else int(np.argmin(values))


class OneRecSource(RecordSource):
    """Endless records of one instance of OneFlow's ``onerec_reader``. Differs from RecordSource in these arguments.

    Args:
      shuffle_mode: "instance": the buffer holds records; "batch": it holds whole batches (as large as the first ``take``).
      shuffle_after_epoch: the order of the files is shuffled before the first epoch, too.
      verify: whether each payload's structure is checked.
    """

    opener = OneRecFile
    shuffles_first = True

    def __init__(self, files: Sequence[str], *, shuffle_mode: str = "instance", verify: bool = True, **arguments: Any):
        if shuffle_mode not in ("instance", "batch"):
            refuse(ArgumentError, f'shuffle_mode must be "instance" or "batch", got {shown(shuffle_mode)}')
        super().__init__(files, **arguments)
        self._by_batch, self._verify = shuffle_mode == "batch", verify

    def take(self, count: int) -> Records:
        """The next ``count`` records."""
        if self._buffer_size and self._by_batch:
            taken = self._shuffled(1, count)
            self._taken += count
            return taken
        return super().take(count)

    def _read(self, count: int) -> list[Records]:
        before = self._position()
        pieces = super()._read(count)
        if self._verify:
            try:
                for records in pieces:
                    for i, payload in enumerate(records):
                        _check(payload, records.where(i))
            except RecordError:
                self._go_to(before)
                raise
        return pieces


def _check(payload: bytes, where: Where) -> None:
    for _, tensor in _features(payload, where):
        _values(payload, tensor, where)


# --- flatbuffers


def _damaged(where: Where) -> RecordError:
    return fault(RecordError, "a OneRec payload is not a flatbuffer of named tensors", where)


def _field(data: bytes, table: int, number: int) -> int:
    """The position of field ``number`` of a table, 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0] if vtable >= 0 else 0
    if vtable < 0 or 4 + 2 * number + 2 > size:
        return 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _follow(data: bytes, at: int) -> int:
    target = at + struct.unpack_from("<I", data, at)[0]
    if not at or target >= len(data):
        raise struct.error("an offset leads outside")
    return target


def _features(data: bytes, where: Where) -> Iterator[tuple[bytes, int]]:
    """Names, and positions of the tables of their tensors."""
    try:
        root = struct.unpack_from("<I", data, 0)[0]
        vector = _follow(data, _field(data, root, 0))
        count = struct.unpack_from("<I", data, vector)[0]
        if count * 4 > len(data):
            raise struct.error("longer than the payload")
        names = 0
        for i in range(count):
            feature = _follow(data, vector + 4 + 4 * i)
            name = _follow(data, _field(data, feature, 0))
            size = struct.unpack_from("<I", data, name)[0]
            names += size
            if name + 4 + size > len(data) or names > len(data):  # several may share one place
                raise struct.error("longer than the payload")
            yield data[name + 4 : name + 4 + size], _follow(data, _field(data, feature, 1))
    except struct.error as error:
        raise _damaged(where) from error


def _values(data: bytes, tensor: int, where: Where) -> np.ndarray:
    try:
        shape = _vector(data, _follow(data, _field(data, tensor, 0)), np.dtype("<i4")).tolist()
        kind = data[_field(data, tensor, 1)] if _field(data, tensor, 1) else 0
        if not 1 <= kind <= len(_UNION):
            raise struct.error(f"list {kind} is unknown")
        body = _follow(data, _field(data, tensor, 2))
        values = _vector(data, _follow(data, _field(data, body, 0)), _UNION[kind - 1])
        if any(size < 0 for size in shape):
            raise ValueError("a negative size")
        return values.reshape(shape)
    except (struct.error, ValueError, IndexError) as error:
        raise _damaged(where) from error


def _vector(data: bytes, at: int, dtype: np.dtype) -> np.ndarray:
    count = struct.unpack_from("<I", data, at)[0]
    if at + 4 + count * dtype.itemsize > len(data):
        raise struct.error("longer than the payload")
    return np.frombuffer(data, dtype, count, at + 4)


def decode_onerec(
    records: Records | Sequence[bytes | np.ndarray],
    key: str,
    dtype: Any,
    shape: Sequence[int],
    *,
    is_dynamic: bool = False,
    reshape: Sequence[int] | None = None,
    batch_padding: Sequence[int] | None = None,
) -> np.ndarray:
    """Decodes the tensor ``key`` of every record.

    Args:
      records: a batch of N from a OneRecSource, or its payloads (bytes, or arrays of bytes).
      key: its name.
      dtype: int8, int32, int64, float32 or float64, that of the stored tensor.
      shape: of a sample; with ``is_dynamic`` the bound of its sizes.
      is_dynamic: whether the sizes of the result may be smaller; those of a sample may be on an axis that is padded, too.
      reshape: of each sample before they are joined, of the rank of ``shape``; one size may be -1.
      batch_padding: by axis; 0 for no padding, which requires equal sizes; on axis 0 also -1: pad with zeros to the longest of
        the batch, or k > 0: to k.
    Returns: (N,) + the samples' shape.
    Raises: FeatureError, RecordError, ArgumentError.
    """
    records = (
        records if isinstance(records, Records) else Records.of([p if isinstance(p, bytes) else p.tobytes() for p in records])
    )
    wanted, rank = np.dtype(dtype), len(shape)
    if wanted not in [u.newbyteorder("=") for u in _UNION]:
        refuse(ArgumentError, f"the OneRec decoder makes int8, int32, int64, float32 or float64, not {wanted}")
    for name, value in (("reshape", reshape), ("batch_padding", batch_padding)):
        if value is not None and len(value) != rank:
            refuse(ArgumentError, f"{name} must have as many sizes as shape {tuple(shape)}, got {tuple(value)}")
    if batch_padding is not None and any(batch_padding[1:]):
        refuse(ArgumentError, f"only axis 0 can be padded, got batch_padding={tuple(batch_padding)}")
    if batch_padding and batch_padding[0] > shape[0]:
        refuse(ArgumentError, f"batch_padding {tuple(batch_padding)} is more than shape {tuple(shape)}")
    if reshape is not None and list(reshape).count(-1) > 1:
        refuse(ArgumentError, f"one size of reshape may be -1, got {tuple(reshape)}")
    pads = bool(batch_padding is not None and rank and batch_padding[0])
    bounded = [is_dynamic or (pads and axis == 0) for axis in range(rank)]
    samples = [_sample(records, i, key, wanted, shape, bounded, reshape) for i in range(len(records))]
    if batch_padding is not None and pads and samples:
        longest = max(len(s) for s in samples)
        size = longest if batch_padding[0] < 0 else batch_padding[0]
        if longest > size:
            i = next(i for i, s in enumerate(samples) if len(s) > size)
            raise _other_size(records, i, key, f"{size} rows at most, to be padded", samples[i].shape)
        samples = [np.concatenate([s, np.zeros((size - len(s), *s.shape[1:]), s.dtype)]) for s in samples]
    for i, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            raise _other_size(records, i, key, f"{samples[0].shape} as the batch's first record", sample.shape)
        if not is_dynamic and sample.shape != tuple(shape):  # of records that are all too short
            raise _other_size(records, i, key, f"{tuple(shape)}, also of the longest record of the batch", sample.shape)
    return np.stack(samples).astype(wanted, copy=False) if samples else np.zeros((0, *shape), wanted)


def _sample(
    records: Records, i: int, key: str, wanted: np.dtype, shape: Sequence[int], bounded: list[bool], reshape: Sequence[int] | None
) -> np.ndarray:
    data, where, names = records[i], records.where(i), []
    for name, tensor in _features(data, where):
        names.append(name.decode("utf-8", "replace"))
        if name == key.encode():
            values = _values(data, tensor, where)
            break
    else:
        raise fault(FeatureError, f"a OneRec record has no tensor {key!r}", where, feature=key, found=", ".join(names))
    if values.dtype.newbyteorder("=") != wanted:
        rule = f"tensor {key!r} of a OneRec record is of another dtype"
        raise fault(FeatureError, rule, where, feature=key, expected=str(wanted), found=str(values.dtype))
    if reshape is not None:
        try:
            values = values.reshape(tuple(reshape))
        except ValueError:
            raise _other_size(records, i, key, f"a size that reshapes to {tuple(reshape)}", values.shape) from None
    fits = len(values.shape) == len(shape) and all(
        a <= b if at_most else a == b for a, b, at_most in zip(values.shape, shape, bounded, strict=True)
    )
    if not fits:
        raise _other_size(records, i, key, f"{tuple(shape)}{' at most' if any(bounded) else ''}", values.shape)
    return values


def _other_size(records: Records, i: int, key: str, expected: str, found: tuple[int, ...]) -> RecordError:
    rule = f"tensor {key!r} of a OneRec record has another size"
    return fault(FeatureError, rule, records.where(i), feature=key, expected=expected, found=str(found))


# --- writing


class _Builder:
    """Builds a flatbuffer. Parents come before children, so that every offset is positive."""

    def __init__(self) -> None:
        self.data = bytearray(4)  # the position of the root

    def _align(self, size: int, ahead: int = 0) -> None:
        self.data.extend(bytes(-(len(self.data) + ahead) % size))

    def refer(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.data, at, target - at)

    def table(self, fields: int) -> tuple[int, list[int]]:
        """Adds a table. Returns its position, and those of its fields of four bytes each."""
        self._align(4, 4 + 2 * fields)
        vtable = len(self.data)
        self.data += struct.pack(f"<{2 + fields}H", 4 + 2 * fields, 4 + 4 * fields, *range(4, 4 + 4 * fields, 4))
        at = len(self.data)
        self.data += struct.pack("<i", at - vtable) + bytes(4 * fields)
        return at, list(range(at + 4, len(self.data), 4))

    def vector(self, data: bytes, count: int) -> int:
        self._align(8, 4)  # the elements are aligned, not their count
        at = len(self.data)
        self.data += struct.pack("<I", count) + data
        return at


def encode_example(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Makes a payload: a flatbuffer of named arrays (int8, int32, int64, float32, float64)."""
    kinds, made = [u.newbyteorder("=") for u in _UNION], _Builder()
    root, (features,) = made.table(1)
    made.refer(0, root)
    at = made.vector(bytes(4 * len(tensors)), len(tensors))
    made.refer(features, at)
    for i, (name, value) in enumerate(sorted(tensors.items(), key=lambda item: item[0].encode())):
        array = np.asarray(value)
        if array.dtype not in kinds:
            refuse(ArgumentError, f"a OneRec tensor is int8, int32, int64, float32 or float64, not {array.dtype}")
        feature, (name_at, tensor_at) = made.table(2)
        made.refer(at + 4 + 4 * i, feature)
        made.refer(name_at, made.vector(name.encode() + b"\0", len(name.encode())))
        tensor, (shape_at, kind_at, list_at) = made.table(3)
        made.refer(tensor_at, tensor)
        made.refer(shape_at, made.vector(np.array(array.shape, "<i4").tobytes(), array.ndim))
        made.data[kind_at] = kinds.index(array.dtype) + 1
        values, (values_at,) = made.table(1)
        made.refer(list_at, values)
        made.refer(values_at, made.vector(array.astype(array.dtype.newbyteorder("<")).tobytes(), array.size))
    return bytes(made.data)


def write_onerec(path: PathLike, payloads: Sequence[bytes]) -> None:
    """Writes payloads (``encode_example``) as one OneRec file."""
    lengths = np.array([len(p) for p in payloads], np.int64)
    data = np.frombuffer(b"".join([*payloads, bytes(wire.PAD)]), np.uint8)
    digests = xxh64(data, np.cumsum(lengths) - lengths, lengths).tolist()
    heads = [MAGIC + _SIZE.pack(0, len(p)) for p in payloads]
    flat = np.frombuffer(b"".join([*heads, bytes(wire.PAD)]), np.uint8)
    of_heads = xxh64(flat, np.arange(len(heads)) * 16, np.full(len(heads), 16)).tolist()
    with open(path, "wb") as file:
        for head, of_head, payload, digest in zip(heads, of_heads, payloads, digests, strict=True):
            file.write(head + _DIGEST.pack(of_head) + payload + bytes(-len(payload) % 8) + _DIGEST.pack(digest))
