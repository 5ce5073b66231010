"""The processes that save one checkpoint together: all of a run, or this one alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

from .. import errors
from ..errors import CheckpointError
from ..runtime import processes

_PATIENCE = 3600.0  # seconds; until the slowest disk has taken its part
_SHORTEST_NAP, _LONGEST_NAP = 0.002, 0.1
_LAST_SECONDS = 10.0  # for the others to read how a save ended

_Value = TypeVar("_Value")


class Team(Protocol):
    """Processes that do the same at the same time. The one of rank 0 leads."""

    rank: int
    count: int

    def gather(self, tag: str, value: Any) -> list[Any]:
        """The JSON-able values of all, by rank. All call it, with the same tag."""
        ...

    def busy(self, tag: str) -> AbstractContextManager[None]:
        """Inside, the others wait for this one, which works on its own."""
        ...

    def finish(self) -> None:
        """Nothing more will be gathered. The leader waits until the others know all."""
        ...


class Alone:
    """One process, whether or not its run has others."""

    rank, count = 0, 1

    def gather(self, tag: str, value: Any) -> list[Any]:
        return [value]

    def busy(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self) -> None:
        pass


class RunTeam:
    """All processes of the run, which meet in the order of their program: for threads that call jobs."""

    def __init__(self) -> None:
        self.rank, self.count = processes.index(), processes.count()

    def gather(self, tag: str, value: Any) -> list[Any]:
        return processes.gather(tag, value)

    def busy(self, tag: str) -> AbstractContextManager[None]:
        return processes.busy(tag)

    def finish(self) -> None:
        pass


class DirectoryTeam:
    """All processes of the run, which meet by files in a directory that all of them see: for threads in the background.

    Other threads gather meanwhile, in an order of their own, which this must not disturb. If a process is lost, the watch
    of the run ends the others.
    """

    def __init__(self, directory: str, rank: int, count: int):
        self.rank, self.count = rank, count
        self._directory = directory
        self._gathered = 0

    def gather(self, tag: str, value: Any) -> list[Any]:
        self._gathered += 1
        own = self._file(self._gathered, self.rank)
        with open(f"{own}.new", "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.rename(f"{own}.new", own)
        return [self._read(self._file(self._gathered, rank), tag, rank) for rank in range(self.count)]

    def busy(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()  # no other thread waits for this one

    def finish(self) -> None:
        with suppress(OSError):
            with open(os.path.join(self._directory, f"left-{self.rank}"), "w"):
                pass
        deadline = time.monotonic() + _LAST_SECONDS
        while self.rank == 0 and time.monotonic() < deadline:
            if all(os.path.exists(os.path.join(self._directory, f"left-{rank}")) for rank in range(self.count)):
                return
            time.sleep(_SHORTEST_NAP)

    def _file(self, number: int, rank: int) -> str:
        return os.path.join(self._directory, f"gather-{number}-{rank}")

    def _read(self, path: str, tag: str, rank: int) -> Any:
        nap, deadline = _SHORTEST_NAP, time.monotonic() + _PATIENCE
        while True:
            try:
                with open(path, encoding="utf-8") as file:
                    return json.load(file)
            except FileNotFoundError:
                if not os.path.isdir(self._directory):
                    raise CheckpointError(f"{tag}: its directory {self._directory!r} has disappeared") from None
                if time.monotonic() > deadline:
                    raise CheckpointError(f"{tag}: process {rank} did not finish its part in {_PATIENCE:g} s") from None
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)


def together(team: Team, tag: str, work: Callable[[], _Value]) -> list[_Value]:
    """Runs ``work`` in every process of the team. Returns what it returned in each, by rank; JSON-able.

    Raises, in all of them, what it raised in one.
    """
    if team.count == 1:
        return [work()]
    value, failure = None, None
    try:
        with team.busy(tag):
            value = work()
    except Exception as error:
        failure = error
    found = team.gather(tag, [None if failure is None else _told(failure), value])
    if failure is not None:
        raise failure
    for rank, (theirs, _) in enumerate(found):
        if theirs is not None:
            kind, text, number = theirs
            text = text if rank == 0 else f"process {rank}: {text}"
            raise getattr(errors, kind, CheckpointError)(text) if number is None else OSError(number, text)
    return [each for _, each in found]


def _told(failure: Exception) -> list[Any]:
    """An error as the other processes get it: its kind, its text, and the number of one of the operating system's."""
    if isinstance(failure, OSError) and not isinstance(failure, errors.OneFlowError) and failure.errno is not None:
        return [type(failure).__name__, failure.strerror, failure.errno]
    return [type(failure).__name__, str(failure), None]


def on_leader(team: Team, tag: str, work: Callable[[], _Value]) -> _Value:
    """Runs ``work`` in the leading process alone. Returns its JSON-able value, or raises its error, in all."""
    found = together(team, tag, lambda: work() if team.rank == 0 else None)[0]
    return found  # type: ignore[return-value]
