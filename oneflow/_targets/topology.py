"""What the compilers are told about a target's devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from ..compiler.options import compiler_options
from .target import Target

_GPU = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared[0]} shared_memory_per_block_optin: {shared[1]}
  threads_per_core_limit: 2048 core_count: {core_count} fpus_per_core: {fpus_per_core}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {memory_bandwidth} l2_cache_size: {l2_cache_size} clock_rate_ghz: {clock_rate_ghz}
  device_memory_size: {device_memory_size}
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""
# no GPU is there to time candidates on
_GPU_OPTIONS = {"xla_gpu_autotune_level": 0}


def describe(target: Target, devices: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """A topology of as many devices as these, numbered from 0: programs for a part of the target get one of their own.

    Args:
      devices: (machine, device) of each.
    """
    if target.platform == "tpu":
        sides = slice_of(len(devices), target.shape)
        generation = target.kind.removeprefix("tpu-")
        whole_hosts = all(side % 2 == 0 for side in sides[:2])
        host = (2, 2, 1) if whole_hosts else (1, 1, 1)
        return {"platform": "tpu", "name": f"{generation}:{'x'.join(map(str, sides))}", "host_bounds": host}
    machines = len({machine for machine, _ in devices})
    config = _GPU.format(name=target.kind.upper(), **target.accelerator.description)
    return {"platform": "cuda", "topology": f"1x{machines}x{len(devices) // machines}", "target_config": config}


def options(target: Target, device_count: int) -> dict[str, Any]:
    """The compiler's options for a program on some of the devices: those of a session there, and the target's own."""
    shared = compiler_options(target.platform, device_count, environment={})
    return {**(_GPU_OPTIONS if target.platform == "gpu" else {}), **shared, **target.compiler_options}


@lru_cache(maxsize=256)
def slice_of(count: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The most compact part of a slice of TPUs with ``count`` chips; a row of them where none fits into ``shape``."""
    sides = [[d for d in range(1, size + 1) if count % d == 0] for size in shape]
    found = [part for part in product(*sides) if math.prod(part) == count]
    return min(found, key=lambda part: (max(part), part)) if found else (*(1,) * (len(shape) - 1), count)
