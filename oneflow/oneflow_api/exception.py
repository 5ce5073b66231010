"""``oneflow_api.exception``: the names under which programs catch errors, as classes of ``oneflow.errors``."""

from __future__ import annotations

from typing import Any as _Any

from ..errors import DeviceError as _DeviceError
from ..errors import DuplicateNameError as _DuplicateNameError
from ..errors import ModeError as _ModeError
from ..errors import OneFlowError as _OneFlowError
from ..errors import ShapeError as _ShapeError
from ..errors import TrainError as _TrainError

OpNameExistException = _DuplicateNameError
LossBlobNotFoundException = _TrainError
ShapeNotFoundException = _ShapeError
UnimplementedException = _ModeError
MemoryZoneOutOfMemoryException = _DeviceError


def __getattr__(name: str) -> _Any:
    """Every other ``<Kind>Exception`` is the base of all errors of the library."""
    if name.endswith("Exception") and not name.startswith("_"):
        return _OneFlowError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
