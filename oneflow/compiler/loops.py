"""Steps that repeat each other as one loop: finds what a program has unrolled, such as a recurrent network.

A loop of Python adds the same ops again and again. Where each step reads results of the one before, XLA would compile each by
itself, which takes as long as there are steps. Nodes that repeat at a fixed distance become one call (``loop_call.py``), if
they differ in nothing but what they read: weights are the same in all steps, or else it is a deep network. Where steps do not
read each other's results, the call computes them at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.dtype import dtype
from ..graph.graph import OP_INPUT, OP_VARIABLE
from ..graph.node import Blob, Node
from .int8_analysis import Key, key_of
from .joint_gradients import SHARED
from .loop_call import Join, LoopCall, Place, Source, Unit, Value, is_product_of_rows, row_inputs
from .lstm_cell import CellCall, JoinedCall
from .lstm_layer import LayerCall
from .shared import attributes

MIN_STEPS = 8  # fewer are compiled as fast one by one
MIN_NODES = 64  # that a loop must stand for
_MIN_AT_ONCE = 16  # that steps must compute which do not read each other's results
_FEW = 64  # numbers in a sum: a loop of such sums takes longer than they do
_LARGE = 1 << 17  # numbers in a result: the steps of such are long, and a loop would copy them
_SMALL = 1 << 15  # numbers in a result: to copy such to one array takes less time than to compute them one by one
_MOST = 1 << 24  # numbers in the results of all steps that are computed at once: 64 MB
_CANDIDATES = 4  # distances, and places where the first step may begin, that are tried


@dataclass(frozen=True, slots=True)
class _Repetition:
    """Steps that may repeat: of ``period`` nodes each, the first one beginning at ``begin``."""

    begin: int
    period: int
    count: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A call for so many nodes from ``begin`` on, and those of them that are computed one by one before and behind it."""

    begin: int
    count: int
    call: LoopCall
    earlier: list[Any]
    later: list[Any]


