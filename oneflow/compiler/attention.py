"""Attention as one computation: finds softmax(factor Q K^T + mask) V among nodes, for the native part and for cuDNN.

Programs write it as a product, scalings, a mask or a triangle that is kept, a softmax and another product. One call computes
them all where nothing else reads what is between, so that no array of queries times keys exists. Transposes that bring heads
before positions, and back, become part of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.node import Blob, Node
from ..graph.op import AttentionStep
from .attention_kernels import ATTENTION, FEW_QUERIES, HEADS_FIRST, Perm
from .autodiff import Backward, Propagate, run_nodes
from .lowering import Draws, Values
from .native import unsupported_reason

Key = tuple[Node, int]
Kernel = Callable[[Node, dtype | None], Node | str]
"""From a node that computes attention, and the dtype that its float32 arrays are cast to (None where they are not), to the node
that a kernel computes; or a clause that says why the kernel does not compute it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """Nodes that one call computes.

    Attributes:
      node: computes what ``target`` holds.
      product: the last product, of weights and values.
      target: the one value of the nodes that is read by others.
      nodes: those that it stands for.
    """

    node: Node
    product: Node
    target: Blob
    nodes: frozenset[Node]

    def run(self, values: Values, draws: Draws, path: Collection[Node]) -> list[Propagate]:
        """Runs the forward pass and returns the backward pass."""
        propagates = run_nodes([self.node], values, draws, path)
        values.set_blob(self.target, values.get_blob(self.node.outputs[0]))
        return [*propagates, jax.tree_util.Partial(self._propagate)] if propagates else []

    def _propagate(self, backward: Backward) -> None:
        cotangent = backward.get(self.target)
        if cotangent is not None:
            backward.add(self.node.outputs[0], cotangent)


@dataclass(frozen=True, slots=True)
class _Scores:
    """The steps from the products of queries and keys to what the softmax reads."""

    product: Node
    nodes: tuple[Node, ...]
    factor: float = 1.0
    mask: Blob | None = None
    sign: int = 1
    causal: tuple[int, float] | None = None


