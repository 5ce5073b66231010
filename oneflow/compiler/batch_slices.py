"""Convolutions on a CPU, a few samples at a time.

XLA's CPU backend spreads one convolution badly over the cores, and a whole batch of activations does not fit in their
caches. Ops that treat samples one by one (conv, bias, activation, pooling) are therefore run, forward and backward, on
slices of the batch, which XLA runs concurrently; between such regions values are whole. LeNet's step, batch 100, takes
about two thirds of the time (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.jax import jax, jnp
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, run_nodes
from .channels_last import with_channels_last
from .lowering import Values

_SAMPLES_A_SLICE = 5
_MAX_SLICES = 10
_MAX_HEAVY_CALLS = 80  # compile time grows with every copy of a convolution
_MIN_BATCH = 10


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that are run slice by slice. ``whole`` and ``sliced`` come from outside, ``exports`` are used there.

    ``exports`` are pairs: the Blob of the job, and the one that stands for it among ``nodes``, which are copies where the
    region runs channels-last. ``path`` are those of all these
    nodes that a gradient flows through.
    """

    nodes: tuple[Node, ...]
    path: frozenset[Node]
    is_channels_last: bool
    bounds: tuple[tuple[int, int], ...]
    sliced: tuple[Node, ...]
    whole: tuple[Node, ...]
    exports: tuple[tuple[Blob, Blob], ...]


def sliced_positions(node: Node) -> tuple[int, ...]:
    """The inputs of which sample i alone goes into sample i of every output; () where samples mix."""
    op = node.op
    if not op.samples or op.random or not node.outputs or not node.outputs[0].shape:
        return ()
    out = node.outputs[0]
    batch = out.shape[0]
    if any(not o.shape or o.shape[0] != batch or o.is_dynamic for o in node.outputs):
        return ()
    several = len(op.samples) > 1  # operands that broadcast: one without the batch axis is used whole
    positions = tuple(
        i for i, b in enumerate(node.inputs)
        if i in op.samples and b.shape and b.shape[0] == batch and (not several or b.ndim == out.ndim)
    )  # fmt: skip
    return positions if several or len(positions) == 1 else ()


def schedule(order: Sequence[Node], keep: set[Node], used_outside: Iterable[Blob], path: Collection[Node]) -> list[Node | Region]:
    """The nodes in an order of execution, with those that gain by it joined into regions.

    Args:
      order: nodes, inputs first.
      keep: nodes that must stay by themselves (their gradient is watched).
      used_outside: Blobs that something else than nodes reads.
      path: the nodes that a gradient flows through.
    """
    if jax.default_backend() != "cpu" or not any(node.op.heavy for node in order):
        return list(order)
    level: dict[Node, int] = {}
    positions: dict[Node, tuple[int, ...]] = {}
    for node in order:  # even levels run whole, odd ones in slices; a level needs lower ones only
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
    readers: dict[Node, set[Node]] = {}
    for node in order:
        for blob in node.inputs:
            readers.setdefault(blob.node, set()).add(node)
    fetched = {(b.node, b.index) for b in used_outside}
    steps: list[Node | Region] = []
    for (_, batch), nodes in sorted(groups.items(), key=lambda item: item[0][0]):
        region = _region(nodes, batch, positions, readers, fetched, path) if batch else None
        if region is None:
            steps.extend(nodes)
        else:
            steps.append(region)
    return steps


def _even(level: int) -> int:
    return level + level % 2


