"""Open axes: the sizes of a job's values where some sizes of its inputs are left to the caller.

A body sees numbers, so what it computed from a size (``reshape(x, (batch * length, -1))``) is a number in the graph. Here each
such attribute is written again in terms of the open sizes, which are JAX's symbolic dimensions; shapes then follow from the
ops' own definitions, evaluated abstractly.
"""

from __future__ import annotations

import ast
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn

from .._base.jax import jax, jax_export
from ..errors import ExportError
from ..graph.graph import OP_INPUT, OP_VARIABLE, Input
from ..graph.node import Blob, Node

Size = Any  # an int, or a symbolic dimension
Shape = tuple[Size, ...]
Key = tuple[Node, int]


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Shapes and attributes in terms of the open sizes.

    Attributes:
      shapes: the shape of each output of each node.
      attrs: the attributes of nodes, where they differ from ``node.attrs``.
      declared: the value that each open size has in the job, by its name.
    """

    shapes: Mapping[Key, Shape]
    attrs: Mapping[Node, Mapping[str, Any]]
    declared: Mapping[str, int]

    def of(self, blob: Blob) -> Shape:
        return self.shapes[blob.node, blob.index]

    def attrs_of(self, node: Node) -> Mapping[str, Any]:
        return self.attrs.get(node, node.attrs)


def is_symbolic(value: Any) -> bool:
    """Whether an attribute's value is an open size, or made of some."""
    return bool(jax_export.is_symbolic_dim(value))


def is_open(size: Size) -> bool:
    """Whether a size depends on the caller."""
    return not isinstance(size, int)


@lru_cache(maxsize=1024)
def parsed(text: str) -> ast.expr:
    """The expression of a symbolic dimension, ``2*batch^2 + floordiv(width, 2)``, as a Python expression."""
    return ast.parse(text.replace("^", "**"), mode="eval").body


_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """A size for given values of the open ones."""
    return size if isinstance(size, int) else _evaluated(parsed(str(size)), values)


def _evaluated(e: ast.expr, values: Mapping[str, int]) -> int:
    match e:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluated(a, values) for a in args))
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluated(left, values), _evaluated(right, values)
            return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b, ast.Pow: a**b if b >= 0 else 0}[type(op)]
    raise ValueError(f"not a size: {ast.unparse(e)}")


def symbols(names: Sequence[str], least: Mapping[str, int]) -> dict[str, Size]:
    """Open sizes of these names, which may be combined with each other; ``least`` has lower bounds other than 1."""
    distinct = list(dict.fromkeys(names))
    if not distinct:
        return {}
    bounds = [f"{name} >= {least[name]}" for name in distinct if name in least]
    made = jax_export.symbolic_shape(", ".join(distinct), constraints=bounds)
    return dict(zip(distinct, made, strict=True))


def open_sizes(
    order: Sequence[Node],
    inputs: Sequence[Input],
    names: Mapping[str, Mapping[int, str]],
    growing: Mapping[Node, bool] | None = None,
) -> Sizes:
    """The shapes of a job's values if sizes of its inputs are open.

    Args:
      order: the nodes, inputs first.
      inputs: the job's inputs.
      names: for each input's label the names of its open axes.
      growing: of constants and expanded values, as far as it is known, whether their first size is that of the batch.
    Raises:
      ExportError: an op ties an open size to a number, at the user's line.
    """
    problem: ExportError | None = None
    for least in _bounds(inputs, names):
        try:
            return _open_sizes(order, inputs, names, least, growing or {})
        except ExportError as error:
            problem = problem or error
            if "is inconclusive" not in str(error):
                break
    assert problem is not None
    raise problem


