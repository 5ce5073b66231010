"""Convolutions on slices of the batch, for XLA's CPU backend.

XLA distributes a single convolution badly over the cores, and the activations of a whole batch do not fit in their caches.
Ops that process samples independently (convolution, bias, activation, pooling) therefore run, forward and backward, on slices
of the batch, which XLA computes concurrently. A training step of LeNet with a batch of 100 takes about two thirds of the time
(docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._base.jax import jax, jnp
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, run_nodes
from .channels_last import with_channels_last
from .lowering import Draws, Values

_SAMPLES_PER_SLICE = 5
_MAX_SLICES = 10
_MAX_HEAVY_CALLS = 80  # compile time grows with every copy of a convolution
_MIN_BATCH = 10


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that run on one slice of the batch after the other.

    Attributes:
      nodes: in topological order; copies if the region computes channels last.
      path: those of its nodes, and of the nodes that it reads, that are on the gradient path.
      is_channels_last: whether axis 1 of its arrays is moved to the end.
      bounds: begin and end of each slice on axis 0.
      sliced: nodes outside the region whose values are sliced.
      whole: nodes outside the region whose values every slice reads entirely.
      exports: Blobs that are used outside the region, each with its counterpart among ``nodes``.
    """

    nodes: tuple[Node, ...]
    path: frozenset[Node]
    is_channels_last: bool
    bounds: tuple[tuple[int, int], ...]
    sliced: tuple[Node, ...]
    whole: tuple[Node, ...]
    exports: tuple[tuple[Blob, Blob], ...]

    def run(self, values: Values, draws: Draws) -> list[Propagate]:
        """Runs the forward pass, stores the exports in ``values``, and returns the backward pass.

        The passes over a slice are jitted functions, so that they are traced once rather than once per slice.
        """

        @jax.jit
        def run_forward(whole: Any, sliced: Any) -> Any:
            local = Values(values.lowering)
            local.update(zip(self.whole, whole, strict=True))
            local.update({node: (array,) for node, array in zip(self.sliced, sliced, strict=True)})
            propagates = run_nodes(self.nodes, local, draws, self.path)
            return [local[inner.node][inner.index] for _, inner in self.exports], propagates

        whole = [values[node] for node in self.whole]
        entering = [self._inward(values[node][0]) for node in self.sliced]
        pieces = [run_forward(whole, [array[low:high] for array in entering]) for low, high in self.bounds]
        for i, (blob, _) in enumerate(self.exports):
            values.set_blob(blob, self._outward(jnp.concatenate([exports[i] for exports, _ in pieces], axis=0)))
        kept = [propagates for _, propagates in pieces]
        return [partial(self._propagate, kept)] if any(kept) else []

    def _propagate(self, kept: Sequence[list[Propagate]], backward: Backward) -> None:
        """Runs the backward pass; ``kept`` holds that of each slice."""

        @jax.jit
        def run_backward(propagates: list[Propagate], cotangents: list[Any]) -> Any:
            own = Backward()
            for (_, inner), cotangent in zip(self.exports, cotangents, strict=True):
                if cotangent is not None:
                    own.add(inner, cotangent)
            own.run(propagates)
            return [own.of_node(node) for node in self.whole], [own.get(node.outputs[0]) for node in self.sliced]

        cotangents = [backward.get(blob) for blob, _ in self.exports]
        if all(cotangent is None for cotangent in cotangents):
            return
        cotangents = [None if c is None else self._inward(c) for c in cotangents]
        to_whole, to_sliced = [], []
        for (low, high), propagates in zip(self.bounds, kept, strict=True):
            gradients = run_backward(propagates, [None if c is None else c[low:high] for c in cotangents])
            to_whole.append(gradients[0])
            to_sliced.append(gradients[1])
        for i, node in enumerate(self.whole):
            for blob in node.outputs:
                terms = [g[i][blob.index] for g in to_whole if g[i] is not None and g[i][blob.index] is not None]
                if terms:
                    backward.add(blob, _sum(terms))
        for i, node in enumerate(self.sliced):
            terms = [g[i] for g in to_sliced if g[i] is not None]
            if terms:
                backward.add(node.outputs[0], self._outward(jnp.concatenate(terms, axis=0)))

    def _inward(self, array: Any) -> Any:
        return jnp.moveaxis(array, 1, -1) if self.is_channels_last else array

    def _outward(self, array: Any) -> Any:
        return jnp.moveaxis(array, -1, 1) if self.is_channels_last else array


def sliced_positions(node: Node) -> tuple[int, ...]:
    """Positions of the inputs that can be sliced along with the outputs; () if samples mix."""
    op = node.op
    if not op.batch_inputs or op.random or not node.outputs or not node.outputs[0].shape:
        return ()
    out = node.outputs[0]
    batch = out.shape[0]
    if any(not o.shape or o.shape[0] != batch or o.is_dynamic for o in node.outputs):
        return ()
    several = len(op.batch_inputs) > 1  # operands that broadcast; one without the batch axis is not sliced
    positions = tuple(
        i for i, b in enumerate(node.inputs)
        if i in op.batch_inputs and b.shape and b.shape[0] == batch and (not several or b.ndim == out.ndim)
    )  # fmt: skip
    return positions if several or len(positions) == 1 else ()


