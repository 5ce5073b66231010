"""Token streams from Megatron's indexed data sets: ``<prefix>.idx`` and ``<prefix>.bin``."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from typing import Any, NoReturn

import numpy as np

from .._base.files import open_regular
from .._base.refuse import refuse
from ..errors import DataError
from . import _mt19937
from ._positions import WITHOUT_POSITIONS, whole

_MAGIC = b"MMIDIDX\0\0"
_HEAD = 34  # bytes: magic, version, type, number of sequences, number of documents' ends
_BLOCK = 1 << 20  # numbers of the index that are read at a time
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f4", 7: "<f8", 8: "<u2"}


class IndexedTokens:
    """The sequences of a data set, each of which counts as a document. Tokens are read on request.

    They are read with ``pread``, not mapped: a file that somebody truncates meanwhile is an error, not a crash.

    Raises: DataError for a file that is missing, truncated or of another kind.
    """

    def __init__(self, prefix: str):
        self._index, self._path = f"{prefix}.idx", f"{prefix}.bin"
        self._file = self._open(self._path)
        try:
            size = os.fstat(self._file.fileno()).st_size
            with self._open(self._index) as index:
                self._dtype, self.lengths, addresses = self._read_index(index, size)
            width = self._dtype.itemsize
            behind = addresses + self.lengths * width  # at most 2**31 * 8 more than an address
            wrong = (self.lengths < 0) | (addresses < 0) | (addresses > size) | (addresses % width != 0) | (behind > size)
            if wrong.any():
                i = int(np.argmax(wrong))
                found = f"{size} bytes; sequence {i} has {self.lengths[i]} tokens at byte {addresses[i]}"
                self._refuse("it does not hold what its index describes", self._path, found)
        except BaseException:
            self._file.close()
            raise
        self._starts = addresses // width

    def _open(self, path: str) -> FileIO:
        try:
            return open_regular(path)
        except OSError as error:
            refuse(DataError, f"a token data set cannot be read: {error.strerror}", found=[("file", path)])

    def _refuse(self, why: str, path: str, found: str) -> NoReturn:
        refuse(DataError, f"a token data set cannot be read: {why}", found=[("file", path), ("found", found)])

    def _read_index(self, file: FileIO, bin_size: int) -> tuple[np.dtype, np.ndarray, np.ndarray]:
        """Type of the tokens, and length and address of each sequence."""
        size, head = os.fstat(file.fileno()).st_size, file.read(_HEAD) or b""
        if head[:9] != _MAGIC or len(head) < _HEAD:
            self._refuse("it is not an index of tokens", self._index, f"it begins with {head[:9]!r}, not {_MAGIC!r}")
        _, kind, count, offsets = struct.unpack("<QBQQ", head[9:])
        if kind not in _TYPES or offsets != count + 1 or size != _HEAD + 12 * count + 8 * offsets:
            self._refuse("it is damaged", self._index, f"{size} bytes for {count} sequences of token type {kind}")
        dtype = np.dtype(_TYPES[kind])
        if count > max(bin_size // dtype.itemsize, _BLOCK):
            self._refuse("most sequences are empty", self._index, f"{count} sequences, {bin_size // dtype.itemsize} tokens")
        return dtype, self._numbers(file, count, "<i4"), self._numbers(file, count, "<i8")

    def _numbers(self, file: FileIO, count: int, kind: str) -> np.ndarray:
        """The next numbers of the index, as int64. Reads in blocks, so that a file of zeros is given up early."""
        blocks = [np.zeros(0, np.int64)]
        for at in range(0, count, _BLOCK):
            block = np.fromfile(file, kind, min(_BLOCK, count - at)).astype(np.int64)
            if len(block) < min(_BLOCK, count - at):
                self._refuse("its index was truncated meanwhile", self._index, f"{at + len(block)} of {count} numbers")
            if len(block) == _BLOCK and not block.any():
                self._refuse("most sequences are empty", self._index, f"sequences {at} to {at + _BLOCK - 1} have no tokens")
            blocks.append(block)
        return np.concatenate(blocks)

    def read(self, document: int, begin: int, end: int) -> np.ndarray:
        """Tokens [begin, end) of a document. Raises DataError for tokens that are not integers."""
        at, size = (int(self._starts[document]) + begin) * self._dtype.itemsize, (end - begin) * self._dtype.itemsize
        data = os.pread(self._file.fileno(), size, at)
        if len(data) < size:
            self._refuse("it was truncated meanwhile", self._path, f"{len(data)} of {size} bytes at byte {at}")
        tokens = np.frombuffer(data, self._dtype)
        if self._dtype.kind == "f" and not (abs(tokens) < 2**62).all():
            self._refuse("a token is not an integer", self._path, f"{self._dtype} tokens at byte {at}")
        return tokens

    def close(self) -> None:
        """Closes its file."""
        self._file.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never opened
            self.close()


def part_of(count: int, sizes: Sequence[int | float], which: int) -> range:
    """The documents of one part of a data set that is split in these proportions."""
    total = float(sum(sizes))
    shares = [int(np.rint(np.float32(size / total) * np.float32(count))) for size in sizes]
    begin = min(sum(shares[:which]), count)
    return range(begin, min(begin + shares[which], count))


class SampleStream:
    """Samples of seq_length + 1 tokens, each beginning with the last token of the one before, over as many epochs as needed.

    Documents are joined in a shuffled order, and samples are returned in another one. The last epoch is shuffled separately where
    less than four fifths of it are used.
    """

    def __init__(self, tokens: IndexedTokens, documents: range, seq_length: int, num_samples: int, seed: int | None):
        lengths = tokens.lengths[documents.start : documents.stop]
        total, wanted = int(lengths.sum()), num_samples * seq_length + 1
        if total < 2:
            refuse(DataError, f"the part of the data set has {total} tokens, which make no sample")
        epochs = -(-wanted // total)
        if len(lengths) * epochs > wanted + len(lengths):  # less than one token each
            refuse(DataError, f"most documents of the part of the data set are empty: {len(lengths)} have {total} tokens")
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

    def close(self) -> None:
        """Closes the file of its tokens."""
        self._tokens.close()

    def sample(self, number: int) -> np.ndarray:
        """The tokens of the sample at that place of the order."""
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
    """Batches of samples, one after the other, up to the last whole one."""

    def __init__(self, stream: SampleStream, batch_size: int, dtype: np.dtype, resumes: bool):
        self._stream, self._size, self._dtype, self._resumes = stream, batch_size, dtype, resumes
        self._next = 0

    def next(self) -> tuple[np.ndarray]:
        """The next batch of samples. Raises DataError where no whole batch is left."""
        begin = self._next * self._size
        if begin + self._size > len(self._stream):
            refuse(DataError, f"the token stream has {len(self._stream)} samples, and all whole batches of {self._size} are used")
        batch = np.stack([self._stream.sample(begin + row) for row in range(self._size)])
        if self._dtype == np.int32 and batch.dtype.itemsize > 4 and int(abs(batch).max()) > np.iinfo(np.int32).max:
            refuse(DataError, f"a token of a batch is outside the range of int32: {int(abs(batch).max())}", hint="use flow.int64")
        self._next += 1
        return (batch.astype(self._dtype),)

    def mark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the present position, for ``restore``."""
        at = self._next
        return lambda: {"batches": at}

    def restore(self, state: Any) -> None:
        """Goes on from a position that ``mark`` noted. Raises DataError for anything else."""
        try:
            batches = whole(state["batches"])
        except (TypeError, KeyError, ValueError) as error:
            refuse(DataError, f"a token reader's saved position cannot be used: {error!r}", hint=WITHOUT_POSITIONS)
        if self._resumes:
            self._next = batches

    def close(self) -> None:
        """Closes the file of its tokens."""
        self._stream.close()
