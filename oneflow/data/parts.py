"""Part files: records one after the other, each behind its length (int64, little-endian)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .records import Records

Path = str | os.PathLike[str]


def part_name(index: int, prefix: str = "part-", suffix_length: int = -1) -> str:
    """The name of a part file: the prefix, then the number, padded with zeros to ``suffix_length`` digits."""
    raise NotImplementedError


def part_paths(directory: Path, count: int, prefix: str = "part-", suffix_length: int = -1) -> list[str]:
    """The paths of all parts of a data set. Raises PartNotFoundError, ArgumentError."""
    raise NotImplementedError


def read_part(path: Path, chunk_bytes: int = 1 << 20) -> Iterator[Records]:
    """All records of one part, in chunks. Raises PartNotFoundError, RecordError."""
    raise NotImplementedError


class PartWriter:
    """Writes one part file; it appears under its name when the ``with`` block ends without an exception."""

    def __init__(self, path: Path): ...

    def write(self, record: Any) -> None:
        """Appends an OFRecord, or one serialised already."""
        raise NotImplementedError

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *failure: object) -> None: ...
