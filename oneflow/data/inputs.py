"""What can be packed into OFRecords: a folder of images, arrays, a CSV file, TFRecords.

An input has ``len()``, ``records(begin, end)`` (serialised OFRecords), and ``identity``: what tells it from another one.
"""

from __future__ import annotations

import csv
import io
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .._base.extras import need
from .._base.files import Path as PathLike
from .._base.files import is_below, leads_outside, open_regular, read_regular
from .._base.refuse import refuse
from ..errors import ArgumentError, DataError, RecordError
from . import _crc32c, images
from ._fault import Where, fault
from ._npz import load_npz
from .parts import MAX_RECORD_BYTES
from .records import ofrecord

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
KINDS = {"float": "float_list", "double": "double_list", "int32": "int32_list", "int64": "int64_list", "bytes": "bytes_list"}
_HEADINGS = {"label", "labels", "class", "classes", "target", "category"}  # what the first line of a label file may say
_CSV_SAMPLE = 1000  # rows from which the types of columns are guessed
_CSV_BLOCK = 1 << 24  # bytes that are parsed at a time, or one row where that is longer
_INTEGERS = {"int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1)}


def _pb() -> Any:
    ofrecord()
    from ..core.record import record_pb2

    return record_pb2


def make_record(values: Mapping[str, tuple[str, Sequence[Any]]]) -> bytes:
    """A serialised OFRecord of features: name to (kind, values), kinds as in ``KINDS``."""
    message = ofrecord()()
    for name, (kind, items) in values.items():
        getattr(message.feature[name], KINDS[kind]).value.extend(items)
    return message.SerializeToString(deterministic=True)


def _stamp(path: PathLike) -> list[Any]:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        _refuse_file(path, error)
    return [os.path.abspath(path), status.st_size, int(status.st_mtime)]


def _refuse_file(path: PathLike, error: Exception) -> NoReturn:
    why = getattr(error, "strerror", None) or str(error)
    refuse(DataError, f"a file cannot be read: {why}", found=[("file", os.fspath(path))])


class ImageFolder:
    """Images with labels; their files go into the records unchanged.

    Args:
      folder: of the images.
      label_file: lines of a path below ``folder`` and a label, with white space, a comma or a tab between them; a first line of
        headings is passed over. None: each subfolder is a class, in the order of their names.
      image_feature, label_feature: names in the records.
      allow_outside: images may lie outside the folder: by names in the label file, or by symbolic links.
    A label that is no integer is a class's name; classes are numbered from 0 in the order of their names, and records also hold
    the name, as feature "class/text".
    """

    identity: dict[str, Any]

    def __init__(
        self,
        folder: PathLike,
        label_file: PathLike | None = None,
        image_feature: str = "encoded",
        label_feature: str = "class/label",
        *,
        allow_outside: bool = False,
    ):
        self.folder, self._may_leave = Path(folder), allow_outside
        if not self.folder.is_dir():
            refuse(DataError, f"there is no folder {str(folder)!r}")
        self.names = (image_feature, label_feature)
        entries = self._from_folders() if label_file is None else self._from_file(Path(label_file))
        if not entries:
            refuse(DataError, f"no images were found in {str(folder)!r}", hint=f"known are {', '.join(EXTENSIONS)}")
        texts = {label for _, label in entries}
        self.classes: list[str] = [] if all(map(_is_label, texts)) and label_file is not None else sorted(texts)
        number = {name: i for i, name in enumerate(self.classes)}
        self.entries = [(path, number[label] if self.classes else int(label), label) for path, label in entries]
        labels = {"labels": _stamp(label_file)} if label_file is not None else {}
        self.identity = {
            "kind": "images",
            "folder": str(self.folder.resolve()),
            "count": len(entries),
            "names": self.names,
            **labels,
        }

    def _from_folders(self) -> list[tuple[str, str]]:
        found = [
            (f"{group.name}/{image.relative_to(group).as_posix()}", group.name)
            for group in sorted(p for p in self.folder.iterdir() if p.is_dir())
            for image in sorted(group.rglob("*"))
            if image.suffix.lower() in EXTENSIONS
        ]
        if not found:
            hint = "give a file of labels, or one subfolder for each class"
            refuse(DataError, f"no subfolder of {str(self.folder)!r} holds images", hint=hint)
        return found

    def _from_file(self, label_file: Path) -> list[tuple[str, str]]:
        entries: list[tuple[str, str]] = []
        try:
            text = read_regular(label_file, MAX_RECORD_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            _refuse_file(label_file, error)
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            for separator in ("\t", ",", None):
                path, found, label = line.strip().rpartition(separator) if separator else _last_word(line.strip())
                if found:
                    break
            else:
                self._refuse_line(label_file, number, line, "is not a path and a label")
            if leads_outside(path.strip()) and not self._may_leave:
                self._refuse_line(label_file, number, line, f"names a file outside {str(self.folder)!r}", _ALLOW)
            if not os.path.isfile(self.folder / path.strip()):
                if not entries and label.strip().lower() in _HEADINGS:
                    continue
                self._refuse_line(label_file, number, line, f"names {path.strip()!r}, which is not in {str(self.folder)!r}")
            entries.append((path.strip(), label.strip()))
        return entries

    def _refuse_line(self, file: Path, number: int, line: str, why: str, hint: str = "") -> NoReturn:
        rows = [("file", f"{file}:{number}"), ("line", repr(line[:200]))]
        refuse(DataError, f"a line of the label file {why}", found=rows, hint=hint)

    def __len__(self) -> int:
        return len(self.entries)

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        image, label = self.names
        for path, number, text in self.entries[begin:end]:
            data = self._read(self.folder / path)
            values: dict[str, tuple[str, Sequence[Any]]] = {image: ("bytes", [data]), label: ("int32", [number])}
            if self.classes:
                values["class/text"] = ("bytes", [text.encode("utf-8", "surrogateescape")])
            yield make_record(values)

    def _read(self, path: Path) -> bytes:
        try:
            if self._may_leave or is_below(path, self.folder):
                return read_regular(path, MAX_RECORD_BYTES)
        except OSError as error:
            _refuse_file(path, error)
        refuse(DataError, "an image is a symbolic link that leads outside its folder", found=[("file", str(path))], hint=_ALLOW)


_ALLOW = "allow_outside=True (--allow-outside) allows that"


def _is_label(text: str) -> bool:
    """Whether it is an integer that a record's int32 list can hold."""
    try:
        low, high = _INTEGERS["int32"]
        return low <= int(text) <= high
    except ValueError:
        return False


def _last_word(line: str) -> tuple[str, str, str]:
    words = line.rsplit(None, 1)
    return (words[0], " ", words[1]) if len(words) == 2 else (line, "", "")


class Arrays:
    """Arrays whose first axis is the sample.

    uint8 and int8 arrays of two and more axes become raw bytes (``OFRecordRawDecoder`` gives them back), other integers
    int32 or int64 lists, floats float or double lists, text bytes.

    Args:
      source: an ``.npz`` file, or a mapping of names to arrays.
      features: names in the records, and which array each comes from; None: all of them under their own names.
      png: features that are images (n, height, width) or (n, height, width, 3) in BGR, stored as PNG.
    """

    identity: dict[str, Any]

    def __init__(
        self, source: PathLike | Mapping[str, np.ndarray], features: Mapping[str, str] | None = None, png: Sequence[str] = ()
    ):
        if isinstance(source, Mapping):
            arrays, self.identity = dict(source), {"kind": "arrays"}
        else:
            arrays, self.identity = _load_npz(source), {"kind": "arrays", "file": _stamp(source)}
        wanted = dict(features) if features else {name: name for name in arrays}
        for feature, name in wanted.items():
            if name not in arrays:
                refuse(
                    DataError,
                    f"feature {feature!r} wants an array {name!r}, and there is none",
                    found=[("arrays", ", ".join(arrays))],
                )
        self.arrays = {feature: np.asarray(arrays[name]) for feature, name in wanted.items()}
        sizes = {name: len(a) if a.ndim else -1 for name, a in self.arrays.items()}
        if len(set(sizes.values())) != 1 or -1 in sizes.values():
            hint = "choose arrays of one length with features="
            refuse(DataError, "all arrays must have the same number of samples", found=[("arrays", str(sizes))], hint=hint)
        self.size = next(iter(sizes.values()))
        self.kinds = {name: "png" if name in png else _kind_of(name, array) for name, array in self.arrays.items()}
        self.arrays = {name: a.astype(np.int32) if a.dtype == bool else a for name, a in self.arrays.items()}
        self.identity |= {"kinds": self.kinds, "count": self.size}

    def __len__(self) -> int:
        return self.size

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        for i in range(begin, end):
            yield make_record({name: self._value(kind, self.arrays[name][i]) for name, kind in self.kinds.items()})

    def _value(self, kind: str, value: Any) -> tuple[str, Sequence[Any]]:
        match kind:
            case "png":
                return "bytes", [images.encode(value, ".png")]
            case "raw":
                return "bytes", [value.tobytes()]
            case "text":
                return "bytes", [v.encode() if isinstance(v, str) else bytes(v) for v in np.asarray(value).reshape(-1).tolist()]
        return kind, np.asarray(value).reshape(-1).tolist()


def _load_npz(path: PathLike) -> dict[str, np.ndarray]:
    try:
        with open_regular(path) as file:
            return load_npz(file)
    except FileNotFoundError:
        refuse(DataError, f"there is no file {os.fspath(path)!r}")
    except OSError as error:
        _refuse_file(path, error)
    except ValueError as error:
        refuse(DataError, f"{os.fspath(path)!r} is not an .npz file of plain arrays: {error}")


def _kind_of(name: str, array: np.ndarray) -> str:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind in "iu" and size == 1 and array.ndim > 1:
        return "raw"
    if kind in "SU":
        return "text"
    if kind == "b" or (kind in "iu" and (size < 4 or array.dtype == np.int32)):
        return "int32"
    if kind in "iu" and array.dtype != np.uint64:
        return "int64"
    if kind == "f" and size <= 8:
        return "float" if size <= 4 else "double"
    refuse(DataError, f"array {name!r} is of {array.dtype}, for which OFRecords have no list", hint="convert it with astype")


class CsvFile:
    """Rows of a CSV file.

    Args:
      path: the file, UTF-8.
      features: name to (columns, kind): the columns' values, in order, make one list. Kind is one of float, double, int32,
        int64, bytes, or None to guess it. None: a feature for each column.
      delimiter: between values.
      header: whether the first row names the columns; otherwise they are called "0", "1", ...
      missing: what an empty cell of a number counts as; None: it is an error.
    """

    identity: dict[str, Any]

    def __init__(
        self,
        path: PathLike,
        features: Mapping[str, tuple[Sequence[str], str | None]] | None = None,
        delimiter: str = ",",
        header: bool = True,
        missing: float | None = None,
    ):
        self.path, self.delimiter, self.missing = os.fspath(path), delimiter, missing
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
            refuse(ArgumentError, f"delimiter must be one character, got {delimiter!r}")
        try:
            self._starts, self._ends = _row_spans(self.path)
            self.identity = {"kind": "csv", "file": _stamp(path), "missing": missing, "delimiter": delimiter, "header": header}
        except OSError as error:
            refuse(DataError, f"cannot read {self.path!r}: {error.strerror}")
        self._first = int(header)
        if len(self._starts) <= self._first:
            refuse(DataError, f"{self.path!r} holds no rows")
        longest = int((self._ends - self._starts).max())
        if longest > MAX_RECORD_BYTES:
            refuse(DataError, f"a row of {self.path!r} is longer than the limit of {MAX_RECORD_BYTES} bytes: {longest}")
        first = next(self._rows(0, 1), [])
        columns = [name.strip() for name in first] if header else [str(i) for i in range(len(first))]
        wanted = features or {name: ([name], None) for name in columns}
        for name, (sources, kind) in wanted.items():
            unknown = [c for c in sources if c not in columns]
            if unknown or (kind is not None and kind not in KINDS):
                what = f"column {unknown[0]!r}" if unknown else f"kind {kind!r}"
                known = ", ".join(columns if unknown else KINDS)
                refuse(ArgumentError, f"feature {name!r} wants {what}, and there is none", found=[("known", known)])
        self._columns = columns
        self._plan = {name: ([columns.index(c) for c in sources], kind) for name, (sources, kind) in wanted.items()}
        sample = list(self._rows(self._first, min(self._first + _CSV_SAMPLE, len(self._starts))))
        self._plan = {
            name: (at, kind or _guess([row[i] for row in sample for i in at if i < len(row)]))
            for name, (at, kind) in self._plan.items()
        }
        self.identity["features"] = {name: list(plan) for name, plan in self._plan.items()}

    def __len__(self) -> int:
        return len(self._starts) - self._first

    def _rows(self, begin: int, end: int) -> Iterator[list[str]]:
        while begin < end:
            upto = int(np.searchsorted(self._ends, self._starts[begin] + _CSV_BLOCK, side="right"))
            upto = min(max(upto, begin + 1), end)
            first, last = int(self._starts[begin]), int(self._ends[upto - 1])
            try:
                with io.BufferedReader(open_regular(self.path)) as file:
                    file.seek(first)
                    text = io.TextIOWrapper(io.BytesIO(file.read(last - first)), encoding="utf-8", newline="")
                yield from filter(None, csv.reader(text, delimiter=self.delimiter))
            except OSError as error:
                _refuse_file(self.path, error)
            except (csv.Error, UnicodeDecodeError) as error:
                rows = [("file", self.path), ("rows", f"{begin + 1} to {upto}")]
                refuse(DataError, f"a CSV file cannot be read: {error}", found=rows)
            begin = upto

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        for block in range(begin, end, 4096):
            rows = self._rows(self._first + block, self._first + min(block + 4096, end))
            for i, row in enumerate(rows, block):
                values = {
                    name: (str(kind), [self._cell(row, j, str(kind), i) for j in at]) for name, (at, kind) in self._plan.items()
                }
                yield make_record(values)

    def _cell(self, row: list[str], j: int, kind: str, i: int) -> Any:
        try:
            text = row[j].strip()
            if kind == "bytes":
                return row[j].encode()
            if not text and self.missing is not None:
                return int(self.missing) if kind in _INTEGERS else self.missing
            value = int(text) if kind in _INTEGERS else float(text)
            low, high = _INTEGERS.get(kind, (value, value))
            if value < low or value > high:  # NaN is neither
                raise ValueError("outside its range")
            return value
        except (ValueError, IndexError):
            found = repr(row[j][:100]) if j < len(row) else f"a row of {len(row)} values"
            rows = [("file", self.path), ("row", f"{i + 1}, column {self._columns[j]!r}"), ("expected", kind), ("found", found)]
            hint = "every row must have as many values as the first"
            if j < len(row):
                hint = "name another kind for this feature" if row[j] else "say what an empty cell counts as: missing"
            refuse(DataError, "a cell of a CSV file cannot be read as its feature's kind", found=rows, hint=hint)


def _row_spans(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins and ends; line breaks inside quotes do not count, nor do empty lines."""
    ends, size, quotes = [], 0, 0
    with open_regular(path) as file:
        while block := file.read(1 << 24):
            data = np.frombuffer(block, np.uint8)
            newline = np.flatnonzero(data == 0x0A)
            inside = np.cumsum(data == 0x22)
            ends.append(newline[(inside[newline] + quotes) % 2 == 0] + size + 1)
            size, quotes = size + len(block), quotes + int(inside[-1])
        starts = np.concatenate([np.zeros(1, np.int64), *ends])
        stops = np.append(starts[1:], size)
        full = []
        for start in starts[stops - starts <= 2].tolist():  # "\n" and "\r\n", if they are
            file.seek(start)
            full.append(file.read(1) not in (b"\r", b"\n", b""))
    keep = np.ones(len(starts), bool)
    keep[stops - starts <= 2] = full
    return starts[keep], stops[keep]


def _guess(cells: Sequence[str]) -> str:
    cells = [c.strip() for c in cells if c.strip()]
    for kind, parse in (("int64", int), ("float", float)):
        try:
            for cell in cells:
                parse(cell)
        except ValueError:
            continue
        return kind if cells else "bytes"
    return "bytes"


class TfRecords:
    """TFRecord files of ``tf.train.Example``; checksums are compared. Integers become int64 lists.

    Args:
      paths: of the files, in order.
    """

    identity: dict[str, Any]

    def __init__(self, paths: Sequence[PathLike]):
        self.paths = [os.fspath(p) for p in paths]
        spans = [_tfrecord_spans(i, path) for i, path in enumerate(self.paths)]
        self._spans = np.concatenate(spans) if spans else np.zeros((0, 4), np.int64)
        if not len(self._spans):
            refuse(DataError, "the TFRecord files hold no records", found=[("files", ", ".join(self.paths))])
        self.identity = {"kind": "tfrecord", "files": [_stamp(p) for p in self.paths]}

    def __len__(self) -> int:
        return len(self._spans)

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        example, file, current = _example(), None, -1
        try:
            for number, offset, length, record in self._spans[begin:end].tolist():
                if number != current:
                    if file is not None:
                        file.close()
                    file, current = _open_tfrecord(self.paths[number]), number
                assert file is not None
                file.seek(offset + 12)
                data, check = file.read(length), file.read(4)
                where = Where(self.paths[number], record, offset)
                if len(check) < 4 or struct.unpack("<I", check)[0] != _crc32c.masked(_crc32c.crc32c(data)):
                    raise fault(RecordError, "a TFRecord's checksum does not match its data: the file is damaged", where)
                yield _from_example(example, data, where)
        finally:
            if file is not None:
                file.close()


def _open_tfrecord(path: str) -> io.BufferedReader:
    try:
        return io.BufferedReader(open_regular(path))
    except FileNotFoundError:
        refuse(DataError, f"there is no file {path!r}")
    except OSError as error:
        _refuse_file(path, error)


def _tfrecord_spans(number: int, path: str) -> np.ndarray:
    spans: list[tuple[int, int, int, int]] = []
    offset = 0
    with _open_tfrecord(path) as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            file.seek(offset)
            head = file.read(12)
            where = Where(path, len(spans), offset)
            if len(head) < 12:
                raise fault(RecordError, "a TFRecord file ends inside a record", where, found=f"{len(head)} bytes are left")
            length, check = struct.unpack("<QI", head)
            if check != _crc32c.masked(_crc32c.crc32c(head[:8])):
                rule, hint = "a TFRecord's length does not match its checksum", "is it compressed, or not a TFRecord file?"
                raise fault(RecordError, rule, where, hint=hint)
            if offset + 16 + length > size:
                raise fault(RecordError, "a TFRecord file ends inside a record", where, found=f"length {length}")
            if length > MAX_RECORD_BYTES:
                rule = f"a TFRecord is longer than the limit of {MAX_RECORD_BYTES} bytes"
                raise fault(RecordError, rule, where, found=f"length {length}")
            spans.append((number, offset, length, len(spans)))
            offset += 16 + length
    return np.array(spans, np.int64).reshape(-1, 4)


@cache
def _example() -> Any:
    """The message class ``tf.train.Example``, in a pool of its own."""
    descriptor_pb2 = need("google.protobuf.descriptor_pb2", "reading TFRecords")
    pool = need("google.protobuf.descriptor_pool", "reading TFRecords").DescriptorPool()
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    lists = (("BytesList", field.TYPE_BYTES), ("FloatList", field.TYPE_FLOAT), ("Int64List", field.TYPE_INT64))
    for name, kind in lists:
        file.message_type.add(name=name).field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for i, (name, member) in enumerate(
        zip(("BytesList", "FloatList", "Int64List"), ("bytes_list", "float_list", "int64_list"), strict=True), 1
    ):
        optional = feature.field.add(name=member, number=i, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, oneof_index=0)
        optional.type_name = f".tensorflow.{name}"
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    value = {"label": field.LABEL_OPTIONAL, "type": field.TYPE_MESSAGE, "type_name": ".tensorflow.Feature"}
    entry.field.add(name="value", number=2, **value)
    many = {"label": field.LABEL_REPEATED, "type": field.TYPE_MESSAGE, "type_name": ".tensorflow.Features.FeatureEntry"}
    features.field.add(name="feature", number=1, **many)
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".tensorflow.Features"
    )
    pool.AddSerializedFile(file.SerializeToString())
    return need("google.protobuf.message_factory", "reading TFRecords").GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.Example")
    )


def _from_example(example: Any, data: bytes, where: Where) -> bytes:
    try:
        message = example.FromString(data)
    except Exception as error:  # noqa: BLE001 - the protobuf library's own, which differ by implementation
        raise fault(RecordError, "a TFRecord holds no tf.train.Example", where, found=str(error)) from error
    kinds = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
    values = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            values[name] = (kinds[kind], getattr(feature, kind).value)
    if not values:
        raise fault(RecordError, "a TFRecord's example has no features", where)
    return make_record(values)
