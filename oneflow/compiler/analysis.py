"""Analyses of a finished graph: ancestors, gradient paths, trained variables, and the state that optimizers keep."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.refuse import warn
from ..errors import GradientError, JobWarning, TrainError, VariableConflictError
from ..graph.graph import Graph, Variable
from ..graph.node import Blob, Node

STEP_PREFIX = "System-Train-TrainStep-"
LOSS_SCALE_PREFIX = "System-Train-DynamicLossScale-"


@dataclass(frozen=True, slots=True)
class Constant:
    """Initializer of state that the library keeps: the same number everywhere."""

    value: float

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return np.full(shape, self.value, dtype)


def flows_to(node: Node, position: int) -> bool:
    """Whether a gradient can flow from ``node`` to its input at ``position``."""
    if node.op.is_nondifferentiable(position):
        return False
    dt = node.inputs[position].dtype
    return dt.is_floating_point or dt.is_integer


def ancestors(roots: Sequence[Blob], stop: Collection[tuple[Node, int]] = ()) -> set[Node]:
    """The nodes that the roots depend on, those of the roots included.

    ``stop``: values behind which it does not look: outputs of nodes, by their index.
    """
    found: set[Node] = set()
    stack = [b.node for b in roots if (b.node, b.index) not in stop]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(b.node for b in node.inputs if (b.node, b.index) not in stop)
    return found


def in_topological_order(roots: Sequence[Blob]) -> tuple[Node, ...]:
    """The nodes that the roots depend on, those of the roots included, each after those that it reads."""
    found: dict[Node, None] = {}
    stack = [(b.node, False) for b in reversed(roots)]
    while stack:
        node, is_ready = stack.pop()
        if node in found:
            continue
        if is_ready:
            found[node] = None
            continue
        stack.append((node, True))
        stack.extend((b.node, False) for b in node.inputs)
    return tuple(found)


def dependents(nodes: Sequence[Node], sources: Collection[Node]) -> set[Node]:
    """Those of ``nodes`` (in topological order) from which a gradient can flow to one of ``sources``, sources included."""
    depends: set[Node] = set()
    for node in nodes:
        if node in sources or any(b.node in depends and flows_to(node, i) for i, b in enumerate(node.inputs)):
            depends.add(node)
    return depends


def gradient_path(nodes: Sequence[Node], losses: Sequence[Blob], sources: Collection[Node]) -> set[Node]:
    """Those of ``nodes`` (in topological order) on a gradient's path from a loss to one of ``sources``, both included."""
    return _between(losses, dependents(nodes, sources))


def _between(losses: Sequence[Blob], depends: set[Node]) -> set[Node]:
    """Those of ``depends`` that a gradient from a loss reaches."""
    path: set[Node] = set()
    stack = [blob.node for blob in losses if blob.node in depends]
    while stack:
        node = stack.pop()
        if node not in path:
            path.add(node)
            stack.extend(b.node for i, b in enumerate(node.inputs) if b.node in depends and flows_to(node, i))
    return path


def updates(optimizer: Any, name: str) -> bool:
    """Whether the optimizer updates the trained variable of that name."""
    return optimizer.variables is None or name in optimizer.variables


def finish(graph: Graph) -> None:
    """Checks the objective of a traced job, determines the trained variables, and declares the optimizers' state.

    Raises:
      TrainError: the train job has no loss or no optimizer, or an optimizer would train nothing.
      GradientError: a loss does not depend on any trainable variable.
    """
    if not graph.train:
        for variable in graph.variables.values():  # until now it might have become a train job
            variable.trainable = False
        return
    objective = graph.objective
    if not objective.losses or not objective.optimizers:
        missing = "names no loss" if not objective.losses else "has no optimizer"
        raise TrainError(
            f"train job {graph.name!r} {missing}: there is nothing to train\n"
            f"  the job    {graph.source}   {graph.source.text if graph.source else ''}\n"
            f"  try        end its body with flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]))"
            f'.minimize(loss), or declare it with type="predict"'
        )
    _check_losses(graph)
    candidates = {v.blob.node: v for v in graph.variables.values() if v.trainable and v.blob is not None}
    depends = dependents(graph.nodes, candidates.keys())
    path = _between(objective.losses, depends)
    objective.trained = trained = tuple(v for node, v in candidates.items() if node in path)
    for loss in objective.losses:
        if loss.node not in depends:
            raise GradientError(
                f"the loss of train job {graph.name!r} depends on no trainable variable\n"
                f"  the loss   {loss.op_name}   {loss.describe()}   made at {loss.source}   {loss.source.text}\n"
                f"  try        make it of layers or of flow.get_variable(..., trainable=True), through differentiable ops"
            )
    for variable in trained:
        _must_not_assign(graph, variable.name, "which it trains")
    _check_optimizers(graph, {v.name for v in trained})
    _warn_of_idle_patterns(graph, [v.name for v in trained])
    claimed: dict[str, int] = {}
    for i, optimizer in enumerate(objective.optimizers):
        for variable in trained:
            if not updates(optimizer, variable.name):
                continue
            if claimed.setdefault(variable.name, i) != i:
                raise TrainError(
                    f"variable {variable.name!r} of job {graph.name!r} is updated by two optimizers; give each its own variables="
                )
            for slot in optimizer.slots(variable):
                _declare(graph, f"{variable.name}-{slot.suffix}", tuple(slot.shape), slot.dtype, slot.value, variable)
    _declare_counters(graph)


