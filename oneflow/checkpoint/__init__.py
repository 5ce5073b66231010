"""``flow.checkpoint``: variables on disk."""

from .api import get, save

__all__ = ["get", "save"]
