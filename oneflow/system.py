"""``flow.system``"""

from __future__ import annotations

from .ops.array import system_assign as assign

__all__ = ["assign"]
