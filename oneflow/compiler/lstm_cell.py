"""The steps of LSTMs as one computation each: finds what programs write of the gates, for the native part.

With the gates i, f, g and o, the quarters of the columns of one array, and the state c' of the step before, a step computes
c = sigmoid(f) c' + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c); the first one has no c'. One call computes h and c where
nothing else reads what is between, and another one the gradients. Gates may have a number added, as the bias of f that lets a new
LSTM remember. They may also be an array each; a call joins these, which gains only where it computes many steps
(``lstm_layer.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, run_nodes
from .lowering import Draws, Values
from .lstm_cell_kernels import LSTM_CELL, Gates
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

    @property
    def form(self) -> Gates:
        """How it gets its gates."""
        form: Gates = self.node.attrs["gates"]
        return form

    @property
    def gates(self) -> tuple[Blob, ...]:
        """The array of all gates, or that of each one."""
        return self.node.inputs[: self.form.arrays]

    @property
    def before(self) -> Blob | None:
        """c of the step before; None for none."""
        state = self.node.inputs[self.form.arrays :]
        return state[0] if state else None


@dataclass(frozen=True, slots=True)
class _Gate:
    """An activation of a gate, or of a gate and a number.

    Attributes:
      nodes: that compute it; of: the gate, or the array of all gates.
      quarter: which one of that array it is; None for a gate that is an array of its own.
      added: the number.
    """

    nodes: tuple[Node, ...]
    of: Blob
    quarter: int | None
    added: float = 0.0


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
            form, gates, before, inside = found
            nodes = sorted({*inside, *o.nodes, c.node, tangent, last}, key=self.order.__getitem__)
            if not self._may_join(nodes, precision) or not out.shape == c.shape == last.outputs[0].shape:
                return None
            if form.apart and not self._can_wait(c, last, nodes):
                return None
            inputs = gates if before is None else (*gates, before)
            h = last.outputs[0]
            made = last.copy(op=LSTM_CELL, inputs=inputs, attrs={"gates": form}, outputs=[h, c])
            return None if unsupported_reason(made, None) is not None else CellCall(made, (h, c), tuple(nodes))
        return None

    def _can_wait(self, c: Blob, last: Node, inside: Collection[Node]) -> bool:
        """Whether only the step itself reads c before h is computed; o may be computed behind c, and of it."""
        end = self.order[last]
        return all(node in inside or self.order[node] > end for node in self.readers.get((c.node, c.index), ()))

    def _state(self, c: Blob, o: _Gate) -> tuple[Gates, tuple[Blob, ...], Blob | None, list[Node]] | None:
        """How the gates are held, their arrays, the state before, and the nodes that compute c of them."""
        node = c.node
        if node.op.lstm == "product":
            new = self._new(node, o)
            if new is None or o.quarter is None:
                return None
            i, g = new
            (unread,) = {0, 1, 2, 3} - {i.quarter, g.quarter, o.quarter}
            return _form_of(i, replace(o, quarter=unread, added=0.0), g, o), (o.of,), None, [*i.nodes, *g.nodes]
        if node.op.lstm != "sum":
            return None
        for added, kept in both_ways(node.inputs):
            new = self._new(added.node, o) if self._only_read_here(added) else None
            if new is None or kept.node.op.lstm != "product" or not self._only_read_here(kept):
                continue
            i, g = new
            for gate, before in both_ways(kept.node.inputs):
                f = self._gate(gate, "logistic")
                if f is None or before.shape != c.shape or before.dtype is not dtypes.float32:
                    continue
                if _belong_together(i, f, g, o):
                    form = _form_of(i, f, g, o)
                    gates = (i.of, f.of, g.of, o.of) if form.apart else (o.of,)
                    return form, gates, before, [*i.nodes, *g.nodes, *f.nodes, added.node, kept.node]
        return None

    def _new(self, node: Node, o: _Gate) -> tuple[_Gate, _Gate] | None:
        """The gates of sigmoid(i) tanh(g), where a node computes that."""
        if node.op.lstm != "product":
            return None
        for first, second in both_ways(node.inputs):
            i, g = self._gate(first, "logistic"), self._gate(second, "hyperbolic")
            if i is not None and g is not None and _belong_together(i, g, o):
                return i, g
        return None

    def _gate(self, blob: Blob, kind: str) -> _Gate | None:
        """The activation of this kind that computes a value which is read once; None where none does."""
        node = blob.node
        if node.op.lstm != kind or not self._only_read_here(blob):
            return None
        nodes: tuple[Node, ...] = (node,)
        cut, added = node.inputs[0], 0.0
        if cut.node.op.lstm == "shift" and cut.node in self.present and self._only_read_here(cut):
            nodes, added = (cut.node, node), float(cut.node.attrs["number"])
            cut = cut.node.inputs[0]
        apart = _Gate(nodes, cut, None, added) if cut.ndim == 2 else None
        region = cut.node.op.region
        if region is None or cut.node not in self.present or not self._only_read_here(cut):
            return apart
        whole = cut.node.inputs[0]
        bounds = region(cut.node.attrs, whole.shape) if whole.ndim == cut.ndim == 2 else None
        if bounds is None or whole.shape[1] % 4 or bounds[0] != (0, whole.shape[0]):
            return apart
        width, start = whole.shape[1] // 4, bounds[1][0]
        if cut.shape != (whole.shape[0], width) or start % width:  # an index may have turned a column into a row
            return apart
        return _Gate((cut.node, *nodes), whole, start // width, added)

    def _only_read_here(self, blob: Blob) -> bool:
        key = blob.node, blob.index
        return len(self.readers.get(key, ())) == 1 and key not in self.roots

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


def _belong_together(first: _Gate, *others: _Gate) -> bool:
    """Whether gates are different quarters of one array, or an array each, of one shape."""
    if first.quarter is None:
        return all(gate.quarter is None and gate.of.shape == first.of.shape for gate in others)
    quarters = {gate.quarter for gate in (first, *others)}
    is_one_array = all(gate.quarter is not None and _same_array(gate.of, first.of) for gate in others)
    return is_one_array and len(quarters) == 1 + len(others)


def _form_of(i: _Gate, f: _Gate, g: _Gate, o: _Gate) -> Gates:
    """How gates that belong together are held."""
    added = i.added, f.added, g.added, o.added
    if i.quarter is None or f.quarter is None or g.quarter is None or o.quarter is None:
        return Gates(apart=True, added=added)
    return Gates((i.quarter, f.quarter, g.quarter, o.quarter), added=added)


def readers_of(nodes: Sequence[Node]) -> dict[Key, list[Node]]:
    """The nodes that read each value, once for each time."""
    readers: dict[Key, list[Node]] = {}
    for node in nodes:
        for blob in node.inputs:
            readers.setdefault((blob.node, blob.index), []).append(node)
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
    """The steps of LSTMs that the native part computes, by the node in whose place each call stands: the one that computes c,
    or h where each gate is an array, which may be computed behind c.

    Args: see ``arrangement.arranged``; present: those of the nodes that are neither copied nor part of a larger unit.
    """
    if not any(node.op.lstm == "hyperbolic" for node in nodes):
        return {}
    search = _Search(nodes, present, keep, roots)
    calls = (search.call(node, precision) for node in nodes)
    return {call.nodes[-1] if call.form.apart else call.targets[1].node: call for call in calls if call is not None}
