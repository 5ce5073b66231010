"""LSTMs over sequences as one computation each: finds steps that follow each other, for the native part.

A program unrolls the sequence: the gates of a step are the sum of a product, of h of the step before and the recurrent weights,
and of what the step gets otherwise; or h is concatenated with that for the product. Where it does not depend on the steps, and
nothing else reads what is between, one call computes the products and cells (``lstm_cell.py``) of all steps, and another one the
gradients. Products of what the steps get are computed at once before it. Weights of single gates are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax, lax
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, run_nodes
from .blocks import Block, Region
from .int8_analysis import key_of
from .lowering import Draws, Values
from .lstm_cell import CellCall, JoinedCall, Key, both_ways, readers_of
from .lstm_cell_kernels import gains_alone
from .lstm_layer_kernels import LSTM_LAYER, STATE_OF_STEP, Given, Product, state_region
from .native import unsupported_reason


class LayerCall(JoinedCall):
    """All steps, whose targets are h of each step, and the last c. Its node computes h of all steps as one array, and c."""

    __slots__ = ()

    @property
    def cuts(self) -> dict[Key, Node]:
        """What cuts h of each step of the array, by the key of what others read."""
        whole, order, found = self.node.outputs[0], range(len(self.targets) - 1), {}
        for target, place in zip(self.targets, order[::-1] if self.node.attrs["is_reversed"] else order, strict=False):
            attrs = {"axis": int(self.node.attrs["by_row"]), "place": place}
            found[key_of(target)] = self.node.copy(op=STATE_OF_STEP, inputs=(whole,), attrs=attrs, outputs=[target])
        return found

    def run(self, values: Values, draws: Draws, path: Collection[Node]) -> list[Propagate]:
        """Runs the forward pass and returns the backward pass. An observer sees the nodes one by one, as XLA computes them."""
        if values.lowering.observer is not None:
            return run_nodes(self.nodes, values, draws, path)
        propagates = run_nodes([self.node], values, draws, path)
        whole, last = (values.get_blob(blob) for blob in self.node.outputs)
        cuts = [cut.attrs for cut in self.cuts.values()]
        for target, attrs in zip(self.targets, cuts, strict=False):
            values.set_blob(target, STATE_OF_STEP.define(whole, **attrs))
        values.set_blob(self.targets[-1], last)
        regions = tuple(state_region(attrs, whole.shape) for attrs in cuts)
        return [*propagates, jax.tree_util.Partial(partial(self._to_whole, whole.shape, regions))] if propagates else []

    def _to_whole(self, shape: tuple[int, ...], regions: Sequence[Region], backward: Backward) -> None:
        whole, last = self.node.outputs
        for target, region in zip(self.targets, regions, strict=False):
            if (gradient := backward.get(target)) is not None:
                sizes = [stop - start for start, stop in region]
                backward.add_block(whole, Block(shape, region, lax.reshape(gradient, sizes)))
        if (gradient := backward.get(self.targets[-1])) is not None:
            backward.add(last, gradient)


Term = tuple[Blob, ...]  # of the gates' array; or of each gate's, in the order i, f, g, o
Place = Literal["before", "behind"]
_PLACES: tuple[Place, Place] = ("behind", "before")


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step and how its gates are computed: as a sum, one term of which may be a product of h of the step before.

    Attributes:
      call: of its cell.
      terms: the others.
      hidden, before: h and c of the step before; None where there is none.
      product: the node that multiplies h by the recurrent weights, or that of each gate; () for none.
      joined: what is concatenated with h for the product, and which of both comes first; None for nothing.
      nodes: those that compute the sum and the product.
    """

    call: CellCall
    terms: tuple[Term, ...]
    nodes: tuple[Node, ...]
    hidden: Blob | None = None
    before: Blob | None = None
    product: tuple[Node, ...] = ()
    joined: tuple[Blob, Place] | None = None

    def is_like(self, other: _Step) -> bool:
        """Whether both multiply by the same recurrent weights, in the same way."""
        mine, others = (step.joined and step.joined[1] for step in (self, other))
        return mine == others and list(map(_form, self.product)) == list(map(_form, other.product))


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

    def sequences(self) -> list[tuple[_Step, ...]]:
        """The longest sequences, of two steps at least."""
        ways = {cell: self._ways(cell) for cell in self.cells}
        cell_of_state = {key_of(cell.targets[1]): cell for cell in self.cells}
        following: dict[CellCall, _Step] = {}
        for step in (step for found in ways.values() for step in found):
            if step.before is None or step.hidden is None:
                continue
            cell = cell_of_state.get(key_of(step.before))
            if cell is not None and key_of(step.hidden) == key_of(cell.targets[0]) and self._follows(cell, step.call):
                following[cell] = step
        found: list[tuple[_Step, ...]] = []
        taken: set[CellCall] = set()
        for cell in self.cells:
            after = following.get(cell)
            if cell in taken or after is None:
                continue
            begins = [step for step in ways[cell] if not step.product and after.joined is None or step.is_like(after)]
            if not begins:
                continue  # the sequence begins one step later
            sequence = [begins[0]]
            while after is not None and (len(sequence) == 1 or after.is_like(sequence[-1])):
                sequence.append(after)
                after = following.get(after.call)
            taken.update(step.call for step in sequence)
            found.append(tuple(sequence))
        return found

    def _ways(self, cell: CellCall) -> list[_Step]:
        """A step in all the ways in which a term may be taken for the product of h."""
        of_gates, nodes_of_gates = zip(*(self._terms(gate, cell) for gate in cell.gates), strict=True)
        terms, sums = self._matched(of_gates, cell), [node for nodes in nodes_of_gates for node in nodes]
        before = cell.before
        if before is None:
            return [_Step(cell, tuple(terms), tuple(sums))]
        found = []
        for i, term in enumerate(terms):
            if not self._is_product(term, cell):
                continue
            products = tuple(blob.node for blob in term)
            xs, rest = {key_of(p.inputs[0]): p.inputs[0] for p in products}, (*terms[:i], *terms[i + 1 :])
            x = products[0].inputs[0]
            recurrent = _Step(cell, rest, (*products, *sums), x, before, products)
            if len(xs) == 1 and x.shape == before.shape:
                found.append(recurrent)
            if all(self._is_joined(each, products, cell) for each in xs.values()):
                nodes = (*(each.node for each in xs.values()), *recurrent.nodes)
                for (h, other), place in zip(both_ways(x.node.inputs), _PLACES, strict=True):
                    if h.shape == before.shape:
                        found.append(replace(recurrent, hidden=h, joined=(other, place), nodes=nodes))
        return found

    def _terms(self, gates: Blob, cell: CellCall) -> tuple[list[Blob], list[Node]]:
        """What is added up, and the nodes that do so."""
        node = gates.node
        if node.op.lstm != "sum" or not self._is_read_here(gates, cell):
            return [gates], []
        found = [self._terms(b, cell) for b in node.inputs]
        return [term for terms, _ in found for term in terms], [node, *(n for _, nodes in found for n in nodes)]

    def _matched(self, of_gates: Sequence[Sequence[Blob]], cell: CellCall) -> list[Term]:
        """The terms of some gates side by side; those of one array by themselves. Empty for gates that differ."""
        if len(of_gates) == 1:
            return [(term,) for term in of_gates[0]]
        width = cell.gates[0].shape[1:]
        if any(term.shape[-1:] != width for terms in of_gates for term in terms):
            return []  # a column for all units cannot be joined with those of other gates
        left = [list(terms) for terms in of_gates]
        found: list[Term] = []
        for term in of_gates[0]:
            like = _likeness(term)
            row = [next((b for b in terms if _likeness(b) == like), None) for terms in left]
            complete = tuple(b for b in row if b is not None)
            if len(complete) < len(row):
                return []
            for terms, blob in zip(left, complete, strict=True):
                del terms[next(i for i, b in enumerate(terms) if b is blob)]
            found.append(complete)
        return [] if any(left) else found

    def _is_joined(self, x: Blob, products: Sequence[Node], cell: CellCall) -> bool:
        """Whether it is two arrays, side by side, that only these products read."""
        node = x.node
        readers = sum(key_of(product.inputs[0]) == key_of(x) for product in products)
        is_joined = node.op.lstm == "joined" and len(node.inputs) == 2 and node.attrs["axis"] == 1
        return is_joined and self._is_inside(x, readers, cell)

    def _is_product(self, term: Term, cell: CellCall) -> bool:
        """Whether it is one of two float32 matrices, as large as the gates, that a call may compute; or one for each gate."""
        return all(
            _is_matrix_product(blob.node) and blob.shape == cell.gates[0].shape and self._is_read_here(blob, cell)
            for blob in term
        )

    def _is_read_here(self, blob: Blob, cell: CellCall) -> bool:
        """``_is_inside`` of a cell's gates, or a value that is read once."""
        return self._is_inside(blob, sum(key_of(b) == key_of(blob) for node in cell.nodes for b in node.inputs) or 1, cell)

    def _is_inside(self, blob: Blob, readers: int, cell: CellCall) -> bool:
        """Whether a call may compute a value for so many readers alone."""
        node, like = blob.node, cell.node
        return (
            len(self.readers.get(key_of(blob), ())) == readers
            and key_of(blob) not in self.roots
            and node in self.place
            and self.steps[self.place[node]] in (node, cell)  # not of a region or another call
            and node not in self.keep
            and node not in self.precision
            and node.scope.placement == like.scope.placement
            and node.run == like.run
            and not node.scope.options.get("checkpointing")
            and not any(b.is_dynamic or b.dtype is not dtypes.float32 for b in (*node.inputs, *node.outputs))
        )

    def _follows(self, cell: CellCall, after: CellCall) -> bool:
        is_last_reader = self._is_inside(cell.targets[1], 2, cell)  # its own cell and the next one
        return cell.node.attrs == after.node.attrs and is_last_reader

    def call(self, sequence: Sequence[_Step]) -> tuple[LayerCall, list[Node]] | None:
        """The call for a sequence, and nodes behind the first step that must come before it; None where there is no call."""
        first, last, recurrent = sequence[0], sequence[-1], sequence[1].product
        terms, shared = _shared_terms(sequence)
        products = [] if last.joined is not None else self._input_products(sequence, terms)
        is_joint = not last.call.form.apart
        inside = {node for step in sequence for node in (*step.call.nodes, *step.nodes)}
        multiplied: list[Blob] = []
        input_weights: Sequence[Blob] = ()
        product = None
        if products:
            terms = [[] for _ in sequence]
            multiplied, input_weights = [p[0].node.inputs[0] for p in products], [b.node.inputs[1] for b in products[0]]
            product = Product(products[0][0].node.op, tuple(products[0][0].node.attrs.items()))
            inside.update(b.node for p in products for b in p)
        elif last.joined is not None:
            multiplied = [step.joined[0] for step in sequence if step.joined is not None]
            product = Product(recurrent[0].op, tuple(recurrent[0].attrs.items()), last.joined[1])
        gates = first.call.gates[0].shape
        is_full = all(any(term[0].shape == gates for term in each) for each in terms)  # not all are broadcast
        if not multiplied and not is_full:
            return None
        by_row = is_reversed = False
        added = tuple(len(each) for each in terms)
        listed = [blob for each in terms for term in each for blob in term]
        if multiplied:
            multiplied, by_row, is_reversed = self._of_all_steps(multiplied)
        elif set(added) == {1} and is_joint:
            listed, by_row, is_reversed = self._of_all_steps(listed)
        whole = len(listed) == 1 and listed[0].ndim == 3
        given = Given(product, len(multiplied), None if whole else added, len(shared))
        state = (first.hidden, first.before) if first.hidden is not None and first.before is not None else ()
        weights = (*input_weights, *(p.inputs[1] for p in recurrent))
        inputs = (*multiplied, *listed, *state, *weights, *(blob for term in shared for blob in term))
        earlier = self._earlier(inputs, self.place[first.call.targets[1].node], inside)
        if earlier is None:
            return None
        targets = (*(step.call.targets[0] for step in sequence), last.call.targets[1])
        attrs = {"gates": last.call.form, "given": given, "has_state": bool(state), "by_row": by_row,
                 "is_reversed": is_reversed, "transposed": _is_transposed(recurrent[0])}  # fmt: skip
        outputs = [_of_all_steps(targets[0], len(sequence), by_row), targets[-1]]
        made = last.call.node.copy(op=LSTM_LAYER, inputs=inputs, attrs=attrs, outputs=outputs)
        if unsupported_reason(made, None) is not None:
            return None
        return LayerCall(made, targets, tuple(sorted(inside, key=self.order.__getitem__))), earlier

    def _input_products(self, sequence: Sequence[_Step], terms: Sequence[Sequence[Term]]) -> list[Term]:
        """The only terms of the steps, where these are products with the same weights that one call may compute."""
        if any(len(each) != 1 for each in terms):
            return []
        products = [each[0] for each in terms]
        for product, step in zip(products, sequence, strict=True):
            if not self._is_product(product, step.call) or len({key_of(b.node.inputs[0]) for b in product}) > 1:
                return []
        forms = [[_form(b.node) for b in product] for product in products]
        return products if all(form == forms[0] for form in forms) else []

    def _of_all_steps(self, blobs: list[Blob]) -> tuple[list[Blob], bool, bool]:
        """``_in_one_array`` of arrays whose gradients nobody watches."""
        return (blobs, False, False) if any(b.node in self.keep for b in blobs) else _in_one_array(blobs)

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


