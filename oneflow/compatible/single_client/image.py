"""``image`` of 0.6."""

from __future__ import annotations

from .._imports import sharing as _sharing
from ._ops import batch_align as batch_align

__getattr__, __dir__, _public_names = _sharing(__name__)
