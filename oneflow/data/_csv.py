"""CSV files as input of ``pack``."""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn

import numpy as np

from .._base.files import Path as PathLike
from .._base.files import open_regular
from .._base.refuse import refuse
from ..errors import ArgumentError, DataError
from ._packing import INTEGERS, KINDS, make_record, plain_number, refuse_file, stamp
from .parts import MAX_RECORD_BYTES

_SAMPLE = 1000  # rows from which the types of columns are guessed
_BLOCK = 1 << 24  # bytes that are parsed at a time; more for a longer row


class CsvFile:
    """Rows of a CSV file.

    Args:
      path: the file, UTF-8.
      features: maps names to (columns, kind): the values of the columns, in order, make one list. Kind is float, double, int32,
        int64, bytes, or None to guess it. None: a feature for each column.
      delimiter: between values.
      header: whether the first row names the columns; otherwise they are called "0", "1", ...
      missing: the number that an empty cell stands for; None: an empty cell is an error.
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
        for name, value in (features or {}).items():
            if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], (tuple, list)):
                rule = f"features must map names to (columns, kind), got {value!r} for {name!r}"
                refuse(ArgumentError, rule, hint='features={"label": (["class"], "int32")}')
        try:
            self._starts, self._ends = _row_spans(self.path, delimiter)
            self.identity = {"kind": "csv", "file": stamp(path), "missing": missing, "delimiter": delimiter, "header": header}
        except OSError as error:
            refuse(DataError, f"cannot read {self.path!r}: {error.strerror}")
        except csv.Error as error:
            refuse(DataError, f"a CSV file cannot be read: {error}", found=[("file", self.path)])
        self._first = int(header)
        if len(self._starts) <= self._first:
            refuse(DataError, f"{self.path!r} holds no rows")
        longest = int((self._ends - self._starts).max())
        if longest > MAX_RECORD_BYTES:
            refuse(DataError, f"a row of {self.path!r} is longer than the limit of {MAX_RECORD_BYTES} bytes: {longest}")
        first = next(self._rows(0, 1), [])
        columns = [name.strip() for name in first] if header else [str(i) for i in range(len(first))]
        twice = [name for i, name in enumerate(columns) if name in columns[:i]]
        if twice and not features:
            refuse(DataError, f"two columns of {self.path!r} are called {twice[0]!r}", hint="give them names of their own")
        wanted = features or {name: ([name], None) for name in columns}
        for name, (sources, kind) in wanted.items():
            if unclear := [c for c in sources if c in twice]:
                rule = f"two columns of {self.path!r} are called {unclear[0]!r}, which feature {name!r} is to be made of"
                refuse(DataError, rule, hint="give them names of their own")  # fmt: skip
            unknown = [c for c in sources if c not in columns]
            if unknown or (kind is not None and kind not in KINDS):
                what = f"column {unknown[0]!r}" if unknown else f"kind {kind!r}"
                known = ", ".join(columns if unknown else KINDS)
                refuse(ArgumentError, f"feature {name!r} needs {what}, which does not exist", found=[("known", known)])
        self._columns = columns
        self._plan = {name: ([columns.index(c) for c in sources], kind) for name, (sources, kind) in wanted.items()}
        sample = list(self._rows(self._first, min(self._first + _SAMPLE, len(self._starts))))
        self._plan = {
            name: (at, kind or _guess([row[i] for row in sample for i in at if i < len(row)]))
            for name, (at, kind) in self._plan.items()
        }
        self.identity["features"] = {name: list(plan) for name, plan in self._plan.items()}

    def __len__(self) -> int:
        return len(self._starts) - self._first

    def _rows(self, begin: int, end: int) -> Iterator[list[str]]:
        while begin < end:
            upto = int(np.searchsorted(self._ends, self._starts[begin] + _BLOCK, side="right"))
            upto = min(max(upto, begin + 1), end)
            first, last = int(self._starts[begin]), int(self._ends[upto - 1])
            try:
                with io.BufferedReader(open_regular(self.path)) as file:
                    file.seek(first)
                    text = io.TextIOWrapper(io.BytesIO(file.read(last - first)), encoding="utf-8", newline="")
                yield from filter(None, csv.reader(text, delimiter=self.delimiter))
            except OSError as error:
                refuse_file(self.path, error)
            except (csv.Error, UnicodeDecodeError) as error:
                rows = [("file", self.path), ("rows", f"{begin + 1} to {upto}")]
                refuse(DataError, f"a CSV file cannot be read: {error}", found=rows)
            begin = upto

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        """The rows from ``begin`` to ``end``, as serialised OFRecords."""
        for block in range(begin, end, 4096):
            rows = self._rows(self._first + block, self._first + min(block + 4096, end))
            for i, row in enumerate(rows, block):
                if any(map(str.strip, row[len(self._columns) :])):
                    self._refuse_long_row(row, i)
                values = {
                    name: (str(kind), [self._cell(row, j, str(kind), i) for j in at]) for name, (at, kind) in self._plan.items()
                }
                yield make_record(values)

    def _refuse_long_row(self, row: list[str], i: int) -> NoReturn:
        rows = [("file", self.path), ("row", str(i + 1)), ("expected", f"{len(self._columns)} values"), ("found", f"{len(row)}")]
        refuse(DataError, "a row of a CSV file has more values than the first", found=rows,
               hint=f'quotes around a value that holds {self.delimiter!r}, such as "1,5"')  # fmt: skip

    def _cell(self, row: list[str], j: int, kind: str, i: int) -> Any:
        try:
            text = row[j].strip()
            if kind == "bytes":
                return row[j].encode()
            if not text and self.missing is not None:
                if kind in INTEGERS and not float(self.missing).is_integer():
                    raise ValueError("not a whole number")
                return int(self.missing) if kind in INTEGERS else self.missing
            value = plain_number(text, int if kind in INTEGERS else float)
            low, high = INTEGERS.get(kind, (value, value))
            if value < low or value > high:  # NaN is neither
                raise ValueError("outside its range")
            return value
        except (ValueError, IndexError):
            found = repr(row[j][:100]) if j < len(row) else f"a row of {len(row)} values"
            rows = [("file", self.path), ("row", f"{i + 1}, column {self._columns[j]!r}"), ("expected", kind), ("found", found)]
            hint = "every row must have as many values as the first"
            if j < len(row):
                hint = "missing=0 (--missing 0) makes it 0"
                if row[j]:
                    hint = "name another kind for this feature"
            refuse(DataError, "a cell of a CSV file cannot be read as its feature's kind", found=rows, hint=hint)


def _row_spans(path: str, delimiter: str) -> tuple[np.ndarray, np.ndarray]:
    """The beginning and end of each row. Line breaks inside quotes and empty lines do not count."""
    if not delimiter.isascii():  # its last byte may be that of other characters
        return _row_spans_by_reading(path, delimiter)
    ends, quotes, last = [], 0, b"\n"
    before = np.zeros(256, bool)  # the bytes before a quote that begins a cell, or comes second in a pair of them
    before[[0x0A, 0x0D, 0x22, ord(delimiter)]] = True
    with open_regular(path) as file:
        begin = size = _skip_mark(file)
        while block := file.read(1 << 24):
            data = np.frombuffer(block, np.uint8)
            newline, quote = np.flatnonzero(data == 0x0A), np.flatnonzero(data == 0x22)
            opening = quote[quotes % 2 :: 2]
            known = last + block
            returns_alone = b"\r" in known.removesuffix(b"\r").replace(b"\r\n", b"")  # of the last byte the next block tells
            if returns_alone or not before[np.frombuffer(known, np.uint8)[opening]].all():
                return _row_spans_by_reading(path, delimiter)
            inside = np.searchsorted(quote, newline)
            ends.append(newline[(inside + quotes) % 2 == 0] + size + 1)
            size, quotes, last = size + len(block), quotes + len(quote), block[-1:]
        starts = np.concatenate([np.array([begin]), *ends])
        stops = np.append(starts[1:], size)
        full = []
        for start in starts[stops - starts <= 2].tolist():  # these may be "\n" or "\r\n"
            file.seek(start)
            full.append(file.read(1) not in (b"\r", b"\n", b""))
    keep = np.ones(len(starts), bool)
    keep[stops - starts <= 2] = full
    return starts[keep], stops[keep]


def _row_spans_by_reading(path: str, delimiter: str) -> tuple[np.ndarray, np.ndarray]:
    """The same for quotes inside of cells that do not begin with one, and for carriage returns that end lines."""
    starts, ends = [], []
    with io.TextIOWrapper(io.BufferedReader(open_regular(path)), "utf-8", "surrogateescape", newline="") as file:
        begin = at = _skip_mark(file.buffer)

        def lines() -> Iterator[str]:
            nonlocal at
            for line in file:
                at += len(line.encode("utf-8", "surrogateescape"))
                yield line

        for row in csv.reader(lines(), delimiter=delimiter):
            if row:
                starts.append(begin)
                ends.append(at)
            begin = at
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _skip_mark(file: IO[bytes]) -> int:
    """Where the text begins: after the byte-order mark with which spreadsheets begin files."""
    return file.seek(len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0)


def _guess(cells: Sequence[str]) -> str:
    cells = [c.strip() for c in cells if c.strip()]
    for kind, parse in (("int64", int), ("float", float)):
        try:
            for cell in cells:
                plain_number(cell, parse)
        except ValueError:
            continue
        return kind if cells else "bytes"
    return "bytes"
