"""``flow.losses``."""

from __future__ import annotations

from .optimizer.objective import add_loss as add_loss
