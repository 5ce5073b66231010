"""``flow.experimental.name_scope``, where v0.4 has it."""

from ..graph.scopes import namespace as name_scope

__all__ = ["name_scope"]
