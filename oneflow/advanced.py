"""``flow.advanced``: one device's pieces of logical tensors."""

from __future__ import annotations

from .ops.distribution import distribute_add as distribute_add
from .ops.distribution import distribute_clone as distribute_clone
from .ops.distribution import distribute_concat as distribute_concat
from .ops.distribution import distribute_map as distribute_map
from .ops.distribution import distribute_split as distribute_split

__all__ = ["distribute_add", "distribute_clone", "distribute_concat", "distribute_map", "distribute_split"]
