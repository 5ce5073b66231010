"""``flow.linalg``: the matrix product."""

from .ops.matrix import matmul as matmul
