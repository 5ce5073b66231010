"""``flow.optimizer.grad_clipping``: bounds on gradients, applied before an update."""

from ._grad_clipping import by_global_norm as by_global_norm