def _of_all_steps(state: Blob, steps: int, by_row: bool) -> Blob:
    """What resembles an array of so many states."""
    rows, width = state.shape
    shape = (rows, steps, width) if by_row else (steps, rows, width)
    return state.copy(shape=shape, batch_axis=int(not by_row) if state.batch_axis == 0 else -1)


def _is_matrix_product(node: Node) -> bool:
    times = node.op.attention(node.attrs) if node.op.attention is not None else None
    if times is None or times.kind != "product" or times.factor != 1 or times.transposed[0]:
        return False
    return all(b.ndim == 2 and b.dtype is dtypes.float32 for b in node.inputs)


def _likeness(term: Blob) -> Any:
    """What terms of several gates have in common where one call may compute them side by side."""
    node = term.node
    if not _is_matrix_product(node):
        return term.shape
    x = node.inputs[0]
    joined = (x.node.op, tuple(x.node.attrs.items()), tuple(map(key_of, x.node.inputs))) if x.node.op.lstm == "joined" else None
    return node.op, tuple(node.attrs.items()), node.inputs[1].shape, joined or key_of(x)


def _form(product: Node) -> Any:
    """What products by the same weights have in common."""
    x, weights = product.inputs
    return product.op, tuple(product.attrs.items()), key_of(weights), x.shape


