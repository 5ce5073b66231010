"""Token streams in the files of Megatron's indexed data sets: ``<prefix>.idx`` and ``<prefix>.bin``."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from . import _mt19937

_MAGIC = b"MMIDIDX\0\0"
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f4", 7: "<f8", 8: "<u2"}


class IndexedTokens:
    """The sequences of a data set, each of which counts as a document; tokens are read when they are asked for.

    Raises DataError for a file that is missing, cut off or of another kind.
    """

    def __init__(self, prefix: str):
        index = f"{prefix}.idx"
        try:
            with open(index, "rb") as file:
                data = file.read()
            size = os.path.getsize(f"{prefix}.bin")
        except OSError as error:
            raise DataError(f"token data set {prefix!r}: {error}") from error
        if data[:9] != _MAGIC or len(data) < 34:
            raise DataError(f"{index}: not an index of tokens; it should begin with {_MAGIC!r}")
        _, kind, count, offsets = struct.unpack("<QBQQ", data[9:34])
        if kind not in _TYPES or offsets != count + 1 or len(data) != 34 + 12 * count + 8 * offsets:
            raise DataError(f"{index}: {len(data)} bytes do not fit {count} sequences of token type {kind}")
        self.lengths = np.frombuffer(data, "<i4", count, 34).astype(np.int64)
        addresses = np.frombuffer(data, "<i8", count, 34 + 4 * count)
        width = np.dtype(_TYPES[kind]).itemsize
        if (self.lengths < 0).any() or (addresses % width).any() or (addresses + self.lengths * width > size).any():
            raise DataError(f"{prefix}.bin: {size} bytes do not hold what {index} describes")
        self._starts = addresses // width
        self._tokens: np.ndarray = np.memmap(f"{prefix}.bin", _TYPES[kind], "r") if size else np.zeros(0, _TYPES[kind])

    def read(self, document: int, begin: int, end: int) -> np.ndarray:
        """Tokens [begin, end) of a document."""
        start = int(self._starts[document])
        return self._tokens[start + begin : start + end]


def part_of(count: int, sizes: Sequence[int | float], which: int) -> range:
    """The documents of one part of a data set that is split in this proportion."""
    total = float(sum(sizes))
    shares = [int(np.rint(np.float32(size / total) * np.float32(count))) for size in sizes]
    begin = min(sum(shares[:which]), count)
    return range(begin, min(begin + shares[which], count))


class SampleStream:
    """Samples of seq_length + 1 tokens, each beginning with the last token of the one before; over as many epochs as it takes.

    Documents are joined in a shuffled order, and samples are given in another; the last epoch is kept apart in both, where
    less than four fifths of it are used.
    """

    def __init__(self, tokens: IndexedTokens, documents: range, seq_length: int, num_samples: int, seed: int | None):
        lengths = tokens.lengths[documents.start : documents.stop]
        total = int(lengths.sum())
        if total < 2:
            raise DataError(f"the part of the data set has {total} tokens, which make no sample")
        epochs = -(-(num_samples * seq_length + 1) // total)
        apart = False
        if epochs > 1:
            before, each = ((epochs - 1) * total - 1) // seq_length, (total - 1) // seq_length
            apart = num_samples - before < int(0.8 * each)
        complete = epochs - 1 if apart else epochs
        outputs = None if seed is None else _mt19937.outputs(seed)

        def shuffled(values: list[int]) -> list[int]:
            if outputs is not None:
                _mt19937.shuffle(values, outputs)
            return values

        order = shuffled(list(documents) * complete) + (shuffled(list(documents)) if apart else [])
        samples, first = (epochs * total - 1) // seq_length, (complete * total - 1) // seq_length
        self._order = shuffled(list(range(first))) + shuffled(list(range(first, samples)))
        self._documents = np.asarray(order)
        self._ends = np.cumsum(tokens.lengths[self._documents])
        self._tokens = tokens
        self._length = seq_length

    def __len__(self) -> int:
        return len(self._order)

    def sample(self, number: int) -> np.ndarray:
        """The tokens of the sample that is given out as that number."""
        begin = self._order[number] * self._length
        end = begin + self._length + 1
        pieces, place = [], int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            stop = int(self._ends[place])
            start = stop - int(self._tokens.lengths[self._documents[place]])
            upto = min(end, stop)
            if upto > begin:
                pieces.append(self._tokens.read(int(self._documents[place]), begin - start, upto - start))
            begin, place = max(begin, upto), place + 1
        return np.concatenate(pieces)


class TokenBatches:
    """Batches of samples, one after the other, to the last whole one."""

    def __init__(self, stream: SampleStream, batch_size: int, dtype: np.dtype, resumes: bool):
        self._stream, self._size, self._dtype, self._resumes = stream, batch_size, dtype, resumes
        self._next = 0

    def next(self) -> tuple[np.ndarray]:
        begin = self._next * self._size
        if begin + self._size > len(self._stream):
            raise DataError(f"the token stream has {len(self._stream)} samples, and all whole batches of {self._size} are used")
        batch = np.stack([self._stream.sample(begin + row) for row in range(self._size)])
        self._next += 1
        return (batch.astype(self._dtype),)

    def mark(self) -> Callable[[], dict[str, Any]]:
        at = self._next
        return lambda: {"batches": at}

    def restore(self, state: Any) -> None:
        if self._resumes:
            self._next = int(state["batches"])

    def close(self) -> None:
        pass
