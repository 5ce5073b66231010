"""Decodes features of records to arrays. All functions are pure; ``feature`` is the name of a feature of the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from .._base.refuse import refuse, shown
from ..errors import ArgumentError, FeatureError, ImageError, RecordError
from . import images, wire
from ._fault import fault
from .crops import RandomWindows, Window
from .records import Found, Records, list_message

_LONG_LIST = 1 << 20  # bytes; the size of a longer list is checked before it is decoded, which takes many times as much memory
_BYTES_PER_VALUE = 11  # at most: a number of ten bytes, and a tag
_SAME_BITS = {wire.FLOAT: np.dtype(np.float32), wire.DOUBLE: np.dtype(np.float64)}  # as in the records, by kind
RAW_DTYPES = tuple(map(np.dtype, ("float32", "float64", "int8", "int32", "int64", "uint8")))


def decode_raw(
    records: Records,
    feature: str,
    shape: Sequence[int],
    dtype: Any,
    *,
    dim1_varying_length: bool = False,
    auto_zero_padding: bool = False,
    truncate: bool = False,
) -> np.ndarray:
    """Decodes a feature that is a list of numbers, or raw bytes.

    A list of numbers must have as many numbers as ``shape`` has elements; with one of the flags it may have fewer, and is padded
    with zeros. A bytes list must hold one value. Its bytes are read as int8, at most that many, and padded with zeros.

    Args:
      records: a batch of N.
      feature: its name.
      shape: of one sample; () for one number.
      dtype: NumPy's float32, float64, int8 (also for ``flow.char``), int32, int64 or uint8; values are cast to it.
      dim1_varying_length, auto_zero_padding: whether shorter lists are accepted.
      truncate: shorter lists are accepted, and longer ones cut.
    Returns: (N,) + shape.
    Raises: FeatureError, RecordError.
    Example: >>> flow.data.decode_raw(batch, "dense_fields", (13,), np.float32)
    """
    wanted = np.dtype(dtype)
    if wanted not in RAW_DTYPES:
        refuse(ArgumentError, f"the raw decoder makes float32, float64, int8, int32, int64, uint8 or char, not {wanted}")
    size, count = math.prod(shape), len(records)
    shared, first = records.once(("raw", feature, size, wanted), lambda whole: _all_raw(whole, feature, size, wanted))
    if shared is not None:
        return shared(first, first + count).reshape(count, *shape)
    found = records.find(feature)
    kinds = np.unique(found.kind).tolist() if count else []
    shorter = dim1_varying_length or auto_zero_padding or truncate
    made = np.zeros((count, size), wanted)
    for kind in kinds:
        rows = np.flatnonzero(found.kind == kind)
        if kind == wire.BYTES:
            for i in rows.tolist():
                value = _single(records, feature, found, i)[:size]
                made[i, : len(value)] = value.view(np.int8)
            continue
        if not truncate:
            _check_lengths(records, feature, found, size, kind, rows)
        flat, counts = numbers(records, feature, found, kind, rows)
        if truncate:
            flat, counts = _cut(flat, counts, size)
        _check_counts(records, feature, counts, size, shorter, kind, rows)
        outside = _outside(flat, wanted)
        if outside is not None:
            i = int(np.argmax(outside))
            rule, where = (
                f"a number of a feature is outside the range of {wanted}",
                records.where(int(np.repeat(rows, counts)[i])),
            )
            raise fault(FeatureError, rule, where, feature=feature, found=str(flat[i]))
        place = np.repeat(rows * size - (np.cumsum(counts) - counts), counts) + np.arange(len(flat))
        made.reshape(-1)[place] = flat.astype(wanted, copy=False)
    return made.reshape(count, *shape)


def _cut(flat: np.ndarray, counts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists of at most ``size`` numbers."""
    places = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    return flat[places < size], np.minimum(counts, size)


