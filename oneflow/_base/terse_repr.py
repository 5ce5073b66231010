"""The ``repr`` of objects that are made of arguments."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from .refuse import shown
from .signatures import signature_of


def terse_repr(made: Any) -> str:
    """``Class(a=1, b=2)``: the arguments that its attributes of the same names tell, without those that are at their default."""
    found = []
    for parameter in signature_of(type(made)).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(made, parameter.name, getattr(made, f"_{parameter.name}", parameter.default))
        if not inspect.ismethod(value) and not _is_default(value, parameter.default):
            found.append(f"{parameter.name}={shown(value.tolist() if isinstance(value, np.ndarray) else value)}")
    return f"{type(made).__name__}({', '.join(found)})"


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    try:
        return bool(value == default)
    except Exception:  # arrays, or whatever a class of the user's does
        return False


__all__ = ["terse_repr"]
