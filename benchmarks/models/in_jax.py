"""By hand on bare JAX: the plain form (channels first, reduce_window), and the best one known (channels last, sliced pooling)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .architectures import MODELS, MOMENTUM, RATE, loop, weight


class Layers:
    def __init__(self, weights: dict[str, Any], training: bool, best: bool):
        self.weights, self._training, self._best = weights, training, best
        self._axis = 3 if best else 1

    def _weight(self, name: str, shape: tuple[int, ...], kind: str = "normal") -> Any:
        if name not in self.weights:  # the first trace makes them
            self.weights[name] = weight(name, shape, kind)
        return self.weights[name]

    def _channel(self, v: Any) -> Any:
        return v if self._best else v[:, None, None]

    def image(self, x: Any) -> Any:
        return jnp.moveaxis(x, 1, -1) if self._best else x

    def flatten(self, x: Any) -> Any:
        return (jnp.moveaxis(x, -1, 1) if self._best and x.ndim == 4 and x.shape[1] != 1 else x).reshape(x.shape[0], -1)

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def conv(
        self, x: Any, name: str, out: int, k: int, stride: int = 1, pad: int = 0, groups: int = 1, bias: bool = False
    ) -> Any:
        w = self._weight(name, (out, x.shape[self._axis] // groups, k, k))
        spec = ("NHWC", "OIHW", "NHWC") if self._best else ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=spec, feature_group_count=groups)
        return y + self._channel(self._weight(name + "-bias", (out,), "zeros")) if bias else y

    def batch_norm(self, x: Any, name: str) -> Any:
        size = x.shape[self._axis]
        axes = tuple(a for a in range(4) if a != self._axis)
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        if self._training:
            mean = x.mean(axes)
            variance = jnp.maximum(jnp.square(x).mean(axes) - jnp.square(mean), 0)
        else:
            mean, variance = jnp.zeros(size, x.dtype), jnp.ones(size, x.dtype)
        scale = gamma * lax.rsqrt(variance + 1e-5)
        return x * self._channel(scale) + self._channel(beta - mean * scale)

    def max_pool(self, x: Any, k: int, stride: int, pad: int = 0) -> Any:
        space = [(0, 0), *[(pad, pad)] * 2, (0, 0)] if self._best else [(0, 0), (0, 0), *[(pad, pad)] * 2]
        if not self._best:
            return lax.reduce_window(x, -np.inf, lax.max, (1, 1, k, k), (1, 1, stride, stride), space)
        x = jnp.pad(x, space, constant_values=-np.inf) if pad else x
        h, w = ((n - k) // stride * stride + 1 for n in x.shape[1:3])
        parts = [x[:, i : i + h : stride, j : j + w : stride] for i in range(k) for j in range(k)]
        y = parts[0]
        for part in parts[1:]:
            y = jnp.maximum(y, part)
        return y

    def global_pool(self, x: Any) -> Any:
        return x.mean((1, 2) if self._best else (2, 3))

    def dense(self, x: Any, name: str, out: int) -> Any:
        return x @ self._weight(name, (out, x.shape[1])).T + self._weight(name + "-bias", (out,), "zeros")

    def layer_norm(self, x: Any, name: str) -> Any:
        size = x.shape[-1]
        mean = x.mean(-1, keepdims=True)
        normal = (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5)
        return normal * self._weight(name + "-gamma", (size,), "ones") + self._weight(name + "-beta", (size,), "zeros")

    def table(self, name: str, rows: int, width: int) -> Any:
        return self._weight(name, (rows, width), "embedding")

    def embedded(self, table: Any, tokens: Any) -> Any:
        return jnp.asarray(table)[tokens.reshape(-1)]

    def add_rows(self, x: Any, name: str, rows: int, width: int) -> Any:
        return (x.reshape(-1, rows, width) + self._weight(name, (rows, width), "embedding")).reshape(-1, width)

    def attention(self, x: Any, q: Any, k: Any, v: Any, heads: int, length: int, causal: bool = False) -> Any:
        size = q.shape[1] // heads
        q, k, v = (a.reshape(-1, length, heads, size) for a in (q, k, v))
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * size**-0.5
        if causal:
            scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
        return jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), v).reshape(-1, heads * size)

    def times_transposed(self, x: Any, table: Any) -> Any:
        return x @ table.T


def rounded(logits: Any) -> Any:
    """The same in bfloat16, from float32 weights to float32 logits."""

    def narrow(a: Any) -> Any:
        return a.astype(jnp.bfloat16) if a.dtype == np.float32 else a

    def run(values: dict[str, Any], x: Any) -> Any:
        if not values:  # the first trace, which makes the weights
            return logits(values, x)
        return logits({n: narrow(v) for n, v in values.items()}, narrow(x)).astype(jnp.float32)

    return run


def make(
    model: str, mode: str, batch: int = 0, best: bool = False, precision: str = "", device: str = "", devices: int = 0
) -> Any:
    """``precision``, ``device`` and ``devices`` as for ours; in bfloat16 weights stay float32, and a step rounds them.

    JAX_NUM_CPU_DEVICES in the environment makes the virtual devices.
    """
    about = MODELS[model]
    if precision == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")
    if device:
        jax.config.update("jax_default_device", jax.devices(device)[0])
    inputs, labels = about.data(batch or about.batch)
    weights: dict[str, Any] = {}
    training = mode == "train"

    def logits(values: dict[str, Any], x: Any) -> Any:
        return about.build(Layers(values, training, best), x)

    if precision == "bfloat16":
        logits = rounded(logits)
    jax.eval_shape(lambda x: logits(weights, x), inputs)
    weights = {name: jnp.asarray(value) for name, value in weights.items()}
    if not training:
        predict = jax.jit(logits)
        return loop(lambda x, _: np.asarray(predict(weights, x)), inputs, labels)

    def loss(values: dict[str, Any], x: Any, y: Any) -> Any:
        scores = jax.nn.log_softmax(logits(values, x))
        each = -jnp.take_along_axis(scores, y[:, None], 1)[:, 0]
        return each.mean(), each

    def update(state: Any, x: Any, y: Any) -> Any:
        values, slots, count = state
        gradients, each = jax.grad(loss, has_aux=True)(values, x, y)
        if about.rule == "sgd":
            return ({n: values[n] - RATE * g for n, g in gradients.items()}, slots, count), each
        if about.rule == "momentum":
            slots = {n: MOMENTUM * slots[n] - RATE * g for n, g in gradients.items()}
            return ({n: values[n] + slots[n] for n in values}, slots, count), each
        count = count + 1
        rate = 1e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        slots = {n: (0.9 * slots[n][0] + 0.1 * g, 0.999 * slots[n][1] + 0.001 * g * g) for n, g in gradients.items()}
        return ({n: v - rate * slots[n][0] / (jnp.sqrt(slots[n][1]) + 1e-8) for n, v in values.items()}, slots, count), each

    zeros = {n: jnp.zeros_like(v) for n, v in weights.items()}
    slots: Any = {} if about.rule == "sgd" else zeros if about.rule == "momentum" else {
        n: (v, jnp.zeros_like(v)) for n, v in zeros.items()
    }  # fmt: skip
    state: Any = (weights, slots, jnp.zeros((), jnp.float32))
    jitted = jax.jit(update, donate_argnums=0)
    if devices:
        mesh = Mesh(np.array(jax.devices()[:devices]), ("d",))
        split, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
        state = jax.device_put(state, whole)
        jitted = jax.jit(update, donate_argnums=0, in_shardings=(whole, split, split), out_shardings=(whole, whole))

    def step(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        nonlocal state
        state, each = jitted(state, x, y)
        return np.asarray(each)

    return loop(step, inputs, labels)
