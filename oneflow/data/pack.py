"""Packs an input into part files: in parallel, each part complete or absent. An interrupted run can be continued."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from .._base import cores
from .._base.bars import ForgivingFile
from .._base.files import read_regular
from .._base.refuse import refuse, shown
from .._base.whole_files import replacing
from ..errors import ArgumentError, DataError
from ._packing import in_seconds
from ._split import balanced
from .parts import PartWriter, part_name
from .parts import Path as PathLike

_MOST_MANIFEST = 1 << 24  # bytes
MANIFEST = ".oneflow-pack.json"  # in the data set's directory: identifies the input


class Input(Protocol):
    """See ``oneflow.data.inputs``."""

    @property
    def identity(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def records(self, begin: int, end: int) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Packed:
    """The result of ``pack``: all paths, the number of records, and the number of parts that existed before."""

    paths: list[str]
    records: int
    kept: int


def pack(
    source: Input,
    directory: PathLike,
    parts: int = 1,
    *,
    prefix: str = "part-",
    suffix_length: int = -1,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Packed:
    """Writes an input as a data set of part files, in order, evenly over the parts.

    A part appears under its name when it is complete. The same call, repeated after an interruption, keeps parts that exist.

    Args:
      source: an input of ``oneflow.data.inputs``.
      directory: of the parts; created if it does not exist.
      parts: number of files; at most the number of records.
      prefix, suffix_length: of their names, as for readers.
      workers: threads; None: one per core.
      overwrite: whether to replace all parts that are there, also those beyond the new number, and those made of the same input.
      progress: whether to show a progress bar.
    Raises:
      ArgumentError: more parts than records.
      DataError: the directory holds parts of something else; or the input is damaged.
    Example: >>> pack(Arrays("mnist.npz", {"image": "x_train", "label": "y_train"}), "train", parts=8)
    """
    if not len(source):
        refuse(DataError, "there are no records to pack")
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= len(source):
        refuse(ArgumentError, f"{len(source)} records can be packed into 1 to {len(source)} parts, not {shown(parts)}")
    folder = os.fspath(directory)
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, part_name(i, prefix, suffix_length)) for i in range(parts)]
    _prepare(
        folder,
        paths,
        {"format": 1, "parts": parts, "prefix": prefix, "suffix_length": suffix_length, **source.identity},
        overwrite,
    )
    missing = [i for i, path in enumerate(paths) if not os.path.exists(path)]
    stop = threading.Event()
    with _bar(sum(_size(source, parts, i) for i in missing), progress) as bar:
        lock = threading.Lock()

        def count(n: int) -> None:
            with lock:
                bar.update(n)

        with ThreadPoolExecutor(workers or cores.allowed()) as pool:
            jobs = [pool.submit(_write_part, source, paths[i], balanced(len(source), parts, i), stop, count) for i in missing]
            try:
                for job in as_completed(jobs):
                    job.result()
            except BaseException:
                stop.set()
                for job in jobs:
                    job.cancel()
                raise
    return Packed(paths, len(source), parts - len(missing))


class _Stopped(Exception):
    """Another part failed, or the user interrupted."""


def _write_part(source: Input, path: str, span: tuple[int, int], stop: threading.Event, count: Any) -> None:
    try:
        with PartWriter(path) as part:
            for record in source.records(*span):
                if stop.is_set():
                    raise _Stopped
                part.write(record)
                count(1)
    except _Stopped:
        pass
    except BaseException:
        stop.set()
        raise


def _size(source: Input, parts: int, i: int) -> int:
    begin, end = balanced(len(source), parts, i)
    return end - begin


def _bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=" records", desc="packing", disable=not shown, leave=False, file=ForgivingFile(sys.stderr))


def _prepare(folder: str, paths: list[str], identity: dict[str, Any], overwrite: bool) -> None:
    """Keeps parts of the same input, refuses or removes others, and writes the manifest."""
    manifest = os.path.join(folder, MANIFEST)
    wanted = json.loads(json.dumps(identity))
    found: Any = None
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(manifest, _MOST_MANIFEST))
    there = [path for path in paths if os.path.exists(path)]
    if there and found not in (wanted, in_seconds(wanted)) and not overwrite:
        refuse(
            DataError, f"{folder!r} holds parts that were made of something else", found=[("file", there[0])],
            hint="choose another directory, or overwrite=True (--overwrite) to replace them",
        )  # fmt: skip
    if overwrite:
        for path in {*there, *_parts_there(folder, wanted), *(_parts_there(folder, found) if _names_parts(found) else ())}:
            os.unlink(path)
    for name in os.listdir(folder):  # of runs that were killed
        if name.startswith(".") and name.endswith(".tmp") and any(name.startswith(f".{os.path.basename(p)}.") for p in paths):
            os.unlink(os.path.join(folder, name))
    if found != wanted:
        with replacing(manifest) as staged, open(staged, "w", encoding="utf-8") as file:
            json.dump(wanted, file, indent=1)


def _names_parts(manifest: Any) -> bool:
    return (
        isinstance(manifest, dict) and isinstance(manifest.get("prefix"), str) and type(manifest.get("suffix_length")) is int
        and manifest["prefix"] == os.path.basename(manifest["prefix"])
    )  # fmt: skip


def _parts_there(folder: str, manifest: dict[str, Any]) -> Iterator[str]:
    """The parts of that name which are there, counted without a gap."""
    for i in itertools.count():
        path = os.path.join(folder, part_name(i, manifest["prefix"], manifest["suffix_length"]))
        if not os.path.isfile(path):
            return
        yield path
