"""The contents of a checkpoint: variables, as blocks that the processes of a run have."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from .._base.dtype import dtype as Dtype
from .._base.dtype import from_numpy
from ..errors import ArgumentError, CheckpointError
from .layout import check_name, complain


class Block(Protocol):
    """A block of a variable: where it begins, and its elements, which may still be on a device."""

    @property
    def start(self) -> tuple[int, ...]: ...

    @property
    def extent(self) -> tuple[int, ...]: ...

    def numpy(self) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """All of a variable, as one block."""

    array: np.ndarray

    @property
    def start(self) -> tuple[int, ...]:
        return (0,) * self.array.ndim

    @property
    def extent(self) -> tuple[int, ...]:
        return self.array.shape

    def numpy(self) -> np.ndarray:
        return self.array


@dataclass(frozen=True, slots=True)
class Value:
    """A variable that is to be saved, and the blocks of it that this process has."""

    shape: tuple[int, ...]
    element: Dtype
    blocks: Sequence[Block]

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return prod(self.shape) * self.element.bytes

    def numpy(self) -> np.ndarray:
        """All of it, where this process has every block."""
        whole = np.empty(self.shape, self.element.numpy_dtype)
        for block in self.blocks:
            whole[tuple(slice(i, i + n) for i, n in zip(block.start, block.extent, strict=True))] = block.numpy()
        return whole

    @property
    def is_whole(self) -> bool:
        """Whether this process has all of it, in one block."""
        return len(self.blocks) == 1 and self.blocks[0].extent == self.shape


def whole_values(arrays: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """Arrays by variable name as values. Raises CheckpointError for names and dtypes that the layout has no place for."""
    kinds = {check_name(name): element_of(name, array) for name, array in arrays.items()}
    return {name: Value(array.shape, kinds[name], [Whole(array)]) for name, array in arrays.items()}


def element_of(name: str, array: np.ndarray) -> Dtype:
    """The layout's dtype for an array's. Raises CheckpointError where it has none."""
    if not isinstance(array, np.ndarray):
        complain(CheckpointError, f"variable {name!r} cannot be saved: its value is a {type(array).__name__}, not an array")
    try:
        return from_numpy(array.dtype.newbyteorder("=") if array.dtype.kind in "iuf" else array.dtype)
    except ArgumentError:
        rule = f"variable {name!r} cannot be saved: the layout has no place for NumPy's {array.dtype}"
        known = "float16, bfloat16, float32, float64, int8, int32, int64 or uint8"
        complain(CheckpointError, rule, "convert it with astype", expected=known, found=str(array.dtype))


def bytes_of(array: np.ndarray) -> memoryview:
    """The elements in the order of a file; no copy where the array is contiguous."""
    swapped = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
    flat = np.ascontiguousarray(array).reshape(-1)
    return (flat.byteswap() if swapped else flat).view(np.uint8).data if flat.size else memoryview(b"")
