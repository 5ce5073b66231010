"""The storage that a job wants for its variables: by placement, requested layout, and the sharding of optimizer state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from .._base.dist import Placement, split
from .._base.dtype import dtype
from ..graph.graph import Graph, Variable
from ..graph.node import Node
from .layout import Layout, Storage
from .precision import narrow_variables


def storages(graph: Graph, replicated: frozenset[str]) -> dict[str, Storage]:
    """The storage of each variable, by name."""
    found = {}
    for v in graph.variables.values():
        assert v.placement is not None
        replicas = v.placement.parallel_num if v.name in replicated else 0
        found[v.name] = Storage(Layout.of(v.placement, v.distribute), v.shape, replicas)
    mode = _mode(graph)
    if mode is not None:
        whole = [v for v in graph.variables.values() if v.trainable and v.owner is None and _is_large(v, found[v.name], graph)]
        layouts = _split(whole) if mode == "distributed_split" else _one_device_per_variable(whole)
        for v in graph.variables.values():
            layout = layouts.get(v.name)
            if layout is not None:
                found[v.name] = Storage(layout, v.shape)
    for v in graph.variables.values():
        if v.owner is not None:
            found[v.name] = found[v.owner].of_slot(v.shape)
    return found


def narrow_gathers(
    order: Sequence[Node], precision: Mapping[Node, dtype], stored: Mapping[str, Storage]
) -> dict[Node, tuple[dtype, Layout]]:
    """The variables that devices store in pieces and that all readers cast to a 16-bit dtype, with that dtype and the layout."""
    found = {}
    for node, narrow in narrow_variables(order, precision).items():
        storage = stored[node.attrs["variable"]]
        if storage.layout.is_split and storage.is_plain:
            found[node] = (narrow, storage.layout)
    return found


def _mode(graph: Graph) -> str | None:
    if not graph.train or graph.config is None:
        return None
    if graph.config.get("enable_non_distributed_optimizer"):
        return "non_distributed"
    return graph.config.get("optimizer_placement_optimization_mode")


def _is_large(variable: Variable, storage: Storage, graph: Graph) -> bool:
    """Whether every device stores all of it, and it is large enough to be sharded."""
    n = storage.layout.placement.parallel_num
    threshold = graph.config.get("optimizer_placement_optimization_threshold", 1024)
    return n > 1 and not storage.layout.is_split and not storage.replicas and prod(variable.shape) >= threshold * n


def _split(variables: list[Variable]) -> dict[str, Layout]:
    """One piece per device along axis 0, for variables whose axis 0 divides evenly."""
    found = {}
    for v in variables:
        assert v.placement is not None
        if v.shape[0] % v.placement.parallel_num == 0:
            found[v.name] = Layout.of(v.placement, split(0))
    return found


def _one_device_per_variable(variables: list[Variable]) -> dict[str, Layout]:
    """Whole variables, distributed over the devices: the largest first, each to the device with the fewest bytes."""
    load: dict[tuple[int, int], int] = {}
    found = {}
    for v in sorted(variables, key=lambda v: -prod(v.shape) * v.dtype.bytes):
        assert v.placement is not None
        device = min(v.placement.devices, key=lambda d: load.get(d, 0))
        load[device] = load.get(device, 0) + prod(v.shape) * v.dtype.bytes
        found[v.name] = Layout.whole(Placement(v.placement.tag, (device,)))
    return found
