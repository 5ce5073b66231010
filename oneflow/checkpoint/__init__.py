"""``flow.checkpoint``: variables on disk."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .api import get, save
from .saving import PendingSave

_on_demand = {
    "CheckpointManager": ".manager:CheckpointManager",
    "Preemption": ".preemption:Preemption",
    "save_on_preemption": ".preemption:save_on_preemption",
}
if _TYPE_CHECKING:
    from .manager import CheckpointManager as CheckpointManager
    from .preemption import Preemption as Preemption
    from .preemption import save_on_preemption as save_on_preemption

__all__ = ["CheckpointManager", "PendingSave", "Preemption", "get", "save", "save_on_preemption"]
