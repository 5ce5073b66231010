"""Arrays between host memory and devices, some of which other processes may have."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._jax import jax


def to_global(array: np.ndarray, sharding: Any) -> Any:
    """A device array that lies as ``sharding`` says; every process gives the same whole ``array``."""
    with jax.enable_x64(True):
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def to_host(array: Any) -> np.ndarray:
    """A fresh writable copy of the whole array in this process's memory."""
    return np.array(array)
