"""Arrays between host memory and devices, some of which other processes may have.

An array moves between processes in one collective of all of them, because JAX itself moves arrays only between layouts on the
same devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .._base.jax import jax, jnp, lax, prepare_lowering
from . import processes


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """This process's part of an array: the rows of ``axis`` that are its share, in the order of the processes."""

    array: np.ndarray
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        shape, axis = self.array.shape, self.axis
        return (*shape[:axis], shape[axis] * processes.count(), *shape[axis + 1 :])

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the array."""
        return self.array.dtype

    def to_global(self, sharding: Any) -> Any:
        """The whole as a device array with that ``sharding``. All processes must call it."""
        own = self.array.shape[self.axis]
        if self._fits(sharding, own):
            begin = own * processes.index()
            return jax.make_array_from_callback(self.shape, sharding, lambda i: self.array[self._shifted(i, begin)], self.dtype)
        parts = _over(_one_of_each(), True, self.axis)
        return move(jax.make_array_from_process_local_data(parts, self.array, self.shape), sharding)

    def _fits(self, sharding: Any, own: int) -> bool:
        """Whether all devices of each process want rows of that process."""
        for device, index in sharding.devices_indices_map(self.shape).items():
            begin, end, _ = index[self.axis].indices(self.shape[self.axis])
            if begin < own * device.process_index or end > own * (device.process_index + 1):
                return False
        return True

    def _shifted(self, index: Any, by: int) -> Any:
        begin, end, _ = index[self.axis].indices(self.shape[self.axis])
        return (*index[: self.axis], slice(begin - by, end - by), *index[self.axis + 1 :])


def to_global(array: np.ndarray, sharding: Any) -> Any:
    """A device array with that ``sharding``, of an ``array`` that is whole and the same in every process."""
    with jax.enable_x64(True):
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index], dtype=array.dtype)


def everywhere(array: np.ndarray) -> Any:
    """A device array of which every process has a whole copy; ``array`` is the same in all."""
    return to_global(array, _over(_one_of_each(), False))


def first_to_host(arrays: Any) -> np.ndarray:
    """``to_host`` of the first of several arrays."""
    return to_host(arrays[0])


def to_host(array: Any) -> np.ndarray:
    """A fresh writable copy of the whole array in this process's memory. Where others have parts of it, all must call it."""
    if processes.count() > 1 and isinstance(array, jax.Array):
        if not _is_replicated_everywhere(array):
            processes.barrier("reading an array of several processes")
            array = readable(array)
        array = array.addressable_data(0)
    return np.array(array)


def donatable(array: Any, source: np.ndarray) -> Any:
    """The device array made of ``source``, in memory of its own: a step does not write into memory that it shares with NumPy."""
    device, *others = array.sharding.device_set
    if others or device.platform != "cpu" or not array.is_fully_addressable:
        return array
    if array.unsafe_buffer_pointer() != source.ctypes.data:
        return array
    # ``array.copy()`` would compile a program per shape, and look for NaNs. A sharding would commit the copy to its device: of
    # the first step's inputs alone, so that the second would be compiled anew
    with jax.enable_x64(True):
        return jax.device_put(array, may_alias=False)


def view(array: Any) -> np.ndarray:
    """The whole array in this process's memory, read-only: where a CPU device has all of it, without a copy.

    As long as the view is held, no step writes into that memory.
    """
    return to_host(array) if processes.count() > 1 else np.asarray(array)


def readable(array: Any) -> Any:
    """The array, or a copy that is whole in this process. All processes must call it."""
    if processes.count() == 1 or not isinstance(array, jax.Array) or _is_replicated_everywhere(array):
        return array
    return _relayed(array, _one_of_each())


def move(array: Any, sharding: Any) -> Any:
    """The array on other devices, or in another layout. All processes must call it."""
    if isinstance(array, Part):
        with jax.enable_x64(True):
            return array.to_global(sharding)
    if not isinstance(array, jax.Array):
        return to_global(array, sharding)
    if array.sharding == sharding:
        return array
    source, target = array.sharding.device_set, sharding.device_set
    with jax.enable_x64(True):
        if array.sharding.is_fully_addressable and sharding.is_fully_addressable:
            return _run(lambda x: jax.device_put(x, sharding), array, sharding)
        if source == target:
            return _laid_out(array, sharding)
        whole = _relayed(array, _in_order(source | target))
        return _laid_out(_part(whole, sharding), sharding)


