"""The pieces of variables on the devices of this process: copied at one moment, and put together from blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._base.jax import jax
from . import processes

if TYPE_CHECKING:
    from ..compiler.layout import Storage

_ROOM = 0.9  # of what a device's memory has had free at every moment

Index = tuple[int, ...]
BlockRange = tuple[Index, Index]  # of a block: where it begins, and its shape


class Blocks(Protocol):
    """A value that nobody has whole: blocks of it can be had."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def block(self, start: Index, extent: Index) -> np.ndarray:
        """The block of shape ``extent`` that begins at index ``start``."""
        ...


@dataclass(slots=True)
class Piece:
    """A block of a variable, as a device or the host has it: perhaps with padding behind it, or with other replicas."""

    start: Index
    extent: Index
    stored: Any
    is_replica: bool = False

    def numpy(self) -> np.ndarray:
        """The block; without a copy where that can be."""
        stored = np.asarray(self.stored)
        if self.is_replica:
            stored = stored[0]
        if stored.size == prod(self.extent):
            return stored.reshape(self.extent)
        return stored[tuple(slice(size) for size in self.extent)]


def to_save(value: Any, storage: Storage | None) -> list[Piece]:
    """The pieces of a stored variable that this process has and no other is to save."""
    shape = tuple(value.shape) if storage is None else storage.shape
    origin = (0,) * len(shape)
    if value.is_fully_addressable and len(value.sharding.device_set) == 1 and not (storage is not None and storage.replicas):
        return [Piece(origin, shape, value)]
    pieces = []
    for shard in value.addressable_shards:
        if shard.replica_id:
            continue
        begin = tuple(i.indices(size)[0] for i, size in zip(shard.index, value.shape, strict=True))
        if storage is None or storage.is_flat:
            pieces.append(Piece(origin, shape, shard.data))
        elif storage.replicas:
            if begin[0] == 0:
                pieces.append(Piece(origin, shape, shard.data, is_replica=True))
        else:
            start, extent = _inside(shape, begin, shard.data.shape)
            if 0 not in extent or 0 in shape:
                pieces.append(Piece(start, extent, shard.data))
    return pieces


def _inside(shape: Index, begin: Index, extent: Index) -> BlockRange:
    """Of a block of the padded value: what is not padding."""
    start = tuple(min(b, size) for b, size in zip(begin, shape, strict=True))
    return start, tuple(min(n, size - b) for b, n, size in zip(start, extent, shape, strict=True))


def by_process(storage: Storage, sharding: Any) -> dict[int, list[BlockRange]]:
    """Which blocks of a variable each process needs that has devices of it; the same in all processes."""
    found: dict[int, list[BlockRange]] = {}
    shape = storage.shape
    for device, index in sharding.devices_indices_map(storage.stored_shape).items():
        if storage.is_flat or storage.replicas:
            block: BlockRange = ((0,) * len(shape), shape)
        else:
            begin, extent = _begin_and_extent(index, storage.stored_shape)
            block = _inside(shape, begin, extent)
        blocks = found.setdefault(device.process_index, [])
        if block not in blocks and (0 not in block[1] or 0 in shape):
            blocks.append(block)
    return found


def _begin_and_extent(index: Sequence[slice], shape: Index) -> BlockRange:
    limits = [i.indices(size)[:2] for i, size in zip(index, shape, strict=True)]
    return tuple(a for a, _ in limits), tuple(b - a for a, b in limits)


def from_blocks(value: Blocks, storage: Storage, sharding: Any) -> Any:
    """The device array of a variable, of whose blocks each process has those that its devices need."""

    def stored(index: Any) -> np.ndarray:
        if storage.is_flat:
            return value.block((0,) * len(storage.shape), storage.shape).reshape(-1)
        begin, extent = _begin_and_extent(index, storage.stored_shape)
        if storage.replicas:
            return np.broadcast_to(value.block(begin[1:], extent[1:]), extent)
        start, inside = _inside(storage.shape, begin, extent)
        if inside == extent:
            return value.block(start, extent)
        padded = np.zeros(extent, value.dtype)
        if 0 not in inside:
            padded[tuple(slice(size) for size in inside)] = value.block(start, inside)
        return padded

    with jax.enable_x64(True):
        return jax.make_array_from_callback(storage.stored_shape, sharding, stored, dtype=value.dtype)


class Capture:
    """Variables and random state of one moment. Steps that follow do not change it.

    The copies are made by the devices, in the order of the steps, so that nobody waits for them. Where a device has no room for
    one, they are made in the host's memory at once.
    """

    def __init__(self, pieces: Mapping[str, list[Piece]], words: Mapping[str, Any], seed: int, positions: Mapping[str, Any]):
        """
        Args:
          pieces: by variable name, still those of the session.
          words: by job name: what its random ops draw from.
          positions: of readers, by job name.
        """
        self.pieces = pieces
        self._words = dict(zip(words, _local(list(words.values())), strict=True))
        self._seed = seed
        self._positions = positions
        every = [piece for each in pieces.values() for piece in each if isinstance(piece.stored, jax.Array)]
        copies = iter(_copied([*(piece.stored for piece in every), *self._words.values()]))
        for piece in every:
            piece.stored = next(copies)
        self._words = dict(zip(self._words, copies, strict=True))

    def random_state(self) -> dict[str, Any]:
        """As ``Session.random_state``."""
        calls = {name: int(np.asarray(words)[2]) for name, words in self._words.items()}
        return {"seed": self._seed, "calls": calls, **({"readers": self._positions} if self._positions else {})}


def _local(arrays: list[Any]) -> list[Any]:
    """Of arrays that every process has whole: those on this one."""
    return [array.addressable_data(0) if processes.count() > 1 else array for array in arrays]


def _copied(arrays: list[Any]) -> list[Any]:
    if not arrays:
        return []
    if not _have_room(arrays):
        for array in arrays:
            array.copy_to_host_async()
        return [np.array(array) for array in arrays]
    with jax.enable_x64(True):
        return list(jax.device_put(arrays, may_alias=False))


def _have_room(arrays: list[Any]) -> bool:
    needed: dict[Any, int] = {}
    for array in arrays:
        for device in array.sharding.device_set:
            needed[device] = needed.get(device, 0) + array.nbytes
    for device, size in needed.items():
        memory = device.memory_stats() or {}  # None on a CPU, whose memory is the host's
        limit = memory.get("bytes_limit")
        if limit is not None and size > _ROOM * (limit - memory.get("peak_bytes_in_use", limit)):
            return False
    return True
