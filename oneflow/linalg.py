"""flow.linalg"""

from __future__ import annotations

from .ops.matrix import matmul as matmul
