"""Errors outside of jobs: the rule, the values found, the user's line, a hint.

Inside the body of a job, ``fail`` in ``ops/_emit.py`` raises them.
"""

from __future__ import annotations

import os
import reprlib
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ..errors import OneFlowError
from .source import Source, caller, is_library

_LONGEST = 200  # characters of a value in a message


class _Repr(reprlib.Repr):
    """Shortened reprs, without building the whole text first: a list of a million numbers costs no more than a short one."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxarray = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxstring = self.maxother = _LONGEST
        self.maxlong = 50

    def repr_int(self, x: int, level: int) -> str:
        # int.__repr__ raises for more than some thousand digits
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"an int of {x.bit_length()} bits"

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = repr(x)
        except Exception as error:
            return f"<{type(x).__name__}, whose __repr__ raises {type(error).__name__}>"
        return " ".join(line.strip() for line in text.splitlines())


_repr = _Repr()


def shown(value: Any) -> str:
    """``repr(value)`` for a message: on one line, shortened, even if its own ``__repr__`` raises."""
    try:
        text = _repr.repr(value)
    except Exception as error:  # from a method that reprlib calls on containers
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names in a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# where threads begin: no line of the user's
_THREADS = {threading.__file__, os.path.join(os.path.dirname(threading.__file__), "concurrent", "futures", "thread.py")}


def refuse(
    error: type[OneFlowError],
    rule: str,
    *,
    found: Iterable[tuple[str, str]] = (),
    hint: str = "",
    source: Source | None = None,
    cause: BaseException | None = None,
) -> NoReturn:
    """Raises ``error``.

    Args:
      error: the class of the error.
      rule: the rule that was broken. Write the user's values into it with ``shown``.
      found: rows of (label, text).
      hint: what to do instead.
      source: the user's line; by default the calling one, if there is one.
      cause: what the error comes of.
    """
    line = source or caller()
    rows = [rule, *(f"  {label:<9}  {text}" for label, text in found)]
    if line.file not in _THREADS:
        rows.append(f"  your line  {line}   {line.text}".rstrip())
    if hint:
        rows.append(f"  try        {hint}")
    made = error("\n".join(rows))
    if cause is not None:
        raise made from cause
    raise made


def plain_spelling(name: str) -> str:
    """The letters of a name: the same for ``LeakyReLU``, ``leaky_relu`` and ``leakyrelu``."""
    return name.replace("_", "").lower()


def warn(category: type[Warning], text: str) -> None:
    """``warnings.warn`` that points at the user's line."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def closest(name: str, known: Iterable[str], *, count: int = 5) -> list[str]:
    """The known names that are similar to ``name``, the most similar first; possibly none.

    First come names that differ only in capitals and underscores, then those that contain it as a word
    (``norm``: ``layer_norm``), then those that differ in few letters, then those with the same beginning or end.
    """
    plain = plain_spelling(name)
    names = sorted(set(known))
    by_plain: dict[str, list[str]] = {}
    for n in names:
        by_plain.setdefault(plain_spelling(n), []).append(n)
    from difflib import get_close_matches  # only errors need it

    near = list(by_plain.get(plain, []))
    near += [n for n in names if len(name) > 2 and name.lower() in n.lower().split("_")]
    cutoff = 0.65 if len(plain) > 5 else 0.75 if len(plain) > 3 else 0.8  # letters of short names agree by chance
    for match in get_close_matches(plain, by_plain, n=count, cutoff=cutoff):
        near += by_plain[match]
    near += [n for other, some in by_plain.items() if _share_an_end(plain, other) for n in some]
    return list(dict.fromkeys(near))[:count]


def _share_an_end(one: str, other: str) -> bool:
    """Whether one name begins or ends with the other, in more letters than agree by chance."""
    short, long = sorted((one, other), key=len)
    return len(short) > 3 and 2 * len(short) >= len(long) and (long.startswith(short) or long.endswith(short))
