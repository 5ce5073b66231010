"""``flow.losses``."""

from .optimizer.objective import add_loss as add_loss
