"""``quantization`` of 0.6."""

from __future__ import annotations

from .._imports import sharing as _sharing
from ._ops import fake_quantization as fake_quantization
from ._ops import min_max_observer as min_max_observer

__getattr__, __dir__, _public_names = _sharing(__name__)
