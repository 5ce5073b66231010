"""Names for unnamed ops, as wrappers of user ops make them."""

from __future__ import annotations

from ...util import unique_str as UniqueStr

__all__ = ["UniqueStr"]
