"""Targets: the accelerators that a job can be planned for, with the figures that its plan is computed with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError

_MACHINES_AND_DEVICES = re.compile(r"^(?:(\d{1,6})x)?(\d{1,6})$")
_TOPOLOGY = re.compile(r"^\d{1,6}(?:x\d{1,6}){1,2}$")
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device, by its data sheet.

    Attributes:
      platform: "gpu" or "tpu".
      memory: bytes; bandwidth: of the memory, bytes/s.
      flops: peak FLOP/s of matrix products by dtype, dense; "vector" is the rate of all other arithmetic.
      link_bandwidth: bytes/s that a device sends to others of its machine (GPU: one direction of NVLink; TPU: both directions of
        one axis of the torus); network_bandwidth: to other machines, per device.
      host_bandwidth: bytes/s between host and device.
      clock: Hz, which the TPU compiler's estimated cycles are divided by; 0 where it estimates none.
      description: the fields of XLA's GpuTargetConfigProto that differ between GPUs.
    """

    platform: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    link_bandwidth: float
    network_bandwidth: float
    host_bandwidth: float = 25e9
    clock: float = 0.0
    description: Mapping[str, Any] = field(default_factory=dict)


def _gpu(
    memory: int, bandwidth: float, peaks: tuple[float, float, float], links: tuple[float, float], host: float, **description: Any
) -> Accelerator:
    vector, tf32, half = peaks
    flops = {"vector": vector, "float32": vector, "tfloat32": tf32, "bfloat16": half, "float16": half, "float64": vector / 2}
    description |= {"memory_bandwidth": int(bandwidth), "device_memory_size": memory}
    return Accelerator("gpu", memory, bandwidth, flops, *links, host, description=description)


def _tpu(memory: int, bandwidth: float, half: float, vector: float, links: tuple[float, float], clock: float) -> Accelerator:
    # a float32 product is one pass in bfloat16 unless more precision is asked for, then six of them
    flops = {"vector": vector, "float32": half / 6, "tfloat32": half, "bfloat16": half, "float16": half, "float64": vector / 10}
    return Accelerator("tpu", memory, bandwidth, flops, *links, clock=clock)


# Vendors' data sheets: dense rates, per device. NVLink by direction: A100 600/2, H100 900/2, B200 1800/2 GB/s; network: one
# 200, 400 and 400 Gbit/s adapter per GPU. TPU links by axis of the torus, network per chip: 200 Gbit/s per host of 4 or 8 chips.
ACCELERATORS: Mapping[str, Accelerator] = {
    "a100": _gpu(85100068864, 2039040000000, (19.5e12, 156e12, 312e12), (300e9, 25e9), 25e9, capability=(8, 0), core_count=108,
                 fpus_per_core=64, shared=(167936, 166912), l2_cache_size=41943040, clock_rate_ghz=1.41),
    "h100": _gpu(84942979072, 3352320000000, (67e12, 494.7e12, 989.4e12), (450e9, 50e9), 50e9, capability=(9, 0), core_count=132,
                 fpus_per_core=128, shared=(233472, 232448), l2_cache_size=52428800, clock_rate_ghz=1.98),
    "b200": _gpu(191514411008, 7672320000000, (80e12, 1125e12, 2250e12), (900e9, 50e9), 50e9, capability=(10, 0), core_count=148,
                 fpus_per_core=128, shared=(233472, 232448), l2_cache_size=132644864, clock_rate_ghz=1.965),
    "tpu-v5e": _tpu(16 << 30, 819e9, 197e12, 6.1e12, (90e9, 3.1e9), 1.5e9),
    "tpu-v5p": _tpu(95 << 30, 2765e9, 459e12, 14.3e12, (180e9, 6.25e9), 1.75e9),
    "tpu-v6e": _tpu(32 << 30, 1640e9, 918e12, 14.3e12, (180e9, 3.1e9), 1.75e9),
}  # fmt: skip


