"""The arrangement of nodes: channels last around native convolutions; or, on one device, in slices of the batch around XLA's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from .._base.dtype import dtype
from ..graph.node import Blob, Node
from . import batch_slices, channels_last
from .autodiff import Propagate, run_nodes
from .batch_slices import Region
from .channels_last import LayoutTranspose
from .lowering import Draws, Values

Step = Node | LayoutTranspose | Region


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Nodes, arranged for the devices of one place.

    Attributes:
      steps: nodes (some of them copies), layout transposes and regions, in execution order.
      path: the nodes on the gradient path, copies included.
      precision: the dtypes of nodes that compute in a narrower dtype, copies included.
      keep: nodes whose gradient is watched.
      changed: description of what was arranged; "" for nothing.
    """

    steps: tuple[Step, ...]
    path: Collection[Node]
    precision: Mapping[Node, dtype] = field(default_factory=dict)
    keep: Collection[Node] = ()
    changed: str = ""

    def run(self, values: Values, draws: Draws) -> list[Propagate]:
        """Runs the forward pass, whose outputs go to ``values``, and returns the backward pass."""
        propagates: list[Propagate] = []
        for kind, group in groupby(self.steps, type):
            if kind is Node:
                nodes = [step for step in group if isinstance(step, Node)]
                propagates += run_nodes(nodes, values, draws, self.path, self.keep)
                continue
            for step in group:
                if isinstance(step, LayoutTranspose):
                    propagates += step.run(values, self.path)
                elif isinstance(step, Region):
                    propagates += step.run(values, draws)
        return propagates


def arranged(
    nodes: Sequence[Node],
    keep: set[Node],
    roots: Sequence[Blob],
    path: Collection[Node],
    precision: Mapping[Node, dtype],
    without_native: str,
    platform: str,
    vmapped: Collection[Node] = (),
    devices: int = 1,
) -> Arrangement:
    """Arranges nodes that run on the same devices.

    Args:
      nodes: in topological order.
      keep: nodes that must not become part of a larger unit, as their gradient is watched.
      roots: Blobs that are read by something other than these nodes.
      path: the nodes on the gradient path.
      precision: the dtypes of nodes that compute in a narrower dtype.
      without_native: the reason why no op takes its native lowering; "" if some may.
      platform: of the devices; only on the CPU are batches sliced.
      vmapped: the nodes whose values have a leading axis of devices; they stay as they are.
      devices: how many there are; only on one are batches sliced.
    """
    native = None if without_native else channels_last.arrange(nodes, {*keep, *vmapped}, roots, path, precision)
    if native is not None:
        steps, longer, copies = native
        transposes = sum(isinstance(step, LayoutTranspose) for step in steps)
        changed = f"{len(copies)} nodes channels last, {transposes} transposes"
        return Arrangement(tuple(steps), longer, _with_copies(precision, copies), keep, changed)
    if devices > 1:
        return Arrangement(tuple(nodes), path, precision, keep)
    scheduled, copies = batch_slices.schedule(nodes, keep, roots, path, platform)
    regions = [step for step in scheduled if isinstance(step, Region)]
    sliced = sum(len(region.nodes) for region in regions)
    changed = f"{sliced} nodes in {len(regions)} regions that run on slices of the batch" if regions else ""
    return Arrangement(tuple(scheduled), path, _with_copies(precision, copies), keep, changed)


def _with_copies(precision: Mapping[Node, dtype], copies: Mapping[Node, Node]) -> dict[Node, dtype]:
    """``precision``, extended to copies. ``copies`` maps nodes to their copies."""
    return {**precision, **{copy: precision[node] for node, copy in copies.items() if node in precision}}