def _outside(flat: np.ndarray, wanted: np.dtype) -> np.ndarray | None:
    """A mask of numbers outside an integer dtype's range, None if there are none. 8 bits may be meant as signed or unsigned."""
    if wanted.kind not in "iu" or not len(flat):
        return None
    low, high = (-128, 255) if wanted.itemsize == 1 else (int(np.iinfo(wanted).min), int(np.iinfo(wanted).max))
    if flat.dtype.kind == "f":  # fractions are cut off; a float64 holds high + 1, and may not hold high
        whole = np.trunc(flat.astype(np.float64, copy=False))
        outside = ~((whole >= low) & (whole < float(high) + 1.0))
        return outside if outside.any() else None
    if flat.dtype.kind != "i" or wanted.itemsize >= flat.dtype.itemsize:
        return None
    return (flat < low) | (flat > high) if flat.min() < low or flat.max() > high else None


_Shared = Callable[[int, int], np.ndarray]  # the numbers of the records from one on, up to another, in an array of their own


def _all_raw(records: Records, feature: str, size: int, wanted: np.dtype) -> _Shared | None:
    """``size`` numbers of ``wanted`` of each record; None where not all of them have that many, of one kind, in range."""
    if not len(records):
        return None
    try:
        found = records.find(feature)
        kind = int(found.kind[0])
        if not (found.kind == kind).all() or int(found.length.max()) > _LONG_LIST:
            return None
        if kind == wire.BYTES:
            return _all_bytes(found, size, wanted)
        if kind in _SAME_BITS and _SAME_BITS[kind] == wanted:
            at, lengths, plain = wire.packed(found.data, found.start, found.length)
            if plain.all() and (lengths == size * wanted.itemsize).all():
                return _gathering(found.data, at, size * wanted.itemsize, wanted)
        flat, counts = numbers(records, feature, found, kind)
    except RecordError:  # of one record, which this batch may not contain
        return None
    if not (counts == size).all() or _outside(flat, wanted) is not None:
        return None
    values = flat.astype(wanted, copy=False).reshape(len(records), size)
    return lambda begin, end: values[begin:end].copy()


def _gathering(data: np.ndarray, at: np.ndarray, size: int, wanted: np.dtype) -> _Shared:
    """Numbers whose bytes are in the records as they are in an array are copied once, when they are asked for."""
    return lambda begin, end: wire.spans(data, at[begin:end], size).view(wanted)


def _all_bytes(found: Found, size: int, wanted: np.dtype) -> _Shared | None:
    """The first ``size`` bytes of all records, as int8 and then ``wanted``; None where one has fewer, or not one value."""
    at, lengths, single = wire.packed(found.data, found.start, found.length)
    if not (single & (found.length > 0)).all() or int(lengths.min()) < size:
        return None
    if wanted.itemsize == 1:  # the same bits
        return _gathering(found.data, at, size, wanted)
    values = wire.spans(found.data, at, size).view(np.int8).astype(wanted).reshape(len(at), size)
    return lambda begin, end: values[begin:end].copy()


