"""One tiny op: the bare jitted call, and its result fetched, or none but the last one waited for."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def make(asynchronous: bool = False) -> tuple[Callable[[int], None], None]:
    relu = jax.jit(lambda x: lax.max(x, jnp.float32(0)))
    x = np.ones((2, 3), np.float32)

    def run(steps: int) -> None:
        for _ in range(steps):
            np.asarray(relu(x))

    def dispatched_run(steps: int) -> None:
        for _ in range(steps):
            last = relu(x)
        last.block_until_ready()

    return (dispatched_run if asynchronous else run), None
