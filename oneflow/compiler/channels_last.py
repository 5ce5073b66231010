"""Channels last in memory, for steps whose convolutions take their native lowering.

The API's default is channels first, the kernels want channels last. From each native convolution on, ops that can compute
on arrays with axis 1 moved to the end do so; arrays are transposed where such a stretch begins and ends, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jnp
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, run_nodes
from .lowering import Values
from .native import is_native


@dataclass(frozen=True, slots=True, eq=False)
class Border:
    """A value brought from one layout into the other. ``inward``: to channels last."""

    source: Blob
    target: Blob
    inward: bool


Item = Node | Border


def arrange(
    order: Sequence[Node], keep: set[Node], used_outside: Iterable[Blob], path: Collection[Node]
) -> tuple[list[Item], set[Node]] | None:
    """The nodes, inputs first, with those that gain by it replaced by channels-last copies, and borders between.

    Args: as those of ``batch_slices.schedule``.
    Returns: the items and the gradient path among them; None where no convolution is native.
    """
    chosen = _chosen(order, keep)
    if not chosen:
        return None
    needed = {b.node for b in used_outside} | {b.node for n in order if n not in chosen for b in n.inputs}
    copies: dict[Node, Node] = {}
    entered: dict[tuple[Node, int], Blob] = {}
    items: list[Item] = []
    longer = set(path)
    for node in order:
        positions = chosen.get(node)
        if positions is None:
            items.append(node)
            continue
        inputs = list(node.inputs)
        for i, blob in enumerate(node.inputs):
            if blob.node in copies and (i in positions or blob.ndim != node.outputs[0].ndim):
                inputs[i] = copies[blob.node].outputs[blob.index]
            elif i in positions:
                key = (blob.node, blob.index)
                if key not in entered:
                    entered[key] = _copy(blob.node, (), {}, only=blob.index).outputs[0]
                    items.append(Border(blob, entered[key], True))
                    if blob.node in path:
                        longer.add(entered[key].node)
                inputs[i] = entered[key]
        attrs = _attrs(node)
        assert attrs is not None
        copy = copies[node] = _copy(node, tuple(inputs), attrs)
        items.append(copy)
        if node in path:
            longer.add(copy)
        if node in needed:
            items += [Border(made, blob, False) for made, blob in zip(copy.outputs, node.outputs, strict=True)]
    return items, longer


def _chosen(order: Sequence[Node], keep: set[Node]) -> dict[Node, tuple[int, ...]]:
    """The nodes that compute on channels-last arrays, with the positions of their inputs that are such."""
    chosen: dict[Node, tuple[int, ...]] = {}
    for node in order:
        if node in keep or node.op.random or not node.outputs or node.outputs[0].ndim < 3:
            continue
        positions = _positions(node)
        begins = node.op.native is not None and is_native(node)
        if positions and (begins or any(node.inputs[i].node in chosen for i in positions)) and _attrs(node) is not None:
            chosen[node] = positions
    return chosen if any(n.op.native is not None and is_native(n) for n in chosen) else {}


def _attrs(node: Node) -> Any:
    return None if node.op.channels_last is None else node.op.channels_last(node.attrs, node.inputs[0].ndim)


def _positions(node: Node) -> tuple[int, ...]:
    """The inputs that have samples and channels; () where another one would meet other axes."""
    rank = node.outputs[0].ndim
    if node.inputs and node.inputs[0].ndim < 3:
        return ()
    candidates = node.op.samples or tuple(i for i, b in enumerate(node.inputs) if b.ndim == rank)
    if any(node.inputs[i].ndim != rank for i in candidates) or any(b.is_dynamic for b in node.inputs):
        return ()
    return candidates


def _copy(node: Node, inputs: tuple[Blob, ...], attrs: Any, only: int | None = None) -> Node:
    copy = Node(node.graph, node.op, node.name, inputs, attrs, node.scope, node.source, compute=node.compute, run=node.run)
    rank = max(o.ndim for o in node.outputs)
    outputs = node.outputs if only is None else node.outputs[only : only + 1]
    copy.outputs = tuple(Blob(copy, i, _moved(o.shape) if o.ndim == rank else o.shape, o.dtype) for i, o in enumerate(outputs))
    return copy


def _moved(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def run(item: Item, values: Values, draws: Any, path: Collection[Node]) -> list[Propagate]:
    """Runs an item; what its backward pass does comes back."""
    if isinstance(item, Node):
        return run_nodes([item], values, draws, path)
    source, target, inward = item.source, item.target, item.inward
    same = source.ndim != target.ndim or source.shape == target.shape and not _is_image(source)
    array = values.get_blob(source)
    values.set_blob(target, array if same else _turned(array, inward))
    if source.node not in path:
        return []

    def propagate(backward: Backward) -> None:
        arrived = backward.get(target)
        if arrived is not None:
            backward.add(source, arrived if same else _turned(arrived, not inward))

    return [propagate]


_LARGE = 1 << 14  # elements: below, XLA's transposition is as good


def _turned(array: Any, inward: bool) -> Any:
    """The channels last, or second again."""
    n, *space = array.shape[:1] + (array.shape[2:] if inward else array.shape[1:-1])
    channels = array.shape[1 if inward else -1]
    pixels = math.prod(space)
    if array.size < _LARGE or min(channels, pixels) == 1 or np.dtype(array.dtype).name not in _native.DTYPES:
        return jnp.moveaxis(array, *((1, -1) if inward else (-1, 1)))
    shape = (n, *space, channels) if inward else (n, channels, *space)
    sizes = (channels, pixels) if inward else (pixels, channels)
    return _native.call("transpose", [_native.dtype_code(array.dtype), n, *sizes], shape, array)


def _is_image(blob: Blob) -> bool:
    return blob.ndim >= 3
