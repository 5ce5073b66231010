"""``sbp``: entries of ``nd_sbp`` as objects; the strings "S(axis)", "B" and "P" mean the same."""

from __future__ import annotations

from ..._base.dist import broadcast as _broadcast
from ..._base.dist import split as split

broadcast = _broadcast()
partial_sum = "P"

__all__ = ["broadcast", "partial_sum", "split"]
