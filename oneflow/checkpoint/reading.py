"""Reading files of a checkpoint into memory, on several threads, while their digests are compared."""

from __future__ import annotations

import os
from functools import partial
from io import FileIO

from zlib_ng.zlib_ng import crc32

from .._base.threads import on_threads
from .blocks import Runs
from .digests import CHUNK, Expected, Mismatch, chunk_count

_PIECE = 1 << 18  # bytes that are in the cache still when their digest is computed


class DamageError(Exception):
    """A chunk of a file is not what was saved. Never leaves the package."""

    def __init__(self, mismatch: Mismatch, chunk: int):
        super().__init__(mismatch, chunk)
        self.mismatch = mismatch
        self.chunk = chunk


class TooShortError(Exception):
    """A file ended before all was read. Never leaves the package."""


class VerifiedFile:
    """An open file and its digests, None where it has none.

    All methods may raise DamageError, TooShortError and OSError.
    """

    def __init__(self, file: FileIO, expected: Expected | None):
        self.size = os.fstat(file.fileno()).st_size
        self._file = file
        self._expected = expected
        self._chunk = CHUNK if expected is None else expected.chunk

    def read(self, begin: int, target: memoryview) -> None:
        """Fills ``target`` from offset ``begin`` on. All chunks that it touches are verified."""
        touched = range(begin // self._chunk, chunk_count(begin + len(target), self._chunk)) if len(target) else ()
        on_threads(partial(self._read_chunk, begin, target), touched)

    def _read_chunk(self, begin: int, target: memoryview, index: int) -> None:
        """The part of ``target`` that is in one chunk."""
        first, last = index * self._chunk, min((index + 1) * self._chunk, self.size)
        a, b = max(first, begin), min(last, begin + len(target))
        part = target[a - begin : b - begin]
        if self._expected is None:
            self._fill(a, part)
            return
        if (a, b) == (first, last):
            self._fill_verified(index, part)
            return
        chunk = memoryview(bytearray(last - first))  # its neighbours are read, too: the digest is theirs as well
        self._fill_verified(index, chunk)
        part[:] = chunk[a - first : b - first]

    def read_run(self, runs: Runs, target: memoryview) -> None:
        """``read`` of one stretch, or of none."""
        if runs.offsets:
            self.read(runs.offsets[0], target)

    def read_runs(self, runs: Runs, target: memoryview) -> None:
        """Fills ``target`` with separate stretches; verifies nothing."""
        at = 0
        for offset in runs.offsets:
            self._fill(offset, target[at : at + runs.length])
            at += runs.length

    def verify(self, begin: int = 0, step: int = 1) -> None:
        """Compares every ``step``-th chunk, from number ``begin`` on. One chunk a thread is in memory."""
        if self._expected is not None:
            count = max(chunk_count(self.size, self._chunk), len(self._expected.digests))
            on_threads(self._verify_chunk, range(begin, count, step))

    def _verify_chunk(self, index: int) -> None:
        chunk = memoryview(bytearray(max(0, min(self._chunk, self.size - index * self._chunk))))
        self._fill_verified(index, chunk)

    def _fill_verified(self, index: int, target: memoryview) -> None:
        """Reads all of one chunk, whose digest is compared."""
        assert self._expected is not None
        digest = 0
        for begin in range(0, len(target), _PIECE):
            piece = target[begin : begin + _PIECE]
            self._fill(index * self._chunk + begin, piece)
            digest = crc32(piece, digest)
        mismatch = self._expected.check_digest(index, digest)
        if mismatch is not None:
            raise DamageError(mismatch, self._chunk)

    def _fill(self, offset: int, target: memoryview) -> None:
        """Reads exactly as many bytes as ``target`` has. Other threads may be reading elsewhere."""
        while len(target):
            got = os.preadv(self._file.fileno(), [target], offset)
            if not got:
                raise TooShortError
            target, offset = target[got:], offset + got
