"""A job as boxes and arrows: ops folded into modules by their names, shapes on the arrows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..graph.graph import OP_INPUT, OP_VARIABLE, Graph
from ..graph.node import Blob, Node

_MOST_BOXES = 36
_LAYER = 4  # ops of a layer with bias and activation: one box, where there is a choice
INPUT, OP, MODULE, RESULT = "input", "op", "module", "result"


@dataclass(slots=True, eq=False)
class Box:
    """An input, an op, a module of several ops, or a result.

    Attributes:
      title: its name; ``lines`` more about it.
      place: the devices that it runs on, "" for results.
      tip: the ops inside, with the user's lines.
    """

    kind: str
    title: str
    lines: tuple[str, ...]
    place: str = ""
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A value that goes from one box to another; ``label`` is its dtype and shape."""

    source: Box
    target: Box
    label: str


@dataclass(slots=True)
class Diagram:
    """The boxes of a job in the order in which they are computed, and the arrows between them."""

    title: str
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    @property
    def places(self) -> list[str]:
        """The places of its boxes, in order."""
        return list(dict.fromkeys(box.place for box in self.boxes if box.place))


class _Folding:
    """Modules are the parts of names between hyphens: ``layer-0-dense-matmul`` is in ``layer-0-dense`` and in ``layer-0``."""

    def __init__(self, names: Sequence[str]):
        self._paths = {name: tuple(name.split("-")) for name in names}
        self._members = Counter(path[:n] for path in self._paths.values() for n in range(1, len(path) + 1))
        self._modules = {name: self._around(name) for name in names}

    def _around(self, name: str) -> list[str]:
        """The modules around an op, the outermost first, leaving out those that hold nothing more than one inside."""
        path, found = self._paths[name], []
        for n in range(1, len(path) + 1):
            members = self._members[path[:n]]
            inner = self._members.get(path[: n + 1], 0) if n < len(path) else 0
            if members > 1 and inner != members:
                found.append("-".join(path[:n]))
        return found

    def folded(self, opened: Collection[str]) -> dict[str, str]:
        """The box of each op, where these modules are opened."""
        return {name: next((m for m in modules if m not in opened), name) for name, modules in self._modules.items()}

    def to_depth(self, depth: int) -> dict[str, str]:
        """The box of each op, where modules at that depth are closed; 0 opens all."""
        return self.folded({m for modules in self._modules.values() for m in (modules[: depth - 1] if depth else modules)})

    def readable(self) -> dict[str, str]:
        """The box of each op, where the largest modules are opened as long as there are few boxes; layers stay closed."""
        opened: set[str] = set()
        full: set[str] = set()  # opening them makes too many boxes
        while True:
            boxes = self.folded(opened)
            sizes = Counter(boxes.values())
            closed = [m for m, size in sizes.items() if size > _LAYER and m not in full]
            if not closed:
                return boxes
            largest = max(closed, key=sizes.__getitem__)
            alike = {m for m in closed if sizes[m] == sizes[largest] and m.count("-") == largest.count("-")}  # layers of a stack
            if len(set(self.folded(opened | alike).values())) > _MOST_BOXES:
                full |= alike
            else:
                opened |= alike


def diagram(graph: Graph, results: Iterable[Blob], depth: int | None) -> Diagram:
    """The diagram of a job.

    Args:
      results: what it returns.
      depth: how many levels of modules are opened, from 1; 0 for all ops; None for as many as fit into a readable picture.
    """
    ops = [node for node in graph.nodes if node.op not in (OP_INPUT, OP_VARIABLE)]
    folding = _Folding([node.name for node in ops])
    box_of = folding.readable() if depth is None else folding.to_depth(depth)
    groups: dict[str, list[Node]] = {}
    for node in ops:
        groups.setdefault(box_of[node.name], []).append(node)
    kind = "train" if graph.train else "predict"
    made = Diagram(f"{kind} job {graph.name}")
    boxes: dict[Any, Box] = {}
    for spec in graph.inputs:
        node = spec.blob.node
        boxes[node] = Box(INPUT, spec.label, (), str(node.scope.placement), f"input at {node.source}")
        made.boxes.append(boxes[node])
    for name, nodes in groups.items():
        box = _box(name, nodes, graph)
        made.boxes.append(box)
        boxes.update(dict.fromkeys(nodes, box))
    _connect(made, ops, boxes)
    losses = {(b.node, b.index) for b in graph.objective.losses}
    for i, blob in enumerate(results):
        if blob.node in boxes:
            is_loss = (blob.node, blob.index) in losses
            losses.discard((blob.node, blob.index))
            _result(made, boxes[blob.node], blob, "loss, returned" if is_loss else f"result {i}" if i else "result")
    for node, index in losses:
        _result(made, boxes[node], node.outputs[index], "loss")
    return made


def _result(made: Diagram, source: Box, blob: Blob, title: str) -> None:
    box = Box(RESULT, title, ())
    made.boxes.append(box)
    made.arrows.append(Arrow(source, box, blob.describe()))


def _connect(made: Diagram, ops: Sequence[Node], boxes: Mapping[Any, Box]) -> None:
    seen: set[Any] = set()
    for node in ops:
        for blob in node.inputs:
            source = boxes.get(blob.node)
            key = source, boxes[node], blob.node, blob.index
            if source is None or source is boxes[node] or key in seen:
                continue
            seen.add(key)
            made.arrows.append(Arrow(source, boxes[node], blob.describe()))


def _box(name: str, nodes: Sequence[Node], graph: Graph) -> Box:
    read = {b.node.attrs["variable"] for node in nodes for b in node.inputs if b.node.op is OP_VARIABLE}
    elements = sum(prod(graph.variables[n].shape) for n in read)
    kinds = list(dict.fromkeys(node.op.name for node in nodes))
    what = ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "")
    lines = [what if len(nodes) < 4 else f"{len(nodes)} ops: {what}"]
    if elements:
        lines.append(f"{elements:,} parameters")
    tip = "\n".join(f"{n.name}: {n.op.name} -> {', '.join(b.describe() for b in n.outputs)}   {n.source}" for n in nodes[:40])
    return Box(OP if len(nodes) == 1 else MODULE, name, tuple(lines), str(nodes[0].scope.placement), tip)
