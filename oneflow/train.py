"""``flow.train``: saving and loading whole programs."""

from .checkpoint.api import CheckPoint
from .checkpoint.manager import SimpleCheckPointManager

__all__ = ["CheckPoint", "SimpleCheckPointManager"]