def _bounds(inputs: Sequence[Input], names: Mapping[str, Mapping[int, str]]) -> Iterator[dict[str, int]]:
    """Lower bounds to try: none, then larger and larger ones, because windows may not fit into small images.

    Batches may always be as small as 1, and no bound excludes the declared size.
    """
    yield {}
    declared = {
        name: spec.shape[axis]
        for spec in inputs
        for axis, name in names.get(spec.label, {}).items()
        if axis != spec.blob.batch_axis
    }
    bound = 2
    while any(size >= bound for size in declared.values()):
        yield {name: bound for name, size in declared.items() if size >= bound}
        bound *= 2


def _open_sizes(
    order: Sequence[Node],
    inputs: Sequence[Input],
    names: Mapping[str, Mapping[int, str]],
    least: Mapping[str, int],
    growing: Mapping[Node, bool],
) -> Sizes:
    made = symbols([name for axes in names.values() for name in axes.values()], least)
    fed = {
        spec.blob.node: tuple(made[names[spec.label][i]] if i in names.get(spec.label, {}) else size
                              for i, size in enumerate(spec.shape))
        for spec in inputs
    }  # fmt: skip
    declared = {name: spec.shape[axis] for spec in inputs for axis, name in names.get(spec.label, {}).items()}
    batch = {spec.shape[0]: fed[spec.blob.node][0] for spec in inputs if 0 in names.get(spec.label, {})}
    others: frozenset[Node] = frozenset()
    problem: ExportError | None = None
    tries = [others]
    furthest = -1
    for _ in range(_MOST_WALKS):
        if not tries:
            break
        others = tries.pop(0)
        walk = _Propagation(fed, declared, batch, others, growing)
        try:
            return walk.run(order)
        except ExportError as error:
            problem = problem or error
            if walk.visited > furthest:  # the change was for the better: go on from here
                furthest = walk.visited
                near = [n for n in _above(order[walk.visited]) if _may_grow(n, batch) and n not in others and n not in growing]
                tries = [others.union(near[: i + 1]) for i in range(len(near))] + [others | {n} for n in near[1:]]
    assert problem is not None
    raise problem


GROWING = {"constant": "shape", "expand": "sizes"}  # ops whose first size may be that of the batch, and the attribute
_MOST_WALKS = 64


def _may_grow(node: Node, batch: Mapping[int, Size]) -> bool:
    """Whether the first size of a result is a number that may stand for the batch, or just happen to be the same."""
    return node.op.name in GROWING and node.attrs[GROWING[node.op.name]][0] in batch


def _above(node: Node) -> Iterator[Node]:
    """The nodes that a node depends on, nearest first."""
    seen, queue = {node}, deque([node])
    while queue:
        for blob in queue.popleft().inputs:
            if blob.node not in seen:
                seen.add(blob.node)
                queue.append(blob.node)
                yield blob.node


