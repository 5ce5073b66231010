"""``layers`` of 0.6."""

from __future__ import annotations

from .._imports import sharing as _sharing
from ._ops import upsample_2d as upsample_2d

__getattr__, __dir__, _public_names = _sharing(__name__)