class _Search:
    """Looks for attention that ends in a given node."""

    def __init__(
        self,
        nodes: Sequence[Node],
        present: Collection[Node],
        keep: Collection[Node],
        roots: Sequence[Blob],
        path: Collection[Node],
    ):
        self.present, self.keep, self.path = present, keep, path
        self.roots: set[Key] = {(b.node, b.index) for b in roots}
        self.readers: dict[Key, list[Node]] = {}
        for node in nodes:
            for blob in node.inputs:
                self.readers.setdefault((blob.node, blob.index), []).append(node)

    def call(self, last: Node, precision: Mapping[Node, dtype], kernel: Kernel) -> AttentionCall | str | None:
        """The call that computes the product ``last`` and what leads to it.

        A clause that says why there is none where ``last`` ends attention; None where it does not.
        """
        step = _step(last)
        if step is None or step.kind != "product":
            return None
        weights = last.inputs[0]
        softmax = self._step_before(weights, "weights")
        if softmax is None:
            return self._why_no_weights(weights)
        if softmax.axis not in (-1, weights.ndim - 1):
            return None
        if step.transposed != (False, False) or step.factor != 1:
            return "its last product has a factor, or a transposed matrix"
        found = self._scores(weights.node.inputs[0])
        if found is None:
            return "its scores are not a product, then factors, an added mask and a triangle, each read by the next alone"
        if precision.get(found.product) is not precision.get(last):
            return "its two products are computed in different dtypes"
        inside = [last, weights.node, *found.nodes]
        inputs = self._packed_inputs(found, last, inside) or self._inputs(found, last, inside)
        if inputs is None:
            return "the axes of queries, keys and values are not those of (batch, heads, positions, size)"
        blobs, perms, size = inputs
        if not size and last.inputs[1].shape[-1] != found.product.inputs[0].shape[-1]:
            return "the heads of values have another size than those of queries and keys"
        mask = () if found.mask is None else (found.mask,)
        if mask and (mask[0].node in self.path or mask[0].ndim > weights.ndim):
            return "its mask has a gradient" if mask[0].node in self.path else "its mask has more axes than its scores"
        if last in self.path and weights.shape[-2] <= FEW_QUERIES:
            return "it is trained, and has few queries"  # the gradients' blocks would be almost empty
        target, perm = self._target(last, inside)
        if not self._may_join(inside):
            return "its ops are watched, recomputed, of varying size, or not on the same devices"
        attrs = {
            "perms": (*perms, perm),
            "factor": found.factor,
            "mask_sign": found.sign,
            "causal": found.causal,
            "packed": size,
        }
        made = kernel(last.copy(op=ATTENTION, inputs=(*blobs, *mask), attrs=attrs, outputs=[target]), precision.get(last))
        return made if isinstance(made, str) else AttentionCall(made, last, target, frozenset(inside))

    def _why_no_weights(self, blob: Blob) -> str | None:
        """Why a product of something that leads back to a softmax is not attention in one call; None where nothing does."""
        before = blob.node.inputs[0].node if blob.node.op.random and blob.node.inputs else None
        if before is not None and _is_softmax(before):
            return f"{blob.node.op.name} {blob.node.name!r} changes its weights"
        return "something else reads its weights" if _is_softmax(blob.node) and blob.node in self.present else None

    def _may_join(self, nodes: Sequence[Node]) -> bool:
        first = nodes[0]
        return all(
            node in self.present
            and node not in self.keep
            and node.scope.placement == first.scope.placement
            and node.run == first.run
            and not node.scope.options.get("checkpointing")  # the backward pass computes such parts again, as a whole
            and not any(b.is_dynamic for b in (*node.inputs, *node.outputs))
            for node in nodes
        )

    def _step_before(self, blob: Blob, *kinds: str) -> AttentionStep | None:
        """The step that computes a value which nothing but the next step reads; None where there is none of these kinds."""
        key = blob.node, blob.index
        if len(self.readers.get(key, ())) != 1 or key in self.roots or blob.node not in self.present:
            return None
        step = _step(blob.node)
        return step if step is not None and step.kind in kinds else None

    def _scores(self, blob: Blob) -> _Scores | None:
        """The steps that compute what a softmax reads."""
        step = self._step_before(blob, "product", "packed product", "multiple", "sum", "triangle")
        if step is None:
            return None
        node = blob.node
        if step.kind == "product":
            return _Scores(node, (node,), step.factor)
        if step.kind == "packed product":
            return _Scores(node, (node,), step.factor) if blob.index == 0 else None
        for position in (0, 1) if step.kind == "sum" and step.factor == 1 else (0,):
            if node.inputs[position].shape == blob.shape:
                before = self._scores(node.inputs[position])
                after = None if before is None else _followed(before, node, step, position)
                if after is not None:
                    return after
        return None

    def _inputs(self, found: _Scores, last: Node, inside: list[Node]) -> tuple[tuple[Blob, ...], tuple[Perm, ...], int] | None:
        """Queries, keys and values, each with the axes that hold (batch, heads, positions, size)."""
        step = _step(found.product)
        if step is None or step.kind != "product" or step.transposed[0]:
            return None
        (q, k), v = found.product.inputs, last.inputs[1]
        if not (q.ndim == k.ndim == v.ndim) or q.ndim not in (3, 4):
            return None
        if not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]):
            return None
        blobs: list[Blob] = []
        perms: list[Perm] = []
        for blob, swapped in ((q, False), (k, not step.transposed[1]), (v, False)):
            before = self._step_before(blob, "axes")
            perm = HEADS_FIRST if before is None or blob.ndim != 4 else before.perm
            perm = (*perm[:2], perm[3], perm[2]) if swapped else perm
            absorbed = before is not None and blob.ndim == 4 and perm[3] == 3
            if swapped and not absorbed:
                return None
            if absorbed:
                inside.append(blob.node)
            blobs.append(blob.node.inputs[0] if absorbed else blob)
            perms.append(perm if absorbed else HEADS_FIRST)
        return tuple(blobs), tuple(perms), 0

    def _packed_inputs(
        self, found: _Scores, last: Node, inside: list[Node]
    ) -> tuple[tuple[Blob, ...], tuple[Perm, ...], int] | None:
        """The one array of queries, keys and values."""
        step, v = _step(found.product), last.inputs[1]
        if step is None or step.kind != "packed product" or v.node is not found.product or v.index != 1:
            return None
        if self._step_before(v, "packed product") is None:
            return None
        return (found.product.inputs[0],), ((1, 2, 0, 3),) * 3, step.size

    def _target(self, last: Node, inside: list[Node]) -> tuple[Blob, Perm]:
        """The result, or a transpose of it that alone reads it, with the axes that hold (batch, heads, positions, size)."""
        result = last.outputs[0]
        readers = self.readers.get((last, 0), [])
        step = _step(readers[0]) if len(readers) == 1 and (last, 0) not in self.roots and last not in self.keep else None
        if step is None or step.kind != "axes" or result.ndim != 4 or step.perm[3] != 3 or not self._may_join([last, readers[0]]):
            return result, HEADS_FIRST
        inside.append(readers[0])
        perm = step.perm
        return readers[0].outputs[0], (perm.index(0), perm.index(1), perm.index(2), 3)


