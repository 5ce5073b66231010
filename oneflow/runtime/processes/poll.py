"""A question that the processes of a run ask each other now and then, before the same call in all of them."""

from __future__ import annotations

import time
from typing import Any

from . import gather

_SECONDS = 1.0  # between two answers, about
_MOST_CALLS = 1000


class Poll:
    """Asks about once per second, however long calls take. All processes call ``ask`` equally often."""

    def __init__(self) -> None:
        self._between, self._calls_left, self._asked_at = 1, 1, time.monotonic()

    def ask_at_once(self) -> None:
        """Lets the next ``ask`` be one that asks; in all processes alike."""
        self._calls_left = 1

    def ask(self, tag: str, value: Any) -> list[Any] | None:
        """The JSON-able values of all processes, by rank; None where this is not yet a call that asks."""
        self._calls_left -= 1
        if self._calls_left > 0:
            return None
        elapsed = max(time.monotonic() - self._asked_at, 1e-6)
        wished = max(1, min(int(self._between * _SECONDS / elapsed), 2 * self._between, _MOST_CALLS))
        found = gather(tag, [value, wished])
        self._between = self._calls_left = min(calls for _, calls in found)
        self._asked_at = time.monotonic()
        return [each for each, _ in found]
