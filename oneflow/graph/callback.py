"""Errors of Python code that runs inside a step, passed to the call that ran the step.

XLA cannot propagate a Python exception. The code's results are replaced by zeros and the error is kept here; the call looks
here before it accepts the results of the step, raises the error and discards the step.
"""

from __future__ import annotations

import threading

_lock = threading.Lock()
_errors: list[Exception] = []


def report(error: Exception) -> None:
    """Keeps an error for the call that is running."""
    with _lock:
        _errors.append(error)


def take() -> Exception | None:
    """The first error since the last call of this function, if there was one."""
    with _lock:
        first = _errors[0] if _errors else None
        _errors.clear()
    return first
