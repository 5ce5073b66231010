"""What int8 inference asks about the nodes of a job: who reads what, what is constant, which products can be of integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .._base import dtype as dtypes
from ..graph.graph import OP_INPUT, OP_VARIABLE
from ..graph.node import Blob, Node
from ..graph.op import IntegerGrid, IntegerProduct
from .int8_kernels import Grid
from .packed_products import Affine, inferred

Key = tuple[Node, int]
MOST_TERMS = (2**31 - 1) // (255 * 127)  # of a sum of products of uint8 and int8 that fits in 32 bits, whatever they are
# why a product stays in floating point
_ZERO_POINT_OF_WEIGHTS = "the grid of its weights has a zero point"
_WEIGHTS_FIRST, _NO_WEIGHTS = "its first factor is the one that is a variable", "both factors are computed"
_OTHER_CHANNELS = "the grids of its weights are not those of output channels"
_VARYING, _WRITTEN = "its size varies between calls", "the job changes its weights"
INSTEAD = {  # what to do about it
    _ZERO_POINT_OF_WEIGHTS: "qat.symmetric(True), and training with it: integers of weights have no zero point here",
    _WEIGHTS_FIRST: "the data first: flow.matmul(x, w), or with transpose_a and transpose_b",
    _OTHER_CHANNELS: "weights of (out, in) and flow.matmul(x, w, transpose_b=True), or one grid for the whole tensor",
    _VARYING: "a job of tp.Numpy.Placeholder, whose size is fixed",
}


def key_of(blob: Blob) -> Key:
    """What identifies a value, whichever handle of it is at hand."""
    return blob.node, blob.index


class Analysis:
    """Who reads what, what is constant, and which products can be of integers."""

    def __init__(self, order: Sequence[Node], roots: Sequence[Blob], written: set[str]):
        self.order = order
        self.roots = {key_of(b) for b in roots}
        self.readers: dict[Key, list[tuple[Node, int]]] = {}
        self.constant: set[Node] = set()
        for node in order:
            ignored = 1 if role(node) == "statistics" and details(node) is True else 0
            for i, blob in enumerate(node.inputs):
                if i >= ignored:
                    self.readers.setdefault(key_of(blob), []).append((node, i))
            if node.op is OP_VARIABLE:
                is_constant = node.attrs["variable"] not in written
            else:
                fixed = not (node.op is OP_INPUT or node.op.draws or node.op.on_host or node.op.callback)
                is_constant = fixed and all(b.node in self.constant for b in node.inputs[ignored:])
            if is_constant:
                self.constant.add(node)
        self.left: dict[Node, str] = {}  # products that stay in floating point, and why
        self.products = [node for node in order if role(node) == "product" and self._is_product(node)]

    def _is_product(self, node: Node) -> bool:
        data, weights = node.inputs
        if data.node in self.constant and weights.node in self.constant:
            return False
        reason = None
        if weights.node not in self.constant:
            is_written = weights.node.op is OP_VARIABLE  # others are constant
            reason = _WEIGHTS_FIRST if data.node in self.constant else _WRITTEN if is_written else _NO_WEIGHTS
        elif data.dtype is not dtypes.float32:
            reason = f"it is of {data.dtype.name}"
        elif any(b.is_dynamic or b.valid_length is not None for b in (data, node.outputs[0])):
            reason = _VARYING
        elif node.scope.placement.parallel_num > 1:
            reason = "it is on several devices"
        elif isinstance(found := geometry(node), str):
            reason = found
        elif (terms := math.prod(weights.shape) // weights.shape[found.weight_perm[0]]) > MOST_TERMS:
            reason = f"sums of {terms} terms may not fit in 32 bits"
        elif role(weights.node) == "grid":
            grid, scale = details(weights.node), weights.node.inputs[1]
            if not isinstance(grid, IntegerGrid) or grid.affine:
                reason = _ZERO_POINT_OF_WEIGHTS
            elif scale.shape != (1,) and found.weight_perm[0] != 0:
                reason = _OTHER_CHANNELS
        if reason is not None:
            self.left[node] = reason
        return reason is None

    def source(self, blob: Blob) -> Blob:
        """The Blob whose numbers this one holds, before they were rounded to a grid, reshaped, or the largest were taken."""
        while passes_integers(blob.node) or role(blob.node) == "grid":
            blob = blob.node.inputs[0]
        return blob

    def only_reader(self, blob: Blob) -> tuple[Node, int] | None:
        """The one node that reads a value, and the position of its input; None where something else reads it, too."""
        readers = self.readers.get(key_of(blob), [])
        return readers[0] if len(readers) == 1 and key_of(blob) not in self.roots else None

    def is_per_channel(self, end: Blob, channel: int, node: Node) -> bool:
        """Whether an op that is affine per channel is so for a product's channels, with constant coefficients.

        Args:
          end: what it reads; ``channel``: its axis of channels.
        """
        if not all(b.node in self.constant and b.ndim == 1 for b in node.inputs[1:]):
            return False
        shape = [1] * end.ndim
        shape[channel] = end.shape[channel]
        try:
            return bool(inferred(node.op, [end.copy(shape=tuple(shape)), *node.inputs[1:]], node.attrs))
        except (TypeError, ValueError):  # its axis is another one
            return False

    def observed(self) -> list[Blob]:
        """The Blobs whose ranges int8 inference needs: data of products, and terms of sums that may become residuals."""
        found: dict[Key, Blob] = {}
        for node in self.products:
            source = self.source(node.inputs[0])
            found[key_of(source)] = source
        for node in self.order:
            if role(node) == "residual" and len({b.shape for b in node.inputs}) == 1 and node.inputs[0].dtype is dtypes.float32:
                for blob in node.inputs:
                    source = self.source(blob)
                    if source.node not in self.constant:
                        found[key_of(source)] = source
        return list(found.values())

    def kept_grids(self) -> list[Node]:
        """The ops that round data to a grid of the whole tensor which depends on variables alone."""
        found = [node for node in self.order if role(node) == "grid" and node.inputs[0].node not in self.constant]
        return [n for n in found if all(b.node in self.constant and b.shape == (1,) for b in n.inputs[1:])]


def role(node: Node) -> str:
    """A node's part in int8 inference; "" where it has none."""
    return "" if node.op.int8 is None else node.op.int8.role


