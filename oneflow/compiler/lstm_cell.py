"""The steps of LSTMs as one computation each: finds what programs write of the gates, for the native part.

With the gates i, f, g and o, the quarters of the columns of one array, and the state c' of the step before, a step computes
c = sigmoid(f) c' + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c); the first one has no c'. One call computes h and c where
nothing else reads what is between, and another one the gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, run_nodes
from .lowering import Draws, Values
from .lstm_cell_kernels import LSTM_CELL
from .native import unsupported_reason

Key = tuple[Node, int]


@dataclass(frozen=True, slots=True, eq=False)
class JoinedCall:
    """Nodes that one call computes.

    Attributes:
      node: computes all targets.
      targets: what other nodes read.
      nodes: those that it stands for, in topological order.
    """

    node: Node
    targets: tuple[Blob, ...]
    nodes: tuple[Node, ...]

    def run(self, values: Values, draws: Draws, path: Collection[Node]) -> list[Propagate]:
        """Runs the forward pass and returns the backward pass. An observer sees the nodes one by one, as XLA computes them."""
        if values.lowering.observer is not None:
            return run_nodes(self.nodes, values, draws, path)
        propagates = run_nodes([self.node], values, draws, path)
        for target, made in zip(self.targets, self.node.outputs, strict=True):
            values.set_blob(target, values.get_blob(made))
        return [*propagates, jax.tree_util.Partial(self._propagate)] if propagates else []

    def _propagate(self, backward: Backward) -> None:
        for target, made in zip(self.targets, self.node.outputs, strict=True):
            cotangent = backward.get(target)
            if cotangent is not None:
                backward.add(made, cotangent)


class CellCall(JoinedCall):
    """One step, whose targets are h and c."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Gate:
    """An activation of a quarter of some columns: its kind, the nodes, the array and which quarter."""

    kind: str
    nodes: tuple[Node, Node]
    of: Blob
    quarter: int


