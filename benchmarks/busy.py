"""How much of the machine somebody else was using: numbers from a busy machine mislead."""

from __future__ import annotations

import os
import time


class Busy:
    """From its making to ``share()``: the part of all CPU time that went to other processes, None where nobody tells.

    Worker processes count as ours once they have ended.
    """

    def __init__(self) -> None:
        self._begin = self._read()

    def share(self) -> float | None:
        end = self._read()
        if self._begin is None or end is None:
            return None
        total, busy, ours = (b - a for a, b in zip(self._begin, end, strict=True))
        return max(0.0, busy - ours) / total if total > 0 else None

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
