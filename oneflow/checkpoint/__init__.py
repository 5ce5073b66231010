"""``flow.checkpoint``: variables on disk."""

from .api import get, save
from .manager import CheckpointManager
from .preemption import Preemption, save_on_preemption
from .saving import PendingSave

__all__ = ["CheckpointManager", "PendingSave", "Preemption", "get", "save", "save_on_preemption"]
