"""LSTMs over sequences as one computation each: finds steps that follow each other, for the native part.

A program unrolls the sequence: the gates of a step are the sum of a product, of h of the step before and the recurrent weights,
and of what the step gets otherwise. Where that does not depend on the steps, and nothing else reads what is between, one call
computes the products and cells (``lstm_cell.py``) of all steps, and another one the gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._base import dtype as dtypes
from .._base.dtype import dtype
from ..graph.node import Blob, Node
from .lstm_cell import CellCall, JoinedCall, Key, both_ways, readers_of
from .lstm_layer_kernels import LSTM_LAYER
from .native import unsupported_reason


class LayerCall(JoinedCall):
    """All steps, whose targets are h of each step, and the last c."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Follower:
    """A step whose gates are a sum with a product.

    Attributes:
      call: of its cell.
      hidden, before: h and c of the step before.
      weights: the recurrent ones; ``transposed``: they are (4 * width, width).
      rest: what is added to the product.
      nodes: the product and the sum.
    """

    call: CellCall
    hidden: Blob
    before: Blob
    weights: Blob
    transposed: bool
    rest: Blob
    nodes: tuple[Node, Node]


class _Search:
    """Looks for sequences of steps."""

    def __init__(
        self,
        nodes: Sequence[Node],
        steps: Sequence[Any],
        keep: Collection[Node],
        roots: Sequence[Blob],
        precision: Mapping[Node, dtype],
    ) -> None:
        self.steps, self.keep, self.precision = steps, keep, precision
        self.roots: set[Key] = {(b.node, b.index) for b in roots}
        self.readers = readers_of(nodes)
        self.order = {node: i for i, node in enumerate(nodes)}
        self.place: dict[Node, int] = {}  # of the steps that compute nodes
        for i, step in enumerate(steps):
            self.place.update(dict.fromkeys(getattr(step, "nodes", (step,)), i))
        self.cells = [step for step in steps if isinstance(step, CellCall)]

    def sequences(self) -> list[tuple[CellCall | _Follower, ...]]:
        """The longest sequences, of two steps at least. The first step is a follower where there is a state from before."""
        followers = [self._follower(cell) for cell in self.cells]
        by_state = {_key(f.before): f for f in followers if f is not None}
        found: list[tuple[CellCall | _Follower, ...]] = []
        taken: set[CellCall] = set()
        for cell, as_follower in zip(self.cells, followers, strict=True):
            if cell in taken or (as_follower is None and len(cell.node.inputs) > 1):
                continue  # a state that comes into the cell by another way
            sequence: list[Any] = [cell if as_follower is None else as_follower]
            while (after := by_state.get(_key(cell.targets[1]))) is not None and self._follows(cell, after, sequence[-1]):
                sequence.append(after)
                cell = after.call
            if len(sequence) > 1:
                taken.update(_cell_of(step) for step in sequence)
                found.append(tuple(sequence))
        return found

    def _follower(self, cell: CellCall) -> _Follower | None:
        if len(cell.node.inputs) != 2:
            return None
        gates, before = cell.node.inputs
        total = gates.node
        readers = sum(_key(b) == _key(gates) for node in cell.nodes for b in node.inputs)
        if total.op.lstm != "sum" or not self._is_inside(gates, readers, cell):
            return None
        for product, rest in both_ways(total.inputs):
            times = product.node.op.attention(product.node.attrs) if product.node.op.attention is not None else None
            if times is None or times.kind != "product" or times.factor != 1 or times.transposed[0]:
                continue
            hidden, weights = product.node.inputs
            transposed, width = times.transposed[1], before.shape[1]
            shape = (4 * width, width) if transposed else (width, 4 * width)
            fits = hidden.shape == before.shape and weights.shape == shape and rest.shape == gates.shape == product.shape
            if fits and rest.dtype is weights.dtype is dtypes.float32 and self._is_inside(product, 1, cell):
                return _Follower(cell, hidden, before, weights, transposed, rest, (product.node, total))
        return None

    def _is_inside(self, blob: Blob, readers: int, cell: CellCall) -> bool:
        """Whether a call may compute a value for so many readers alone."""
        node, like = blob.node, cell.node
        return (
            self.readers.get(_key(blob)) == readers
            and _key(blob) not in self.roots
            and node in self.place
            and self.steps[self.place[node]] in (node, cell)  # not of a region or another call
            and node not in self.keep
            and node not in self.precision
            and node.scope.placement == like.scope.placement
            and node.run == like.run
            and not node.scope.options.get("checkpointing")
            and not any(b.is_dynamic or b.dtype is not dtypes.float32 for b in (*node.inputs, *node.outputs))
        )

    def _follows(self, cell: CellCall, after: _Follower, step: CellCall | _Follower) -> bool:
        hidden, c = cell.targets
        same = cell.node.attrs == after.call.node.attrs
        is_last_reader = self._is_inside(c, 2, cell)  # its own cell and the next one
        shared = not isinstance(step, _Follower) or (_key(step.weights), step.transposed) == (
            _key(after.weights),
            after.transposed,
        )
        return _key(after.hidden) == _key(hidden) and same and shared and is_last_reader

    def call(self, sequence: Sequence[CellCall | _Follower]) -> tuple[LayerCall, list[Node]] | None:
        """The call for a sequence, and nodes behind the first step that must come before it; None where there is no call."""
        followers = [step for step in sequence if isinstance(step, _Follower)]
        cells = [_cell_of(step) for step in sequence]
        rests = [step.rest if isinstance(step, _Follower) else step.node.inputs[0] for step in sequence]
        first, like = followers[0], cells[-1].node
        quarters = like.attrs["quarters"]
        has_state = isinstance(sequence[0], _Follower)
        watched = any(rest.node in self.keep for rest in rests)
        gates, by_row = (tuple(rests), False) if watched else _in_one_array(rests)
        state = (first.hidden, first.before) if has_state else ()
        inputs = (*gates, *state, first.weights)
        inside = {node for cell in cells for node in cell.nodes} | {node for step in followers for node in step.nodes}
        earlier = self._earlier(inputs, self.place[cells[0].targets[1].node], inside)
        if earlier is None:
            return None
        targets = (*(cell.targets[0] for cell in cells), cells[-1].targets[1])
        attrs = {"quarters": quarters, "has_state": has_state, "by_row": by_row, "transposed": first.transposed}
        made = like.copy(op=LSTM_LAYER, inputs=inputs, attrs=attrs, outputs=list(targets))
        if unsupported_reason(made, None) is not None:
            return None
        return LayerCall(made, targets, tuple(sorted(inside, key=self.order.__getitem__))), earlier

    def _earlier(self, inputs: Sequence[Blob], place: int, inside: Collection[Node]) -> list[Node] | None:
        """What inputs need of the steps from a place on, in order; None where that depends on nodes that are inside."""
        needed: set[Node] = set()
        left = [b.node for b in inputs]
        while left:
            node = left.pop()
            computed = self.place.get(node, len(self.steps) if node in self.order else -1)  # or else given to the step
            if node in needed or computed < place:
                continue
            movable = computed < len(self.steps) and self.steps[computed] is node and node not in inside
            if not movable or node.op.callback or node.scope.options.get("checkpointing"):
                return None
            needed.add(node)
            left += [b.node for b in node.inputs]
        return sorted(needed, key=self.place.__getitem__)


