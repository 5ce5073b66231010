"""flow.linalg"""

from .ops.matrix import matmul as matmul
