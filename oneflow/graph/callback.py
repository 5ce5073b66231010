"""Errors of Python code that runs inside a step, on their way to the call that ran it.

XLA cannot carry a Python exception: the code's results are replaced by zeros, the error waits here, and the call, which looks
here before it makes the step's results its own, raises it and forgets the step.
"""

from __future__ import annotations

import threading

_lock = threading.Lock()
_errors: list[Exception] = []


def report(error: Exception) -> None:
    """Leaves an error for the call that is running."""
    with _lock:
        _errors.append(error)


def take() -> Exception | None:
    """The first error since the last time, if there was one."""
    with _lock:
        first = _errors[0] if _errors else None
        _errors.clear()
    return first
