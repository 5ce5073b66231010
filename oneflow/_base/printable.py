"""Text for a standard output that has not all characters."""

from __future__ import annotations

import sys

_LINES = "─│┌┐└┘▼→"
_ASCII = str.maketrans(_LINES, "-|++++v>")


def printable(text: str) -> str:
    """The text as it is; its lines and arrows in ASCII where the standard output cannot show them."""
    try:
        _LINES.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII)
    return text


__all__ = ["printable"]
