"""Where a job's variables are kept: on their placement, split as asked for, or as the job's setting for optimizer state says."""

from __future__ import annotations

from math import prod

from ..dist import Placement, split
from ..graph.graph import Graph, Variable
from .layout import Layout, Storage


def storage_of(variable: Variable, graph: Graph, replicated: frozenset[str]) -> Storage:
    """How the job wants a variable to be kept."""
    placement = variable.placement
    assert placement is not None
    replicas = placement.parallel_num if variable.name in replicated else 0
    layout = Layout.of(placement, variable.distribute)
    if graph.train and not layout.is_split and not replicas:
        layout = _spread(layout, variable.shape, graph)
    return Storage(layout, variable.shape, replicas)


def _spread(layout: Layout, shape: tuple[int, ...], graph: Graph) -> Layout:
    """Another layout of what every device has, where the job asks for a piece of it on each."""
    config = graph.config
    mode = config.get("optimizer_placement_optimization_mode", None) if config is not None else None
    placement: Placement = layout.placement
    n = placement.parallel_num
    if mode is None or n == 1 or prod(shape) < config.get("optimizer_placement_optimization_threshold", 1024) * n:
        return layout
    return Layout.of(placement, split(0)) if mode == "distributed_split" and shape[0] % n == 0 else layout
