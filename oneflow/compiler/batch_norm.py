"""Batch normalization of training steps as one computation: finds it among the steps of one place, for the native part.

One call computes what an op that normalizes with the statistics of the batch computes, the addition of a residual behind it, and
a ReLU behind that, where nothing else reads what is between; a second call computes the gradients. Both read arrays whose last
axis is that of the channels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .._base import dtype as dtypes
from .._base import native as _native
from .._base.dist import auto
from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.node import Blob, Node
from ..graph.op import BatchNorm
from . import batch_norm_kernels as kernels
from .attention import AttentionCall
from .autodiff import BACKWARD_SCOPE, Backward, Propagate, located, run_nodes
from .batch_norm_kernels import Norm, Pieces
from .batch_slices import Region
from .channels_last import LayoutTranspose
from .layout import Layout
from .lowering import Draws, Values
from .lstm_cell import JoinedCall
from .native import is_native, narrowed_inputs

Key = tuple[Node, int]


def computing_node(step: Any) -> Any:
    """The node that a call of an arrangement computes in place of others; another step itself."""
    return step.node if isinstance(step, AttentionCall | JoinedCall) else step


@dataclass(frozen=True, slots=True, eq=False)
class NormCall:
    """Nodes that one call computes.

    Attributes:
      norm: what it computes.
      nodes: those that it stands for: the first normalizes; the last holds the result.
      residual: what is added, and the node that adds it; None for nothing.
      keep: nodes whose gradient is watched.
      layout: of x on several devices; None on one.
    """

    norm: Norm
    nodes: tuple[Node, ...]
    residual: tuple[Blob, Node] | None = None
    keep: Collection[Node] = ()
    layout: Layout | None = None

    @property
    def target(self) -> Blob:
        """The result."""
        return self.nodes[-1].outputs[0]

    def run(self, values: Values, draws: Draws, path: Collection[Node]) -> list[Propagate]:
        """Runs the forward pass and returns the backward pass. An observer sees the nodes one by one, as XLA computes them."""
        if values.lowering.observer is not None:
            return run_nodes(self.nodes, values, draws, path, self.keep)
        first = self.nodes[0]
        pieces = None
        if self.layout is not None:
            mesh = values.lowering.mesh(self.layout.placement)
            pieces = Pieces(mesh, self.layout.spec(1)[0], values.lowering.program, f"{first.name} {first.run}")
        x, *vectors = values.inputs(first)
        residual = None
        if self.residual is not None:
            blob, reader = self.residual
            residual = values.lowering.read(values.get_blob(blob), blob, reader).astype(self.norm.y_dtype)
        x = x.astype(self.norm.x_dtype)
        y, mean, variance, statistics = located(first, lambda: kernels.forward(self.norm, x, vectors, residual, pieces))
        values[first] = (None, mean, variance, None, None)
        values.set_blob(self.target, y.astype(self.target.dtype.numpy_dtype))
        if not any(node in path for node in self.nodes):  # the residual may be on it alone
            return []
        return [jax.tree_util.Partial(partial(self._propagate, pieces), tuple(path), x, vectors, statistics, y)]

    def _propagate(
        self, pieces: Pieces | None, path: Any, x: Any, vectors: Any, statistics: Any, y: Any, backward: Backward
    ) -> None:
        cotangents = [part.astype(y.dtype) for part in backward.in_parts(self.target, 2)]
        if not cotangents:
            return
        first, op = self.nodes[0], self.norm.op
        with jax.named_scope(BACKWARD_SCOPE):
            run = partial(kernels.backward, self.norm, x, vectors, statistics, y, cotangents, pieces)
            found = located(first, run)
        gradients = [found.x, *([found.gamma] if op.scale else []), *([found.beta] if op.center else [])]
        to = list(zip(first.inputs, gradients, strict=False))
        to += [] if self.residual is None else [(self.residual[0], found.residual)]
        for blob, gradient in to:
            if blob.node in path:
                backward.add(blob, gradient.astype(blob.dtype.numpy_dtype))


@dataclass(frozen=True, slots=True, eq=False)
class FoundNorms:
    """The batch normalization among some steps.

    Attributes:
      calls: those that the native part computes, by their last node, in whose place each stands.
      refused: by the node that normalizes, a clause that says why XLA computes it.
      unread: transposes of values that nothing reads.
      narrow_cotangents: nodes whose outputs have cotangents that were bfloat16 before.
    """

    calls: Mapping[Node, NormCall] = field(default_factory=dict)
    refused: Mapping[Node, str] = field(default_factory=dict)
    unread: Collection[LayoutTranspose] = ()
    narrow_cotangents: frozenset[Node] = frozenset()


def find_norms(
    steps: Sequence[Any],
    keep: Collection[Node],
    roots: Sequence[Blob],
    precision: Mapping[Node, dtype],
) -> FoundNorms:
    """Finds batch normalization that the native part computes.

    Args:
      steps: of one place, in the order in which they run.
      keep, roots, precision: see ``arrangement.arranged``.
    """
    present = any(isinstance(step, Node) and step.op.batch_norm is not None for step in steps)
    if not present or _native.part().library is None:
        return FoundNorms()
    return _Search(steps, keep, roots, precision).found()


def _layout_of(x: Blob, node: Node) -> Layout | str | None:
    """How the devices of a node that reads x share its rows; None for one device, or why they do not."""
    placement = node.scope.placement
    if placement.parallel_num == 1:
        return None
    if any(b.distribute != auto() for b in (x, node.outputs[0])):
        return "the job says how it is laid out on the devices"
    layout = Layout.of_batch(placement, 0)  # as inputs are
    if x.batch_axis != 0:
        return "its first axis is not that of the batch"
    if not layout.is_even(x.shape):
        return "its batch is not split evenly over the devices"
    return layout


_Reader = tuple[int, Any, int]  # the position of a step, it, and the input of it; -1 for one that is no node


class _Search:
    def __init__(
        self, steps: Sequence[Any], keep: Collection[Node], roots: Sequence[Blob], precision: Mapping[Node, dtype]
    ) -> None:
        self.steps, self.keep, self.precision = steps, keep, precision
        self.roots: set[Key] = {(b.node, b.index) for b in roots}
        self.readers: dict[Key, list[_Reader]] = {}
        self.unread: list[LayoutTranspose] = []
        for position, step in reversed(list(enumerate(steps))):  # so that what reads a transpose is known before it
            if isinstance(step, LayoutTranspose):
                target = (step.target.node, step.target.index)
                if target in self.roots or target in self.readers or step.target.node in keep:
                    self._read(step.source, (position, step, -1))
                else:
                    self.unread.append(step)
            elif isinstance(step, Region):
                for node in (*step.sliced, *step.whole):
                    for blob in node.outputs:
                        self._read(blob, (position, step, -1))
            else:
                node = computing_node(step)
                for i, blob in enumerate(node.inputs):
                    self._read(blob, (position, step, i))

    def _read(self, blob: Blob, reader: _Reader) -> None:
        self.readers.setdefault((blob.node, blob.index), []).append(reader)

    def found(self) -> FoundNorms:
        calls: dict[Node, NormCall] = {}
        refused: dict[Node, str] = {}
        inside: dict[Node, NormCall] = {}
        makers: set[Node] = set()
        for step in reversed(self.steps):  # what reads a residual in bfloat16 is known before what makes it
            if not isinstance(step, Node) or step.op.batch_norm is None:
                continue
            call = self._call(step, step.op.batch_norm(step.attrs), inside)
            if isinstance(call, str):
                refused[step] = call
                continue
            calls[call.nodes[-1]] = call
            inside.update(dict.fromkeys(call.nodes, call))
            if call.norm.x_dtype != step.inputs[0].dtype.name:
                makers.add(step.inputs[0].node)
        return FoundNorms(calls, refused, self.unread, frozenset(makers))

    def _call(self, node: Node, op: BatchNorm, inside: Mapping[Node, NormCall]) -> NormCall | str:
        x = node.inputs[0]
        if any(size != 1 for size in x.shape[op.axis + 1 :]):
            return "its channels are not on the last axis"
        if not self._may_join(node):
            return "it is recomputed, or of varying size"
        layout = _layout_of(x, node)
        if isinstance(layout, str):
            return layout
        if any(b.dtype is not dtypes.float32 for b in node.inputs[1:]):
            return "its parameters or statistics are not float32"
        if any((node, i) in self.readers or (node, i) in self.roots for i in (3, 4)):
            return "its statistics are read"
        nodes, residual, is_rectified = self._followed(node, inside)
        target = nodes[-1].outputs[0]
        channels = x.shape[op.axis]
        devices = 1 if layout is None else layout.pieces(0)
        rows = math.prod(x.shape) // channels // devices if channels else 0
        x_dtype = "bfloat16" if self._is_made_narrow(x) else x.dtype.name
        y_dtype = "bfloat16" if self._is_read_narrow(target, inside) else target.dtype.name
        norm = Norm(rows, channels, op, x_dtype, y_dtype, residual is not None, is_rectified, devices)
        reason = kernels.unsupported_reason(norm)
        return reason or NormCall(norm, tuple(nodes), residual, self.keep, layout)

    def _may_join(self, node: Node) -> bool:
        return (
            not node.scope.options.get("checkpointing")  # the backward pass computes such parts again, as a whole
            and not any(b.is_dynamic for b in (*node.inputs, *node.outputs))
        )

    def _followed(self, first: Node, inside: Mapping[Node, NormCall]) -> tuple[list[Node], tuple[Blob, Node] | None, bool]:
        """The nodes that a call computes, what it adds, and whether it rectifies."""
        nodes: list[Node] = [first]
        residual: tuple[Blob, Node] | None = None
        others = [position for i in (1, 2) for position in self._positions((first, i))]
        while True:
            end = nodes[-1].outputs[0]
            readers = self.readers.get((end.node, end.index), ())
            if len(readers) != 1 or (end.node, end.index) in self.roots or end.node in self.keep:
                return nodes, residual, False
            position, node, i = readers[0]
            if i < 0 or not isinstance(node, Node) or node in inside or min(others, default=position + 1) <= position:
                return nodes, residual, False
            made = node.outputs[0]
            same = made.shape == end.shape and made.dtype is end.dtype and node.scope.placement == first.scope.placement
            same = same and made.distribute == end.distribute
            if not (same and node.run == first.run and self._may_join(node) and node.op.int8 is not None):
                return nodes, residual, False
            if node.op.int8.role == "rectify":
                return [*nodes, node], residual, True
            if node.op.int8.role != "residual" or residual is not None:
                return nodes, residual, False
            other = node.inputs[1 - i]
            if other.shape != end.shape or other.dtype is not end.dtype:
                return nodes, residual, False
            nodes, residual = [*nodes, node], (other, node)

    def _positions(self, key: Key) -> list[int]:
        """Where a value is read, also behind a transpose."""
        found: list[int] = []
        for position, step, _ in self.readers.get(key, ()):
            target = step.target if isinstance(step, LayoutTranspose) else None
            found += [position] if target is None else self._positions((target.node, target.index))
        return found

    def _is_made_narrow(self, blob: Blob) -> bool:
        """Whether the native part computes a value in bfloat16."""
        narrow = self.precision.get(blob.node)
        kind = blob.node.op.native
        if narrow is not dtypes.bfloat16 or kind is None or kind.follows:  # which reads bfloat16 and makes float32
            return False
        return narrowed_inputs(blob.node, narrow) > 0 and is_native(blob.node, narrow)

    def _is_read_narrow(self, blob: Blob, inside: Mapping[Node, NormCall]) -> bool:
        """Whether the native part reads a value in bfloat16; it is rounded for its other readers then, too."""
        for _, step, i in self.readers.get((blob.node, blob.index), ()):
            node = computing_node(step)
            if not isinstance(node, Node):
                continue
            if node in inside:
                call = inside[node]
                if call.residual is not None and call.residual[1] is node and call.norm.y_dtype == "bfloat16":
                    return True
            else:
                narrow = self.precision.get(node)
                if narrow is dtypes.bfloat16 and i < narrowed_inputs(node, narrow):
                    return True
        return False
