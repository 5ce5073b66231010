"""``flow.tensorrt``: int8 calibration for TensorRT, which this library does not use."""

from __future__ import annotations

from typing import NoReturn as _NoReturn

from ._base.refuse import refuse as _refuse
from .errors import ModeError as _ModeError

_INSTEAD = "FunctionConfig.enable_qat(True), or flow.quantization, simulate int8 inference"


def cache_int8_calibration() -> _NoReturn:
    """Raises ModeError: no job runs through TensorRT, so there is no calibration to keep."""
    _refuse(_ModeError, "flow.tensorrt.cache_int8_calibration: jobs are compiled by XLA, not by TensorRT", hint=_INSTEAD)


def write_int8_calibration(path: str) -> _NoReturn:
    """Raises ModeError: no job runs through TensorRT, so there is no calibration to write."""
    _refuse(_ModeError, "flow.tensorrt.write_int8_calibration: jobs are compiled by XLA, not by TensorRT", hint=_INSTEAD)
