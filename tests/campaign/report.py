"""What a part of the campaign is allowed, and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_SHOWN = 20  # failures of one part


@dataclass(frozen=True)
class Budget:
    """A part runs until ``count`` is reached or the time is up, whichever comes first, and at least once."""

    seed: int
    count: int
    seconds: float
    begun: float = field(default_factory=time.monotonic)

    def allows(self, runs: int) -> bool:
        """Whether to begin another run."""
        return runs == 0 or (runs < self.count and self.left > 0)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.monotonic() - self.begun)


@dataclass
class Report:
    """Counts of one part; ``worst`` is the longest time of one run in seconds, or what the part's notes say it is."""

    runs: int = 0
    failures: list[str] = field(default_factory=list)
    worst: float = 0.0
    notes: str = ""
    seconds: float = 0.0

    def fail(self, text: str) -> None:
        self.failures.append(text)

    def took(self, seconds: float) -> None:
        self.worst = max(self.worst, seconds)


@dataclass(frozen=True)
class Part:
    """One row of the table.

    ``count`` is how many runs the long form makes, within ``longest`` seconds; ``share`` the part's share of a short one's time.
    """

    name: str
    run: Callable[[Budget], Report]
    count: int
    share: float
    unit: str
    longest: float = 3600.0


def table(rows: list[tuple[str, Report, str]]) -> str:
    """One line per part."""
    cells = [("part", "runs", "failures", "worst s", "total s", "notes")]
    for name, report, unit in rows:
        counts = (f"{report.runs:,} {unit}", str(len(report.failures)), f"{report.worst:.2f}", f"{report.seconds:.0f}")
        cells.append((name, *counts, report.notes))
    widths = [max(len(row[i]) for row in cells) for i in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)
