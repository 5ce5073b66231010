"""``flow.train``: saving and loading whole programs."""

from .checkpoint.api import CheckPoint, SimpleCheckPointManager

__all__ = ["CheckPoint", "SimpleCheckPointManager"]
