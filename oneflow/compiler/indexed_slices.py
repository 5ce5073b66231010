"""Row-sparse updates (``FunctionConfig.indexed_slices_optimizer_conf``): rows that a step did not gather are not updated.

The gradient of a table is zero in the rows that its ``gather`` did not read, but momentum and decay would change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.jax import jnp, lax
from .._base.refuse import listed, warn
from ..errors import JobWarning
from ..graph.graph import Graph, Variable
from ..graph.node import Node
from .analysis import updates
from .lowering import Values

State = dict[str, Any]


def gathers_of(graph: Graph, trained: Sequence[Variable]) -> dict[str, Node]:
    """The ops that gather from variables whose updates are row-sparse, by the variables' names."""
    conf = None if graph.config is None else graph.config.get("indexed_slices_optimizer_conf")
    if not conf or not conf.get("enable", True):
        return {}
    found = {}
    by_name = {variable.name: variable for variable in trained}
    for name in conf["include_op_names"]["op_name"]:
        variable = by_name.get(name)
        optimizer = next((o for o in graph.objective.optimizers if updates(o, name)), None)
        why = f"the job trains no variable of this name: it has {listed(list(by_name), 8)}"
        if variable is not None and optimizer is not None:
            why, gather = _gather_of(graph, variable, optimizer)
            if gather is not None:
                found[name] = gather
        if why and ("row-sparse", name) not in graph.warned:
            graph.warned.add(("row-sparse", name))
            warn(JobWarning, f"indexed_slices_optimizer_conf has no effect on {name!r} in job {graph.name!r}: {why}")
    return found


def _gather_of(graph: Graph, variable: Variable, optimizer: Any) -> tuple[str, Node | None]:
    """Why the update is dense, or "" and the op."""
    if not optimizer.row_sparse:
        return f"updates by {type(optimizer).__name__} are dense", None
    if optimizer.grad_clipping is not None or variable.regularizer is not None:
        return "its gradient is clipped or regularized in all rows", None
    if hasattr(optimizer.loss_scale, "increment_period"):
        return "with a dynamic loss scale updates are dense", None
    assert variable.blob is not None
    if any(node.repetition for node in graph.nodes):
        return "the job runs ops several times per call (accumulated gradients, for example), which gather different rows", None
    readers = [n for n in graph.nodes if any(b.node is variable.blob.node for b in n.inputs)]
    if len(readers) == 1 and readers[0].inputs[0].node is variable.blob.node:
        gathers_rows = readers[0].op.gathers_rows
        if gathers_rows is not None and gathers_rows(readers[0].attrs):
            return "", readers[0]
    return "it is read by something else than one gather along axis 0", None


def keep_untouched_rows(gather: Node, variable: Variable, new: State, old: Mapping[str, Any], values: Values) -> State:
    """``new`` (the variable and its slots, by name) with the values of ``old`` in the rows that were not gathered."""
    indices = gather.inputs[1]
    at = values.get_blob(indices).reshape(-1)
    rows = variable.shape[0]
    touched = jnp.zeros((rows,), jnp.bool_).at[jnp.where((at >= 0) & (at < rows), at, rows)].set(True, mode="drop")

    def mixed(name: str, value: Any) -> Any:
        if value.shape != variable.shape:
            return value
        mask = lax.broadcast_in_dim(touched, value.shape, (0,))
        return lax.select(mask, value, old[name])

    return {name: mixed(name, value) for name, value in new.items()}
