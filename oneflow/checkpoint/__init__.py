"""``flow.checkpoint``: variables on disk."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

_on_demand = {
    "CheckpointManager": ".manager:CheckpointManager",
    "PendingSave": ".saving:PendingSave",
    "Preemption": ".preemption:Preemption",
    "get": ".api:get",
    "save": ".api:save",
    "save_on_preemption": ".preemption:save_on_preemption",
}
if _TYPE_CHECKING:
    from .api import get as get
    from .api import save as save
    from .manager import CheckpointManager as CheckpointManager
    from .preemption import Preemption as Preemption
    from .preemption import save_on_preemption as save_on_preemption
    from .saving import PendingSave as PendingSave

__all__ = ["CheckpointManager", "PendingSave", "Preemption", "get", "save", "save_on_preemption"]
