"""Where the time of a training's own thread goes: ``Trainer(profiler="simple")``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class SimpleProfiler:
    """Adds up seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._begin = time.perf_counter()

    def begin(self) -> None:
        """Forgets all times."""
        self.seconds.clear()
        self.counts.clear()
        self._begin = time.perf_counter()

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Counts the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - start)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time counted."""

        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self._add(name, time.perf_counter() - start)

        return call

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.counts[name] = self.counts.get(name, 0) + 1

    def table(self) -> str:
        """The parts, the largest first."""
        total = time.perf_counter() - self._begin
        rows = [f"{'':32}{'calls':>9}{'seconds':>12}{'share':>9}"]
        rest = max(total - sum(self.seconds.values()), 0.0)
        for name, seconds in sorted([*self.seconds.items(), ("everything else", rest)], key=lambda item: -item[1]):
            rows.append(f"{name:32}{self.counts.get(name, 0) or '':>9}{seconds:>12.3f}{seconds / total if total else 0:>9.1%}")
        return "\n".join([*rows, f"{'in all':32}{'':>9}{total:>12.3f}"])
