"""``flow.experimental.scope``: options for the ops made inside."""

from __future__ import annotations

from ..scope import config as config

__all__ = ["config"]
