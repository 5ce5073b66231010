"""``flow.losses``: adding to the objective of a train job."""

from .optimizer.objective import add_loss as add_loss
