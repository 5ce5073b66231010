"""Row-sparse updates (``FunctionConfig.indexed_slices_optimizer_conf``): rows that a step did not gather are not updated.

The gradient of a table is zero in the rows that no ``gather`` read, but momentum and decay would change them.
The gradient of a table of many rows stays in the rows that were gathered, and only these are read and written. On several
devices each gets the rows that all have gathered, which are fewer numbers than the table that would be added up among them.
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


def gathers_of(graph: Graph, trained: Sequence[Variable]) -> dict[str, tuple[Node, ...]]:
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
            why, gathers = _gathers_of(graph, variable, optimizer)
            if gathers:
                found[name] = gathers
        if why and ("row-sparse", name) not in graph.warned:
            graph.warned.add(("row-sparse", name))
            warn(JobWarning, f"indexed_slices_optimizer_conf has no effect on {name!r} in job {graph.name!r}: {why}")
    return found


def _gathers_of(graph: Graph, variable: Variable, optimizer: Any) -> tuple[str, tuple[Node, ...]]:
    """Why the update is dense, or "" and the ops."""
    if not optimizer.row_sparse:
        return f"updates by {type(optimizer).__name__} are dense", ()
    if optimizer.grad_clipping is not None or variable.regularizer is not None:
        return "its gradient is clipped or regularized in all rows", ()
    if hasattr(optimizer.loss_scale, "increment_period"):
        return "with a dynamic loss scale updates are dense", ()
    assert variable.blob is not None
    if any(node.repetition for node in graph.nodes):
        return "the job runs ops several times per call (accumulated gradients, for example), which gather different rows", ()
    readers = tuple(n for n in graph.nodes if any(b.node is variable.blob.node for b in n.inputs))
    if readers and all(_reads_rows(node, variable.blob.node) for node in readers):
        return "", readers
    return "it is read by something else than gathers along axis 0", ()


def _reads_rows(node: Node, table: Node) -> bool:
    gathers_rows = node.op.gathers_rows
    if gathers_rows is None or not gathers_rows(node.attrs):
        return False
    return node.inputs[0].node is table and node.inputs[1].node is not table


def _has_many_rows(table: Variable, gathered: int, was_asked: bool) -> bool:
    """Whether to update the rows that were gathered by themselves takes less time than a dense update, masked if asked for."""
    width = math.prod(table.shape[1:])
    for_each = 4 if was_asked or width >= 64 else 8 if width >= 4 else 32
    return for_each * gathered <= table.shape[0]


def in_rows(
    graph: Graph, trained: Sequence[Variable], path: Collection[Node], asked: Collection[str], watched: Collection[Node]
) -> dict[Node, str]:
    """The gathers whose tables get their gradients in rows, and the names of these tables.

    Args:
      trained: variables that each device has whole.
      path: the nodes on the gradient path.
      asked: the tables of ``gathers_of``.
      watched: the nodes whose gradients are read.
    """
    found: dict[Node, str] = {}
    tables = {node.inputs[0].node for node in path if node.op.gathers_rows is not None}  # few: to look for readers takes time
    for variable in trained:
        if variable.blob is None or variable.blob.node not in tables or variable.blob.node in watched:
            continue
        optimizer = next((o for o in graph.objective.optimizers if updates(o, variable.name)), None)
        if optimizer is None:
            continue
        moves_others = optimizer.slots(variable) or optimizer.weight_decay_of(variable.name)
        was_asked = variable.name in asked
        if moves_others and not was_asked:
            continue
        gathers = [node for node in _gathers_of(graph, variable, optimizer)[1] if node in path]
        in_blocks = any(node.scope.options.get("checkpointing") for node in gathers)  # whose gradients are those of a whole block
        count = sum(math.prod(node.inputs[1].shape) for node in gathers)
        if not in_blocks and _has_many_rows(variable, count, was_asked):
            found.update(dict.fromkeys(gathers, variable.name))
    return found


def updated_rows(
    rows: Sequence[GatheredRows],
    factors: Sequence[Any],
    arrays: Sequence[Any],
    update: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """The variable and its slots after an update of the rows that were gathered.

    Args:
      rows: those of each gather.
      factors: what the gradient is multiplied by.
      arrays: the variable and its slots.
      update: from the rows' gradients, and the rows of ``arrays``, to new rows.
    """
    count = arrays[0].shape[0]
    at = _all_within([gathered.indices for gathered in rows], count)
    places = jnp.arange(at.size, dtype=jnp.int32)
    # where equal indices add up: at the first of them
    first = jnp.full((count,), at.size, jnp.int32).at[at].min(places, mode="drop")
    place = first.at[at].get(mode="fill", fill_value=at.size)
    gradients = [lax.reshape(gathered.gradients, (gathered.indices.size, *arrays[0].shape[1:])) for gathered in rows]
    kind = arrays[0].dtype
    wide = jnp.promote_types(kind, jnp.float32)  # in 16 bits a sum stops growing at a few hundred equal rows
    each = lax.concatenate([g.astype(wide) for g in gradients], 0)
    total = jnp.zeros_like(each).at[place].add(each, mode="drop").at[place].get(mode="fill", fill_value=0).astype(kind)
    for factor in factors:
        total = total * jnp.asarray(factor, total.dtype)
    new = update(total, [array.at[at].get(mode=lax.GatherScatterMode.CLIP) for array in arrays])
    return [array.at[at].set(row, mode="drop") for array, row in zip(arrays, new, strict=True)]


def _all_within(indices: Sequence[Any], count: int) -> Any:
    """Indices as one axis, of the widest dtype among them; ``count`` for those that are outside."""
    parts = [_within(each, count) for each in indices]
    widest = jnp.result_type(*parts)
    return lax.concatenate([part.astype(widest) for part in parts], 0)


def _within(indices: Any, count: int) -> Any:
    """Indices as one axis; ``count`` for those that are outside."""
    at = lax.reshape(indices, (indices.size,))
    at = at.astype(jnp.int32) if at.dtype.itemsize < 4 else at
    return jnp.where((at >= 0) & (at < count), at, count)


def keep_untouched_rows(gathers: Iterable[Node], variable: Variable, new: State, old: Mapping[str, Any], values: Values) -> State:
    """``new`` (the variable and its slots, by name) with the values of ``old`` in the rows that were not gathered."""
    rows = variable.shape[0]
    touched = jnp.zeros((rows,), jnp.bool_)
    for gather in gathers:
        touched = touched.at[_within(values.get_blob(gather.inputs[1]), rows)].set(True, mode="drop")

    def mixed(name: str, value: Any) -> Any:
        if value.shape != variable.shape:
            return value
        mask = lax.broadcast_in_dim(touched, value.shape, (0,))
        return lax.select(mask, value, old[name])

    return {name: mixed(name, value) for name, value in new.items()}
