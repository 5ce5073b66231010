"""How much of the machine somebody else is using: numbers from a busy machine mislead."""

from __future__ import annotations

import os
import time

TOO_BUSY = 0.1


class Busy:
    """From its making to ``share``: the part of all CPU time that went to other processes."""

    def __init__(self) -> None:
        self._begin = self._read()

    def share(self, ours: float | None = None) -> float:
        """0 where the system does not report it.

        Args:
          ours: CPU seconds of our own processes meanwhile; None: this process's and those of children that have ended.
        """
        end = self._read()
        if self._begin is None or end is None:
            return 0.0
        total, busy, mine = (b - a for a, b in zip(self._begin, end, strict=True))
        return max(0.0, busy - (mine if ours is None else ours)) / total if total > 0 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        try:
            with open("/proc/stat") as file:
                ticks = [int(word) for word in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        second = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        times = os.times()
        ours = times.user + times.system + times.children_user + times.children_system
        return time.monotonic() * (os.cpu_count() or 1), (sum(ticks) - idle) / second, ours


def told(share: float, when: str) -> str:
    """The share in a sentence, with a warning where it is too large."""
    return f"Other processes used {share:.0%} of the machine {when}{': the numbers mislead' if share > TOO_BUSY else ''}."
