"""Finds what only predict jobs have and nobody has loaded, where other values were trained: a name is misspelled.

Weights, and the moving averages of observers in quantization-aware training, which are named after the ops that they measure.
"""

from __future__ import annotations

from .._base.refuse import closest, listed, warn
from .._variables import initializers
from ..errors import JobWarning
from ..graph.graph import Graph, Variable
from ..graph.node import Node
from ..ops.quantization import moving_averages
from ..runtime.session import Session


def unmeasured_observers(graph: Graph, session: Session) -> dict[str, Node]:
    """The observers whose moving averages nobody has set: what reads them is rounded to 0. By the name of a variable of each."""
    cells, is_as_drawn = session.store.cells, session.store.is_as_drawn
    return {name: node for name, node in moving_averages(graph).items() if name not in cells or is_as_drawn(cells[name])}


def warn_of_untrained_weights(graph: Graph, session: Session) -> None:
    """Warns, once per predict job, of weights that no train job has and nobody has set, if the session has others."""
    if graph.train or "untrained weights" in graph.warned:
        return
    graph.warned.add("untrained weights")
    cells = list(session.store.cells.items())
    weights = {n: c for n, c in cells if c.variable is not None and c.variable.role == "parameter" and len(c.variable.shape) > 1}
    jobs = [job for job in list(session.jobs.values()) if job.is_built and not job.failure]
    trained = {name for job in jobs if job.train for name in job.variable_names}
    assigned = {name for job in jobs if not job.train for name in job.build().assigns}  # as caches are
    learned = [name for name, cell in weights.items() if name not in assigned and not session.store.is_as_drawn(cell)]
    read = {blob.node for node in graph.nodes for blob in node.inputs}
    used = [v for v in graph.variables.values() if v.name in weights and v.blob is not None and v.blob.node in read]
    untrained = [v for v in used if v.name not in {*learned, *trained, *assigned} and _is_drawn(v)]
    if not learned:
        return
    _warn_of_observers(graph, {n: o for n, o in unmeasured_observers(graph, session).items() if n not in trained})
    if not untrained:
        return
    shown = listed([v.name for v in untrained], 6)
    near = closest(untrained[0].name, learned, count=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    warn(
        JobWarning,
        f"predict job {graph.name!r} computes with new weights: no train job has {shown}, and nothing was loaded there\n"
        f"  made at    {untrained[0].source}   {untrained[0].source.text}\n"
        f"  try        {meant}Jobs share weights by name, which layers have from name=... and flow.scope.namespace",
    )


def _warn_of_observers(graph: Graph, unmeasured: dict[str, Node]) -> None:
    if not unmeasured:
        return
    node = next(iter(unmeasured.values()))
    warn(
        JobWarning,
        f"predict job {graph.name!r} rounds values to 0: no train job has measured their range, and nothing was loaded to\n"
        f"  {listed(list(unmeasured), 6)}\n"
        f"  made at    {node.source}   {node.source.text}\n"
        f"  try        {OBSERVERS}",
    )


OBSERVERS = (
    "observers are named after the ops that they measure, and ops without a name are numbered: add the same ops in both jobs, in "
    "the same order, or name them"
)


def _is_drawn(variable: Variable) -> bool:
    """Not so where an initializer of another place, such as an ONNX file or the program, brings values that may be learned."""
    return type(variable.initializer).__module__ == initializers.__name__
