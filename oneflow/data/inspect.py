"""Describes, draws and verifies part files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base import check, cores
from .._base.extras import cv2
from .._base.refuse import refuse
from ..errors import ArgumentError, DataError, ImageError, RecordError
from . import images, wire
from ._fault import fault
from .decoders import bytes_values, numbers
from .parts import PartFile, read_part
from .parts import Path as PathLike
from .records import Records

TILE, CAPTION = 128, 18  # pixels of an image on a contact sheet, and of the line below it


@dataclass
class Feature:
    """A summary of one feature over all records that have it.

    ``kinds``: number of records by kind; ``sizes``: smallest and largest number of elements, or of bytes of a single value;
    ``values``: smallest and largest number; ``image_format``: of the first value, if that is an image.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    sizes: tuple[int, int] | None = None
    values: tuple[float, float] | None = None
    image_format: str = ""
    several: bool = False  # a record has several values of bytes

    @property
    def records(self) -> int:
        """The number of records that have it."""
        return sum(self.kinds.values())


@dataclass
class Summary:
    """A summary of parts."""

    files: int = 0
    records: int = 0
    nbytes: int = 0
    features: dict[str, Feature] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.files} parts, {self.records} records, {self.nbytes} bytes"]
        rows = [("feature", "type", "records", "elements", "values")]
        for name, f in sorted(self.features.items()):
            kinds = ", ".join(f.kinds) + (f" ({f.image_format})" if f.image_format else "")
            sizes = "" if f.sizes is None else _span(f.sizes) + (" bytes" if "bytes_list" in f.kinds and not f.several else "")
            rows.append((name, kinds, str(f.records), sizes, _span(f.values) if f.values else ""))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join(
            [*lines, *("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)]
        )


def _span(pair: tuple[float, float]) -> str:
    low, high = (f"{v:g}" if isinstance(v, float) else str(v) for v in pair)
    return low if low == high else f"{low} .. {high}"


def part_files(paths: Iterable[PathLike], prefix: str = "part-") -> list[str]:
    """Paths of part files, in order. ``paths`` are part files, or directories of parts (named prefix and number)."""
    found: list[str] = []
    for path in (os.fspath(p) for p in paths):
        if not os.path.isdir(path):
            found.append(path)
            continue
        names = [n for n in os.listdir(path) if re.fullmatch(re.escape(prefix) + r"\d+", n)]
        if not names:
            refuse(
                DataError,
                f"directory {path!r} holds no file named {prefix!r} and a number",
                hint="name the files, or their prefix",
            )
        found += [os.path.join(path, n) for n in sorted(names, key=lambda n: int(n.removeprefix(prefix)))]
    return found


def describe(paths: Iterable[PathLike], limit: int | None = None) -> Summary:
    """Summarises part files: counts, features, types and sizes.

    Args:
      paths: part files, see ``part_files``.
      limit: about the most records that are read; None: all.
    Raises: RecordError where a part is damaged.
    Example: >>> print(describe(part_files(["train"])))
    """
    made = Summary()
    for path in paths:
        if limit is not None and made.records >= limit:
            break
        made.files += 1
        made.nbytes += os.path.getsize(path) if os.path.exists(path) else 0
        for records in read_part(path):
            made.records += len(records)
            _add(made.features, records)
            if limit is not None and made.records >= limit:
                break
    return made


def _add(features: dict[str, Feature], records: Records) -> None:
    for name in records.features():
        found = records.find(name, missing=True)
        known = features.setdefault(name, Feature())
        for kind in np.unique(found.kind[found.kind > 0]).tolist():
            rows = np.flatnonzero(found.kind == kind)
            known.kinds[wire.KINDS[kind]] = known.kinds.get(wire.KINDS[kind], 0) + len(rows)
            if kind == wire.BYTES:
                values = [bytes_values(records, name, found, i) for i in rows.tolist()]
                if known.sizes is None and values and values[0]:
                    known.image_format = images.kind_of(values[0][0])
                known.several |= any(len(v) != 1 for v in values)
                counts = np.array([len(v) if known.several else len(v[0]) for v in values])
            else:
                flat, counts = numbers(records, name, found, kind, rows)
                if flat.size:
                    low, high = flat.min().item(), flat.max().item()
                    known.values = (min(low, known.values[0]), max(high, known.values[1])) if known.values else (low, high)
            least, most = int(counts.min()), int(counts.max())
            known.sizes = (min(least, known.sizes[0]), max(most, known.sizes[1])) if known.sizes else (least, most)


def contact_sheet(
    paths: Iterable[PathLike], target: PathLike, feature: str | None = None, count: int = 32, label: str | None = None
) -> int:
    """Draws the first images of part files into one PNG.

    Args:
      paths: part files.
      target: the PNG file to write.
      feature: of the images; None: the first one that holds images.
      count: the most images that are drawn.
      label: the feature to write below each; None: the first one that is a single integer, if any.
    Returns: the number of images drawn.
    Raises:
      DataError: there are no images.
      ArgumentError: ``count`` is no number from 1 on.
      OSError: the PNG file cannot be written.
    """
    count, problem = check.integer(count, low=1)
    if problem:
        refuse(ArgumentError, f"the count of images {problem}")
    tiles: list[np.ndarray] = []
    for records in _first_records(paths, count):
        names = records.features()
        if feature is None:
            feature = next((n for n in sorted(names) if _holds_images(records, n)), None)
            if feature is None:
                refuse(DataError, "no feature of the first record is an image", found=[("features", ", ".join(sorted(names)))])
        for i in range(min(len(records), count - len(tiles))):
            one = records[i : i + 1]
            value = bytes_values(one, feature, one.find(feature), 0)
            tiles.append(_tile(value[0] if value else np.zeros(0, np.uint8), _caption(one, label)))
    columns = min(8, len(tiles))
    while len(tiles) % columns:
        tiles.append(np.full((TILE + CAPTION, TILE, 3), 255, np.uint8))
    sheet = np.vstack([np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)])
    with open(target, "wb") as file:
        file.write(images.encode(sheet, ".png"))
    return len(tiles)


def _first_records(paths: Iterable[PathLike], count: int) -> Iterator[Records]:
    for path in paths:
        for records in read_part(path):
            yield records
            count -= len(records)
            if count <= 0:
                return


def _holds_images(records: Records, name: str) -> bool:
    found = records.find(name, missing=True)
    if found.kind[0] != wire.BYTES:
        return False
    values = bytes_values(records, name, found, 0)
    return bool(values) and bool(images.kind_of(values[0]))


def _caption(record: Records, label: str | None) -> str:
    for name in [label] if label is not None else sorted(record.features()):
        found = record.find(name)
        if found.kind[0] in (wire.INT32, wire.INT64):
            values = numbers(record, name, found, int(found.kind[0]))[0]
            if len(values) == 1:
                return str(values[0])
    return ""


def _tile(encoded: np.ndarray, caption: str) -> np.ndarray:
    tile = np.full((TILE + CAPTION, TILE, 3), 255, np.uint8)
    try:
        image = images.decode(encoded)
        width, height = images.kept_aspect_size(image.shape[1], image.shape[0], TILE - 4, side="longer")
        y, x = (TILE - height) // 2, (TILE - width) // 2
        tile[y : y + height, x : x + width] = images.resize(image, width, height)
    except ImageError:
        cv2.putText(tile, "corrupt", (30, TILE // 2), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 200), 1, cv2.LINE_AA)
    cv2.putText(tile, caption[:14], (4, TILE + CAPTION - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 0, 0), 1, cv2.LINE_AA)
    return tile


def verify(
    paths: Sequence[PathLike],
    *,
    image_features: Sequence[str] = (),
    workers: int | None = None,
    progress: Callable[[int], Any] | None = None,
) -> list[DataError]:
    """Reads all records of part files, and decodes their images.

    Args:
      paths: part files.
      image_features: must be images; they are decoded.
      workers: threads; None: one per core.
      progress: called now and then with the number of bytes read since.
    Returns: all errors, in the order of files and records; each names file, record and offset. Records behind a damaged length
      prefix cannot be located, and are not verified.
    """
    with ThreadPoolExecutor(workers or cores.allowed()) as pool:
        try:
            return [
                e for errors in pool.map(lambda p: _verify_part(os.fspath(p), image_features, progress), paths) for e in errors
            ]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _verify_part(path: str, image_features: Sequence[str], progress: Callable[[int], Any] | None) -> list[DataError]:
    errors: list[RecordError | DataError] = []
    try:
        with PartFile(path) as part:
            offset = record = 0
            while offset < part.size:
                records, after = part.chunk(offset, record)
                errors += _verify_records(records, image_features)
                if progress is not None:
                    progress(after - offset)
                offset, record = after, record + len(records)
    except DataError as error:
        errors.append(error)
    return errors


def _verify_records(records: Records, image_features: Sequence[str]) -> Iterator[RecordError]:
    for i in range(len(records)):
        try:
            records.message(i)
        except RecordError as error:
            yield error
            continue
        for name in image_features:
            one = records[i : i + 1]
            try:
                for value in bytes_values(one, name, one.find(name), 0):
                    images.decode(value)
            except ImageError as error:
                yield fault(ImageError, str(error), records.where(i), feature=name)
            except RecordError as error:
                yield error


def one_record(paths: Sequence[PathLike], number: int) -> Any:
    """Record ``number`` (from 0) of parts in their order, as a message. Raises DataError where there are fewer."""
    seen = 0
    if number < 0:
        refuse(DataError, f"records are counted from 0, so record {number} does not exist")
    for path in paths:
        for records in read_part(path):
            if number < seen + len(records):
                return records.message(number - seen)
            seen += len(records)
    place = repr(os.fspath(paths[0])) if len(paths) == 1 else f"the {len(paths)} part files from {os.fspath(paths[0])!r} on"
    refuse(DataError, f"{place} hold{'s' * (len(paths) == 1)} {seen} records, so record {number} does not exist")
