"""``linalg`` of 0.6."""

from __future__ import annotations

from .._imports import sharing as _sharing
from ._ops import matmul as matmul

__getattr__, __dir__, _public_names = _sharing(__name__)
