"""``flow.experimental.scope``: options for the ops made inside."""

from ..graph.scopes import config as config

__all__ = ["config"]
