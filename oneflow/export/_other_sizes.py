"""A job described once more for other sizes, which shows what its body computes from a size.

A body sees numbers. What it makes of them, as in ``sum / x.shape[0]``, is a number in the graph, and the same for all sizes that
an exported model is given: here such ops are found, where the body can be run for other sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from .. import _signature as tp
from ..errors import ExportError
from ..graph.graph import OP_INPUT, OP_VARIABLE, Graph
from ..graph.node import Node
from ..job.building import trace
from ..job.declaration import Declaration
from ._axes import GROWING, Sizes, evaluate, is_symbolic

Axes = Mapping[str, Mapping[int, str]]  # the names of open axes, by input label and axis
_SLICED = {"slice": "slices", "slice_update": "slices", "getitem": "index"}  # ops, and the attribute that says what they take
_FACTOR = 2  # what divides the declared size divides this multiple of it


@dataclass(frozen=True, slots=True, eq=False)
class OtherSizes:
    """A second description.

    Attributes:
      graph: of the job for other sizes.
      values: the sizes, by the names of open axes.
    """

    graph: Graph
    values: Mapping[str, int]

    def twin(self, node: Node) -> Node | None:
        """The same op there."""
        found = self.graph.node(node.name)
        return found if found is not None and found.op is node.op and len(found.inputs) == len(node.inputs) else None

    def ignores_sizes(self, order: Sequence[Node]) -> bool:
        """Whether the body has numbers where it could follow its input, as in ``reshape(x, (4, -1))`` of a batch of 4.

        They are taken for the open sizes, and what the second description makes of them means nothing.
        """
        return any((twin := self.twin(node)) is not None and _has_a_number(node, twin) for node in order)

    def growing(self, order: Sequence[Node]) -> dict[Node, bool]:
        """Of constants and expanded values, whether their first size follows that of the batch."""
        made = {}
        for node in order:
            if node.op.name in GROWING and (twin := self.twin(node)) is not None:
                attribute = GROWING[node.op.name]
                made[node] = twin.attrs[attribute][:1] != node.attrs[attribute][:1]
        return made

    def check(self, graph: Graph, order: Sequence[Node], sizes: Sizes) -> None:
        """Raises ExportError for an op whose attributes or result the open sizes do not give."""
        if any(self.graph.node(node.name) is None for node in graph.nodes):
            return  # the body describes something else each time: nothing can be compared
        for node in order:
            twin = self.twin(node)
            if twin is None or node.op in (OP_INPUT, OP_VARIABLE):
                continue
            for i, blob in enumerate(twin.outputs):
                shape = tuple(evaluate(size, self.values) for size in sizes.shapes[node, i])
                if shape != blob.shape and "reshape" in node.op.name:
                    return  # it has a number that names a size
                if shape != blob.shape:
                    self._refuse(node, sizes, f"its result has shape {shape} then, and {blob.shape} as the job is described")
            for name, value in twin.attrs.items():
                mine = _resolved(sizes.attrs_of(node).get(name), self.values)
                if not _agree(name, mine, value, twin):
                    self._refuse(node, sizes, f"its {name} stays {_shown(mine)}, and is {_shown(value)} as the job is described")
        if len(self.graph.nodes) != len(graph.nodes):
            last = next(node for node in self.graph.nodes if graph.node(node.name) is None)
            self._refuse(last, sizes, "the job has it for these sizes only")

    def _refuse(self, node: Node, sizes: Sizes, rule: str) -> NoReturn:
        opened = ", ".join(f"{name} (declared {size})" for name, size in sizes.declared.items())
        given = ", ".join(f"{name}={size}" for name, size in self.values.items())
        raise ExportError(
            f"job {node.graph.name!r}: {node.op.name} {node.name!r} does not work for every {opened}: with {given}, {rule}\n"
            f"  your line  {node.source}   {node.source.text}\n"
            f"  try        an op that takes the size from its input, as reduce_mean does, or fixed sizes: dynamic_axes={{}}"
        )


def described_again(declared: Declaration, axes: Axes, sizes: Mapping[str, int]) -> OtherSizes | None:
    """The job for other sizes; None where its body cannot be run for them."""
    values = {name: _FACTOR * size for name, size in sizes.items()}

    def resized(label: str, definition: tp.InputDef) -> tp.InputDef:
        own = axes.get(label, {})
        return replace(definition, shape=tuple(values[own[i]] if i in own else n for i, n in enumerate(definition.shape)))

    parameters = tuple(replace(p, structure=tp.map_structure(resized, p.structure, p.name)) for p in declared.parameters)
    try:
        with warnings.catch_warnings(action="ignore"):  # the first description has told them
            graph, _ = trace(replace(declared, parameters=parameters))
    except Exception:  # of the body: it is written for the declared sizes
        return None
    return OtherSizes(graph, values)


def _has_a_number(node: Node, twin: Node) -> bool:
    """Whether a shape or a slice names a size of its input that is another one in the second description."""
    if node.op.name not in _SLICED and "reshape" not in node.op.name:
        return False
    before, now = node.inputs[0].shape, twin.inputs[0].shape
    if node.op.name in _SLICED:
        name = _SLICED[node.op.name]
        all_of = [_taken([(None, None, None)] * len(shape), shape) for shape in (before, now)]
        pairs = zip(_taken(node.attrs[name], before), _taken(twin.attrs[name], now), *all_of, strict=False)
        return twin.attrs[name] == node.attrs[name] and any(b == was and n != there for b, n, was, there in pairs)
    own, other = ([size for size in n.attrs["shape"] if size != 1][:1] for n in (node, twin))
    return before[:1] != now[:1] and own == other


def _resolved(value: Any, values: Mapping[str, int]) -> Any:
    """An attribute with numbers for the open sizes."""
    if isinstance(value, (tuple, list)):
        return tuple(_resolved(item, values) for item in value)
    return evaluate(value, values) if is_symbolic(value) else value


def _agree(name: str, mine: Any, theirs: Any, twin: Node) -> bool:
    """Whether two values of an attribute mean the same for the twin; True for what cannot be compared."""
    shape = twin.inputs[0].shape if twin.inputs else ()
    if _SLICED.get(twin.op.name) == name:
        return _taken(mine, shape) == _taken(theirs, shape)
    if twin.op.name == "expand" and name == "sizes":
        lead = len(mine) - len(shape)
        mine, theirs = (
            tuple(shape[i - lead] if size == -1 and i >= lead else size for i, size in enumerate(sizes))
            for sizes in (mine, theirs)
        )
    if not _is_plain(mine) or not _is_plain(theirs):
        return True
    return bool(_resolved(theirs, {}) == mine or mine != mine)  # or NaN


def _taken(entries: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    """What an index takes of each axis."""
    sizes = iter(shape)
    made: list[Any] = []
    for entry in entries:
        size = None if entry is None else next(sizes, None)
        made.append(range(size)[slice(*entry)] if isinstance(entry, (tuple, list)) and size is not None else entry)
    return made


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, np.generic))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)
