"""Gradients that the devices of one process add up as they update a variable, in place of an all-reduce before that.

An all-reduce writes as many sums as there are devices, and each device then updates a whole copy of the variable. One call of the
native part that all devices make together reads all of their gradients, updates each variable once, and writes the copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .._base.dist import Placement
from ..graph.graph import OP_VARIABLE
from ..graph.node import Blob, Node
from .analysis import flows_to, updates
from .arrangement import Arrangement
from .fused_update import fused_updates
from .layout import Meshes, Storage
from .plan import Plan
from .update import is_dynamic_scale


def nodes_with_addends(
    plan: Plan, arrangement: Arrangement, placement: Placement, storages: Mapping[str, Storage], meshes: Meshes | None
) -> dict[Node, Any]:
    """The nodes whose gradients to their variable, input 1, stay each device's addend, and the mesh of the devices.

    Nothing but its update may read such a gradient.

    Args:
      plan: of a job on one place.
      arrangement: of its nodes.
      placement: where they are computed.
      storages: of variables, by name.
      meshes: the devices of placements; None for JAX's default device.
    """
    if meshes is None or plan.platform != "cpu" or plan.without_native or not plan.graph.train:
        return {}
    graph = plan.graph
    if placement.parallel_num == 1 or len(placement.hierarchy) != 1:
        return {}
    mesh = meshes.sharding(placement, ()).mesh
    if len(mesh.local_devices) != mesh.size or is_dynamic_scale(graph.objective.optimizers[0].loss_scale):
        return {}
    readers = Counter(b.node for node in plan.order for b in node.inputs)
    watched = {w.blob.node for w in plan.watches if w.diff}
    clipped = {v.name for v in plan.trained for o in graph.objective.optimizers if o.grad_clipping and updates(o, v.name)}
    fitting = fused_updates(graph, plan.trained, plan.gathers, mesh.size).keys() - clipped

    def is_fitting(blob: Blob) -> bool:
        variable = blob.node
        if variable.op is not OP_VARIABLE or variable.attrs["variable"] not in fitting:
            return False
        if readers[variable] != 1 or variable in watched or variable in plan.vmapped:
            return False
        requests = blob.distribute if isinstance(blob.distribute, tuple) else (blob.distribute,)
        is_whole = storages[variable.attrs["variable"]].is_whole_on(placement)
        return is_whole and all(request is None or request.axis is None for request in requests)

    found: dict[Node, Any] = {}
    for node in arrangement.steps:
        if not isinstance(node, Node) or node not in arrangement.path or node in plan.vmapped:
            continue
        here = node.scope.placement == placement and not node.scope.options.get("checkpointing")
        if not here or len(node.inputs) != 2 or not flows_to(node, 1) or not is_fitting(node.inputs[1]):
            continue
        x, adds_up = node.inputs[0], node.op.adds_up
        # a batch that varies has a declared size, and is fed with others
        is_split = x.batch_axis == 0 and not x.is_dynamic and x.shape[0] % mesh.size == 0
        if is_split and adds_up is not None and adds_up(node.attrs, [b.shape for b in node.inputs]):
            found[node] = mesh
    return found