def _step(node: Node) -> AttentionStep | None:
    return None if node.op.attention is None else node.op.attention(node.attrs)


def _followed(s: _Scores, node: Node, step: AttentionStep, position: int) -> _Scores | None:
    """Scores with one more step; None where a call does not compute that order of steps."""
    nodes = (*s.nodes, node)
    if s.causal is not None:
        return None
    if step.kind == "sum":
        return None if s.mask is not None else _Scores(s.product, nodes, s.factor, node.inputs[1 - position], int(step.factor))
    if s.mask is not None and step.factor != 1:
        return None
    causal = (step.diagonal, float(step.fill)) if step.kind == "triangle" else None
    return _Scores(s.product, nodes, s.factor * step.factor, s.mask, s.sign, causal)


@dataclass(frozen=True, slots=True, eq=False)
class FoundAttention:
    """The attention among some nodes.

    Attributes:
      calls: those that a kernel computes, by the node in whose place each stands.
      refused: by the last product of any other, a clause that says why the kernel does not compute it.
    """

    calls: Mapping[Node, AttentionCall] = field(default_factory=dict)
    refused: Mapping[Node, str] = field(default_factory=dict)

    def inside(self, nodes: Collection[Node]) -> FoundAttention:
        """The calls all of whose nodes are among these."""
        return FoundAttention({at: call for at, call in self.calls.items() if call.nodes <= frozenset(nodes)})


def find_attention(
    nodes: Sequence[Node],
    present: Collection[Node],
    keep: Collection[Node],
    roots: Sequence[Blob],
    path: Collection[Node],
    precision: Mapping[Node, dtype],
    kernel: Kernel,
) -> FoundAttention:
    """Finds attention.

    Args: see ``arrangement.arranged``; present: those of the nodes that are neither copied nor part of a larger unit.
    """
    if not any(_is_softmax(node) for node in nodes):
        return FoundAttention()
    search = _Search(nodes, present, keep, roots, path)
    calls, refused = {}, {}
    for node in nodes:
        found = search.call(node, precision, kernel)
        if isinstance(found, AttentionCall):
            calls[found.target.node] = found
        elif found is not None:
            refused[node] = found
    return FoundAttention(calls, refused)


def by_native_part(node: Node, narrow: dtype | None) -> Node | str:
    """The kernel of the native part."""
    return unsupported_reason(node, narrow) or node


def of_calls(precision: Mapping[Node, dtype], calls: Collection[AttentionCall]) -> dict[Node, dtype]:
    """The dtypes of calls whose products compute in a narrower one."""
    return {call.node: precision[call.product] for call in calls if call.product in precision}


def _is_softmax(node: Node) -> bool:
    step = _step(node)
    return step is not None and step.kind == "weights"
