"""Checks of the numbers and paths that users pass, with the texts for errors.

The checks do not raise. ``want`` in ``ops/_emit.py`` (inside a job), ``optimizer/_check.py``, ``refuse`` and ``checked``
(outside) do, each with its own heading.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .refuse import refuse, shown

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def real(value: Any) -> float | None:
    """A Python or NumPy number as a float; None for anything else, bools included. Ints too large for a float are infinite."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def whole(value: Any) -> int | None:
    """A Python or NumPy int; None for anything else, bools included."""
    return None if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) else int(value)


def number(
    value: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    finite: bool = False,
) -> tuple[float, str]:
    """``value`` as a float, and the problem ("must be a number in [0, 1), got 2") or "". NaN is not a number.

    Args:
      value: the argument.
      low, high: inclusive bounds.
      above, below: exclusive bounds.
      finite: refuse infinities.
    """
    found = real(value)
    if (
        found is not None
        and not math.isnan(found)
        and (low is None or found >= low)
        and (high is None or found <= high)
        and (above is None or found > above)
        and (below is None or found < below)
        and not (finite and math.isinf(found))
    ):
        return found, ""
    wanted = "a finite number" if finite and found is not None and not math.isfinite(found) else "a number"
    least, most = low if above is None else above, high if below is None else below
    if least is not None and most is not None:
        wanted += f" in {'[' if above is None else '('}{least:g}, {most:g}{']' if below is None else ')'}"
    elif least is not None:
        wanted += f" {'>=' if above is None else '>'} {least:g}"
    elif most is not None:
        wanted += f" {'<=' if below is None else '<'} {most:g}"
    kind = f"{type(value).__name__} " if found is None else ""
    return math.nan, f"must be {wanted}, got {kind}{shown(value)}"


def float32(value: float) -> str:
    """The problem ("must be a float32 number, got 1e+40") of a number that float32 rounds to an infinity, or ""."""
    return f"must be a float32 number, got {shown(value)}" if abs(value) > _LARGEST_FLOAT32 else ""


def integer(value: Any, *, low: int | None = None, high: int | None = None) -> tuple[int, str]:
    """``value`` as an int, and the problem ("must be an int > 0, got 1.5") or "".

    Args:
      value: the argument.
      low, high: bounds, inclusive.
    """
    found = whole(value)
    if found is not None and (low is None or found >= low) and (high is None or found <= high):
        return found, ""
    if low is not None and high is not None:
        wanted = f"an int in [{low}, {high}]"
    elif low is not None:
        wanted = "an int > 0" if low == 1 else f"an int >= {low}"
    else:
        wanted = "an int" if high is None else f"an int <= {high}"
    return 0, f"must be {wanted}, got {shown(value)}"


def path(value: Any) -> tuple[str, str]:
    """A path as text, and the problem ("must be a path, a non-empty ..., got 3") or ""."""
    try:
        text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    except Exception:  # of the user's object
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        return "", f"must be a path, a non-empty str or os.PathLike, got {shown(value)}"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "", f"must be a path that the file system can encode, got {shown(value)}"
    return text, ""


def choice(value: Any, allowed: Sequence[str]) -> tuple[str, str]:
    """``value``, and the problem ('must be "min" or "max", got 3') or ""."""
    if isinstance(value, str) and value in allowed:
        return value, ""
    *others, last = [f'"{name}"' for name in allowed]
    return "", f"must be {', '.join(others)}{' or ' if others else ''}{last}, got {shown(value)}"


def flag(value: Any) -> tuple[bool, str]:
    """``value`` as a bool, and the problem ("must be True or False, got 3") or ""."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value), ""
    return False, f"must be True or False, got {shown(value)}"


def name(value: Any, *, optional: bool = False) -> tuple[str | None, str]:
    """``value``, and the problem ("must be a non-empty str, got 3") or ""."""
    if (isinstance(value, str) and value) or (optional and value is None):
        return value, ""
    return None, f"must be a non-empty str{' or None' if optional else ''}, got {shown(value)}"


def checked(owner: object, argument: str, found: tuple[Any, str]) -> Any:
    """The value that a check has found; raises ArgumentError for its problem.

    Args:
      owner: the object that is constructed, or the name of the function that is called.
    """
    value, problem = found
    if problem:
        refuse(ArgumentError, f"{owner if isinstance(owner, str) else type(owner).__name__}: {argument} {problem}")
    return value


def is_message(value: object, name: str) -> bool:
    """Whether it is a protobuf message of that type of package oneflow. Imports nothing."""
    return getattr(getattr(type(value), "DESCRIPTOR", None), "full_name", None) == f"oneflow.{name}"
