"""Checks of the arguments of optimizers, schedules, warm-ups and clipping rules. Each returns the value in its normal form."""

from __future__ import annotations

import re
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, NoReturn

import numpy as np

from .._base import check
from .._base.refuse import refuse, shown
from .._base.source import Source
from ..errors import ArgumentError


def bad(owner: str, rule: str, hint: str = "") -> NoReturn:
    """Raises ArgumentError: an argument of ``owner`` breaks ``rule``."""
    refuse(ArgumentError, f"{owner}: {rule}"[:400], hint=hint, source=_user_line())


def _user_line() -> Source:
    """``caller()``, which also knows that the ``__init__`` of a dataclass, compiled from a string, belongs to this package."""
    package = __name__.partition(".")[0] + "."
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def number(owner: str, name: str, value: Any, **bounds: float | None) -> float:
    """A finite number within the bounds, which ``_base/check.py`` describes."""
    found, problem = check.number(value, finite=True, **bounds)
    if problem:
        bad(owner, f"{name} {problem}")
    return found


def integer(owner: str, name: str, value: Any, *, low: int) -> int:
    """An int that is at least ``low``."""
    found, problem = check.integer(value, low=low)
    if problem:
        number = check.real(value)
        hint = f"{name}={int(number)}" if number is not None and number.is_integer() and number >= low else ""
        bad(owner, f"{name} {problem}", hint)
    if found >= 2**63:
        bad(owner, f"{name} must be less than 2**63, got {shown(value)}")
    return found


def flag(owner: str, name: str, value: Any) -> bool:
    """True or False; 0 and 1 are accepted for them."""
    if not isinstance(value, (bool, np.bool_)) and not (isinstance(value, int) and value in (0, 1)):
        bad(owner, f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def mutable_mapping(owner: str, name: str, value: Any) -> MutableMapping[str, Any]:
    """A dict, or another mapping that can be written to."""
    if not isinstance(value, MutableMapping):
        bad(owner, f"{name} must be a dict, got {type(value).__name__} {shown(value)}")
    return value


def sequence(owner: str, name: str, value: Any, of: str) -> list[Any]:
    """A list, a tuple or a one-dimensional array, as a list."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    if not isinstance(value, (list, tuple)):
        bad(owner, f"{name} must be a list of {of}, got {type(value).__name__} {shown(value)}")
    return list(value)


def boundaries(owner: str, value: Any) -> tuple[int, ...]:
    """Steps in ascending order."""
    given = sequence(owner, "boundaries", value, "steps")
    steps = tuple(integer(owner, f"boundaries[{i}]", step, low=0) for i, step in enumerate(given))
    if list(steps) != sorted(steps):
        bad(owner, f"boundaries must be in ascending order, got {shown(list(steps))}", f"boundaries={shown(sorted(steps))}")
    return steps


def lbn(owner: str, name: str, value: Any) -> str:
    """A logical Blob name, ``op_name/blob_name``."""
    if not isinstance(value, str) or not all(value.partition("/")):
        bad(owner, f'{name} must be the name of a Blob such as "Input_0/out", got {shown(value)}', "blob.logical_blob_name")
    return value


def patterns(owner: str, name: str, value: Any) -> tuple[str, ...]:
    """One regular expression or a sequence of them."""
    given = [value] if isinstance(value, str) else sequence(owner, name, value, "regular expressions")
    for pattern in given:
        if not isinstance(pattern, str):
            bad(owner, f"{name} must hold strings, got {shown(pattern)}")
        try:
            re.compile(pattern)
        except re.error as error:
            bad(owner, f"{name} holds {shown(pattern)}, which is not a regular expression: {error}", repr(re.escape(pattern)))
    return tuple(given)


def names(owner: str, name: str, value: Any) -> tuple[str, ...]:
    """Names of variables, or a function without arguments that returns them."""
    if callable(value):
        try:
            value = value()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # from inside the user's function
            bad(owner, f"{name} is called without arguments, which {shown(value)} does not take")
    if isinstance(value, str) or not isinstance(value, (Sequence, set, frozenset)) or not all(isinstance(v, str) for v in value):
        hint = f"{name}=[{shown(value)}]" if isinstance(value, str) else f'{name}=["dense-weight", "dense-bias"]'
        bad(owner, f"{name} must be a list of names of variables, got {shown(value)}", hint)
    return tuple(value)
