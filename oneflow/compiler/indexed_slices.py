"""Row-sparse updates (``FunctionConfig.indexed_slices_optimizer_conf``): rows that a step did not gather are not updated.

The gradient of a table is zero in the rows that its ``gather`` did not read, but momentum and decay would change them.
On one device the gradient of a table of many rows stays in the rows that were gathered, and only these are read and written.
Plain gradient descent changes no other rows anyway: its updates of such tables are row-sparse unasked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from .._base.jax import jnp, lax
from .._base.refuse import listed, warn
from ..errors import JobWarning
from ..graph.graph import Graph, Variable
from ..graph.node import Node
from .analysis import updates
from .autodiff import GatheredRows
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


_ROWS = 4  # of a table for each one that is gathered; from there on the gathered ones are updated by themselves


def in_rows(
    graph: Graph, trained: Sequence[Variable], nodes: Iterable[Node], asked: Mapping[str, Node], watched: Collection[Node]
) -> dict[Node, str]:
    """The gathers whose tables get their gradients in rows on one device, and the names of these tables.

    Args:
      nodes: those of the step.
      asked: those of ``gathers_of``.
      watched: the nodes whose gradients are read.
    """
    by_blob = {v.blob.node: v for v in trained if v.blob is not None and v.blob.node not in watched}
    found = {}
    for node in nodes:
        variable = by_blob.get(node.inputs[0].node) if node.op.gathers_rows is not None else None
        if variable is None or node.scope.options.get("checkpointing"):  # whose gradients are those of a whole block
            continue
        optimizer = next((o for o in graph.objective.optimizers if updates(o, variable.name)), None)
        if optimizer is None or _ROWS * math.prod(node.inputs[1].shape) > variable.shape[0]:
            continue
        moves_others = optimizer.slots(variable) or optimizer.weight_decay_of(variable.name)
        if variable.name in asked or not moves_others:
            _, gather = _gather_of(graph, variable, optimizer)
            if gather is node:
                found[node] = variable.name
    return found


def updated_rows(
    rows: GatheredRows,
    factors: Sequence[Any],
    arrays: Sequence[Any],
    update: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """The variable and its slots after an update of the rows that were gathered.

    Args:
      factors: what the gradient is multiplied by.
      arrays: the variable and its slots.
      update: from the rows' gradients, and the rows of ``arrays``, to new rows.
    """
    count = arrays[0].shape[0]
    at = _within(rows.indices, count)
    places = jnp.arange(at.size, dtype=jnp.int32)
    # where equal indices add up: at the first of them
    first = jnp.full((count,), at.size, jnp.int32).at[at].min(places, mode="drop")
    place = first.at[at].get(mode="fill", fill_value=at.size)
    each = lax.reshape(rows.gradients, (at.size, *arrays[0].shape[1:])).astype(arrays[0].dtype)
    total = jnp.zeros_like(each).at[place].add(each, mode="drop").at[place].get(mode="fill", fill_value=0)
    for factor in factors:
        total = total * jnp.asarray(factor, total.dtype)
    new = update(total, [array.at[at].get(mode=lax.GatherScatterMode.CLIP) for array in arrays])
    return [array.at[at].set(row, mode="drop") for array, row in zip(arrays, new, strict=True)]


def _within(indices: Any, count: int) -> Any:
    """Indices as one axis; ``count`` for those that are outside."""
    at = lax.reshape(indices, (indices.size,))
    at = at.astype(jnp.int32) if at.dtype.itemsize < 4 else at
    return jnp.where((at >= 0) & (at < count), at, count)


def keep_untouched_rows(gather: Node, variable: Variable, new: State, old: Mapping[str, Any], values: Values) -> State:
    """``new`` (the variable and its slots, by name) with the values of ``old`` in the rows that were not gathered."""
    indices = gather.inputs[1]
    rows = variable.shape[0]
    touched = jnp.zeros((rows,), jnp.bool_).at[_within(values.get_blob(indices), rows)].set(True, mode="drop")

    def mixed(name: str, value: Any) -> Any:
        if value.shape != variable.shape:
            return value
        mask = lax.broadcast_in_dim(touched, value.shape, (0,))
        return lax.select(mask, value, old[name])

    return {name: mixed(name, value) for name, value in new.items()}