def _region(
    nodes: list[Node],
    batch: int,
    positions: dict[Node, tuple[int, ...]],
    readers: dict[Node, set[Node]],
    fetched: set[tuple[Node, int]],
    path: Collection[Node],
) -> Region | None:
    heavy = sum(node.op.heavy for node in nodes)
    if not heavy:
        return None
    count = min(_MAX_SLICES, batch // _SAMPLES_A_SLICE, _MAX_HEAVY_CALLS // heavy)
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
        outside = [r for r in readers.get(blob.node, ()) if r not in inside]
        return (blob.node, blob.index) in fetched or any(
            i.node is blob.node and i.index == blob.index for r in outside for i in r.inputs
        )

    exports = [b for node in nodes for b in node.outputs if is_exported(b)]
    edges = [batch * i // count for i in range(count + 1)]
    bounds = tuple(zip(edges, edges[1:], strict=False))
    copies, outer = _channels_last(nodes, positions), [*sliced, *whole]
    if copies is None:
        return Region(
            tuple(nodes),
            frozenset({*inside, *outer}.intersection(path)),
            False,
            bounds,
            tuple(sliced),
            tuple(whole),
            tuple((b, b) for b in exports),
        )
    pairs = tuple((b, copies[b.node].outputs[b.index]) for b in exports)
    own = frozenset({*(copies[node] for node in nodes if node in path), *{*outer}.intersection(path)})
    return Region(tuple(copies.values()), own, True, bounds, tuple(sliced), tuple(whole), pairs)


def _channels_last(nodes: list[Node], positions: dict[Node, tuple[int, ...]]) -> dict[Node, Node] | None:
    """Copies of the nodes that compute the same on arrays with axis 1 moved to the end; None where a node cannot.

    XLA's CPU convolutions work on that layout, and pooling reads whole vectors in it.
    """
    copies: dict[Node, Node] = {}
    for node in nodes:
        rank = node.outputs[0].ndim
        batched = [node.inputs[i] for i in positions[node]]
        several = len(node.op.samples) > 1 and len(batched) != len(node.inputs)  # broadcasting would meet other axes
        if rank < 3 or several or node.op.channels_last is None or any(b.ndim != rank for b in (*batched, *node.outputs)):
            return None
        if len(node.op.samples) > 1 and len({b.shape for b in batched}) > 1:
            return None
        attrs = node.op.channels_last(node.attrs, rank)
        if attrs is None:
            return None
        inputs = tuple(copies[b.node].outputs[b.index] if b.node in copies else b for b in node.inputs)
        copies[node] = with_channels_last(node, inputs, attrs)
    return copies


def run_region(region: Region, values: Values, draws: Any) -> Propagate | None:
    """Runs a region slice by slice; its exports' whole values go to ``values``.

    Both passes are functions of their own under ``jit``, so that they are traced once and not once a slice.
    """
    lowering = values.lowering.on_one_thread()
    inward, outward = (_last, _first) if region.is_channels_last else (_same, _same)

    @jax.jit
    def run_forward(whole: Any, sliced: Any) -> Any:
        local = Values(lowering)
        local.update(zip(region.whole, whole, strict=True))
        local.update({node: (array,) for node, array in zip(region.sliced, sliced, strict=True)})
        propagates = run_nodes(region.nodes, local, draws, region.path)
        return [local[inner.node][inner.index] for _, inner in region.exports], propagates

    @jax.jit
    def run_backward(propagates: list[Propagate], cotangents: list[Any]) -> Any:
        own = Backward()
        for (_, inner), cotangent in zip(region.exports, cotangents, strict=True):
            if cotangent is not None:
                own.add(inner, cotangent)
        own.run(propagates)
        to_sliced = [own.get(node.outputs[0]) for node in region.sliced]
        return [own.of_node(node) for node in region.whole], to_sliced

    whole = [values[node] for node in region.whole]
    entering = [inward(values[node][0]) for node in region.sliced]
    pieces = []
    for low, high in region.bounds:
        sliced = [array[low:high] for array in entering]
        pieces.append(run_forward(whole, sliced))
    for i, (blob, _) in enumerate(region.exports):
        present = values.get(blob.node, (None,) * len(blob.node.outputs))
        joined = outward(jnp.concatenate([exports[i] for exports, _ in pieces], axis=0))
        values[blob.node] = tuple(joined if j == blob.index else p for j, p in enumerate(present))
    if not any(propagates for _, propagates in pieces):
        return None

    def propagate(backward: Backward) -> None:
        arriving = [backward.get(blob) for blob, _ in region.exports]
        if all(cotangent is None for cotangent in arriving):
            return
        arriving = [None if c is None else inward(c) for c in arriving]
        to_whole, to_sliced = [], []
        for (low, high), (_, propagates) in zip(region.bounds, pieces, strict=True):
            own = [None if c is None else c[low:high] for c in arriving]
            gradients = run_backward(propagates, own)
            to_whole.append(gradients[0])
            to_sliced.append(gradients[1])
        for i, node in enumerate(region.whole):
            for blob in node.outputs:
                terms = [g[i][blob.index] for g in to_whole if g[i] is not None and g[i][blob.index] is not None]
                if terms:
                    backward.add(blob, _sum(terms))
        for i, node in enumerate(region.sliced):
            terms = [g[i] for g in to_sliced if g[i] is not None]
            if terms:
                backward.add(node.outputs[0], outward(jnp.concatenate(terms, axis=0)))

    return propagate


def _same(array: Any) -> Any:
    return array


def _last(array: Any) -> Any:
    return jnp.moveaxis(array, 1, -1)


def _first(array: Any) -> Any:
    return jnp.moveaxis(array, -1, 1)


def _sum(terms: list[Any]) -> Any:
    """Pairwise: as exact as one sum over the batch."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) & ~1 :]
    return terms[0]
