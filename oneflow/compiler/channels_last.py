"""Channels-last layout around convolutions that take their native lowering.

The API defaults to channels first, the kernels need channels last. Ops that follow a native convolution and support it compute
on arrays with axis 1 moved to the end, too; arrays are transposed only where such a stretch of ops begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.dist import split
from .._base.dtype import dtype
from .._base.jax import jax, jnp
from ..graph.node import Blob, Node
from ..graph.op import OpDef, moved_axis, moved_entries
from .autodiff import BACKWARD_SCOPE, Backward, Propagate
from .lowering import Values
from .native import is_native

# of nodes that only hold a transposed value: a variable's copy, for example, is read as any array, not in a declared layout
_OP_TRANSPOSED = OpDef("transposed", lambda *a, **k: None)


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTranspose:
    """The transpose of a value to channels last (``inward``) or back to channels first. None: both have one order of axes."""

    source: Blob
    target: Blob
    inward: bool | None

    def run(self, values: Values, path: Collection[Node]) -> list[Propagate]:
        """Runs the forward pass and returns the backward pass."""
        with jax.named_scope(self.source.op_name):
            values.set_blob(self.target, self._turned(values.get_blob(self.source), back=False))
        return [self._propagate] if self.source.node in path else []

    def _propagate(self, backward: Backward) -> None:
        cotangent = backward.get(self.target)
        if cotangent is not None:
            with jax.named_scope(BACKWARD_SCOPE), jax.named_scope(self.source.op_name):
                backward.add(self.source, self._turned(cotangent, back=True))

    def _turned(self, array: Any, back: bool) -> Any:
        if self.inward is None:
            return array
        inward = self.inward is not back
        is_sharded = self.source.node.scope.placement.parallel_num > 1
        return _turned_where_it_is(array.ndim, inward)(array) if is_sharded else _turned(array, inward)


def arrange(
    order: Sequence[Node],
    keep: Collection[Node],
    used_outside: Iterable[Blob],
    path: Collection[Node],
    precision: Mapping[Node, dtype],
) -> tuple[list[Node | LayoutTranspose], set[Node], dict[Node, Node]] | None:
    """Replaces nodes that benefit from it by channels-last copies, with transposes between the layouts.

    Args: see ``arrangement.arranged``.
    Returns: nodes and transposes in topological order, the nodes on the gradient path, and a mapping from nodes to their
      copies. None if no convolution is native.
    """
    chosen = _chosen(order, keep, precision)
    if not chosen:
        return None
    entered, left = _users_transposes(order, keep, chosen, precision)
    read = [*used_outside, *(b for n in order if n not in left for i, b in enumerate(n.inputs) if i not in chosen.get(n, ()))]
    needed = {(blob.node, blob.index) for blob in read}
    copies: dict[Node, Node] = {}
    items: list[Node | LayoutTranspose] = []
    longer = set(path)
    for node in order:
        positions = chosen.get(node)
        if node in left:
            (blob,) = node.inputs
            items.append(LayoutTranspose(copies[blob.node].outputs[blob.index], node.outputs[0], None))
            continue
        if positions is None:
            items.append(node)
            continue
        inputs = list(node.inputs)
        for i, blob in enumerate(node.inputs):
            if blob.node in copies and i in positions:
                inputs[i] = copies[blob.node].outputs[blob.index]
            elif i in positions:
                key = (blob.node, blob.index)
                if key not in entered:
                    output = blob.node.outputs[blob.index]
                    holder = blob.node.copy(op=_OP_TRANSPOSED, inputs=(), attrs={}, outputs=[_moved(output)])
                    entered[key] = holder.outputs[0]
                    items.append(LayoutTranspose(blob, entered[key], True))
                    if blob.node in path:
                        longer.add(entered[key].node)
                inputs[i] = entered[key]
        attrs = _attrs(node)
        assert attrs is not None
        made = copies[node] = with_channels_last(node, tuple(inputs), attrs)
        items.append(made)
        if node in path:
            longer.add(made)
        for inner, blob in zip(made.outputs, node.outputs, strict=True):
            if (node, blob.index) in needed:
                items.append(LayoutTranspose(inner, blob, False if _is_turned(blob, node) else None))
    return items, longer, copies


def _users_transposes(
    order: Sequence[Node], keep: Collection[Node], chosen: Mapping[Node, Any], precision: Mapping[Node, dtype]
) -> tuple[dict[tuple[Node, int], Blob], set[Node]]:
    """The job's own transposes between the layouts.

    Returns: Blobs that hold others, the keys, channels last; and the nodes whose output is what a copy computes.
    """
    held: dict[tuple[Node, int], Blob] = {}
    left: set[Node] = set()
    for node in order:
        step = node.op.attention(node.attrs) if node.op.attention is not None else None
        if step is None or step.kind != "axes" or node in keep or node in chosen or len(step.perm) < 3:
            continue
        (blob,) = node.inputs
        axes = tuple(range(len(step.perm)))
        same = precision.get(node) is precision.get(blob.node)
        if any(isinstance(b.distribute, tuple) or b.is_dynamic for b in (blob, node.outputs[0])):
            continue
        if step.perm == moved_entries(axes) and blob.node in chosen and _is_turned(blob, blob.node) and same:
            left.add(node)
        elif moved_entries(step.perm) == axes and blob.node not in keep and same:  # of three axes, one permutation is both
            held[(node, 0)] = blob
    return held, left


def _is_turned(blob: Blob, node: Node) -> bool:
    """Whether a copy of the node has this output of it channels last."""
    return blob.ndim == max(o.ndim for o in node.outputs) > 2


def _chosen(order: Sequence[Node], keep: Collection[Node], precision: Mapping[Node, dtype]) -> dict[Node, tuple[int, ...]]:
    """The nodes that compute on channels-last arrays, with the positions of the inputs that have this layout."""
    chosen: dict[Node, tuple[int, ...]] = {}
    any_native = False
    for node in order:
        if node in keep or node.op.random or not node.outputs:
            continue
        if any(isinstance(b.distribute, tuple) for b in (*node.inputs, *node.outputs)):  # one layout per axis of the placement
            continue
        positions = _positions(node)
        begins = is_native(node, precision.get(node)) and not (node.op.native and node.op.native.any_layout)
        if positions and (begins or _goes_on(node, positions, chosen)) and _attrs(node) is not None:
            chosen[node] = positions
            any_native |= begins
    return chosen if any_native else {}


def _goes_on(node: Node, positions: tuple[int, ...], chosen: Collection[Node]) -> bool:
    """Whether enough of its inputs have the layout. Of arrays that are joined, others would have to be turned as well."""
    turned = {i: node.inputs[i].node not in chosen for i in positions}
    if node.op.batch_inputs:
        return not all(turned.values())
    return sum(math.prod(node.inputs[i].shape) * (-1 if turned[i] else 1) for i in positions) > 0


def _attrs(node: Node) -> Any:
    return None if node.op.channels_last is None else node.op.channels_last(node.attrs, node.inputs[0].ndim)


def _positions(node: Node) -> tuple[int, ...]:
    """Positions of the inputs that have a batch and a channel axis; () if another input would broadcast along other axes."""
    rank = max((blob.ndim for blob in node.inputs), default=0)
    if rank < 3 or node.inputs[0].ndim < 3:
        return ()
    candidates = node.op.batch_inputs or tuple(i for i, b in enumerate(node.inputs) if b.ndim == rank)
    if any(node.inputs[i].ndim != rank for i in candidates) or any(b.is_dynamic for b in node.inputs):
        return ()
    return candidates


def with_channels_last(node: Node, inputs: tuple[Blob, ...], attrs: Any) -> Node:
    """A copy for channels-last arrays: in the outputs of the highest rank axis 1 is moved to the end."""
    return node.copy(inputs=inputs, attrs=attrs, outputs=[_moved(o) if _is_turned(o, node) else o for o in node.outputs])


def _moved(blob: Blob) -> Blob:
    """The Blob with axis 1 moved to the end, fields that name axes included."""
    shape, along, length = blob.shape, blob.distribute.axis, blob.valid_length
    return blob.copy(
        shape=moved_entries(shape),
        batch_axis=moved_axis(blob.batch_axis, blob.ndim),
        distribute=blob.distribute if along is None else split(moved_axis(along, blob.ndim)),
        valid_length=None if length is None else replace(length, axis=moved_axis(length.axis, blob.ndim)),
    )


_LARGE = 1 << 14  # elements; below that XLA's transpose is as fast


@lru_cache(maxsize=64)
def _turned_where_it_is(rank: int, inward: bool) -> Callable[[Any], Any]:
    """``_turned`` for arrays that are sharded in any way: each device turns its piece."""
    from jax.experimental.custom_partitioning import custom_partitioning

    def partition(mesh: Any, given: Any, result: Any) -> Any:
        spec = given[0].sharding.spec
        spec = (*spec, *(None,) * (rank - len(spec)))
        turned = (spec[0], *spec[2:], spec[1]) if inward else (spec[0], spec[-1], *spec[1:-1])
        before, after = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*s)) for s in (spec, turned))
        return mesh, _native.on_devices_of(mesh, lambda array: _turned(array, inward)), after, (before,)

    space = " ".join(f"s{i}" for i in range(rank - 2))
    first, last = f"n c {space}", f"n {space} c"
    run = custom_partitioning(lambda array: _turned(array, inward))
    rule = f"{first} -> {last}" if inward else f"{last} -> {first}"
    run.def_partition(partition=partition, infer_sharding_from_operands=None, sharding_rule=rule)
    return run


def _turned(array: Any, inward: bool) -> Any:
    """Moves axis 1 to the end (``inward``), or the last axis to position 1."""
    n, *space = array.shape[:1] + (array.shape[2:] if inward else array.shape[1:-1])
    channels = array.shape[1 if inward else -1]
    pixels = math.prod(space)
    if array.size < _LARGE or min(channels, pixels) == 1 or np.dtype(array.dtype).name not in _native.DTYPES:
        return jnp.moveaxis(array, *((1, -1) if inward else (-1, 1)))
    shape = (n, *space, channels) if inward else (n, channels, *space)
    sizes = (channels, pixels) if inward else (pixels, channels)
    return _native.call("transpose", [_native.dtype_code(array.dtype), n, *sizes], shape, array)