class _Search:
    """Looks for steps whose h is computed by a given node."""

    def __init__(self, nodes: Sequence[Node], present: Collection[Node], keep: Collection[Node], roots: Sequence[Blob]):
        self.present, self.keep = present, keep
        self.roots: set[Key] = {(b.node, b.index) for b in roots}
        self.readers = readers_of(nodes)
        self.order = {node: i for i, node in enumerate(nodes)}

    def call(self, last: Node, precision: Mapping[Node, dtype]) -> CellCall | None:
        """The call that computes h, the result of the node ``last``, and c; None where that is no step of an LSTM."""
        if last.op.lstm != "product":
            return None
        for out, other in both_ways(last.inputs):
            o, tangent = self._gate(out, "logistic"), other.node
            if o is None or tangent.op.lstm != "hyperbolic" or not self._only_read_here(other):
                continue
            c = tangent.inputs[0]
            found = self._state(c, o)
            if found is None:
                continue
            quarters, before, inside = found
            nodes = sorted({*inside, *o.nodes, c.node, tangent, last}, key=self.order.__getitem__)
            if not self._may_join(nodes, precision) or not out.shape == c.shape == last.outputs[0].shape:
                return None
            inputs = (o.of,) if before is None else (o.of, before)
            h = last.outputs[0]
            made = last.copy(op=LSTM_CELL, inputs=inputs, attrs={"quarters": quarters}, outputs=[h, c])
            return None if unsupported_reason(made, None) is not None else CellCall(made, (h, c), tuple(nodes))
        return None

    def _state(self, c: Blob, o: _Gate) -> tuple[tuple[int, int, int, int], Blob | None, list[Node]] | None:
        """The quarters of i, f, g and o, the state before, and the nodes that compute c of them."""
        node = c.node
        if node.op.lstm == "product":
            new = self._new(node, o)
            if new is None:
                return None
            i, g = new
            (unread,) = {0, 1, 2, 3} - {i.quarter, g.quarter, o.quarter}
            return (i.quarter, unread, g.quarter, o.quarter), None, [*i.nodes, *g.nodes]
        if node.op.lstm != "sum":
            return None
        for added, kept in both_ways(node.inputs):
            new = self._new(added.node, o) if self._only_read_here(added) else None
            if new is None or kept.node.op.lstm != "product" or not self._only_read_here(kept):
                continue
            i, g = new
            for gate, before in both_ways(kept.node.inputs):
                f = self._gate(gate, "logistic")
                if f is None or not _same_array(f.of, o.of) or before.shape != c.shape:
                    continue
                if before.dtype is dtypes.float32 and len({i.quarter, f.quarter, g.quarter, o.quarter}) == 4:
                    inside = [*i.nodes, *g.nodes, *f.nodes, added.node, kept.node]
                    return (i.quarter, f.quarter, g.quarter, o.quarter), before, inside
        return None

    def _new(self, node: Node, o: _Gate) -> tuple[_Gate, _Gate] | None:
        """The gates of sigmoid(i) tanh(g), where a node computes that."""
        if node.op.lstm != "product":
            return None
        for first, second in both_ways(node.inputs):
            i, g = self._gate(first, "logistic"), self._gate(second, "hyperbolic")
            if i is None or g is None or not (_same_array(i.of, o.of) and _same_array(g.of, o.of)):
                continue
            if len({i.quarter, g.quarter, o.quarter}) == 3:
                return i, g
        return None

    def _gate(self, blob: Blob, kind: str) -> _Gate | None:
        """The activation of this kind that computes a value which is read once; None where none does."""
        node = blob.node
        if node.op.lstm != kind or not self._only_read_here(blob):
            return None
        cut = node.inputs[0]
        region = cut.node.op.region
        if region is None or cut.node not in self.present or not self._only_read_here(cut):
            return None
        whole = cut.node.inputs[0]
        bounds = region(cut.node.attrs, whole.shape) if whole.ndim == cut.ndim == 2 else None
        if bounds is None or whole.shape[1] % 4 or bounds[0] != (0, whole.shape[0]):
            return None
        width, start = whole.shape[1] // 4, bounds[1][0]
        if cut.shape != (whole.shape[0], width) or start % width:  # an index may have turned a column into a row
            return None
        return _Gate(kind, (cut.node, node), whole, start // width)

    def _only_read_here(self, blob: Blob) -> bool:
        key = blob.node, blob.index
        return self.readers.get(key) == 1 and key not in self.roots

    def _may_join(self, nodes: Sequence[Node], precision: Mapping[Node, dtype]) -> bool:
        first = nodes[0]
        return all(
            node in self.present
            and node not in self.keep
            and node not in precision
            and node.scope.placement == first.scope.placement
            and node.run == first.run
            and not node.scope.options.get("checkpointing")  # the backward pass computes such parts again, as a whole
            and not any(b.is_dynamic or b.dtype is not dtypes.float32 for b in (*node.inputs, *node.outputs))
            for node in nodes
        )


def readers_of(nodes: Sequence[Node]) -> dict[Key, int]:
    """How often each value is read."""
    readers: dict[Key, int] = {}
    for node in nodes:
        for blob in node.inputs:
            key = blob.node, blob.index
            readers[key] = readers.get(key, 0) + 1
    return readers


def both_ways(blobs: Sequence[Blob]) -> tuple[tuple[Blob, Blob], ...]:
    """Two values in either order; none for another number of values."""
    if len(blobs) != 2:
        return ()
    return (blobs[0], blobs[1]), (blobs[1], blobs[0])


def _same_array(a: Blob, b: Blob) -> bool:
    return (a.node, a.index) == (b.node, b.index)


def find_cells(
    nodes: Sequence[Node],
    present: Collection[Node],
    keep: Collection[Node],
    roots: Sequence[Blob],
    precision: Mapping[Node, dtype],
) -> dict[Node, CellCall]:
    """The steps of LSTMs that the native part computes, by the node that computes c, in whose place each call stands.

    Args: see ``arrangement.arranged``; present: those of the nodes that are neither copied nor part of a larger unit.
    """
    if not any(node.op.lstm == "hyperbolic" for node in nodes):
        return {}
    search = _Search(nodes, present, keep, roots)
    calls = (search.call(node, precision) for node in nodes)
    return {call.targets[1].node: call for call in calls if call is not None}
