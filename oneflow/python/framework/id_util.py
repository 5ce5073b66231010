"""Names for unnamed ops, for wrappers of user ops."""

from __future__ import annotations

from ...util import unique_str as UniqueStr

__all__ = ["UniqueStr"]
