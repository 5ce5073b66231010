"""Memory that the device can take over without a copy."""

from __future__ import annotations

import math

import numpy as np

ALIGNMENT = 64  # bytes; XLA takes memory over only where it begins at a multiple of this


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that XLA can take over."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