class LoopSearch:
    """Looks for loops among the steps of an arrangement.

    Args: see ``arrangement.Arrangement``; vmapped: nodes whose values have a leading axis of devices.
    """

    def __init__(
        self,
        steps: Sequence[Any],
        keep: Collection[Node],
        roots: Sequence[Blob],
        precision: Mapping[Node, dtype],
        rounded: Mapping[Node, frozenset[int]],
        vmapped: Collection[Node],
        path: Collection[Node],
    ) -> None:
        self.steps = steps
        self.keep, self.precision, self.rounded, self.vmapped, self.path = keep, precision, rounded, vmapped, path
        self.roots = {key_of(b) for b in roots}
        self.units = [_unit(step) for step in steps]
        self.position: dict[Key, int] = {}  # of the steps that compute values
        self.inside = {node: step for step in steps for node in getattr(step, "nodes", ())}  # of calls
        self.readers: dict[Key, list[int]] = {}
        cuts = (each for step in steps if isinstance(step, LayerCall) for each in step.cuts.items())
        self.cutting = {key: cut for key, cut in cuts if key[0] not in keep}  # a watched state is read by itself
        numbers: dict[Hashable, int] = {}
        self.kinds: list[int] = []
        for i, (step, unit) in enumerate(zip(steps, self.units, strict=True)):
            kind = None if unit is None else self._kind(unit)
            self.kinds.append(-1 - i if kind is None else numbers.setdefault(kind, len(numbers)))
            self.position.update((key_of(b), i) for b in (unit.outputs if unit is not None else ()))
            for blob in _read_by(step):
                self.readers.setdefault(key_of(blob), []).append(i)

    def with_loops(self) -> list[Any]:
        """The steps, with one call for steps that repeat."""
        made: dict[int, list[Any]] = {i: [step] for i, step in enumerate(self.steps)}
        begin = 0
        for found in self._loops():
            begin = found.begin + found.count
            made.update((i, []) for i in range(found.begin, begin))
            made[found.begin] = [*found.earlier, found.call, *found.later]
            made.update((self.position[join.node, 0], []) for join in found.call.joins)
        return self._needed([step for part in made.values() for step in part]) if begin else list(self.steps)

    def _kind(self, unit: Unit) -> Hashable | None:
        """What nodes have in common that may repeat each other; None for one that cannot."""
        node = unit.node
        if node.op.callback or node in self.vmapped or node.scope.options.get("checkpointing") or node in self.keep:
            return None
        shapes = tuple((b.shape, b.dtype) for b in (*node.inputs, *node.outputs))
        narrow = self.precision.get(node), self.rounded.get(node)
        return node.op, shapes, node.scope.placement, node.scope.view, node.run, narrow, node in self.path

    def _needed(self, steps: Sequence[Any]) -> list[Any]:
        """Steps without those that cut blocks for loops, which cut them themselves."""
        read, kept = set(self.roots), []
        for step in reversed(steps):
            if isinstance(step, Node) and self._is_plain(step) and not any(key_of(b) in read for b in step.outputs):
                continue
            kept.append(step)
            read.update(map(key_of, step.given if isinstance(step, LoopCall) else _read_by(step)))
        return kept[::-1]

    def _loops(self) -> Iterator[_Found]:
        """The loops, one behind the other."""
        distances = self._distances()
        ahead = Counter(distances.values())  # from ``begin`` on
        first: dict[int, _Found | None] = {}  # from ``begin`` on, by period
        begin = 0
        while True:
            periods = [period for period, _ in ahead.most_common(_CANDIDATES)]
            for period in periods:
                if period not in first:
                    loops = map(self._loop, self._repetitions(begin, period))
                    first[period] = next((loop for loop in loops if loop is not None), None)
            known = (first[period] for period in sorted(periods))
            found = min((loop for loop in known if loop is not None), key=lambda loop: loop.begin, default=None)
            if found is None:
                return
            yield found
            passed, begin = begin, found.begin + found.count
            ahead.subtract(distances[i] for i in range(passed, begin) if i in distances)
            taken = {self.position[join.node, 0] for join in found.call.joins}  # which no later loop may compute
            for place in taken:
                self.kinds[place] = -1 - place
            first = {
                period: loop for period, loop in first.items()
                if loop is None or loop.begin >= begin and taken.isdisjoint(range(loop.begin, loop.begin + loop.count))
            }  # fmt: skip

    def _distances(self) -> dict[int, int]:
        """How far behind each step the next one is that may repeat it, by the step's place."""
        places: dict[Hashable, list[int]] = {}
        for i, kind in enumerate(self.kinds):
            if kind >= 0:
                places.setdefault((kind, self._constants(i)), []).append(i)
        repeated = (found for found in places.values() if len(found) >= MIN_STEPS)
        return {a: b - a for found in repeated for a, b in zip(found, found[1:], strict=False)}

    def _repetitions(self, begin: int, period: int) -> Iterator[_Repetition]:
        """Stretches of nodes that repeat at this distance, from a step on."""
        kinds, end = self.kinds, len(self.kinds)
        i = begin
        while i + period < end:
            if kinds[i] != kinds[i + period] or kinds[i] < 0:
                i += 1
                continue
            first = i
            while i + period < end and kinds[i] == kinds[i + period] and kinds[i] >= 0:
                i += 1
            length = i - first + period
            if length >= period * MIN_STEPS:
                for phase in self._phases(first, period, length):
                    yield _Repetition(first + phase, period, (length - phase) // period)

    def _constants(self, place: int) -> tuple[Key, ...]:
        return tuple(key_of(b) for b in self._unit_at(place).node.inputs if b.node.op in (OP_VARIABLE, OP_INPUT))

    def _unit_at(self, place: int) -> Unit:
        """That of a step which is a node or an LSTM's cell."""
        unit = self.units[place]
        assert unit is not None
        return unit

    def _phases(self, first: int, period: int, length: int) -> list[int]:
        """Where steps may begin in a stretch, those before that pass the fewest values on."""
        passed = [0] * period
        for i in range(first + period, first + 2 * period):
            readers = (reader for b in self._unit_at(i).outputs for reader in self.readers.get(key_of(b), ()))
            last = max((reader for reader in readers if reader < first + length), default=-1)
            for at in range(i + 1, min(last, i + period) + 1):
                passed[(at - first) % period] += 1
        phases = [p for p in range(period) if (length - p) // period >= MIN_STEPS]
        return sorted(phases, key=lambda p: (passed[p], p))[:_CANDIDATES]

    # --- one loop

    def _loop(self, repetition: _Repetition) -> _Found | None:
        begin, period = repetition.begin, repetition.period
        if self._has_own_weights(begin, period):
            return None
        starts = range(begin, begin + period * repetition.count, period)
        copies = [[self._unit_at(start + place) for place in range(period)] for start in starts]
        place_of = {
            key_of(b): (step, (place, i))
            for step, copy in enumerate(copies) for place, unit in enumerate(copy) for i, b in enumerate(unit.outputs)
        }  # fmt: skip
        count, all_sources = len(copies), []
        for place in range(period):
            found, known = self._sources(copies, place, place_of)
            count = min(count, known)
            if count < MIN_STEPS:
                return None
            all_sources.append(found)
        added = _added_up([unit.node for unit in copies[0]], all_sources)
        core = _core(all_sources, added)
        count = min([count, *(_alike(copies, place) for place in core)])
        if count < MIN_STEPS or not set(core).isdisjoint(_behind(added, all_sources)):
            return None
        if core and _in_cycles(all_sources, range(period)) <= added:
            return None  # steps that begin elsewhere do not read each other's results
        copies = copies[:count]
        sources = [[_first_of(source, count) for source in each] for each in all_sources]
        made = self._parts(copies, sources, core, added)
        if made is None:
            return None
        return _Found(begin, count * period, *made)

    def _has_own_weights(self, begin: int, period: int) -> bool:
        """Whether the second step reads other weights than the first: it is a layer of a deep network."""
        for place in range(begin, begin + period):
            first, second = (self._unit_at(at).node.inputs for at in (place, place + period))
            pairs = zip(first, second, strict=True)
            if any(b.node is not a.node and b.node.op is OP_VARIABLE for a, b in pairs):
                return True
        return False

    def _sources(
        self, copies: Sequence[Sequence[Unit]], place: Place, place_of: Mapping[Key, tuple[int, Value]]
    ) -> tuple[list[Source], int]:
        """Where a node of each step gets its inputs from, and in how many steps that is so."""
        count, sources = len(copies), []
        for i in range(len(copies[0][place].node.inputs)):
            source, known = self._source([copy[place].node.inputs[i] for copy in copies], place_of)
            if source is None:
                return [], 0
            sources.append(source)
            count = min(count, known)
        return sources, count

    def _source(self, blobs: Sequence[Blob], place_of: Mapping[Key, tuple[int, Value]]) -> tuple[Source | None, int]:
        """Where an input comes from, and in how many steps that is so."""
        if any(isinstance(b.distribute, tuple) or b.distribute.kind != "auto" for b in blobs):
            return None, 0
        first, keys = blobs[0], [key_of(b) for b in blobs]
        known = 0
        if keys[1] in place_of:
            step, value = place_of[keys[1]]
            lag = 1 - step
            begins = keys[0] not in place_of and (first.shape, first.dtype) == (blobs[1].shape, blobs[1].dtype)
            if lag not in (0, 1) or lag and not begins:
                return None, 0
            while known < len(keys) and (known < lag or place_of.get(keys[known]) == (known - lag, value)):
                known += 1
            return (Source("carried", value, (first,)) if lag else Source("inside", value)), known
        is_same = keys[0] == keys[1]
        while known < len(keys) and keys[known] not in place_of and (keys[known] == keys[0] or not is_same):
            known += 1
        return Source("same" if is_same else "each", blobs=(first,) if is_same else tuple(blobs)), known

    def _parts(
        self, copies: Sequence[Sequence[Unit]], sources: list[list[Source]], core: Sequence[Place], added: Collection[Place]
    ) -> tuple[LoopCall, list[Any], list[Any]] | None:
        """The call, and what is computed one by one before and behind it. ``added``: the places of sums behind it."""
        period, first = len(sources), [unit.node for unit in copies[0]]
        if any(is_product_of_rows(first[p]) and sources[p][SHARED].kind == "each" for p in range(period)):
            return None
        each = (b.node for from_where in sources for s in from_where if s.kind == "each" for b in s.blobs)
        if not all(node.op is OP_INPUT or (node, 0) in self.position or node in self.inside for node in each):
            return None  # weights, of which a loop would make copies
        of_core = set(core)
        depends = _behind({*core, *added} if core else range(period), sources)  # without a loop, all is where it would be behind
        cuts = {p for p in range(period) if self._is_cut(copies, p, sources[p])}
        plain = {p for p in range(period) if self._is_plain(first[p])}
        if any(p not in plain or p in cuts or any(math.prod(b.shape) > _LARGE for b in first[p].outputs) for p in core):
            return None
        alone: set[Place] = set()  # what is computed one by one
        for place in range(period):
            if place in of_core:
                continue
            inside = [s.value[0] for s in sources[place] if s.kind == "inside"]
            numbers = len(copies) * sum(math.prod(b.shape) for b in first[place].outputs)
            is_alike = place in cuts or _is_for_all(first[place]) and _alike(copies, place) == len(copies)
            is_for_all = place in plain and place not in added and is_alike and numbers <= _MOST
            is_for_all = is_for_all and (len(core) > 0 or not first[place].op.heavy)  # those of the compiler's layouts
            if not is_for_all or place in depends and any(p in alone and p in depends for p in inside):
                alone.add(place)
        for place in reversed(range(period)):  # also what these read before the loop
            if place in alone and place not in depends:
                alone.update(s.value[0] for s in sources[place] if s.kind == "inside")
        kept = [p for p in range(period) if p not in alone]
        if (len(copies) - 1) * len(kept) < (MIN_NODES if core else _MIN_AT_ONCE):
            return None
        if not core and not self._gains_at_once(first, sources, kept):
            return None
        return self._call(copies, sources, kept, core, depends, cuts)

    def _call(
        self,
        copies: Sequence[Sequence[Unit]],
        sources: list[list[Source]],
        kept: Sequence[Place],
        core: Sequence[Place],
        depends: Collection[Place],
        cuts: Collection[Place],
    ) -> tuple[LoopCall, list[Any], list[Any]] | None:
        number = {place: i for i, place in enumerate(kept)}
        made = []
        for place in kept:
            of_node = []
            for i, source in enumerate(sources[place]):
                of, index = source.value
                if source.kind == "inside" and of not in number:  # computed one by one before
                    source = Source("each", blobs=tuple(copy[place].node.inputs[i] for copy in copies))
                elif source.kind in ("inside", "carried"):
                    source = Source(source.kind, (number[of], index), source.blobs)
                of_node.append(self._as_cuts(source) if source.kind == "each" else source)
            made.append(tuple(of_node))
        if not _begins_agree(made) or not all(s.blobs[0].dtype.is_floating_point for e in made for s in e if s.kind == "carried"):
            return None
        values = [(place, index) for place in kept for index in range(len(copies[0][place].outputs))]
        joins = [join for place, index in values for join in self._joins(copies, place, index, number[place])]
        computed = {self.position[key_of(b)] for copy in copies for place in kept for b in copy[place].outputs}
        computed.update(self.position[join.node, 0] for join in joins)
        read = {
            (number[place], index): steps
            for place, index in values
            if (steps := tuple(i for i, copy in enumerate(copies) if self._is_read(copy[place].outputs[index], computed)))
        }
        chosen = set(core)
        before = tuple(number[p] for p in kept if p not in depends)
        behind = tuple(number[p] for p in kept if p in depends and p not in chosen)
        call = LoopCall(
            tuple(tuple(copy[place] for place in kept) for copy in copies),
            tuple(made),
            frozenset(number[p] for p in cuts if p in number),
            before,
            tuple(number[p] for p in core),
            behind,
            read,
            tuple(joins),
        )
        left = [p for p in range(len(sources)) if p not in number]
        earlier = [copy[place].step for copy in copies for place in left if place not in depends]
        later = [copy[place].step for copy in copies for place in left if place in depends]
        return call, earlier, later

    def _gains_at_once(self, nodes: Sequence[Node], sources: Sequence[Sequence[Source]], kept: Sequence[Place]) -> bool:
        """Whether steps that do not read each other's results gain: they multiply by weights, or get what is in one array."""
        if any(is_product_of_rows(nodes[p]) and sources[p][SHARED].kind == "same" for p in kept):
            return True
        computing = [nodes[p] for p in kept if not (_cuts(nodes[p]) or nodes[p].op.keeps_values)]
        is_small = len(computing) > 0 and all(math.prod(b.shape) <= _SMALL for node in computing for b in node.outputs)
        each = [self._as_cuts(source) for p in kept for source in sources[p] if source.kind == "each"]
        return is_small and len(each) > 0 and all(s.kind == "cut" or len(set(map(self._origin, s.blobs))) == 1 for s in each)

    def _origin(self, blob: Blob) -> Any:
        """What the results of one call, or of steps that repeat, have in common."""
        place = self.position.get(key_of(blob))
        return self.inside.get(blob.node) if place is None else self.kinds[place]

    def _as_cuts(self, source: Source) -> Source:
        """A value for each step as blocks of one value, where it is that."""
        cuts: list[Node] = []
        reshaping: list[Node] = []
        for blob in source.blobs:
            node, passed = self._maker(blob), []
            while node.op.keeps_values and node.inputs[0].dtype is blob.dtype and self._is_plain(node):
                passed.append(node)
                node = self._maker(node.inputs[0])
            reshaping += reversed(passed)
            if not _cuts(node) or not self._is_plain(node) or cuts and key_of(node.inputs[0]) != key_of(cuts[0].inputs[0]):
                return source
            cuts.append(node)
        return Source("cut", blobs=cuts[0].inputs[:1], cuts=tuple(cuts), shape=source.blobs[0].shape, reshaping=tuple(reshaping))

    def _maker(self, blob: Blob) -> Node:
        """What makes a value; what cuts it of a larger one, if it is a state of a call."""
        return self.cutting.get(key_of(blob), blob.node)

    def _is_read(self, blob: Blob, computed: Collection[int]) -> bool:
        """Whether anything but the steps ``computed`` reads it."""
        key = key_of(blob)
        return key in self.roots or any(reader not in computed for reader in self.readers.get(key, ()))

    def _joins(self, copies: Sequence[Sequence[Unit]], place: Place, index: int, number: Place) -> list[Join]:
        """The nodes that join a result of all steps."""
        outputs = [key_of(copy[place].outputs[index]) for copy in copies]
        found = []
        for reader in dict.fromkeys(self.readers.get(outputs[0], ())):
            node = self._unit_at(reader).node if self.kinds[reader] >= 0 else None
            if node is None or not (node.op.stacks or node.op.lstm == "joined") or not self._is_plain(node):
                continue
            given = [key_of(b) for b in node.inputs]
            if given in (outputs, outputs[::-1]):
                found.append(Join(node, (number, index), node.attrs["axis"], given != outputs))
        return found

    def _is_cut(self, copies: Sequence[Sequence[Unit]], place: Place, sources: Sequence[Source]) -> bool:
        """Whether it cuts different blocks of one value."""
        node = copies[0][place].node
        if not _cuts(node) or sources[0].kind != "same" or len(node.inputs) != 1:
            return False
        return any(attributes(copy[place].node) != attributes(node) for copy in copies[1:])

    def _is_plain(self, node: Node) -> bool:
        """Whether a loop may compute it: it is a function of its inputs alone."""
        op = node.op
        special = op.random or op.callback or op.takes_mesh or op.lays_out or op.repeats
        has_gradient = [not op.is_nondifferentiable(i) for i in range(len(node.inputs))]
        blobs = (*node.inputs, *node.outputs)
        differentiated = [b for b, flows in zip(node.inputs, has_gradient, strict=True) if flows]
        differentiated += node.outputs if any(has_gradient) else ()
        is_exact = not any(b.dtype.is_floating_point for b in blobs)
        return (
            not special
            and op.host is None
            and node not in self.keep
            and (is_exact or all(b.dtype.is_floating_point for b in differentiated))
            and not any(b.is_dynamic for b in blobs)
        )


def _unit(step: Any) -> Unit | None:
    """What a loop may compute in the place of a step."""
    if isinstance(step, CellCall):
        return Unit(step, step.node, step.targets, step.nodes)
    return Unit(step, step, step.outputs, (step,)) if isinstance(step, Node) else None


def _read_by(step: Any) -> Iterator[Blob]:
    """What a step of an arrangement reads."""
    inner = () if isinstance(step, JoinedCall) else getattr(step, "nodes", ())  # its node reads all that it needs
    nodes = [*inner, step if isinstance(step, Node) else getattr(step, "node", None)]
    for node in nodes:
        if node is not None:
            yield from node.inputs
    source = getattr(step, "source", None)  # of a transpose; a node's is a line
    if isinstance(source, Blob):
        yield source


def _alike(copies: Sequence[Sequence[Unit]], place: Place) -> int:
    """In how many steps, from the first on, a node has the same attributes."""
    like = attributes(copies[0][place].node)
    return next((i for i, copy in enumerate(copies) if like is None or attributes(copy[place].node) != like), len(copies))


def _cuts(node: Node) -> bool:
    """Whether it cuts a block of its input."""
    return node.op.region is not None and node.op.region(node.attrs, node.inputs[0].shape) is not None


def _is_for_all(node: Node) -> bool:
    """Whether what it computes for one step, with an axis of steps in front, is what it computes for all of them."""
    op = node.op
    is_by_xla = op.native is None and op.gathers_rows is None and not op.of_user
    return is_by_xla or op.elementwise or _cuts(node) or bool(row_inputs(node)) or op.lstm is not None


def _first_of(source: Source, count: int) -> Source:
    return Source("each", blobs=source.blobs[:count]) if source.kind == "each" else source


def _added_up(nodes: Sequence[Node], sources: Sequence[Sequence[Source]]) -> set[Place]:
    """The places of sums of few numbers, such as losses, that are added up from step to step, and read by no other node then."""
    small = {p for p, node in enumerate(nodes) if node.op.lstm == "sum" and math.prod(node.outputs[0].shape) < _FEW}
    others = {s.value[0] for p, each in enumerate(sources) if p not in small for s in each if s.kind == "carried"}
    return _in_cycles(sources, small - others)


def _behind(places: Collection[Place], sources: Sequence[Sequence[Source]]) -> set[Place]:
    """These places, and those of nodes that depend on them in the same step."""
    found: set[Place] = set()
    for place, each in enumerate(sources):
        if place in places or any(s.kind == "inside" and s.value[0] in found for s in each):
            found.add(place)
    return found


def _core(sources: Sequence[Sequence[Source]], added: Collection[Place]) -> list[Place]:
    """The places of nodes that compute or read what is carried from step to step, and of all between them.

    ``added``: the places of sums that are added up behind the loop.
    """
    carried = [(place, s.value[0]) for place, each in enumerate(sources) for s in each if s.kind == "carried"]
    begins = {place for pair in carried if pair[0] not in added for place in pair}
    ahead = _behind(begins, sources)
    back: set[Place] = set()
    for place in reversed(range(len(sources))):
        if place in begins or place in back:
            back.add(place)
            back.update(s.value[0] for s in sources[place] if s.kind == "inside")
    return sorted(ahead & back)


def _in_cycles(sources: Sequence[Sequence[Source]], among: Collection[Place]) -> set[Place]:
    """Which places are of nodes that depend on their own results in the step before, or between such nodes."""
    left = set(among)
    reads = {place: {s.value[0] for s in sources[place] if s.kind in ("inside", "carried")} for place in left}
    while True:
        read = {place for reader in left for place in reads[reader]}
        kept = {place for place in left & read if reads[place] & left}
        if kept == left:
            return left
        left = kept


def _begins_agree(sources: Sequence[Sequence[Source]]) -> bool:
    """Whether all readers of a value of the step before get the same in the first step."""
    begins: dict[Value, Key] = {}
    carried = [s for each in sources for s in each if s.kind == "carried"]
    return all(begins.setdefault(s.value, key_of(s.blobs[0])) == key_of(s.blobs[0]) for s in carried)