class Target:
    """Devices to plan a job for (``job.plan(target=...)``): a known kind, with figures of one's own where they differ.

    Args:
      name: ``"h100:8"``; ``"a100:2x8"``, machines x devices; ``"b200:8"``; ``"tpu-v5e:4x4"``, ``"tpu-v5p:2x2x2"``, the shape of
        the slice; of ``"h100"`` alone one device.
      memory: bytes of memory per device, > 0.
      bandwidth: of that memory, bytes/s.
      flops: peak FLOP/s by dtype: "bfloat16", "float16", "tfloat32", "float32", "float64", and "vector" for all arithmetic that
        is not a matrix product or convolution.
      link_bandwidth, network_bandwidth: bytes/s that a device sends to devices of its machine, and of others.
      compiler_options: further options of XLA, by name.
    Raises:
      ArgumentError: an unknown device, a shape that is not understood, or a figure that is not a positive number.
    Example:
      >>> target = flow.Target("h100:8", memory=70 * 2**30)
      >>> str(target), target.device_count
      ('h100:8', 8)
    """

    def __init__(
        self,
        name: str,
        *,
        memory: int | None = None,
        bandwidth: float | None = None,
        flops: Mapping[str, float] | None = None,
        link_bandwidth: float | None = None,
        network_bandwidth: float | None = None,
        compiler_options: Mapping[str, Any] | None = None,
    ):
        if not isinstance(name, str):
            refuse(ArgumentError, f'a target is named by a string like "h100:8", got {shown(name)}')
        kind, _, shape = name.partition(":")
        if kind not in ACCELERATORS:
            near = closest(kind, ACCELERATORS, count=1)
            hint = f"did you mean {near[0]!r}?" if near else "flow.Target(known kind, ...) with figures of your own"
            refuse(ArgumentError, f"there is no target {shown(kind)}", found=[("known", ", ".join(ACCELERATORS))], hint=hint)
        self.kind = kind
        self.shape, self.machines, self.devices_per_machine = _shape(name, ACCELERATORS[kind].platform, shape)
        own = {"bandwidth": bandwidth, "link_bandwidth": link_bandwidth, "network_bandwidth": network_bandwidth, "memory": memory}
        given = {key: _positive(key, value) for key, value in own.items() if value is not None}
        if "memory" in given:
            given["memory"] = int(given["memory"])
        self.accelerator = replace(ACCELERATORS[kind], **given)  # type: ignore[arg-type]
        if flops is not None:
            self.accelerator = replace(self.accelerator, flops={**self.accelerator.flops, **_rates(flops, self.accelerator)})
        self.compiler_options = _options(compiler_options)
        self._name = name

    @property
    def platform(self) -> str:
        """The kind of devices: "gpu" or "tpu"."""
        return self.accelerator.platform

    @property
    def device_count(self) -> int:
        """The number of devices on all machines."""
        return self.machines * self.devices_per_machine

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"flow.Target({self._name!r})"


def as_target(target: Any) -> Target:
    """A Target, or the one that a string names."""
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        refuse(ArgumentError, f'target must be a string like "h100:8" or a flow.Target, got {shown(target)}')
    return Target(target)


def _shape(name: str, platform: str, text: str) -> tuple[tuple[int, ...], int, int]:
    """The shape of a target, its machines, and the devices of each. A slice of TPUs is one machine: its chips share a network."""
    if platform == "tpu":
        if text and not _TOPOLOGY.match(text):
            refuse(ArgumentError, f"target {shown(name)}: a slice of TPUs is written as its shape",
                   hint='"tpu-v5e:4x4", "tpu-v5p:2x2x2"')  # fmt: skip
        shape = tuple(int(n) for n in text.split("x")) if text else (1, 1)
        machines, count = 1, math.prod(shape)
    else:
        found = _MACHINES_AND_DEVICES.match(text or "1")
        if found is None:
            refuse(ArgumentError, f"target {shown(name)}: GPUs are written as their number, or machines x devices",
                   hint='"h100:8", "a100:2x8"')  # fmt: skip
        machines, count = int(found[1] or 1), int(found[2])
        shape = (machines, count)
    if not 1 <= machines * count <= _MOST_DEVICES:
        refuse(ArgumentError, f"target {shown(name)} has {machines * count} devices; 1 to {_MOST_DEVICES} can be planned")
    return shape, machines, count


def _positive(what: str, value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 1
    if not good:
        refuse(ArgumentError, f"flow.Target: {what} must be a finite number >= 1, got {shown(value)}")
    return float(value)


def _rates(flops: Any, accelerator: Accelerator) -> dict[str, float]:
    if not isinstance(flops, Mapping) or not all(name in accelerator.flops for name in flops):
        refuse(ArgumentError, f"flow.Target: flops must be FLOP/s by dtype ({', '.join(accelerator.flops)}), got {shown(flops)}")
    return {name: _positive(f"flops[{name!r}]", value) for name, value in flops.items()}


def _options(options: Any) -> dict[str, str | int | float | bool]:
    options = {} if options is None else options
    good = isinstance(options, Mapping) and all(
        isinstance(name, str) and isinstance(value, (str, int, float, bool)) for name, value in options.items()
    )
    if not good:
        refuse(ArgumentError, f"flow.Target: compiler_options must map names of XLA's options to values, got {shown(options)}")
    return dict(options)