class _Propagation:
    """One walk over the nodes.

    A constant as large as the batch, or a variable expanded to it, has an element for each sample, most likely, and one of
    size 1 is broadcast; with the nodes in ``others`` it is the other way round. ``growing`` has what is known about some.
    """

    def __init__(
        self,
        fed: Mapping[Node, Shape],
        declared: Mapping[str, int],
        batch: Mapping[int, Size],
        others: Collection[Node],
        growing: Mapping[Node, bool],
    ):
        self.fed = fed
        self.declared = declared
        self.batch = batch
        self.others = others
        self.growing = growing
        self.visited = 0  # the number of the current node
        self.shapes: dict[Key, Shape] = {}
        self.attrs: dict[Node, Mapping[str, Any]] = {}
        # of axes that were joined of several: what they were joined of, the slowest first, as (size, declared size)
        self.parts: dict[tuple[Node, int, int], list[tuple[Size, int]]] = {}

    def run(self, order: Sequence[Node]) -> Sizes:
        with jax.enable_x64(True):
            for self.visited, node in enumerate(order):
                self._visit(node)
        return Sizes(self.shapes, self.attrs, self.declared)

    def _visit(self, node: Node) -> None:
        if node.op is OP_INPUT:
            self.shapes[node, 0] = self.fed.get(node, node.outputs[0].shape)
            return
        given = [self.shapes[b.node, b.index] for b in node.inputs]
        grown = self.first_size(node) is not None
        if node.op is OP_VARIABLE or not (grown or any(is_open(size) for shape in given for size in shape)):
            self.shapes.update({(node, i): b.shape for i, b in enumerate(node.outputs)})
            return
        attrs = node.attrs
        rule = _ATTRIBUTES.get(node.op.name)
        if rule is not None:
            attrs = rule(self, node, given)
            if attrs is not node.attrs:
                self.attrs[node] = attrs
        structs = [jax.ShapeDtypeStruct(shape, b.dtype.numpy_dtype) for shape, b in zip(given, node.inputs, strict=True)]
        problem = ""
        try:
            made = jax.eval_shape(partial(node.op.define, **attrs), *structs)
        except Exception as error:
            problem = (str(error) or type(error).__name__).splitlines()[0]
        if problem:  # outside the handler: JAX's own traceback would bury the message
            self.fail(node, problem)
        for i, (found, blob) in enumerate(zip(made if node.op.multiple_results else (made,), node.outputs, strict=True)):
            self.shapes[node, i] = shape = tuple(found.shape)
            if tuple(evaluate(size, self.declared) for size in shape) != blob.shape:
                self.fail(node, f"its result would have shape ({', '.join(map(str, shape))}), which is not {blob.shape} for the "
                                "declared sizes")  # fmt: skip
            self._remember_parts(node, i, shape)

    def first_size(self, node: Node) -> Size | None:
        """The batch's open size, if that is what the first size of a constant or an expanded value stands for."""
        if not _may_grow(node, self.batch):
            return None
        first = node.attrs[GROWING[node.op.name]][0]
        return self.batch[first] if self.growing.get(node, (first > 1) != (node in self.others)) else None

    def _remember_parts(self, node: Node, index: int, shape: Shape) -> None:
        """An axis that has the size of an input's joined axis is that axis."""
        known = {
            str(self.shapes[b.node, b.index][axis]): parts
            for b in node.inputs
            for axis in range(b.ndim)
            if (parts := self.parts.get((b.node, b.index, axis))) is not None
        }
        for axis, size in enumerate(shape if known else ()):
            if is_open(size) and str(size) in known and (node, index, axis) not in self.parts:
                self.parts[node, index, axis] = known[str(size)]

    def fail(self, node: Node, rule: str) -> NoReturn:
        opened = ", ".join(f"{name} (declared {size})" for name, size in self.declared.items())
        rows = [f"job {node.graph.name!r}: {node.op.name} {node.name!r} does not work for every {opened}: {rule}"]
        for i, b in enumerate(node.inputs):
            sizes = ", ".join(map(str, self.shapes[b.node, b.index]))
            rows.append(f"  inputs[{i}]  {b.op_name}   {b.dtype.name}[{sizes}]   made at {b.source}")
        rows.append(f"  your line  {node.source}   {node.source.text}")
        rows.append("  try        sizes that follow from x.shape, or fixed sizes: dynamic_axes={}")
        raise ExportError("\n".join(rows))


# --- attributes that are sizes


