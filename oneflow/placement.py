"""``flow.placement``: the current placement, under its name in OneFlow 0.1."""

from __future__ import annotations

from .graph.graph import current as _current
from .graph.scopes import PlacementScope as _PlacementScope


def current_scope() -> _PlacementScope:
    """The current placement of the job that is being described. Raises ModeError outside jobs.

    Example: >>> flow.placement.current_scope().placement.tag   # "cpu"
    """
    return _PlacementScope(_current("flow.placement.current_scope()").scope.placement)
