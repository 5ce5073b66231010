"""``flow.checkpoint``: variables on disk."""

from .api import get, save
from .manager import CheckpointManager
from .saving import PendingSave

__all__ = ["CheckpointManager", "PendingSave", "get", "save"]