def _reshape(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    blob = node.inputs[0]
    factors: list[tuple[Size, int]] = []
    for axis, (size, declared) in enumerate(zip(given[0], blob.shape, strict=True)):
        factors += walk.parts.get((blob.node, blob.index, axis)) or [(size, declared)]
    target: Sequence[int] = node.attrs["shape"]
    groups = _regrouped(factors, target)
    if groups is None:
        joined = [f"{size} ({declared})" if is_open(size) else str(size) for size, declared in factors]
        walk.fail(node, f"its shape {list(target)} cuts an open size in pieces: [{', '.join(joined)}]")
    for axis, group in enumerate(groups):
        if len(group) > 1 and any(is_open(size) for size, _ in group):
            walk.parts[node, 0, axis] = group
    return {**node.attrs, "shape": tuple(math.prod((size for size, _ in group), start=1) for group in groups)}


def _regrouped(factors: list[tuple[Size, int]], target: Sequence[int]) -> list[list[tuple[Size, int]]] | None:
    """The factors, in order, whose product is each size of the target. None where an open one would be cut.

    >>> _regrouped([(batch, 8), (32, 32), (64, 64)], (256, 64))   # [[(batch, 8), (32, 32)], [(64, 64)]]
    """
    rest = [f for f in reversed(factors) if is_open(f[0]) or f[1] != 1]
    groups: list[list[tuple[Size, int]]] = []
    for wanted in target:
        group: list[tuple[Size, int]] = []
        groups.append(group)
        left = wanted
        if wanted == 1 and rest and rest[-1][1] == 1:
            group.append(rest.pop())
        while left > 1:
            if not rest:
                return None
            size, declared = rest.pop()
            if left % declared == 0:
                group.append((size, declared))
                left //= declared
                continue
            part = math.gcd(left, declared)
            inner = declared // part
            if part == 1 or part != left:
                return None
            if is_open(size):  # 32*batch into (batch, 32): the open part comes first
                quotient, remainder = divmod(size, inner)
                if not (isinstance(remainder, int) and remainder == 0):
                    return None
                size = quotient
            else:
                size = part
            group.append((size, part))
            rest.append((inner, inner))
            left = 1
    if any(declared != 1 for _, declared in rest):
        return None
    for leftover in reversed(rest):  # open ones that are declared as 1
        groups[-1].append(leftover)
    return groups


def _dynamic_reshape(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    return {**_reshape(walk, node, given), "bound": given[0]}


def _expand(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    sizes, offset = node.attrs["sizes"], len(node.attrs["sizes"]) - len(given[0])
    if offset or given[0][0] == 1:
        sizes = (walk.first_size(node) or sizes[0], *sizes[1:])
    return {**node.attrs, "sizes": tuple(
        -1 if i >= offset and is_open(given[0][i - offset]) and size == node.inputs[0].shape[i - offset] else size
        for i, size in enumerate(sizes)
    )}  # fmt: skip


def _constant(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    first, *rest = node.attrs["shape"]
    return {**node.attrs, "shape": (walk.first_size(node) or first, *rest)}


def _static(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    return {**node.attrs, "bound": given[0]}


def _whole(triple: Any, size: Size, declared: int) -> Any:
    """A slice of an open axis; one that takes all that was declared takes all that comes."""
    if not is_open(size):
        return triple
    start, stop, step = triple
    chosen = range(declared)[slice(start, stop, step)]
    if len(chosen) == declared:
        return (None, None, chosen.step if chosen.step != 1 else None)
    if (step is None or step > 0) and stop is not None and stop >= declared:
        stop = None
    return (start, stop, step)


def _slices(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    declared = node.inputs[0].shape
    slices = tuple(_whole(t, s, d) for t, s, d in zip(node.attrs["slices"], given[0], declared, strict=False))
    return {**node.attrs, "slices": slices}


def _getitem(walk: _Propagation, node: Node, given: Sequence[Shape]) -> Mapping[str, Any]:
    sizes = iter(zip(given[0], node.inputs[0].shape, strict=True))
    index: list[Any] = []
    for entry in node.attrs["index"]:
        if entry is None:
            index.append(entry)
            continue
        size, declared = next(sizes)
        index.append(_whole(entry, size, declared) if isinstance(entry, tuple) else entry)
    return {**node.attrs, "index": tuple(index)}


_ATTRIBUTES: Mapping[str, Callable[[_Propagation, Node, Sequence[Shape]], Mapping[str, Any]]] = {
    "reshape": _reshape,
    "dynamic_reshape": _dynamic_reshape,
    "expand": _expand,
    "constant": _constant,
    "cast_to_static_shape": _static,
    "slice": _slices,
    "slice_update": _slices,
    "getitem": _getitem,
}
