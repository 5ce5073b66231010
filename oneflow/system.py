"""``flow.system``"""

from .ops.array import system_assign as assign

__all__ = ["assign"]
