"""How an error reads outside a job: the rule broken, what was found, the user's line, a way out. (Inside: ops/_emit.fail.)"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

from ..errors import OneFlowError
from .source import Source, caller, is_library


def refuse(
    error: type[OneFlowError], rule: str, *, found: Iterable[tuple[str, str]] = (), hint: str = "", source: Source | None = None
) -> NoReturn:
    """Raises ``error``. ``found`` are rows of (label, text); ``source`` is the user's line, by default the calling one."""
    line = source or caller()
    rows = [rule, *(f"  {label:<9}  {text}" for label, text in found), f"  your line  {line}   {line.text}".rstrip()]
    if hint:
        rows.append(f"  try        {hint}")
    raise error("\n".join(rows))


def warn(category: type[Warning], text: str) -> None:
    """``warnings.warn`` that points at the user's line."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def closest(name: str, known: Iterable[str], *, count: int = 5) -> list[str]:
    """Names that look like ``name``, or contain it, the likeliest first."""
    names = sorted(set(known))
    near = get_close_matches(name, names, n=count, cutoff=0.6)
    near += [n for n in names if n not in near and len(name) > 3 and (name in n or n in name)]
    return near[:count] or get_close_matches(name, names, n=count, cutoff=0.35)
