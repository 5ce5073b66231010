"""``math`` of 0.6."""

from __future__ import annotations

from .._imports import sharing as _sharing
from ._ops import reduce_all as reduce_all
from ._ops import reduce_any as reduce_any

__getattr__, __dir__, _public_names = _sharing(__name__)
