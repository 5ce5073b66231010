"""The objective of a train job: checks of losses, and of the Blobs and variables that an optimizer names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._base import dtype as dtypes
from .._base.refuse import closest, shown, warn
from .._base.source import caller
from ..errors import ArgumentError, JobWarning, TrainError
from ..graph.graph import Graph, Objective, current
from ..graph.node import Blob
from ..ops._dynamic_rules import mean_of_valid
from ..ops._emit import fail, want
from . import _check


def add_loss(loss: Blob) -> None:
    """Registers a loss of a train job that has its optimizer in ``FunctionConfig.train``.

    It may be called several times; the job minimises the sum of the losses' means. A later ``minimize`` replaces the
    losses registered before it.

    Args:
      loss: a Blob of any shape; all losses of a job have one shape and dtype.
    Raises:
      ModeError: outside a job.
      TrainError: in a predict job; or the loss differs in shape or dtype from the earlier ones.
      ArgumentError: ``loss`` is not a Blob.
    Example:
      >>> config = flow.FunctionConfig()
      >>> config.train.primary_lr(0.1)
      >>> config.train.model_update_conf({"naive_conf": {}})
      >>> @flow.global_function(config)
      ... def train_job(x: tp.Numpy.Placeholder((8, 4))):
      ...     flow.losses.add_loss(flow.layers.dense(x, 1, name="dense"))
    """
    graph = current("flow.losses.add_loss")
    added = checked_losses("losses.add_loss", graph, want.blob("losses.add_loss", "loss", loss), earlier=graph.objective.losses)
    graph.objective.losses.extend(added)
    graph.objective.source = graph.objective.source or caller()


def checked_losses(what: str, graph: Graph, loss: Any, earlier: list[Blob] | None = None) -> list[Blob]:
    """The losses as a list, of one shape and dtype, in a train job."""
    if not graph.train and graph.generation.trains_predict_jobs:
        rule = f"job {graph.name!r} is declared as a predict job and calls minimize; it trains, as in {graph.generation.release}"
        warn(JobWarning, rule)
        graph.train = True
    if not graph.train:
        fail(TrainError, what, "it is a predict job, which does not train", (),
             'declare it with @flow.global_function(type="train"), or leave this line out')  # fmt: skip
    losses = [loss] if isinstance(loss, Blob) else want.blobs(what, "loss", loss)
    for blob in losses:
        if blob.is_tensor_list:
            fail(TrainError, what, "a loss cannot be a list of tensors", (blob,), "reduce it to one Blob first")
    together = [*(earlier or []), *losses]
    if len({(b.shape, b.dtype) for b in together}) > 1:
        rule = "all losses of a job must have one shape and dtype"
        fail(TrainError, what, rule, together, "reduce each with flow.math.reduce_mean")
    for blob in losses:
        if blob.has_dynamic_size and blob.dtype.is_integer:
            fail(TrainError, what, "a loss whose size depends on data must be of a floating dtype", (blob,), "flow.cast it")
    return [mean_of_valid(b) if b.has_dynamic_size else b for b in losses]


def tell_of_replaced(what: str, earlier: Objective, losses: Sequence[Blob], optimizers: Sequence[Any]) -> None:
    """Warns of losses, or of an optimizer, that a job had before and does not train with from now on."""
    if earlier.source is None:
        return
    kept = {(blob.node, blob.index) for blob in losses}
    if not all((blob.node, blob.index) in kept for blob in earlier.losses):
        lost, hint = "the loss", "minimize([one, other]) trains with the sum of losses"
    elif earlier.optimizers and tuple(earlier.optimizers) != tuple(optimizers):
        lost, hint = "the optimizer", "flow.optimizer.CombinedOptimizer has several, each for variables of its own"
    else:
        return
    line = f"{earlier.source}   {earlier.source.text}"
    warn(JobWarning, f"{what} replaces {lost} of an earlier line, with which the job does not train now\n"
         f"  earlier    {line}\n  try        {hint}")  # fmt: skip


def named_blob(what: str, argument: str, graph: Graph, lbn: str, dt: dtypes.dtype) -> Blob:
    """The Blob of the job that ``argument`` names; one number of dtype ``dt``."""
    blob = graph.blob(lbn)
    if blob is None:
        near = closest(lbn, [b.logical_blob_name for node in graph.nodes for b in node.outputs], count=3)
        fail(ArgumentError, what, f"{argument} names Blob {shown(lbn)}, which the job does not have", (),
             " or ".join(map(repr, near)) if near else "blob.logical_blob_name, with a Blob of this job")  # fmt: skip
    if blob.shape != (1,) or blob.dtype != dt:
        fail(ArgumentError, what, f"{argument} must name a Blob of shape (1,) and dtype {dt.name}", (blob,))
    return blob


def names_of_variables(what: str, graph: Graph, given: Any) -> frozenset[str] | None:
    """The variables that ``variables=`` of an optimizer names. Raises ArgumentError for a name that the job does not have."""
    if given is None:
        return None
    names = _check.names(what, "variables", given)
    for name in names:
        if name not in graph.variables:
            near = closest(name, graph.variables, count=3)
            fail(ArgumentError, what, f"variables= names {shown(name)}, which is not a variable of the job so far", (),
                 " or ".join(map(repr, near)) if near else "the full name, with the namespaces of the variable")  # fmt: skip
    return frozenset(names)
