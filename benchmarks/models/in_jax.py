"""By hand on bare JAX: the plain form (channels first, reduce_window), and the best one known (channels last, sliced pooling)."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .architectures import CONTEXT, MODELS, MOMENTUM, RATE, decode_loop, loop, recurrence, weight


class Layers:
    def __init__(self, weights: dict[str, Any], training: bool, best: bool):
        self.weights, self._training, self._best = weights, training, best
        self.position: Any = None
        self.caches: dict[str, Any] = {}

    def _weight(self, name: str, shape: tuple[int, ...], kind: str = "normal") -> Any:
        if name not in self.weights:  # the first trace makes them
            self.weights[name] = weight(name, shape, kind)
        return self.weights[name]

    def _channel(self, v: Any, x: Any) -> Any:
        return v if self._best else v.reshape(-1, *(1,) * (x.ndim - 2))

    def _axis(self, x: Any) -> int:
        return x.ndim - 1 if self._best else 1

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
        dims, space = x.ndim - 2, "DHW"[5 - x.ndim :]
        w = self._weight(name, (out, x.shape[self._axis(x)] // groups, *(k,) * dims))
        data = f"N{space}C" if self._best else f"NC{space}"
        spec = (data, f"OI{space}", data)
        y = lax.conv_general_dilated(
            x, w, (stride,) * dims, [(pad, pad)] * dims, dimension_numbers=spec, feature_group_count=groups
        )
        return y + self._channel(self._weight(name + "-bias", (out,), "zeros"), y) if bias else y

    def conv_transpose(self, x: Any, name: str, out: int) -> Any:
        w = self._weight(name, (x.shape[self._axis(x)], out, 2, 2, 2))
        x = jnp.moveaxis(x, self._axis(x), -1)  # windows do not overlap: a product, whose columns are spread over space
        y = (x.reshape(-1, x.shape[-1]) @ w.reshape(w.shape[0], -1)).reshape(*x.shape[:-1], out, 2, 2, 2)
        n, d, h, w = x.shape[:-1]
        y = jnp.transpose(y, (0, 1, 5, 2, 6, 3, 7, 4)).reshape(n, 2 * d, 2 * h, 2 * w, out)
        return y if self._best else jnp.moveaxis(y, -1, 1)

    def concat(self, x: Any, y: Any) -> Any:
        return jnp.concatenate([x, y], self._axis(x))

    def voxels(self, x: Any) -> Any:
        x = jnp.moveaxis(x, self._axis(x), -1)
        return x.reshape(-1, x.shape[-1])

    def batch_norm(self, x: Any, name: str) -> Any:
        size = x.shape[self._axis(x)]
        axes = tuple(a for a in range(x.ndim) if a != self._axis(x))
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        if self._training:
            mean = x.mean(axes)
            variance = jnp.maximum(jnp.square(x).mean(axes) - jnp.square(mean), 0)
        else:
            mean, variance = jnp.zeros(size, x.dtype), jnp.ones(size, x.dtype)
        scale = gamma * lax.rsqrt(variance + 1e-5)
        return x * self._channel(scale, x) + self._channel(beta - mean * scale, x)

    def max_pool(self, x: Any, k: int, stride: int, pad: int = 0) -> Any:
        dims = x.ndim - 2
        space = [(0, 0), *[(pad, pad)] * dims, (0, 0)] if self._best else [(0, 0), (0, 0), *[(pad, pad)] * dims]
        if not self._best:
            return lax.reduce_window(x, -np.inf, lax.max, (1, 1, *(k,) * dims), (1, 1, *(stride,) * dims), space)
        x = jnp.pad(x, space, constant_values=-np.inf) if pad else x
        sizes = [(n - k) // stride * stride + 1 for n in x.shape[1:-1]]
        parts = [
            x[:, *(slice(i, i + n, stride) for i, n in zip(begins, sizes, strict=True))]
            for begins in itertools.product(range(k), repeat=dims)
        ]
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

    def add_row(self, x: Any, name: str, rows: int, width: int) -> Any:
        return x + jnp.asarray(self._weight(name, (rows, width), "embedding"))[self.position]

    def cached_attention(self, name: str, q: Any, k: Any, v: Any, heads: int) -> Any:
        batch, width = q.shape
        q, k, v = (a.reshape(batch, heads, width // heads) for a in (q, k, v))
        for letter, new in (("k", k), ("v", v)):
            cache = self.caches.get(name + letter)
            if cache is None:
                cache = jnp.zeros((batch, heads, CONTEXT, width // heads))
            self.caches[name + letter] = lax.dynamic_update_slice_in_dim(cache, new[:, :, None], self.position, 2)
        scores = jnp.einsum("bhd,bhmd->bhm", q, self.caches[name + "k"]) * (width // heads) ** -0.5
        weights = jax.nn.softmax(jnp.where(jnp.arange(CONTEXT) <= self.position, scores, -jnp.inf))
        return jnp.einsum("bhm,bhmd->bhd", weights, self.caches[name + "v"]).reshape(batch, width)

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def sigmoid(self, x: Any) -> Any:
        return jax.nn.sigmoid(x)

    def tanh(self, x: Any) -> Any:
        return jnp.tanh(x)

    def times(self, x: Any, name: str, out: int) -> Any:
        return x @ self._weight(name, (out, x.shape[1])).T

    def steps(self, x: Any, length: int) -> Any:
        x = x.reshape(-1, length, x.shape[1])
        return [x[:, t] for t in range(length)]

    def sub(self, x: Any, y: Any) -> Any:
        return x - y

    def split(self, x: Any, parts: int) -> Any:
        return jnp.split(x, parts, 1)

    def grouped(self, x: Any, rows: int) -> Any:
        return x.reshape(-1, rows * x.shape[1])

    def joined(self, outputs: Any) -> Any:
        return jnp.stack(outputs, 1).reshape(-1, outputs[0].shape[1])

    def lstm(self, x: Any, name: str, width: int, length: int) -> Any:
        if not self._best:
            return recurrence(self, x, name, width, length)
        inputs = jnp.moveaxis(self.dense(x, name + "-x", 4 * width).reshape(-1, length, 4 * width), 1, 0)
        w = jnp.asarray(self._weight(name + "-h", (4 * width, width)))

        def step(state: Any, x: Any) -> Any:
            hidden, cell = state
            i, f, g, o = jnp.split(x + hidden @ w.T, 4, 1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((inputs.shape[1], width))
        return jnp.moveaxis(lax.scan(step, (zeros, zeros), inputs)[1], 0, 1).reshape(-1, width)


def rounded(logits: Any) -> Any:
    """The same in bfloat16, from float32 weights to float32 logits."""

    def narrow(a: Any) -> Any:
        return a.astype(jnp.bfloat16) if a.dtype == np.float32 else a

    def run(values: dict[str, Any], x: Any) -> Any:
        if not values:  # the first trace, which makes the weights
            return logits(values, x)
        return logits({n: narrow(v) for n, v in values.items()}, narrow(x)).astype(jnp.float32)

    return run


def decoder(model: str, batch: int, best: bool) -> Any:
    about = MODELS[model]
    weights: dict[str, Any] = {}

    def logits(values: Any, caches: Any, tokens: Any, position: Any) -> Any:
        nn = Layers(values, False, best)
        nn.caches, nn.position = dict(caches), position
        y = about.build(nn, tokens)
        return y, nn.caches

    inputs = about.data(batch)[0]
    made = jax.eval_shape(lambda x, p: logits(weights, {}, x, p), inputs[:, 0], jax.ShapeDtypeStruct((), np.int32))[1]
    weights = {name: jnp.asarray(value) for name, value in weights.items()}
    caches = {name: jnp.zeros(cache.shape) for name, cache in made.items()}
    jitted = jax.jit(logits, donate_argnums=1)

    def step(tokens: np.ndarray, position: int) -> np.ndarray:
        nonlocal caches
        y, caches = jitted(weights, caches, tokens, np.int32(position))
        return np.asarray(y)

    return decode_loop(step, inputs)


def make(
    model: str, mode: str, batch: int = 0, best: bool = False, precision: str = "", device: str = "", devices: int = 0
) -> Any:
    """``precision``, ``device`` and ``devices`` as for ours; in bfloat16 weights stay float32, and a step rounds them.

    JAX_NUM_CPU_DEVICES in the environment makes the virtual devices.
    """
    if mode == "decode":
        return decoder(model, batch, best)
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
