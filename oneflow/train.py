"""``flow.train``: saving and loading whole programs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .checkpoint.api import CheckPoint

_on_demand = {"SimpleCheckPointManager": "..checkpoint.manager:SimpleCheckPointManager"}
if _TYPE_CHECKING:
    from .checkpoint.manager import SimpleCheckPointManager as SimpleCheckPointManager

__all__ = ["CheckPoint", "SimpleCheckPointManager"]
