"""Digests: a CRC-32 for each 4 MiB of each file of a checkpoint, kept in its JSON file, which ends with one of its own.

    "digests": {"algorithm": "crc32", "chunk": 4194304, "files": {"w/out": ["1a2b3c4d", ...], "w/meta": ["..."]}},
    "crc32": "..."                                                   of all the text in front of it

CRC-32 finds what disks and copies do (flipped bits, lost or exchanged blocks); it does not protect against forgery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from zlib_ng.zlib_ng import crc32  # the values of zlib.crc32, ten times as fast

from .._base import threads

ALGORITHM = "crc32"
CHUNK = 1 << 22  # bytes
_CHUNKS = range(1 << 9, (1 << 30) + 1)  # what is accepted from a file
_HASHED_AT_ONCE = 1 << 16  # bytes; more goes to other threads
_SEAL = '"crc32": "'
_SEALED_END = '"\n}'


def of_bytes(data: Any, chunk: int = CHUNK) -> list[int]:
    """The digests of a buffer's chunks, in order."""
    view = memoryview(data)
    return [crc32(view[begin : begin + chunk]) for begin in range(0, len(view), chunk)]


def chunk_count(size: int, chunk: int = CHUNK) -> int:
    """How many chunks a file of ``size`` bytes has."""
    return -(-size // chunk)


def text_of(digest: int) -> str:
    """As a digest is written."""
    return f"{digest:08x}"


class ChunkHasher:
    """Digests of chunks of files, computed on other threads while the files are written."""

    def __init__(self) -> None:
        self._pool: threads.Pool | None = None
        self._found: list[tuple[str, int, int | Future[int]]] = []

    def add(self, file: str, first: int, data: Any) -> None:
        """Chunks of a file, of which the first has the number ``first``. The data must not change until ``results``."""
        view = memoryview(data)
        if len(view) <= _HASHED_AT_ONCE:
            self._found += [(file, index, digest) for index, digest in enumerate(of_bytes(view), first)]
            return
        if self._pool is None:
            self._pool = threads.Pool()
        for index, begin in enumerate(range(0, len(view), CHUNK), first):
            self._found.append((file, index, self._pool.submit(crc32, view[begin : begin + CHUNK])))

    def results(self) -> list[tuple[str, int, int]]:
        """File, number and digest of all chunks."""
        return [(file, index, each if isinstance(each, int) else each.result()) for file, index, each in self._found]

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.close()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A chunk that is not what was saved; ``found`` is None where the file is too short to have it."""

    index: int
    expected: int | None
    found: int | None


@dataclass(frozen=True, slots=True)
class Expected:
    """The digests of one file."""

    digests: list[int]
    chunk: int

    def check(self, data: Any) -> Mismatch | None:
        """Compares a whole file's content; the first chunk that differs."""
        found = of_bytes(data, self.chunk)
        for index in range(max(len(found), len(self.digests))):
            mine = found[index] if index < len(found) else None
            if mine != self._digest(index):
                return Mismatch(index, self._digest(index), mine)
        return None

    def check_digest(self, index: int, found: int) -> Mismatch | None:
        """Compares the digest of chunk number ``index`` with what was saved."""
        return None if found == self._digest(index) else Mismatch(index, self._digest(index), found)

    def _digest(self, index: int) -> int | None:
        return self.digests[index] if index < len(self.digests) else None


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of a checkpoint's files, by their path inside it."""

    files: Mapping[str, list[int]] = field(default_factory=dict)
    chunk: int = CHUNK

    @staticmethod
    def parse(value: Any) -> Digests:
        """From JSON. Raises ValueError where that is not understood."""
        if not isinstance(value, dict) or value.get("algorithm") != ALGORITHM:
            raise ValueError(f"its digests are not {ALGORITHM}")
        chunk, files = value.get("chunk"), value.get("files")
        if type(chunk) is not int or chunk not in _CHUNKS or not isinstance(files, dict):
            raise ValueError("its digests are not understood")
        if not all(isinstance(found, list) for found in files.values()):
            raise ValueError("its digests are not understood")
        return Digests({name: [_number(text) for text in found] for name, found in files.items()}, chunk)

    def as_json(self) -> dict[str, Any]:
        """The JSON form, which ``parse`` reads."""
        files = {name: [text_of(digest) for digest in found] for name, found in self.files.items()}
        return {"algorithm": ALGORITHM, "chunk": self.chunk, "files": files}

    def of(self, file: str) -> Expected | None:
        """The digests of one file; None where it has none."""
        found = self.files.get(file)
        return None if found is None else Expected(found, self.chunk)

    def files_with(self, mismatch: Mismatch) -> list[str]:
        """The files that were saved with what was found."""
        at = slice(mismatch.index, mismatch.index + 1)
        return [name for name, found in self.files.items() if found[at] == [mismatch.found]]


def _number(text: Any) -> int:
    if not isinstance(text, str) or len(text) != 8:
        raise ValueError("its digests are not understood")
    return int(text, 16)


def seal(value: Mapping[str, Any]) -> bytes:
    """The JSON text of ``value``, with the digest of that text at its end."""
    text = json.dumps({**value, "crc32": ""}, indent=1, allow_nan=False)
    body = text.removesuffix(_SEALED_END).encode()
    return body + f"{text_of(crc32(body))}{_SEALED_END}".encode()


def is_seal_intact(data: bytes) -> bool:
    """Whether a JSON text is what ``seal`` made."""
    body, mark, end = data.rpartition(_SEAL.encode())
    return bool(mark) and end == f"{text_of(crc32(body + mark))}{_SEALED_END}".encode()
