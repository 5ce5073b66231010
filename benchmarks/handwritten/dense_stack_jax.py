"""A train step of many dense layers, to see what building costs. ``make(layers)`` builds; its ``run`` compiles and steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .loops import truncated_normal
from .mlp_jax import LEARNING_RATE, dense

WIDTH = 16
MOMENTUM = 0.9


def loss(weights: Any, x: Any) -> Any:
    for weight, bias in weights:
        x = lax.max(dense(x, weight, bias), jnp.float32(0))
    return x.mean(), x


def step(weights: Any, momenta: Any, x: Any) -> Any:
    gradients, out = jax.grad(loss, has_aux=True)(weights, x)
    momenta = jax.tree.map(lambda m, g: MOMENTUM * m - LEARNING_RATE * g, momenta, gradients)
    return jax.tree.map(jnp.add, weights, momenta), momenta, out


def make(layers: int) -> tuple[Callable[[int], None], None]:
    random = np.random.default_rng(0)
    weights = [(jnp.asarray(truncated_normal(random, WIDTH, WIDTH)), jnp.zeros(WIDTH)) for _ in range(layers)]
    momenta = jax.tree.map(jnp.zeros_like, weights)
    jitted = jax.jit(step, donate_argnums=(0, 1))
    x = np.ones((4, WIDTH), np.float32)

    def run(steps: int) -> None:
        nonlocal weights, momenta
        for _ in range(steps):
            weights, momenta, out = jitted(weights, momenta, x)
            np.asarray(out)

    return run, None
