"""The arrangement of nodes: channels last around native convolutions; or, on one device, in slices of the batch around XLA's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from .._base.dtype import dtype
from ..graph.node import Blob, Node
from . import batch_slices, channels_last
from .attention import AttentionCall, FoundAttention, by_native_part, find_attention, of_calls
from .autodiff import Propagate, run_nodes
from .batch_norm import NormCall, computing_node, find_norms
from .batch_norm_kernels import describe as describe_norm
from .batch_slices import Region
from .channels_last import LayoutTranspose
from .joint_gradients import joint_gradients
from .loop_call import LoopCall
from .loops import MIN_NODES, LoopSearch
from .lowering import Draws, Values
from .lstm_cell import CellCall, JoinedCall, find_cells
from .lstm_layer import LayerCall, with_layers
from .native import describe
from .precision import narrow_cotangents, rounded_outputs

Step = Node | LayoutTranspose | Region | AttentionCall | NormCall | JoinedCall | LoopCall


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Nodes, arranged for the devices of one place.

    Attributes:
      steps: nodes (some of them copies), layout transposes, regions and calls for attention, batch normalization, steps of
        LSTMs and sequences of such steps, in execution order.
      path: the nodes on the gradient path, copies included.
      precision: the dtypes of nodes that compute in a narrower dtype, copies included.
      keep: nodes whose gradient is watched.
      changed: description of what was arranged; "" for nothing.
      rounded: the outputs that are rounded to bfloat16 for all their readers, by node.
      narrow_cotangents: nodes whose outputs have cotangents that were bfloat16 before.
      by_xla: nodes that normalize batches and are left to XLA, with the reason.
      turned: the copies that compute on channels-last arrays.
      joint: nodes whose gradients to input 1 are computed together, by group.
    """

    steps: tuple[Step, ...]
    path: Collection[Node]
    precision: Mapping[Node, dtype] = field(default_factory=dict)
    keep: Collection[Node] = ()
    changed: str = ""
    rounded: Mapping[Node, frozenset[int]] = field(default_factory=dict)
    narrow_cotangents: Collection[Node] = ()
    by_xla: Mapping[Node, str] = field(default_factory=dict)
    turned: Collection[Node] = ()
    joint: Mapping[Node, int] = field(default_factory=dict)

    def with_native_attention(self, nodes: Sequence[Node], roots: Sequence[Blob]) -> Arrangement:
        """The same with one call of the native part for each attention. ``nodes`` and ``roots``: see ``arranged``."""
        present = {step for step in self.steps if isinstance(step, Node)}
        return self.with_attention(find_attention(nodes, present, self.keep, roots, self.path, self.precision, by_native_part))

    def with_attention(self, found: FoundAttention) -> Arrangement:
        """The same with the calls in the place of the nodes that they stand for."""
        if not found.calls:
            return self
        calls = found.calls
        inside = frozenset().union(*(call.nodes for call in calls.values()))
        steps = (calls.get(s, s) if isinstance(s, Node) else s for s in self.steps)
        made = {call.target.node: call.node for call in calls.values()}
        return replace(
            self,
            steps=tuple(s for s in steps if s not in inside),
            path={*self.path, *(new for old, new in made.items() if old in self.path)},
            precision={**self.precision, **of_calls(self.precision, calls.values())},
        )

    def with_native_norms(self, roots: Sequence[Blob]) -> Arrangement:
        """The same with one call of the native part for each batch normalization. ``roots``: see ``arranged``."""
        found = find_norms(self.steps, self.keep, roots, self.precision)
        if not found.calls:
            return replace(self, by_xla=found.refused)
        first_of = {call.nodes[0]: call for call in found.calls.values()}
        inside = {node for call in found.calls.values() for node in call.nodes}
        behind: dict[NormCall, list[Step]] = {}  # transposes of what a call computes besides its result
        left: set[Step] = {step for step in found.unread if step.source.node in inside}
        for step in self.steps:
            if isinstance(step, LayoutTranspose) and step.source.node in first_of and step not in left:
                behind.setdefault(first_of[step.source.node], []).append(step)
        left.update(step for moved in behind.values() for step in moved)
        steps: list[Step] = []
        for step in self.steps:
            if isinstance(step, Node) and step in found.calls:
                steps += [found.calls[step], *behind.get(found.calls[step], ())]
            elif step not in left and step not in inside:
                steps.append(step)
        narrow = {*self.narrow_cotangents, *found.narrow_cotangents}
        return replace(self, steps=tuple(steps), narrow_cotangents=narrow, by_xla=found.refused)

    def with_native_lstms(self, nodes: Sequence[Node], roots: Sequence[Blob]) -> Arrangement:
        """The same with one call of the native part for each sequence of steps of an LSTM, and for each other step.

        ``nodes`` and ``roots``: see ``arranged``.
        """
        return self._with_native_cells(nodes, roots)._with_native_layers(nodes, roots)

    def _with_native_cells(self, nodes: Sequence[Node], roots: Sequence[Blob]) -> Arrangement:
        present = {step for step in self.steps if isinstance(step, Node)}
        calls = find_cells(nodes, present, self.keep, roots, self.precision)
        inside = {node for call in calls.values() for node in call.nodes}
        steps = (calls.get(s, s) if isinstance(s, Node) else s for s in self.steps)
        on_path = (call.node for call in calls.values() if any(target.node in self.path for target in call.targets))
        return replace(self, steps=tuple(s for s in steps if s not in inside), path={*self.path, *on_path})

    def _with_native_layers(self, nodes: Sequence[Node], roots: Sequence[Blob]) -> Arrangement:
        if not self.cells:
            return self
        made = replace(self, steps=tuple(with_layers(nodes, self.steps, self.keep, roots, self.precision)))
        on_path = (call.node for call in made.layers if any(target.node in self.path for target in call.targets))
        return replace(made, path={*self.path, *on_path})

    def kernels(self) -> dict[Node, str]:
        """What computes nodes on channels-last arrays, and those that calls stand for."""
        found = {n: describe(n, "", self.precision.get(n)) for n in self.turned if n.op.native is not None}
        found.update((node, f"XLA: {reason}") for node, reason in self.by_xla.items())
        for call in self.attention:
            found.update(dict.fromkeys(call.nodes, f"with {call.node.name}"))
            found[call.product] = describe(call.node, "", self.precision.get(call.node))
        for cell in (step for step in self.steps if isinstance(step, JoinedCall)):
            found.update(dict.fromkeys(cell.nodes, f"with {cell.node.name}"))
            found[cell.targets[0].node] = describe(cell.node, "", None)
        for loop in self.loops:
            found.update(dict.fromkeys(loop.nodes, f"in a loop of {len(loop.copies)} steps"))
        for norm in self.norms:
            found.update(dict.fromkeys(norm.nodes, f"with {norm.nodes[0].name}"))
            found[norm.nodes[0]] = describe_norm(norm.norm)
        return found

    def with_loops(self, roots: Sequence[Blob], vmapped: Collection[Node]) -> Arrangement:
        """The same with one loop for steps that repeat each other. ``roots``, ``vmapped``: see ``arranged``."""
        if len(self.steps) < MIN_NODES:
            return self
        search = LoopSearch(self.steps, self.keep, roots, self.precision, self.rounded, vmapped, self.path)
        return replace(self, steps=tuple(search.with_loops()))

    def with_joint_gradients(self, vmapped: Collection[Node], devices: int) -> Arrangement:
        """The same with one gradient for all nodes that share weights. ``vmapped``, ``devices``: see ``arranged``."""
        nodes = [step for step in self.steps if isinstance(step, Node)]
        return replace(self, joint=joint_gradients(nodes, self.path, self.precision, vmapped, devices))

    def with_rounding(self) -> Arrangement:
        """The same with outputs rounded to bfloat16 for all their readers."""
        units = map(computing_node, self.steps)
        nodes = [unit for unit in units if isinstance(unit, Node)]
        narrow = {*self.narrow_cotangents, *narrow_cotangents(nodes, self.precision)}
        return replace(self, rounded=rounded_outputs(nodes, self.precision), narrow_cotangents=narrow)

    @property
    def attention(self) -> list[AttentionCall]:
        """The calls for attention."""
        return [step for step in self.steps if isinstance(step, AttentionCall)]

    @property
    def norms(self) -> list[NormCall]:
        """The calls for batch normalization."""
        return [step for step in self.steps if isinstance(step, NormCall)]

    @property
    def cells(self) -> list[CellCall]:
        """The calls for steps of LSTMs."""
        return [step for step in self.steps if isinstance(step, CellCall)]

    @property
    def layers(self) -> list[LayerCall]:
        """The calls for sequences of steps of LSTMs."""
        return [step for step in self.steps if isinstance(step, LayerCall)]

    @property
    def loops(self) -> list[LoopCall]:
        """The calls for steps that repeat each other."""
        return [step for step in self.steps if isinstance(step, LoopCall)]

    @property
    def computed_together(self) -> set[Node]:
        """The nodes whose gradients are computed together, and those of loops."""
        return {*self.joint, *(node for loop in self.loops for node in loop.nodes)}

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
                elif isinstance(step, AttentionCall | NormCall | JoinedCall | LoopCall):
                    propagates += step.run(values, draws, self.path)
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
        transposes = sum(isinstance(step, LayoutTranspose) and step.inward is not None for step in steps)
        changed = f"{len(copies)} nodes channels last, {transposes} transposes"
        return Arrangement(tuple(steps), longer, _with_copies(precision, copies), keep, changed, turned=tuple(copies.values()))
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
