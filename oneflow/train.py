"""``flow.train``: saving and loading whole programs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

_on_demand = {
    "CheckPoint": ".checkpoint.api:CheckPoint",
    "SimpleCheckPointManager": ".checkpoint.manager:SimpleCheckPointManager",
}
if _TYPE_CHECKING:
    from .checkpoint.api import CheckPoint as CheckPoint
    from .checkpoint.manager import SimpleCheckPointManager as SimpleCheckPointManager

__all__ = ["CheckPoint", "SimpleCheckPointManager"]