def _is_replicated_everywhere(array: Any) -> bool:
    """Whether each process of the run has the whole array: the same answer in all of them."""
    owners = {device.process_index for device in array.sharding.device_set}
    return array.is_fully_replicated and len(owners) == processes.count()


def _in_order(devices: Any) -> tuple[Any, ...]:
    return tuple(sorted(devices, key=lambda device: device.id))


def _one_of_each() -> tuple[Any, ...]:
    """The first device of each process."""
    first: dict[int, Any] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    return tuple(first[index] for index in sorted(first))


@cache
def _over(devices: tuple[Any, ...], split: bool, axis: int = 0) -> Any:
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*[None] * axis, *["all"] * split))


@cache
def _copying(sharding: Any) -> Any:
    prepare_lowering()
    return jax.jit(lambda x: x, out_shardings=sharding)


def _laid_out(array: Any, sharding: Any) -> Any:
    return array if array.sharding == sharding else _run(_copying(sharding), array, sharding)


def _run(function: Any, array: Any, sharding: Any) -> Any:
    """Runs a function that makes an array of this ``sharding``, on the devices that ``array`` is on.

    Gloo writes to standard output when the devices of a collective meet for the first time.
    """
    if processes.first_meeting((array.sharding, sharding)):
        with processes.quiet():
            return jax.block_until_ready(function(array))
    made = function(array)
    return jax.block_until_ready(made) if _may_starve(sharding) else made


@cache
def _may_starve(sharding: Any) -> bool:
    """Whether a program over these devices has to be done before another one begins.

    XLA has one thread for each virtual device of a process. While programs wait for another process on all of them, what that
    process waits for has none, and those of one device here do not await their turn, as those of several do.
    """
    devices = tuple(sharding.device_set)
    several = len({device.process_index for device in devices}) > 1
    return several and devices[0].platform == "cpu" and jax.local_device_count() > 1


def _relayed(array: Any, devices: tuple[Any, ...]) -> Any:
    """A copy of the whole array on each of the devices, and on those it is on."""
    with jax.enable_x64(True):
        if not array.is_fully_replicated:
            mesh = array.sharding.mesh
            array = _laid_out(array, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
        devices = _in_order({*devices, *array.sharding.device_set})
        owner = _in_order(array.sharding.device_set)[0]
        own = {shard.device: shard.data for shard in array.addressable_shards}
        here = [device for device in devices if device.process_index == jax.process_index()]
        nothing = np.zeros((1, *array.shape), array.dtype)
        blocks = [jnp.expand_dims(own[d], 0) if d == owner else jax.device_put(nothing, d) for d in here]
        split = _over(devices, True)
        stacked = jax.make_array_from_single_device_arrays((len(devices), *array.shape), split, blocks, dtype=array.dtype)
        alike = _over(devices, False)
        return _run(_summing(alike), stacked, alike)


@cache
def _summing(sharding: Any) -> Any:
    prepare_lowering()
    return jax.jit(_sum_of_bits, out_shardings=sharding)


def _sum_of_bits(stacked: Any) -> Any:
    """The one block that is not zero, bit for bit: a sum of integers changes neither -0.0 nor NaN."""
    dt, bits = stacked.dtype, 8 * stacked.dtype.itemsize
    if dt == jnp.bool_:
        return stacked.astype(jnp.int32).sum(0, dtype=jnp.int32).astype(jnp.bool_)
    raw = lax.bitcast_convert_type(stacked, getattr(jnp, f"uint{bits}"))
    wide = raw if bits >= 32 else raw.astype(jnp.uint32)
    return lax.bitcast_convert_type(wide.sum(0, dtype=wide.dtype).astype(raw.dtype), dt)


def _part(whole: Any, sharding: Any) -> Any:
    """A replicated array, on fewer of its devices."""
    here = {shard.device: shard.data for shard in whole.addressable_shards}
    mesh = getattr(sharding, "mesh", None)
    alike = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()) if mesh is not None else sharding
    found = [here[device] for device in alike.device_set if device in here]
    return jax.make_array_from_single_device_arrays(whole.shape, alike, found, dtype=whole.dtype)
