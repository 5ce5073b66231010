"""``nn`` of 0.6. ``nn.Module`` stays the base class for job functions; the eager one is not here."""

from __future__ import annotations

from ....ops.ctc import ctc_greedy_decoder as ctc_greedy_decoder
from ..._imports import sharing as _sharing
from .._ops import conv1d as conv1d
from .._ops import conv2d as conv2d
from .._ops import conv3d as conv3d
from .._ops import dropout as dropout

__getattr__, __dir__, _public_names = _sharing(__name__)