def details(node: Node) -> Any:
    """What ``Int8.details`` says of a node."""
    assert node.op.int8 is not None and node.op.int8.details is not None
    return node.op.int8.details(node.attrs, [b.shape for b in node.inputs])


def geometry(node: Node) -> IntegerProduct | str:
    """What a product computes, or why integers cannot."""
    found: IntegerProduct | str = details(node)
    return found


def channel_of(product: Node, geometry: IntegerProduct) -> int:
    """The axis of the channels of a product's result."""
    perm = geometry.data_perm
    return product.outputs[0].ndim - 1 if perm is None else perm[-1]


def affine(steps: Sequence[Node]) -> tuple[Affine, tuple[Blob, ...]]:
    """Ops that are affine per channel as ``packed_products.offset_and_slope`` takes them, and the constants that they read."""
    functions = tuple((n.op.define, n.attrs, len(n.inputs) - 1) for n in steps)
    return functions, tuple(b for n in steps for b in n.inputs[1:])


def passes_integers(node: Node) -> bool:
    """Whether an op's output holds elements of its first input, so that it can hold their integers."""
    if len(node.outputs) != 1 or not node.inputs or node.outputs[0].dtype is not node.inputs[0].dtype:
        return False
    return role(node) == "largest" or (node.op.keeps_values and len(node.inputs) == 1)


def grids_of(analysis: Analysis, grids: Mapping[str, Grid]) -> dict[Key, Grid]:
    """The grids by value; those that a grid op rounds to count for what it reads, as far as nothing else reads that."""
    found: dict[Key, Grid] = {}
    for node in analysis.order:
        for blob in node.outputs:
            grid = grids.get(blob.logical_blob_name)
            if grid is None:
                continue
            if role(node) != "grid":
                found[key_of(blob)] = grid
                continue
            source = node.inputs[0]
            while passes_integers(source.node) and len(analysis.readers[key_of(source.node.inputs[0])]) == 1:
                source = source.node.inputs[0]
            if role(source.node) == "rectify" and grid.zero == 128:  # a symmetric grid, of which only the upper half is used
                grid = Grid(grid.scale, 0, 0, grid.high - grid.zero)
            found[key_of(source)] = grid
    return found
