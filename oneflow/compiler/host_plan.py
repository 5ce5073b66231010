"""The part of a job that runs on the host before the step: readers, decoders, image ops, tensor buffers and their inputs.

The rest runs on the device. It takes the host's results (the *boundary*) as feeds, besides the inputs of the job. Host values
that the job returns are delivered without passing through the device; a job that computes nothing else has no step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._base.dtype import HOST_ONLY
from ..errors import HostError
from ..graph.graph import OP_INPUT, OP_TO_CONSISTENT, OP_VARIABLE, Graph
from ..graph.node import Blob, Node
from .analysis import ancestors


@dataclass(frozen=True, slots=True, eq=False)
class HostPlan:
    """The nodes of a job that run on the host, and the Blobs that leave the host.

    Attributes:
      ahead: nodes that do not depend on the arguments of a call, in topological order; they may run before the call.
      at_call: the other host nodes, in topological order.
      inputs: positions of the job's inputs that host nodes read.
      boundary: host Blobs that the step takes as feeds, after the inputs of the job.
      labels: those of them that are the class labels of a loss, each with the loss.
      delivered: host Blobs that the job returns.
    """

    ahead: tuple[Node, ...] = ()
    at_call: tuple[Node, ...] = ()
    inputs: tuple[int, ...] = ()
    boundary: tuple[Blob, ...] = ()
    labels: tuple[tuple[Blob, Node], ...] = ()
    delivered: tuple[Blob, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.ahead, *self.at_call)

    def __bool__(self) -> bool:
        return bool(self.ahead or self.at_call or self.delivered)

    @property
    def results(self) -> tuple[Blob, ...]:
        """The Blobs whose values leave the host, each once: the boundary, then those that are only delivered."""
        return distinct([*self.boundary, *self.delivered])


def distinct(blobs: Sequence[Blob]) -> tuple[Blob, ...]:
    """The Blobs without further handles of the same value."""
    found = {(b.node, b.index): b for b in reversed(blobs)}
    return tuple(found[key] for key in dict.fromkeys((b.node, b.index) for b in blobs))


def host_plan_of(graph: Graph, order: Sequence[Node], fetches: Sequence[Blob], used_by_step: Sequence[Blob]) -> HostPlan:
    """Decides which nodes run on the host.

    Args:
      order: the nodes that the job needs, in topological order.
      fetches: the Blobs that it returns.
      used_by_step: other Blobs that the step reads: losses, assigned and watched values.
    Raises:
      HostError: a host op depends on a value that only the device can compute.
    """
    firsts = [node for node in order if node.op.on_host]
    lists = [b for b in fetches if b.is_tensor_list and b.node.op is OP_INPUT]  # returned unchanged
    if not (firsts or lists):
        return HostPlan()
    host = ancestors([b for node in firsts for b in node.inputs]) | set(firsts)
    for node in firsts:
        _check_inputs(graph, node)
    nodes = [node for node in order if node in host and node.op is not OP_INPUT]
    inside = set(nodes)
    fed: set[Node] = set()
    for node in nodes:
        if any(b.node.op is OP_INPUT or b.node in fed for b in node.inputs):
            fed.add(node)
    step_reads = [b for node in order if node not in host for b in node.inputs]
    for blob in used_by_step:
        if blob.node in inside and blob.dtype in HOST_ONLY:
            raise HostError(
                f"{blob.op_name!r} of job {graph.name!r} is of {blob.dtype}, whose values have no array form: they "
                f"can neither be watched nor assigned\n  your line  {blob.source}   {blob.source.text}\n"
                f"  try        flow.tensor_buffer_to_tensor(...), or watch what is made of it"
            )
    return HostPlan(
        ahead=tuple(node for node in nodes if node not in fed),
        at_call=tuple(node for node in nodes if node in fed),
        inputs=tuple(i for i, spec in enumerate(graph.inputs) if spec.blob.node in host or spec.blob.is_tensor_list),
        boundary=distinct([b for b in (*step_reads, *used_by_step) if b.node in inside]),
        labels=tuple((b, node) for node, b in labels_of(order) if b.node in inside),
        delivered=distinct([b for b in fetches if b.node in inside] + lists),
    )


def labels_of(order: Sequence[Node]) -> Iterator[tuple[Node, Blob]]:
    """Losses, each with the Blob that its class labels come from, up to changes of shape and integer dtype."""
    for node in order:
        if node.op.labels is not None:
            yield node, source_of_integers(node.inputs[node.op.labels[0]])


def source_of_integers(blob: Blob) -> Blob:
    """Where the elements of an integer Blob come from, up to changes of shape and integer dtype."""
    while blob.node.op.keeps_values and blob.node.inputs[0].dtype.is_integer:
        blob = blob.node.inputs[0]
    return blob


def _check_inputs(graph: Graph, node: Node) -> None:
    for position, blob in enumerate(node.inputs):
        needed = ancestors([blob])
        if any(n.op is OP_TO_CONSISTENT for n in needed):
            raise HostError(
                f"{node.op.name} {node.name!r} of job {graph.name!r} runs on the host, for each device by itself, and needs a "
                f"value that is joined from all devices\n"
                f"  inputs[{position}]  {blob.op_name}   {blob.describe()}   made at {blob.source}\n"
                f"  your line  {node.source}   {node.source.text}\n"
                f"  try        the same view for both: flow.scope.mirrored_view() or flow.scope.consistent_view()"
            )
        culprit = next((n for n in graph.nodes if n.op is OP_VARIABLE and n in needed), None)
        if culprit is not None:
            raise HostError(
                f"{node.op.name} {node.name!r} of job {graph.name!r} runs on the host, before the step, and needs a value "
                f"that is computed on the device: it depends on variable {culprit.name!r}\n"
                f"  inputs[{position}]  {blob.op_name}   {blob.describe()}   made at {blob.source}\n"
                f"  variable   {culprit.name}   {culprit.outputs[0].describe()}   made at {culprit.source}\n"
                f"  your line  {node.source}   {node.source.text}\n"
                f"  try        return the value from this job and feed it to a second one that holds {node.op.name}"
            )
