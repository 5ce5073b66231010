"""Gradients of a value that many ops cut blocks of, such as the steps of a sequence or the gates of a cell.

Each block's gradient would be padded with zeros to the size of the whole and added: for n blocks, n passes over an array of which
each changes the n-th part. Blocks that lie side by side along one axis are concatenated instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._base.jax import jnp, lax

Region = tuple[tuple[int, int], ...]  # (start, stop) of each axis


@dataclass(frozen=True, slots=True)
class Block:
    """The gradient of a region of an array of this shape."""

    shape: tuple[int, ...]
    region: Region
    gradient: Any


def total(blocks: Sequence[Block]) -> Any:
    """The sum of the blocks' gradients, as one array."""
    axis = _axis(blocks)
    if axis is None:
        rows = [_padded(block) for block in blocks]
        result = rows[0]
        for row in rows[1:]:
            result = result + row
        return result
    ordered = sorted(blocks, key=lambda block: block.region[axis])
    pieces, end = [], ordered[0].region[axis][0]
    for block in ordered:
        start, stop = block.region[axis]
        if start > end:
            sizes = [*block.gradient.shape]
            sizes[axis] = start - end
            pieces.append(jnp.zeros(sizes, block.gradient.dtype))
        pieces.append(block.gradient)
        end = stop
    region = [*ordered[0].region]
    region[axis] = ordered[0].region[axis][0], end
    return _padded(Block(ordered[0].shape, tuple(region), lax.concatenate(pieces, axis)))


def _axis(blocks: Sequence[Block]) -> int | None:
    """The axis along which the blocks lie side by side without overlaps; None if there is none."""
    first = blocks[0].region
    differing = {axis for block in blocks for axis, (a, b) in enumerate(zip(first, block.region, strict=True)) if a != b}
    if len(differing) != 1:
        return None
    (axis,) = differing
    bounds = sorted(block.region[axis] for block in blocks)
    return axis if all(low[1] <= high[0] for low, high in zip(bounds, bounds[1:], strict=False)) else None


def _padded(block: Block) -> Any:
    sizes = [(start, size - stop, 0) for (start, stop), size in zip(block.region, block.shape, strict=True)]
    if not any(low or high for low, high, _ in sizes):
        return block.gradient
    return lax.pad(block.gradient, jnp.zeros((), block.gradient.dtype), sizes)