def schedule(
    order: Sequence[Node], keep: set[Node], used_outside: Iterable[Blob], path: Collection[Node], platform: str
) -> tuple[list[Node | Region], dict[Node, Node]]:
    """Reorders nodes and joins those that benefit from slicing into regions.

    Args: see ``arrangement.arranged``.
    Returns: nodes and regions in execution order, and a mapping from nodes to the copies that regions run.
    """
    if platform != "cpu" or not any(node.op.heavy for node in order):
        return list(order), {}
    readers: dict[Node, set[Node]] = {}
    for node in order:
        for blob in node.inputs:
            readers.setdefault(blob.node, set()).add(node)
    positions, groups = _grouped(order, keep)
    used = {(b.node, b.index) for b in used_outside}
    steps: list[Node | Region] = []
    copies: dict[Node, Node] = {}
    for batch, nodes in groups:
        region = _region(nodes, batch, positions, readers, used, path, copies) if batch else None
        steps += nodes if region is None else [region]
    return steps, copies


def _grouped(
    order: Sequence[Node], keep: set[Node]
) -> tuple[dict[Node, tuple[int, ...]], list[tuple[int, list[Node]]]]:  # fmt: skip
    """The positions of each node's inputs that can be sliced, and groups of (batch size, nodes); 0 for nodes that run whole."""
    level: dict[Node, int] = {}
    positions: dict[Node, tuple[int, ...]] = {}
    for node in order:  # even levels run whole, odd ones in slices; a level depends on lower ones only
        positions[node] = found = () if node in keep else sliced_positions(node)
        if not found or node.outputs[0].shape[0] < _MIN_BATCH:
            positions[node] = ()
            level[node] = max((_even(level.get(b.node, 0)) for b in node.inputs), default=0)
        else:
            outer = [(level.get(b.node, 0), i in found) for i, b in enumerate(node.inputs)]
            sources = [n + 2 if n % 2 and not sliced else n for n, sliced in outer]
            level[node] = max(s + (s % 2 == 0) for s in sources)
    groups: dict[tuple[int, int], list[Node]] = {}
    for node in order:
        key = (level[node], node.outputs[0].shape[0] if positions[node] else 0)
        groups.setdefault(key, []).append(node)
    return positions, [(batch, nodes) for (_, batch), nodes in sorted(groups.items(), key=lambda item: item[0][0])]


def _even(level: int) -> int:
    return level + level % 2


def _region(
    nodes: list[Node],
    batch: int,
    positions: dict[Node, tuple[int, ...]],
    readers: dict[Node, set[Node]],
    used_outside: set[tuple[Node, int]],
    path: Collection[Node],
    copies: dict[Node, Node],
) -> Region | None:
    """Makes a region of a group, and adds its copies to ``copies``; None if slicing does not pay."""
    heavy = sum(node.op.heavy for node in nodes)
    count = min(_MAX_SLICES, batch // _SAMPLES_PER_SLICE, _MAX_HEAVY_CALLS // heavy) if heavy else 0
    if count < 2:
        return None
    inside = set(nodes)
    sliced: dict[Node, None] = {}
    whole: dict[Node, None] = {}
    for node in nodes:
        for i, blob in enumerate(node.inputs):
            if blob.node not in inside:
                (sliced if i in positions[node] else whole)[blob.node] = None
    if sliced.keys() & whole.keys() or any(len(n.outputs) != 1 for n in sliced):
        return None

    def is_exported(blob: Blob) -> bool:
        key = blob.node, blob.index
        outside = [r for r in readers.get(blob.node, ()) if r not in inside]
        return key in used_outside or any((i.node, i.index) == key for r in outside for i in r.inputs)

    edges = [batch * i // count for i in range(count + 1)]
    made = _channels_last(nodes, positions) or {}
    copies.update(made)

    def inner(node: Node) -> Node:
        return made.get(node, node)

    return Region(
        nodes=tuple(map(inner, nodes)),
        path=frozenset(inner(node) for node in (*nodes, *sliced, *whole) if node in path),
        is_channels_last=bool(made),
        bounds=tuple(zip(edges, edges[1:], strict=False)),
        sliced=tuple(sliced),
        whole=tuple(whole),
        exports=tuple((b, inner(node).outputs[b.index]) for node in nodes for b in node.outputs if is_exported(b)),
    )


def _channels_last(nodes: list[Node], positions: dict[Node, tuple[int, ...]]) -> dict[Node, Node] | None:
    """Copies of the nodes for channels-last arrays; None if one of the nodes does not support them.

    XLA's CPU convolutions work in that layout, and pooling reads whole vectors in it.
    """
    copies: dict[Node, Node] = {}
    for node in nodes:
        rank = node.outputs[0].ndim
        batched = [node.inputs[i] for i in positions[node]]
        several = len(node.op.batch_inputs) > 1 and len(batched) != len(node.inputs)  # broadcasting would align other axes
        if rank < 3 or several or node.op.channels_last is None or any(b.ndim != rank for b in (*batched, *node.outputs)):
            return None
        if len(node.op.batch_inputs) > 1 and len({b.shape for b in batched}) > 1:
            return None
        attrs = node.op.channels_last(node.attrs, rank)
        if attrs is None:
            return None
        inputs = tuple(copies[b.node].outputs[b.index] if b.node in copies else b for b in node.inputs)
        copies[node] = with_channels_last(node, inputs, attrs)
    return copies


def _sum(terms: list[Any]) -> Any:
    """Pairwise sum, as exact as one sum over the batch."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) & ~1 :]
    return terms[0]
