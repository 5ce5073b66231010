"""A batch of serialised OFRecords: where each lies, where it came from, and its features, found for all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Where:
    """A record's place: its file, its number in that file from 0, the offset of its length prefix in bytes."""

    file: str
    record: int
    offset: int


class Records:
    """An immutable sequence of serialised OFRecords. ``records[i]`` is bytes, ``records[a:b]`` shares memory and parsing."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, where: Sequence[Where]): ...

    @classmethod
    def of(cls, records: Iterable[bytes | object]) -> Records:
        """From bytes or OFRecord messages."""
        raise NotImplementedError

    @classmethod
    def concat(cls, batches: Sequence[Records]) -> Records:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError

    def where(self, i: int) -> Where:
        """Where record ``i`` came from."""
        raise NotImplementedError