def _must_not_assign(graph: Graph, name: str, why: str) -> None:
    """Refuses a variable that a call would store two values into."""
    value = graph.assigns.get(name)
    if value is not None:
        raise TrainError(
            f"train job {graph.name!r} assigns to variable {name!r}, {why}: one value would be lost\n"
            f"  the value  {value.op_name}   {value.describe()}   made at {value.source}   {value.source.text}\n"
            f"  try        assign in another job, called after this one; or get_variable(..., trainable=False)"
        )


def _check_optimizers(graph: Graph, trained: set[str]) -> None:
    """Refuses an optimizer that would update nothing."""
    source = graph.objective.source
    for optimizer in graph.objective.optimizers:
        if optimizer.variables is None or not trained.isdisjoint(optimizer.variables):
            continue
        named = list(optimizer.variables)
        rows = []
        for name in named[:5]:
            known = graph.variables.get(name)
            where = (
                "not a variable of this job" if known is None else f"{known.describe()}   {known.source}   {known.source.text}"
            )
            rows.append(f"  variable   {name!r}   {where}\n")
        why = "the loss does not depend on any of the variables that it names" if named else "its list of variables is empty"
        raise TrainError(
            f"an optimizer of train job {graph.name!r} ({type(optimizer).__name__}) would train nothing: {why}\n{''.join(rows)}"
            f"  your line  {source}   {source.text if source else ''}\n"
            f"  try        variables= of names that the loss depends on: {', '.join(sorted(trained)) or 'there are none'}"
        )


def _warn_of_idle_patterns(graph: Graph, trained: list[str]) -> None:
    """Warns of ``weight_decay_includes`` and ``weight_decay_excludes`` that match no variable: likely a misspelling."""
    for optimizer in graph.objective.optimizers:
        names = [name for name in trained if updates(optimizer, name)]
        for argument in ("weight_decay_includes", "weight_decay_excludes"):
            patterns = getattr(optimizer, argument, None)
            if patterns and names and not any(re.search(p, name) for p in patterns for name in names):
                shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                warn(JobWarning, f"{argument}={list(patterns)} matches no variable that job {graph.name!r} trains: {shown}")


def _check_losses(graph: Graph) -> None:
    losses = graph.objective.losses
    first = losses[0]
    for loss in losses[1:]:
        if loss.shape != first.shape or loss.dtype != first.dtype:
            raise TrainError(
                f"the losses of train job {graph.name!r} must have one shape and dtype\n"
                f"  losses[0]  {first.op_name}   {first.describe()}   made at {first.source}\n"
                f"  another    {loss.op_name}   {loss.describe()}   made at {loss.source}\n"
                f"  try        reduce each with flow.math.reduce_mean"
            )
    for loss in losses:
        others = [other for other in losses if other.node is not loss.node]
        if loss.node in ancestors(others):
            raise TrainError(
                f"loss {loss.op_name!r} of train job {graph.name!r} is part of another loss of that job; name only the last one"
            )


def _declare_counters(graph: Graph) -> None:
    optimizer = graph.objective.optimizers[0]
    if optimizer.train_step_blob is None:
        _declare(graph, STEP_PREFIX + graph.name, (1,), dtypes.int64, 0)
    scale = optimizer.loss_scale
    if scale is not None and hasattr(scale, "increment_period"):
        _declare(graph, f"{LOSS_SCALE_PREFIX}{graph.name}-LossScale", (1,), dtypes.float32, scale.initial)
        _declare(graph, f"{LOSS_SCALE_PREFIX}{graph.name}-GoodStepCounter", (1,), dtypes.int64, 0)


def _declare(
    graph: Graph, name: str, shape: tuple[int, ...], dt: dtypes.dtype, value: float, owner: Variable | None = None
) -> None:
    source = graph.objective.source
    assert source is not None
    what = f"the optimizer's state of {owner.name!r}" if owner is not None else "its counters"
    known = graph.variables.get(name)
    if known is not None and known in graph.objective.trained:
        raise VariableConflictError(
            f"train job {graph.name!r} trains a variable {name!r}, and keeps {what} under that name\n"
            f"  your line  {known.source}   {known.source.text}\n"
            f"  try        another name, or get_variable(..., trainable=False) to read that state"
        )
    _must_not_assign(graph, name, f"in which it keeps {what}")
    graph.add_variable(
        Variable(
            name=name,
            shape=shape,
            dtype=dt,
            initializer=Constant(value),
            source=source,
            role="state",
            distribute=owner.distribute if owner is not None and owner.shape == shape else None,
            placement=owner.placement if owner is not None else graph.scope.placement,
            owner=owner.name if owner is not None else None,
        ),  # fmt: skip
        read=False,
    )
