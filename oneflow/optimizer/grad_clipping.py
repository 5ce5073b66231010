"""``flow.optimizer.grad_clipping``: bounds on gradients, applied before an update."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ._grad_clipping import by_global_norm as by_global_norm

_on_demand = {"by_global_norm": "._grad_clipping:by_global_norm"}
