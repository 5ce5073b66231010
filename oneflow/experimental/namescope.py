"""``flow.experimental.name_scope``, where v0.4 has it."""

from ..scope import namespace as name_scope

__all__ = ["name_scope"]
