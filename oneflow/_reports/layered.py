"""A layered layout of boxes and arrows, from the top to the bottom (Sugiyama's method): layers, their order, coordinates."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import mean

_SWEEPS = 8
_ALIGNMENTS = 12
GAP_ACROSS, GAP_DOWN = 28.0, 46.0
_THREAD = 10.0  # the width of an arrow that passes a layer


@dataclass(slots=True, eq=False)
class _Slot:
    """A box in its layer, or a place where an arrow passes one."""

    width: float
    height: float
    layer: int
    key: Hashable = None
    x: float = 0.0  # of its centre
    above: list[_Slot] = field(default_factory=list)
    below: list[_Slot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is: the centre of each box, the points that each arrow goes through, and the size of the whole."""

    centres: dict[Hashable, tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


def lay_out(sizes: dict[Hashable, tuple[float, float]], arrows: Sequence[tuple[Hashable, Hashable]]) -> Layout:
    """Lays boxes out.

    Args:
      sizes: width and height of each box, by key, in the order in which boxes are computed.
      arrows: (source, target); one that goes against that order, because of a module around other ops, goes upwards.
    """
    layers_of = _layers(list(sizes), arrows)
    slots = {key: _Slot(w, h, layers_of[key], key) for key, (w, h) in sizes.items()}
    layers: list[list[_Slot]] = [[] for _ in range(max(layers_of.values(), default=-1) + 1)]
    for slot in slots.values():
        layers[slot.layer].append(slot)
    chains = [_chain(slots[source], slots[target], layers) for source, target in arrows]
    _order(layers)
    _place(layers)
    left = min((s.x - s.width / 2 for layer in layers for s in layer), default=0.0)
    right = max((s.x + s.width / 2 for layer in layers for s in layer), default=0.0)
    tops, top = [], 0.0
    for layer in layers:
        tops.append(top)
        top += max(s.height for s in layer) + GAP_DOWN
    middles = [y + max(s.height for s in layer) / 2 for y, layer in zip(tops, layers, strict=True)]
    centres = {s.key: (s.x - left, middles[s.layer]) for layer in layers for s in layer if s.key is not None}
    routes = []
    for chain in chains:
        route = []
        for i, slot in enumerate(chain):
            x, y = slot.x - left, middles[slot.layer]
            down = 1 if chain[-1].layer >= chain[0].layer else -1
            if i == 0:
                route.append((x, y + down * slot.height / 2))
            elif i == len(chain) - 1:
                route.append((x, y - down * slot.height / 2))
            else:
                half = max(s.height for s in layers[slot.layer]) / 2
                route += [(x, y - down * half), (x, y + down * half)]
        routes.append(route)
    return Layout(centres, routes, right - left, max(top - GAP_DOWN, 0.0))


def _layers(keys: list[Hashable], arrows: Sequence[tuple[Hashable, Hashable]]) -> dict[Hashable, int]:
    """Each box is below what it reads, as far as arrows go in the order of boxes; those that read nothing are near a reader."""
    order = {key: i for i, key in enumerate(keys)}
    forward = [(s, t) for s, t in arrows if order[s] < order[t]]
    readers: dict[Hashable, list[Hashable]] = {}
    read: dict[Hashable, list[Hashable]] = {}
    for source, target in forward:
        readers.setdefault(source, []).append(target)
        read.setdefault(target, []).append(source)
    layer: dict[Hashable, int] = {}
    for key in keys:
        layer[key] = max((layer[s] + 1 for s in read.get(key, ())), default=0)
    for key in reversed(keys):
        if not read.get(key) and readers.get(key):
            layer[key] = min(layer[t] for t in readers[key]) - 1
    return layer


def _chain(source: _Slot, target: _Slot, layers: list[list[_Slot]]) -> list[_Slot]:
    """The slots that an arrow goes through."""
    step = 1 if target.layer >= source.layer else -1
    chain = [source]
    for number in range(source.layer + step, target.layer, step):
        slot = _Slot(_THREAD, 0.0, number)
        layers[number].append(slot)
        chain.append(slot)
    chain.append(target)
    for one, other in zip(chain, chain[1:], strict=False):
        upper, lower = (one, other) if one.layer <= other.layer else (other, one)
        upper.below.append(lower)
        lower.above.append(upper)
    return chain


def _order(layers: list[list[_Slot]]) -> None:
    """Sorts layers by the means of their neighbours' positions, downwards and upwards in turn."""
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            position = {id(s): i for other in layers for i, s in enumerate(other)}

            def middle(slot: _Slot, position: dict[int, int] = position, downwards: bool = downwards) -> float:
                near = slot.above if downwards else slot.below
                return mean(position[id(s)] for s in near) if near else position[id(slot)]

            layer.sort(key=middle)


def _place(layers: list[list[_Slot]]) -> None:
    """Moves slots towards the means of their neighbours, without overlaps."""
    for layer in layers:
        x = -sum(s.width + GAP_ACROSS for s in layer) / 2
        for slot in layer:
            slot.x = x + slot.width / 2
            x += slot.width + GAP_ACROSS
    for i in range(_ALIGNMENTS):
        downwards = i % 2 == 0
        for layer in layers if downwards else reversed(layers):
            wanted = [
                mean(s.x for s in near) if (near := (slot.above if downwards else slot.below)) else slot.x for slot in layer
            ]
            _settle(layer, wanted)


def _settle(layer: list[_Slot], wanted: list[float]) -> None:
    """The positions closest to the wanted ones: slots that would overlap stand side by side around their common mean."""
    blocks: list[tuple[list[_Slot], float]] = []  # slots side by side, and the centre of the first one
    for slot, x in zip(layer, wanted, strict=True):
        blocks.append(([slot], x))
        while len(blocks) > 1 and blocks[-2][1] + _span(blocks[-2][0], blocks[-1][0][0]) > blocks[-1][1]:
            (left, at), (right, then) = blocks[-2:]
            shift = _span(left, right[0])
            start = (at * len(left) + (then - shift) * len(right)) / (len(left) + len(right))
            blocks[-2:] = [([*left, *right], start)]
    for slots, start in blocks:
        x = start
        for i, slot in enumerate(slots):
            if i:
                x += _distance(slots[i - 1], slot)
            slot.x = x


def _distance(one: _Slot, other: _Slot) -> float:
    return (one.width + other.width) / 2 + GAP_ACROSS


def _span(slots: list[_Slot], after: _Slot) -> float:
    """From the centre of the first of some slots to that of the one after them."""
    return sum(_distance(a, b) for a, b in zip(slots, [*slots[1:], after], strict=True))
