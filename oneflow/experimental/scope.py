"""``flow.experimental.scope``: options for the ops made inside."""

from ..scope import config as config

__all__ = ["config"]
