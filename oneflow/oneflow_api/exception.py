"""``oneflow_api.exception``: the names under which programs catch errors, as classes of ``oneflow.errors``."""

from __future__ import annotations

from typing import Any

from ..errors import (
    DeviceError,
    DuplicateNameError,
    ModeError,
    OneFlowError,
    ShapeError,
    TrainError,
)

OpNameExistException = DuplicateNameError
LossBlobNotFoundException = TrainError
ShapeNotFoundException = ShapeError
UnimplementedException = ModeError
MemoryZoneOutOfMemoryException = DeviceError


def __getattr__(name: str) -> Any:
    """Every other ``<Kind>Exception`` is the base of all errors of the library."""
    if name.endswith("Exception") and not name.startswith("_"):
        return OneFlowError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
