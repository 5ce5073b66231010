"""Unrolling of repeated parts of a job: one copy of each node per run.

The copies of a node differ in the Blobs they read. A variable that a repeated part assigns (moving statistics) is passed from
one run to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from .._base.dist import auto
from .._base.jax import jnp
from ..graph.node import Blob, Node
from ..graph.op import OpDef

Index = tuple[int, ...]
Shape = tuple[int, ...]
_JOIN = OpDef("join_runs", lambda *pieces: jnp.concatenate(pieces))


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """The nodes of a job with repeated parts unrolled.

    Attributes:
      order: the nodes, in topological order.
      copies: the copies of each node that was unrolled, one per run.
    """

    order: tuple[Node, ...] = ()
    copies: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)

    def each(self, blob: Blob) -> tuple[Blob, ...]:
        """The copies of a Blob, one per run, or the Blob itself."""
        made = self.copies.get(blob.node)
        return (blob,) if made is None else tuple(_handle(node, blob) for node in made)

    def last(self, blob: Blob) -> Blob:
        """The copy of a Blob in the last run."""
        return self.each(blob)[-1]


def expand(order: Sequence[Node], assigns: Mapping[str, Blob], returned: Iterable[Blob]) -> tuple[Expansion, list[Blob]]:
    """Unrolls repeated parts.

    Args:
      order: the nodes, in topological order.
      assigns: the Blobs that are stored into variables, by the variables' names.
      returned: the Blobs that the job returns.
    Returns: the expansion, and the Blobs to return; Blobs of repeated parts are concatenated over the runs along axis 0.
    """
    returned = list(returned)
    if not any(node.repetition for node in order):
        return Expansion(tuple(order), {}), returned
    made: dict[tuple[Node, Index], Node] = {}
    for node in order:
        for index in _indices(node.repetition):
            made[node, index] = _copy(node, index, made)
    _chain(order, assigns, made)
    copies = {node: tuple(made[node, i] for i in _indices(node.repetition)) for node in order}
    copies = {node: nodes for node, nodes in copies.items() if nodes != (node,)}
    expansion = Expansion((), copies)
    given = [_joined(expansion.each(blob)) for blob in returned]
    early = [node for node in made.values() if not node.run and not _reads_runs(node)]
    runs = [node for _, node in sorted(made.items(), key=lambda item: item[0][1]) if node.run]  # run after run
    return Expansion(_sorted([*early, *runs, *made.values(), *(b.node for b in given)]), copies), given


def _reads_runs(node: Node) -> bool:
    stack, seen = [node], {node}
    while stack:
        at = stack.pop()
        if at.run:
            return True
        fresh = {b.node for b in at.inputs} - seen
        seen |= fresh
        stack.extend(fresh)
    return False


def _indices(counts: tuple[int, ...]) -> Iterable[Index]:
    return product(*map(range, counts))


def _handle(node: Node, like: Blob) -> Blob:
    return node.outputs[like.index].with_distribute(like.distribute)


def _copy(node: Node, index: Index, made: Mapping[tuple[Node, Index], Node]) -> Node:
    def read(blob: Blob) -> Blob:
        found = made.get((blob.node, index[: len(blob.node.repetition)]))
        return blob if found is None else _handle(found, blob)

    changes: dict[str, Any] = {}
    attrs = node.attrs
    rule = node.op.repeats
    count = 1 if rule is None else rule.runs(attrs)
    if rule is not None and not rule.begins and count > 1:
        inner = node.inputs[0].node.repetition
        if len(inner) == len(node.repetition):  # the repetition continues with fewer runs
            indices = [(*index[:-1], index[-1] * count + i) for i in range(count)]
        else:
            indices = [(*index, i) for i in range(count)]
        changes["inputs"] = tuple(_handle(made[node.inputs[0].node, i], node.inputs[0]) for i in indices)
    elif rule is not None and rule.cuts and count > 1:
        changes["attrs"] = {**attrs, "index": index[-1]}
    inputs = changes.get("inputs") or tuple(map(read, node.inputs))
    if not index and [b.node for b in inputs] == [b.node for b in node.inputs]:
        return node
    run = index[:-1] if rule is not None and rule.cuts else index  # all pieces are cut at once
    return node.copy(read, **changes, repetition=(), run=run)


def _joined(blobs: Sequence[Blob]) -> Blob:
    if len(blobs) == 1:
        return blobs[0]
    first = blobs[0]
    joined = first.copy(shape=(sum(b.shape[0] for b in blobs), *first.shape[1:]), distribute=auto(), valid_length=None)
    return first.node.copy(op=_JOIN, attrs={}, inputs=tuple(blobs), outputs=[joined], run=()).outputs[0]


def _chain(order: Sequence[Node], assigns: Mapping[str, Blob], made: Mapping[tuple[Node, Index], Node]) -> None:
    """Makes each run read the values that the previous run assigned."""
    for name, blob in assigns.items():
        runs = list(_indices(blob.node.repetition))
        for before, run in zip(runs, runs[1:], strict=False):
            value = _handle(made[blob.node, before], blob)
            for node in order:
                if node.repetition == blob.node.repetition:
                    copy = made[node, run]
                    copy.inputs = tuple(value if b.node.attrs.get("variable") == name else b for b in copy.inputs)


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Topological order, which keeps the given order where it can."""
    out: dict[Node, None] = {}
    for start in nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            missing = [b.node for b in node.inputs if b.node not in out]
            if node in out:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                out[stack.pop()] = None
    return tuple(out)
