"""Inputs that can be packed into OFRecords: a folder of images, arrays, a CSV file, TFRecords.

An input has ``len()``, ``records(begin, end)`` (serialised OFRecords), and ``identity``: JSON by which it is recognized.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .._base.files import TO_NOWHERE, leads_outside, open_regular, read_regular, why_outside
from .._base.files import Path as PathLike
from .._base.refuse import refuse
from ..errors import DataError
from . import images
from ._csv import CsvFile as CsvFile
from ._npz import load_npz
from ._packing import INTEGERS, plain_number, refuse_file, stamp
from ._packing import make_record as make_record
from ._tfrecords import TfRecords as TfRecords
from .parts import MAX_RECORD_BYTES

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_HEADINGS = {"label", "labels", "class", "classes", "target", "category"}  # of a label file's first line
_ALLOW = "allow_outside=True (--allow-outside) allows that"


class ImageFolder:
    """Images with labels; their files go into the records unchanged.

    Args:
      folder: of the images.
      label_file: lines of a path below ``folder`` and a label, separated by white space, a comma or a tab; a first line of
        headings is skipped. None: each subfolder is a class, in the order of their names; what begins with a dot is left out.
      image_feature, label_feature: names in the records.
      allow_outside: images may be outside the folder: by names in the label file, or by symbolic links.
    A label that is not an integer is the name of a class. Classes are numbered from 0 in the order of their names, and records
    hold the name, too, as feature "class/text".
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
        labels = {"labels": stamp(label_file)} if label_file is not None else {}
        self.identity = {
            "kind": "images",
            "folder": str(self.folder.resolve()),
            "count": len(entries),
            "names": self.names,
            "entries": self._digest(),
            **labels,
        }

    def _digest(self) -> str:
        """Of the images' paths, labels, sizes and times."""
        digest = hashlib.blake2b(digest_size=16)
        for path, _, label in self.entries:
            try:
                status = os.stat(self.folder / path)
                of_file = f"{status.st_size} {status.st_mtime_ns}"
            except OSError:  # it is told when it is read
                of_file = ""
            digest.update(f"{path}\0{label}\0{of_file}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _from_folders(self) -> list[tuple[str, str]]:
        found = [
            (f"{group.name}/{image.relative_to(group).as_posix()}", group.name)
            for group in sorted(p for p in self.folder.iterdir() if p.is_dir())
            for image in sorted(group.rglob("*"))
            if image.suffix.lower() in EXTENSIONS
            # .ipynb_checkpoints, or what other systems leave beside an image
            and not any(part.startswith(".") for part in image.relative_to(self.folder).parts)
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
            refuse_file(label_file, error)
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
        """The images from ``begin`` to ``end``, as serialised OFRecords."""
        image, label = self.names
        for path, number, text in self.entries[begin:end]:
            data = self._read(self.folder / path)
            values: dict[str, tuple[str, Sequence[Any]]] = {image: ("bytes", [data]), label: ("int32", [number])}
            if self.classes:
                values["class/text"] = ("bytes", [text.encode("utf-8", "surrogateescape")])
            yield make_record(values)

    def _read(self, path: Path) -> bytes:
        try:
            why = "" if self._may_leave else why_outside(path, self.folder, "its folder")
            if not why:
                return read_regular(path, MAX_RECORD_BYTES)
        except OSError as error:
            refuse_file(path, error)
        hint = "" if why == TO_NOWHERE else _ALLOW
        refuse(DataError, f"an image cannot be read: {why}", found=[("file", str(path))], hint=hint)


def _is_label(text: str) -> bool:
    """Whether it is an integer that fits into an int32 list."""
    try:
        low, high = INTEGERS["int32"]
        return bool(low <= plain_number(text, int) <= high)
    except ValueError:
        return False


def _last_word(line: str) -> tuple[str, str, str]:
    words = line.rsplit(None, 1)
    return (words[0], " ", words[1]) if len(words) == 2 else (line, "", "")


class Arrays:
    """Arrays whose first axis is the sample.

    uint8 and int8 arrays of two and more axes become raw bytes (which ``OFRecordRawDecoder`` reads), other integers
    int32 or int64 lists, floats float or double lists, text bytes.

    Args:
      source: an ``.npz`` file, or a mapping of names to arrays.
      features: maps names in the records to names of arrays; None: all arrays under their own names.
      png: features that are images (n, height, width) or (n, height, width, 3) in BGR, stored as PNG.
    """

    def __init__(
        self, source: PathLike | Mapping[str, np.ndarray], features: Mapping[str, str] | None = None, png: Sequence[str] = ()
    ):
        if isinstance(source, Mapping):
            arrays, self._file = dict(source), None
        else:
            arrays, self._file = _load_npz(source), stamp(source)
        self._features = wanted = dict(features) if features else {name: name for name in arrays}
        for feature, name in wanted.items():
            if name not in arrays:
                refuse(
                    DataError,
                    f"feature {feature!r} needs an array {name!r}, which does not exist",
                    found=[("arrays", ", ".join(arrays))],
                )
        self.arrays = {feature: np.asarray(arrays[name]) for feature, name in wanted.items()}
        sizes = {name: len(a) if a.ndim else -1 for name, a in self.arrays.items()}
        if len(set(sizes.values())) != 1 or -1 in sizes.values():
            hint = "choose arrays of one length with features= (--feature NAME=ARRAY)"
            refuse(DataError, "all arrays must have the same number of samples", found=[("arrays", str(sizes))], hint=hint)
        self.size = next(iter(sizes.values()))
        self.kinds = {name: "png" if name in png else _kind_of(name, array) for name, array in self.arrays.items()}
        self._check_images(png)
        self.arrays = {name: a.astype(np.int32) if a.dtype == bool else a for name, a in self.arrays.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """What these arrays are recognized by: the file and the features' arrays, or digests of those in memory."""
        own: dict[str, Any] = {"file": self._file, "features": self._features}
        if self._file is None:
            own = {"digests": {name: _digest_of(array) for name, array in self.arrays.items()}}
        return {"kind": "arrays", "kinds": self.kinds, "count": self.size, **own}

    def _check_images(self, png: Sequence[str]) -> None:
        for name in png:
            if name not in self.arrays:
                refuse(
                    DataError, f"feature {name!r}, which png= names, does not exist", found=[("features", ", ".join(self.arrays))]
                )
            array = self.arrays[name]
            is_image = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3, 4))
            if array.dtype not in (np.uint8, np.uint16) or not is_image:
                rule = f"feature {name!r} cannot be stored as PNG: it is {array.dtype} of shape {array.shape}"
                refuse(DataError, rule, hint="images are uint8 of shape (n, height, width) or (n, height, width, 3)")

    def __len__(self) -> int:
        return self.size

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        """The rows from ``begin`` to ``end``, as serialised OFRecords."""
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


def _digest_of(array: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _load_npz(path: PathLike) -> dict[str, np.ndarray]:
    try:
        with open_regular(path) as file:
            return load_npz(file)
    except FileNotFoundError:
        refuse(DataError, f"there is no file {os.fspath(path)!r}")
    except OSError as error:
        refuse_file(path, error)
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
    refuse(DataError, f"array {name!r} is of {array.dtype}, which OFRecords cannot hold", hint="convert it with astype")