def _key(blob: Blob) -> Key:
    return blob.node, blob.index


def _cell_of(step: CellCall | _Follower) -> CellCall:
    return step.call if isinstance(step, _Follower) else step


def _in_one_array(blobs: Sequence[Blob]) -> tuple[tuple[Blob, ...], bool]:
    """The array whose steps these are, all of them and in order, or else themselves; whether the axis of the steps is 1."""
    regions = []
    for blob in blobs:
        region, whole = blob.node.op.region, blob.node.inputs[:1]
        bounds = region(blob.node.attrs, whole[0].shape) if region is not None and whole[0].ndim == 3 else None
        if bounds is None or _key(whole[0]) != _key(blobs[0].node.inputs[0]) or whole[0].is_dynamic:
            return tuple(blobs), False
        regions.append(tuple(bounds))
    whole = blobs[0].node.inputs[:1]
    shape, (rows, columns) = whole[0].shape, blobs[0].shape
    for axis in (1, 0):
        expected: list[tuple[tuple[int, int], ...]] = []
        for step in range(len(blobs)):
            held = [(0, rows), (0, columns)]
            held.insert(axis, (step, step + 1))
            expected.append(tuple(held))
        sizes = [rows, columns]
        sizes.insert(axis, len(blobs))
        if list(shape) == sizes and regions == expected and whole[0].dtype is dtypes.float32:
            return tuple(whole), axis == 1
    return tuple(blobs), False


def with_layers(
    nodes: Sequence[Node],
    steps: Sequence[Any],
    keep: Collection[Node],
    roots: Sequence[Blob],
    precision: Mapping[Node, dtype],
) -> list[Any]:
    """The steps of an arrangement, with one call for each sequence of steps of LSTMs.

    Args: see ``arrangement.arranged``; steps: they have calls for single steps.
    """
    done: set[CellCall] = set()
    made = list(steps)
    while True:
        search = _Search(nodes, made, keep, roots, precision)
        for sequence in search.sequences():
            first = _cell_of(sequence[0])
            if first in done:
                continue
            done.add(first)
            found = search.call(sequence)
            if found is not None:
                made = _replaced(made, search.place[first.targets[1].node], *found)
                break
        else:
            return made


def _replaced(steps: Sequence[Any], place: int, call: LayerCall, earlier: Sequence[Node]) -> list[Any]:
    gone = {*earlier, *call.nodes}
    rest = [s for s in steps[place:] if (s.nodes[0] if isinstance(s, CellCall) else s) not in gone]
    before = [s for s in steps[:place] if s not in gone]
    return [*before, *earlier, call, *rest]
