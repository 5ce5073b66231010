"""Waiting for devices, and work that Ctrl-C cannot cut in two."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

# Waiting for the device happens in C++, where Ctrl-C is not seen; calls that take longer are waited for in small naps
INTERRUPTIBLE_FROM_SECONDS = 0.3
_SHORTEST_NAP, _LONGEST_NAP = 0.00005, 0.002

_Value = TypeVar("_Value")


def flat(arrays: Any) -> list[Any]:
    """The arrays of nested tuples, in order."""
    return [x for a in arrays for x in (flat(a) if isinstance(a, (tuple, list)) else (a,))]


def wait_interruptibly(arrays: list[Any]) -> None:
    """Waits until the arrays are ready; Ctrl-C ends the wait."""
    nap = _SHORTEST_NAP
    while not all(array.is_ready() for array in arrays):
        time.sleep(nap)
        nap = min(nap * 2, _LONGEST_NAP)


class Uninterrupted:
    """Runs work on threads of its own: Ctrl-C, which Python raises on the main thread alone, cannot cut it in two."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()  # those that are running

    def run(self, work: Callable[[], _Value], *, to_the_end: bool = False) -> _Value:
        """Runs ``work`` and returns what it returns, or raises what it raises.

        Ctrl-C leaves at once while the work goes on to its end by itself; with ``to_the_end`` it leaves when the work is
        done, so that whoever catches it finds all of it.
        """
        box: list[Any] = []

        def run() -> None:
            try:
                box.append((work(), None))
            except BaseException as error:
                box.append((None, error))

        thread = threading.Thread(target=run, name="oneflow-uninterrupted", daemon=True)
        self.threads.add(thread)
        thread.start()
        interrupt = _join(thread, to_the_end)
        self.threads.discard(thread)
        if interrupt is not None:
            raise interrupt
        value, error = box[0]
        if error is not None:
            raise error
        return value


def _join(thread: threading.Thread, to_the_end: bool) -> BaseException | None:
    interrupt = None
    while True:
        try:
            thread.join()
            return interrupt
        except BaseException as error:
            if not to_the_end:
                raise
            interrupt = error
