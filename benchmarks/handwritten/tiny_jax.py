"""One tiny op: the bare jitted call, and its result fetched, or only the last one waited for; a step that trains one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def training_step() -> Callable[[int], None]:
    """The state is donated, and has the learning rate and the number of steps in it, as that of most programs."""

    def mean(weights: Any, x: Any) -> Any:
        loss = jnp.square(x @ weights[0] + weights[1])
        return loss.mean(), loss

    def step(state: Any, rate: Any, x: Any) -> Any:
        weights, count = state
        gradients, loss = jax.grad(mean, has_aux=True)(weights, x)
        return (tuple(w - rate * g for w, g in zip(weights, gradients, strict=True)), count + 1), loss

    jitted = jax.jit(step, donate_argnums=0)
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((32, 16), np.float32)), jnp.zeros(16)
    state, rate = (weights, jnp.zeros(1, jnp.int32)), jnp.full(1, 0.001)
    x = np.ones((20, 32), np.float32)

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, loss = jitted(state, rate, x)
            np.asarray(loss)

    return run


def make(asynchronous: bool = False, trains: bool = False) -> tuple[Callable[[int], None], None]:
    if trains:
        return training_step(), None
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
