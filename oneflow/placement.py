"""``flow.placement``: v0.1's name for what is current."""

from __future__ import annotations

from .graph.graph import current as _current
from .graph.scopes import PlacementScope as _PlacementScope


def current_scope() -> _PlacementScope:
    """The placement that is current in the job being described. Raises ModeError outside jobs.

    Example: >>> flow.placement.current_scope().placement.tag   # "cpu"
    """
    return _PlacementScope(_current("flow.placement.current_scope()").scope.placement)
