"""``flow.quantization``: int8 inference, and observers and fake quantization for quantization-aware training."""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .layers.quantization import moving_average_min_max_observer as moving_average_min_max_observer
from .layers.quantization import moving_average_min_maxObserver as moving_average_min_maxObserver
from .ops.quantization import fake_quantization as fake_quantization
from .ops.quantization import min_max_observer as min_max_observer

_on_demand = _apart = {"calibrate": ".job.quantized:calibrate", "convert": ".job.quantized:convert"}  # with the compiler
if _TYPE_CHECKING:
    from .job.quantized import calibrate as calibrate
    from .job.quantized import convert as convert