def numbers(
    records: Records, feature: str, found: Found, kind: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The values of lists of one kind, flat, and how many each record has. ``rows`` are the records of that kind; None: all."""
    start, length = (found.start, found.length) if rows is None else (found.start[rows], found.length[rows])
    data = found.data
    at, size, plain = wire.packed(data, start, length)
    if not plain.all():  # not packed, or in pieces: the protobuf library writes these lists again, packed
        data, at, size = _repacked(records, feature, data, (start, length, at, size), np.flatnonzero(~plain), kind, rows)
    if kind in (wire.FLOAT, wire.DOUBLE):
        item = 4 if kind == wire.FLOAT else 8
        broken = np.flatnonzero(size % item)
        if not len(broken):
            return wire.fixed(data, at, size, kind)
    else:
        flat, counts, good = wire.varints(data, at, size, kind)
        broken = np.flatnonzero(~good)
        if not len(broken):
            return flat, counts
    i = int(broken[0]) if rows is None else int(rows[broken[0]])
    raise fault(
        RecordError, f"a feature's {wire.KINDS[kind]} is damaged", records.where(i), feature=feature,
        found=f"{int(size[broken[0]])} bytes that are not a packed list",
    )  # fmt: skip


def _repacked(
    records: Records,
    feature: str,
    data: np.ndarray,
    spans: tuple[np.ndarray, ...],
    odd: np.ndarray,
    kind: int,
    rows: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start, length, at, size = spans
    message, pieces, offset = list_message(kind), [], len(data)
    for i in odd.tolist():
        try:
            values = message.FromString(data[start[i] : start[i] + length[i]].tobytes())
            values.DiscardUnknownFields()
        except Exception as error:  # noqa: BLE001 - the protobuf library's own, which differ by implementation
            where = records.where(i if rows is None else int(rows[i]))
            raise fault(
                RecordError, f"a feature's {wire.KINDS[kind]} is damaged", where, feature=feature, found=str(error)
            ) from error
        body = values.SerializeToString()
        head = _head(body)
        pieces.append(body)
        at[i], size[i] = offset + head, len(body) - head
        offset += len(body)
    return np.concatenate([data, np.frombuffer(b"".join(pieces) + bytes(wire.PAD), np.uint8)]), at, size


def _head(body: bytes) -> int:
    """The number of bytes of tag and length before a packed payload."""
    n = 1
    while n < len(body) and body[n] & 0x80:
        n += 1
    return n + 1 if body else 0


def _check_lengths(records: Records, feature: str, found: Found, size: int, kind: int, rows: np.ndarray) -> None:
    """Raises FeatureError for lists of so many bytes that they hold more than ``size`` values."""
    longest = int(found.length[rows].max())
    if longest > max(_LONG_LIST, _BYTES_PER_VALUE * size):
        raise fault(
            FeatureError, f"feature {feature!r} of a record has another size than the decoder's shape",
            records.where(int(rows[np.argmax(found.length[rows])])), feature=feature, expected=f"{size} elements",
            found=f"{wire.KINDS[kind]} of {longest} bytes",
        )  # fmt: skip


def _check_counts(
    records: Records, feature: str, counts: np.ndarray, size: int, shorter: bool, kind: int, rows: np.ndarray | None = None
) -> None:
    wrong = counts > size if shorter else counts != size
    if wrong.any():
        first = int(np.argmax(wrong))
        fewer = bool((counts <= size).all())
        raise fault(
            FeatureError, f"feature {feature!r} of a record has another size than the decoder's shape",
            records.where(first if rows is None else int(rows[first])), feature=feature,
            expected=f"{size} elements" + (" at most" if shorter else ""), found=f"{int(counts[first])}, in a {wire.KINDS[kind]}",
            hint="auto_zero_padding=True fills shorter lists with zeros" if fewer else "",
        )  # fmt: skip


def _single(records: Records, feature: str, found: Found, i: int) -> np.ndarray:
    """The one value of a bytes list, a view."""
    values = bytes_values(records, feature, found, i)
    if len(values) != 1:
        raise fault(
            FeatureError, f"feature {feature!r} of a record must hold one value of bytes", records.where(i), feature=feature,
            expected="a bytes_list of 1 value", found=f"{len(values)} values",
        )  # fmt: skip
    return values[0]


def bytes_values(records: Records, feature: str, found: Found, i: int) -> list[np.ndarray]:
    """All values of record i's bytes list, uint8. Raises FeatureError where it is a list of numbers."""
    kind = int(found.kind[i])
    if kind != wire.BYTES:
        raise fault(
            FeatureError, f"feature {feature!r} of a record is of another type than the decoder takes", records.where(i),
            feature=feature, expected="a bytes_list", found=f"a {wire.KINDS[kind]}", hint="OFRecordRawDecoder reads numbers",
        )  # fmt: skip
    start, length = int(found.start[i]), int(found.length[i])
    spans = wire.bytes_spans(found.data, start, length)
    if spans is not None:
        values = [found.data[a : a + n] for a, n in spans]
    else:
        try:
            message = list_message(wire.BYTES).FromString(found.data[start : start + length].tobytes())
        except Exception as error:  # noqa: BLE001 - as above
            where = records.where(i)
            raise fault(RecordError, "a feature's bytes_list is damaged", where, feature=feature, found=str(error)) from error
        values = [np.frombuffer(value, np.uint8) for value in message.value]
    for value in values:
        value.flags.writeable = False
    return values


def decode_bytes(records: Records, feature: str) -> list[np.ndarray]:
    """Decodes a feature that is a bytes list of one value: N arrays uint8 (L,), read-only views.

    Raises: FeatureError, RecordError.
    """
    found = records.find(feature)
    return [_single(records, feature, found, i) for i in range(len(records))]


def decode_image(
    records: Records,
    feature: str,
    color_space: str = "BGR",
    *,
    pool: Executor | None = None,
    corrupt: str = "raise",
    max_pixels: int = images.MAX_PIXELS,
) -> list[np.ndarray | None]:
    """Decodes a feature that is one encoded image.

    Args:
      records: a batch of N.
      feature: a bytes list of one encoded image.
      color_space: "BGR", "RGB" or "GRAY".
      pool: decodes in these threads; None: in the caller's.
      corrupt: "raise" an ImageError for an image that cannot be decoded, or "skip" it: None takes its place.
      max_pixels: of the largest image that is decoded.
    Returns: N arrays uint8 (H, W, 3), (H, W, 1) for "GRAY".
    """
    images.check_color_space(color_space)

    def one(i: int, encoded: np.ndarray) -> np.ndarray:
        return images.decode(encoded, color_space, max_pixels=max_pixels)

    return _each_image(records, feature, one, pool, corrupt)


def decode_image_random_crop(
    records: Records,
    feature: str,
    windows: RandomWindows,
    call: int,
    color_space: str = "BGR",
    *,
    pool: Executor | None = None,
    corrupt: str = "raise",
    max_pixels: int = images.MAX_PIXELS,
) -> list[np.ndarray | None]:
    """As ``decode_image``; each image is cut to a random window before its colours are converted.

    Args:
      windows: draws them.
      call: the number of this batch, from 0. The windows depend on it, and on no other state.
    """
    images.check_color_space(color_space)
    draws = windows.draw(call, len(records))

    def one(i: int, encoded: np.ndarray) -> np.ndarray:
        def window_of(rows: int, columns: int) -> Window:
            return windows.window(rows, columns, draws[i])

        if color_space == "GRAY":
            image = images.decode(encoded, "GRAY", max_pixels=max_pixels)
            return np.ascontiguousarray(images.crop(image, window_of(image.shape[0], image.shape[1])))
        part, _ = images.decode_window(encoded, window_of, max_pixels=max_pixels)
        return images.from_bgr(part, "RGB") if color_space == "RGB" else np.ascontiguousarray(part)

    return _each_image(records, feature, one, pool, corrupt)


def image_decoder_random_crop_resize(
    encoded: np.ndarray,
    windows: RandomWindows,
    draws: np.ndarray,
    width: int,
    height: int,
    max_num_pixels: int | None = None,
    *,
    max_pixels: int = images.MAX_PIXELS,
    scaled: bool = False,
) -> np.ndarray:
    """Decodes one image, cuts it to a random window and resizes it: uint8 (height, width, 3), RGB, bilinear.

    Args:
      encoded: uint8 bytes.
      windows, draws: see ``RandomWindows``; ``draws`` is one row.
      width, height: of the result.
      max_num_pixels: bound of the window's size; None for none.
      max_pixels: of the largest image that is decoded.
      scaled: decode a JPEG at a fraction of its size where that suffices (``flow.config.enable_scaled_jpeg_decoding``).
    Raises: ImageError.
    """

    def window_of(rows: int, columns: int) -> Window:
        return windows.window(rows, columns, draws)

    least = (height, width) if scaled else None
    part, window = images.decode_window(encoded, window_of, least=least, max_pixels=max_pixels)
    if max_num_pixels is not None and window.height * window.width > max_num_pixels:
        raise ImageError(f"a crop of {window.width} x {window.height} pixels is more than max_num_pixels={max_num_pixels}")
    return images.from_bgr(images.resize(part, width, height, "bilinear"), "RGB")


def _each_image(
    records: Records, feature: str, one: Callable[[int, np.ndarray], np.ndarray], pool: Executor | None, corrupt: str
) -> list[np.ndarray | None]:
    if corrupt not in ("raise", "skip"):
        refuse(ArgumentError, f'corrupt must be "raise" or "skip", got {shown(corrupt)}')
    encoded = decode_bytes(records, feature)

    def safe(i: int) -> np.ndarray | ImageError:
        try:
            return one(i, encoded[i])
        except ImageError as error:
            return error

    made: list[np.ndarray | None] = []
    for i, image in enumerate(pool.map(safe, range(len(encoded))) if pool is not None else map(safe, range(len(encoded)))):
        if not isinstance(image, ImageError):
            made.append(image)
        elif corrupt == "skip":
            made.append(None)
        else:
            raise fault(ImageError, str(image), records.where(i), feature=feature) from image
    return made
