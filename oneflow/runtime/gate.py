"""A bound on the calls that are being computed at the same time."""

from __future__ import annotations

from collections import deque
from typing import Any

from .waiting import flat

Results = tuple[Any, Any, Any]  # of a step: fetched, watched, token; its new state is donated to the next one


class NoRoomError(Exception):
    """Too many calls are undelivered or in flight, so this one has to wait. Never leaves the library.

    ``arrays``: those to wait for if too many calls are in flight; None if too many are undelivered.
    """

    def __init__(self, arrays: list[Any] | None = None):
        super().__init__()
        self.arrays = arrays


class StaleExecutableError(Exception):
    """The devices or variables that the job was compiled for are gone: it must be compiled again. Never leaves the library."""


class Gate:
    """Lets at most ``limit`` calls be between their dispatch and the end of their work on the devices.

    Used with the process's dispatch lock held. The invariant: outside the lock, every dispatched call whose work has not
    ended is in ``in_flight``, and ``in_flight`` has at most ``limit`` entries. A call leaves when somebody sees that its
    arrays are ready: its caller, the delivery thread, or the next call that needs room. So no exception, interrupt or
    forgotten result can keep a place occupied. A caller that finds no room waits for the devices alone, outside the lock.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.in_flight: deque[Results] = deque()

    def check_room(self) -> None:
        """Raises NoRoomError where no further call may be dispatched now. Waiting is up to the caller, outside the lock."""
        while self.in_flight and all(array.is_ready() for array in _arrays(self.in_flight[0])):
            self.in_flight.popleft()
        if len(self.in_flight) >= self.limit:
            raise NoRoomError(_arrays(self.in_flight[0]))

    def note(self, results: Results) -> None:
        """Counts a call that was dispatched."""
        self.in_flight.append(results)

    def replace(self, results: Results, by: Results) -> None:
        """The results of a noted call are known as ``by`` from now on."""
        self.leave(results)
        self.note(by)

    def leave(self, results: Results) -> None:
        """Releases the arrays of a call that has ended."""
        for i, entry in enumerate(self.in_flight):
            if entry is results:
                del self.in_flight[i]
                return


def _arrays(results: Results) -> list[Any]:
    """The arrays that are ready when the step is over."""
    return flat((results[0], results[2]))
