"""TensorFlow: one ``tf.function`` a step, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from .architectures import MODELS, MOMENTUM, RATE, loop, weight


class Layers:
    def __init__(self, weights: dict[str, tf.Variable], training: bool):
        self.weights, self._training = weights, training

    def _weight(self, name: str, shape: tuple[int, ...], kind: str = "normal") -> Any:
        if name not in self.weights:
            value = weight(name, shape, kind)
            value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value
            self.weights[name] = tf.Variable(value, trainable=True)
        return self.weights[name]

    def image(self, x: Any) -> Any:
        return tf.transpose(x, (0, 2, 3, 1))

    def flatten(self, x: Any) -> Any:
        x = tf.transpose(x, (0, 3, 1, 2)) if x.shape.rank == 4 and x.shape[1] != 1 else x
        return tf.reshape(x, (x.shape[0], -1))

    def relu(self, x: Any) -> Any:
        return tf.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return tf.nn.gelu(x, approximate=False)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def conv(
        self, x: Any, name: str, out: int, k: int, stride: int = 1, pad: int = 0, groups: int = 1, bias: bool = False
    ) -> Any:
        w = self._weight(name, (out, x.shape[3] // groups, k, k))
        pads = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
        if groups > 1:  # depthwise
            x = tf.pad(x, pads) if pad else x
            y = tf.nn.depthwise_conv2d(x, tf.transpose(w, (0, 1, 3, 2)), (1, stride, stride, 1), "VALID")
        else:
            y = tf.nn.conv2d(x, w, stride, pads)
        return tf.nn.bias_add(y, self._weight(name + "-bias", (out,), "zeros")) if bias else y

    def batch_norm(self, x: Any, name: str) -> Any:
        size = x.shape[3]
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        if self._training:
            return tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-5, is_training=True)[0]
        zeros, ones = tf.zeros(size), tf.ones(size)
        return tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, zeros, ones, epsilon=1e-5, is_training=False)[0]

    def max_pool(self, x: Any, k: int, stride: int, pad: int = 0) -> Any:
        return tf.nn.max_pool2d(x, k, stride, [[0, 0], [pad, pad], [pad, pad], [0, 0]])

    def global_pool(self, x: Any) -> Any:
        return tf.reduce_mean(x, (1, 2))

    def dense(self, x: Any, name: str, out: int) -> Any:
        y = tf.matmul(x, self._weight(name, (out, x.shape[1])), transpose_b=True)
        return y + self._weight(name + "-bias", (out,), "zeros")

    def layer_norm(self, x: Any, name: str) -> Any:
        size = x.shape[-1]
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)

    def table(self, name: str, rows: int, width: int) -> Any:
        return self._weight(name, (rows, width), "embedding")

    def embedded(self, table: Any, tokens: Any) -> Any:
        return tf.gather(table, tf.reshape(tokens, (-1,)))

    def add_rows(self, x: Any, name: str, rows: int, width: int) -> Any:
        return tf.reshape(tf.reshape(x, (-1, rows, width)) + self._weight(name, (rows, width), "embedding"), (-1, width))

    def attention(self, x: Any, q: Any, k: Any, v: Any, heads: int, length: int) -> Any:
        size = q.shape[1] // heads
        q, k, v = (tf.transpose(tf.reshape(a, (-1, length, heads, size)), (0, 2, 1, 3)) for a in (q, k, v))
        scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * size**-0.5)
        return tf.reshape(tf.transpose(tf.matmul(scores, v), (0, 2, 1, 3)), (-1, heads * size))

    def times_transposed(self, x: Any, table: Any) -> Any:
        return tf.matmul(x, table, transpose_b=True)


def make(model: str, mode: str, batch: int = 0) -> Any:
    about = MODELS[model]
    inputs, labels = about.data(batch or about.batch)
    weights: dict[str, tf.Variable] = {}
    training = mode == "train"
    about.build(Layers(weights, training), tf.constant(inputs))
    values = list(weights.values())
    slots = [[tf.Variable(tf.zeros_like(v)) for v in values] for _ in range({"sgd": 0, "momentum": 1, "adam": 2}[about.rule])]
    count = tf.Variable(0.0)

    @tf.function
    def predict(x: Any) -> Any:
        return about.build(Layers(weights, training), x)

    @tf.function
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, about.build(Layers(weights, training), x))
            mean = tf.reduce_mean(each)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(mean, values)]
        if about.rule == "sgd":
            for v, g in zip(values, gradients, strict=True):
                v.assign_sub(RATE * g)
        elif about.rule == "momentum":
            for v, m, g in zip(values, slots[0], gradients, strict=True):
                v.assign_add(m.assign(MOMENTUM * m - RATE * g))
        else:
            count.assign_add(1.0)
            rate = 1e-4 * tf.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            for value, m, v, g in zip(values, slots[0], slots[1], gradients, strict=True):
                value.assign_sub(rate * m.assign(0.9 * m + 0.1 * g) / (tf.sqrt(v.assign(0.999 * v + 0.001 * g * g)) + 1e-8))
        return each

    def step(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (train(tf.constant(x), tf.constant(y)) if training else predict(tf.constant(x))).numpy()

    return loop(step, inputs, labels)
