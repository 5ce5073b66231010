"""How a number of things is shared out."""

from __future__ import annotations


def balanced(size: int, parts: int, i: int) -> tuple[int, int]:
    """Where the i-th of ``parts`` contiguous pieces begins and ends; the first ones have one more where it does not divide."""
    small, larger = divmod(size, parts)
    begin = i * small + min(i, larger)
    return begin, begin + small + (i < larger)
