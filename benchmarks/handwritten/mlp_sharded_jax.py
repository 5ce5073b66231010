"""The MLP's step with the batch split over several virtual CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..data import Losses
from .loops import training_loop, truncated_normal
from .mlp_jax import step

jax.config.update("jax_num_cpu_devices", 8)  # before JAX is used


def make(devices: int) -> tuple[Callable[[int], None], Losses]:
    mesh = Mesh(np.array(jax.devices()[:devices]), ("d",))
    split, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
    random = np.random.default_rng(0)
    shapes = [(512, 784), (512,), (10, 512), (10,)]
    weights: Any = tuple(jnp.asarray(truncated_normal(random, *s) if len(s) > 1 else np.zeros(s, np.float32)) for s in shapes)
    weights = jax.device_put(weights, whole)
    jitted = jax.jit(step, donate_argnums=0, in_shardings=(whole, split, split), out_shardings=(whole, whole))
    return training_loop(jitted, weights, asynchronous=False, passes=None)
