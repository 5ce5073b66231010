"""``flow.train``: saving and loading whole programs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

_on_demand = {
    "CheckPoint": ".checkpoint.program:CheckPoint",
    "SimpleCheckPointManager": ".checkpoint.manager:SimpleCheckPointManager",
}
if _TYPE_CHECKING:
    from .checkpoint.manager import SimpleCheckPointManager as SimpleCheckPointManager
    from .checkpoint.program import CheckPoint as CheckPoint

__all__ = ["CheckPoint", "SimpleCheckPointManager"]
