"""``flow.system``: assignment that returns the variable."""

from .ops.array import system_assign as assign

__all__ = ["assign"]
