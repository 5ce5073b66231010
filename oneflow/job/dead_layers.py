"""Finds layers that never learn because too much of the network starts at zeros, as ``flow.layers.dense`` does by default."""

from __future__ import annotations

from collections.abc import Callable, Collection

from .._base.refuse import warn
from ..errors import JobWarning
from ..graph.graph import OP_VARIABLE, Graph, Variable
from ..graph.node import Node
from ..runtime import processes
from ..runtime.session import Session


def dead_variables(graph: Graph, is_zero: Callable[[Variable], bool]) -> list[Variable]:
    """The trained variables that are zero and stay so, because no gradient ever reaches them.

    Ops that do not state ``OpDef.zeros`` count as never zero, and as passing gradients on.

    Args:
      graph: of a train job, finished.
      is_zero: whether all elements of a variable are zero at the start.
    """
    zero = {v.name for v in graph.variables.values() if v.blob is not None and v.name not in graph.assigns and is_zero(v)}
    trained = [v for v in graph.objective.trained if v.name in zero]
    while trained:
        reached = _reached(graph, _zero_nodes(graph, zero))
        moved = {v.name for v in trained if v.blob is not None and v.blob.node in reached}
        if not moved:
            break
        zero -= moved
        trained = [v for v in trained if v.name in zero]
    return trained


def _zero_nodes(graph: Graph, zero: Collection[str]) -> set[Node]:
    """The nodes whose outputs are zeros while these variables are."""
    found: set[Node] = set()
    for node in graph.nodes:
        are_zero = [blob.node in found for blob in node.inputs]
        if node.op is OP_VARIABLE:
            is_zero = node.attrs["variable"] in zero
        else:
            is_zero = (node.op.zeros == "any" and any(are_zero)) or (node.op.zeros == "all" and all(are_zero))
        if is_zero:
            found.add(node)
    return found


def _reached(graph: Graph, zeros: Collection[Node]) -> set[Node]:
    """The nodes that a gradient other than zero may reach."""
    reached: set[Node] = set()
    stack = [loss.node for loss in graph.objective.losses]
    while stack:
        node = stack.pop()
        if node in reached:
            continue
        reached.add(node)
        sources = [blob.node for blob in node.inputs]
        if node.op.flat_at_zero and sources[0] in zeros:
            continue
        for i, source in enumerate(sources):
            if node.op.zeros != "any" or not any(s in zeros for j, s in enumerate(sources) if j != i):
                stack.append(source)
    return reached


def warn_of_dead_layers(graph: Graph, session: Session) -> None:
    """Warns, once per job, of layers that never learn. Called when the variables have their first values, or loaded ones."""
    if not graph.train or "dead layers" in graph.warned or processes.count() > 1:  # a process may lack parts of the values
        return
    graph.warned.add("dead layers")
    declared = {name: cell.declared for name, cell in session.store.cells.items() if name in graph.variables}

    def starts_at_zero(variable: Variable) -> bool:
        return getattr(declared.get(variable.name, variable).initializer, "value", None) == 0

    if not _dead_kernels(graph, starts_at_zero):
        return
    values = session.read([v.name for v in graph.variables.values() if v.blob is not None and starts_at_zero(v)])
    dead = _dead_kernels(graph, lambda v: v.name in values and not values[v.name].any())
    if not dead:
        return
    shown = ", ".join(v.name for v in dead[:6]) + (", ..." if len(dead) > 6 else "")
    last, whose, where = declared.get(dead[0].name, dead[0]), "", ""
    if last.initializer != dead[0].initializer:
        whose = f"  zeros by   {last.source}   {last.source.text}: the initializer of the job declared last counts\n"
        where = ", in all jobs"
    warn(
        JobWarning,
        f"job {graph.name!r}: {shown} will never change: where layers that start at zeros follow each other, all of their "
        f"gradients are zero\n"
        f"  made at    {dead[0].source}   {dead[0].source.text}\n"
        f"{whose}"
        f"  try        kernel_initializer=flow.glorot_uniform_initializer() for the layers before the last one{where}",
    )


def _dead_kernels(graph: Graph, is_zero: Callable[[Variable], bool]) -> list[Variable]:
    """Those of the dead variables that are factors of products: biases alone may start at zeros."""
    factors = {b.node for node in graph.nodes if node.op.zeros == "any" for b in node.inputs}
    return [v for v in dead_variables(graph, is_zero) if v.blob is not None and v.blob.node in factors]