def _is_transposed(product: Node) -> bool:
    """Whether the weights are (columns, rows)."""
    assert product.op.attention is not None
    times = product.op.attention(product.attrs)
    return times is not None and times.transposed[1]


def _shared_terms(sequence: Sequence[_Step]) -> tuple[list[list[Term]], list[Term]]:
    """The terms of each step apart from those of all steps, and these."""
    terms = [list(step.terms) for step in sequence]
    keys = [[_keys(term) for term in each] for each in terms]
    shared = [t for t in terms[0] if all(found.count(_keys(t)) == 1 for found in keys)]
    common = {_keys(term) for term in shared}
    return [[term for term in each if _keys(term) not in common] for each in terms], shared


def _keys(term: Term) -> tuple[Key, ...]:
    return tuple(map(key_of, term))


def _in_one_array(blobs: list[Blob]) -> tuple[list[Blob], bool, bool]:
    """The array whose steps these are, all of them, or else themselves.

    Also whether the axis of the steps is 1, and whether they come from the last one to the first.
    """
    regions: list[tuple[tuple[int, int], ...]] = []
    whole: list[Blob] = []
    for blob in blobs:
        node = blob.node
        while node.op.keeps_values and node.inputs[0].dtype is blob.dtype:  # an axis of one step that was removed
            node = node.inputs[0].node
        region, inputs = node.op.region, node.inputs[:1]
        bounds = region(node.attrs, inputs[0].shape) if region is not None and inputs[0].ndim == 3 else None
        if bounds is None or inputs[0].is_dynamic or whole and key_of(inputs[0]) != key_of(whole[0]):
            return blobs, False, False
        whole = list(inputs)
        regions.append(tuple(bounds))
    shape, (rows, columns) = whole[0].shape, blobs[0].shape
    for axis in (1, 0):
        expected: list[tuple[tuple[int, int], ...]] = []
        for step in range(len(blobs)):
            held = [(0, rows), (0, columns)]
            held.insert(axis, (step, step + 1))
            expected.append(tuple(held))
        sizes = [rows, columns]
        sizes.insert(axis, len(blobs))
        is_reversed = regions == expected[::-1] and len(regions) > 1
        if list(shape) == sizes and (regions == expected or is_reversed) and whole[0].dtype is dtypes.float32:
            return list(whole), axis == 1, is_reversed
    return blobs, False, False


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
    failed: set[CellCall] = set()
    made = list(steps)
    while True:
        search = _Search(nodes, made, keep, roots, precision)
        for sequence in search.sequences():
            first = sequence[0].call
            found = search.call(sequence) if first not in failed else None
            if found is not None:
                made = _replaced(made, search.place[first.targets[1].node], *found)
                failed.clear()  # what others get may be the result of this call
                break
            failed.add(first)
        else:
            return _without_lone_cells(made)


def _without_lone_cells(steps: Sequence[Any]) -> list[Any]:
    """The nodes again of cells that no call of several steps computes, where a call of their own gains nothing."""
    made: list[Any] = []
    for step in steps:
        is_lone = isinstance(step, CellCall) and not gains_alone(step.targets[1].shape, step.form)
        made += step.nodes if is_lone else [step]
    return made


def _replaced(steps: Sequence[Any], place: int, call: LayerCall, earlier: Sequence[Node]) -> list[Any]:
    gone = {*earlier, *call.nodes}
    rest = [s for s in steps[place:] if (s.nodes[0] if isinstance(s, CellCall) else s) not in gone]
    before = [s for s in steps[:place] if s not in gone]
    return [*before, *earlier, call, *rest]
