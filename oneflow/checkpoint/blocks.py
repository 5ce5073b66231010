"""The position of a block of a tensor in a file that holds the whole tensor, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np


class Runs(NamedTuple):
    """A block of a tensor in a file: stretches of ``length`` bytes at ``offsets``, in the block's own order."""

    offsets: list[int]
    length: int

    @property
    def is_contiguous(self) -> bool:
        return len(self.offsets) <= 1


def runs_of(shape: Sequence[int], start: Sequence[int], extent: Sequence[int], itemsize: int) -> Runs:
    """The stretches of the block that begins at index ``start`` and has the shape ``extent``, in a tensor of ``shape``."""
    if 0 in extent:
        return Runs([], 0)
    strides = [itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axis = len(shape)
    while axis > 0 and (axis == len(shape) or extent[axis] == shape[axis]):
        axis -= 1  # of all axes behind it the block has everything
    offsets = np.array([sum(a * s for a, s in zip(start, strides, strict=True))], np.int64)
    for outer in range(axis):
        offsets = (offsets[:, None] + np.arange(extent[outer], dtype=np.int64) * strides[outer]).reshape(-1)
    return Runs(offsets.tolist(), itemsize * prod(extent[axis:]))
