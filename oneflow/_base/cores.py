"""The number of CPU cores that this process may use."""

from __future__ import annotations

import os


def allowed() -> int:
    """Those of the process's affinity: of its main thread, because a thread that calls jobs may be bound to a core of its own."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(os.getpid())) if affinity is not None else os.cpu_count() or 1
