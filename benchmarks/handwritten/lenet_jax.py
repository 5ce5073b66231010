"""LeNet as in the tutorials: two 5 x 5 convolutions with 2 x 2 max pooling, two dense layers, dropout, SGD.

Choices that make it fast on CPUs (numbers: docs/benchmarks.md):
- Channels last: XLA's CPU convolutions work on that layout, and pooling reads whole vectors.
- Pooling without ``reduce_window``: the maximum of four strided slices; its gradient goes to the first maximum, whose
  number is kept as a byte.
- Bias and relu after pooling, on a quarter of the elements. Both are monotone: the values are the same.
- Dropout of one half draws one bit an element.
- The batch goes through the convolutions in slices. XLA runs a convolution on one thread, but several at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..data import BATCH, Losses
from .loops import training_loop, truncated_normal
from .mlp_jax import LEARNING_RATE, cross_entropy, dense

SLICES = 20


def conv(x: Any, weight: Any) -> Any:
    return lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _first_maximum(x: Any) -> tuple[Any, Any]:
    a, b, c, d = x[:, ::2, ::2], x[:, ::2, 1::2], x[:, 1::2, ::2], x[:, 1::2, 1::2]
    largest = lax.max(lax.max(a, b), lax.max(c, d))
    number = jnp.where(a == largest, 0, jnp.where(b == largest, 1, jnp.where(c == largest, 2, 3)))
    return largest, number.astype(jnp.uint8)


@jax.custom_vjp
def max_pool(x: Any) -> Any:
    return _first_maximum(x)[0]


def _to_first_maximum(number: Any, gradient: Any) -> tuple[Any]:
    n, h, w, c = gradient.shape
    window = (1, 1, 2, 1, 2, 1)
    position = lax.broadcasted_iota(jnp.uint8, window, 2) * 2 + lax.broadcasted_iota(jnp.uint8, window, 4)
    spread = jnp.where(number[:, :, None, :, None, :] == position, gradient[:, :, None, :, None, :], 0)
    return (spread.reshape(n, 2 * h, 2 * w, c),)


max_pool.defvjp(_first_maximum, _to_first_maximum)


def features(weights: Any, images: Any) -> Any:
    w1, b1, w2, b2 = weights
    zero = jnp.float32(0)
    x = lax.max(max_pool(conv(images, w1)) + b1, zero)
    x = lax.max(max_pool(conv(x, w2)) + b2, zero)
    return x.reshape(x.shape[0], -1)


def coins(key: Any, shape: tuple[int, int]) -> Any:
    """True with probability 1 / 2. ``shape[1]`` is a multiple of 32."""
    words = jax.random.bits(key, (shape[0], shape[1] // 32, 1))
    bits = words >> lax.broadcasted_iota(jnp.uint32, (1, 1, 32), 2)
    return (bits & 1).reshape(shape) == 1


def loss(weights: Any, images: Any, labels: Any, key: Any) -> Any:
    w3, b3, w4, b4 = weights[4:]
    images = images.reshape(BATCH, 28, 28, 1)
    x = jnp.concatenate([features(weights[:4], part) for part in jnp.split(images, SLICES)])
    hidden = lax.max(dense(x, w3, b3), jnp.float32(0))
    hidden = jnp.where(coins(key, hidden.shape), hidden * 2, 0)
    each = cross_entropy(dense(hidden, w4, b4), labels)
    return each.mean(), each


def step(state: Any, images: Any, labels: Any) -> Any:
    weights, count = state
    key = jax.random.fold_in(jax.random.key(0), count)
    gradients, each = jax.grad(loss, has_aux=True)(weights, images, labels, key)
    new = tuple(w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True))
    return (new, count + 1), each


def make(asynchronous: bool = False, passes: int | None = None) -> tuple[Callable[[int], None], Losses]:
    random = np.random.default_rng(0)
    shapes = [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (512, 7 * 7 * 64), (512,), (10, 512), (10,)]
    weights = tuple(jnp.asarray(truncated_normal(random, *s) if len(s) > 1 else np.zeros(s, np.float32)) for s in shapes)
    state = weights, jnp.zeros((), jnp.uint32)
    return training_loop(jax.jit(step, donate_argnums=0), state, asynchronous=asynchronous, passes=passes)
