"""Errors of Python code that runs inside a step, passed to the call that ran the step.

XLA cannot propagate a Python exception. The code's results are replaced by zeros and the error is kept; the call looks
here before it accepts the results of the step, raises the error and discards the step.
"""

from __future__ import annotations

from typing import Any

from .._base.process_state import process_state


def report(error: Exception, of: Any) -> None:
    """Keeps an error for the call that is running. ``of``: the definition or gradient of an op, whose code raised it."""
    with process_state.callback_lock:
        process_state.callback_errors.append((error, of))


def take() -> tuple[Exception, Any] | None:
    """The first error since the last call of this function, and the code that raised it, if there was one."""
    with process_state.callback_lock:
        errors = process_state.callback_errors
        first = errors[0] if errors else None
        errors.clear()
    return first
