"""Ours. No ``from __future__ import annotations`` here: a job's annotations are values."""

from typing import Any
from unittest import mock

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler import arrangement
from oneflow.compiler.attention import FoundAttention

from .architectures import CONTEXT, MODELS, MOMENTUM, RATE, decode_loop, loop, recurrence, weight


class Layers:
    def __init__(self, training: bool):
        self._training = training
        self._made: dict[str, tuple[tuple[int, ...], str]] = {}
        self.position: Any = None  # of a decode step: (1,) int32

    def values(self) -> dict[str, np.ndarray]:
        """First values of the weights that were made."""
        return {name: weight(name, shape, kind) for name, (shape, kind) in self._made.items()}

    def _weight(self, name: str, shape: tuple[int, ...], kind: str = "normal") -> Any:
        self._made[name] = shape, kind
        return flow.get_variable(name, shape, initializer=flow.zeros_initializer())

    def image(self, x: Any) -> Any:
        return x

    def flatten(self, x: Any) -> Any:
        return flow.flatten(x, 1)

    relu = staticmethod(flow.nn.relu)
    add = staticmethod(flow.math.add)

    def gelu(self, x: Any) -> Any:
        return flow.math.gelu(x)

    def conv(
        self, x: Any, name: str, out: int, k: int, stride: int = 1, pad: int = 0, groups: int = 1, bias: bool = False
    ) -> Any:
        dims = len(x.shape) - 2
        w = self._weight(name, (out, x.shape[1] // groups, *(k,) * dims))
        conv = flow.nn.conv2d if dims == 2 else flow.nn.conv3d
        y = conv(x, w, stride, [0, 0, *(pad,) * dims], groups=groups, name=name + "-conv")
        return flow.nn.bias_add(y, self._weight(name + "-bias", (out,), "zeros")) if bias else y

    def batch_norm(self, x: Any, name: str) -> Any:
        return flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-5, training=self._training, name=name)

    def max_pool(self, x: Any, k: int, stride: int, pad: int = 0) -> Any:
        pool = flow.nn.max_pool2d if len(x.shape) == 4 else flow.nn.max_pool3d
        return pool(x, k, stride, [0, 0, *(pad,) * (len(x.shape) - 2)])

    def global_pool(self, x: Any) -> Any:
        return flow.math.reduce_mean(x, axis=[2, 3])

    def dense(self, x: Any, name: str, out: int) -> Any:
        y = flow.matmul(x, self._weight(name, (out, x.shape[1])), transpose_b=True)
        return flow.nn.bias_add(y, self._weight(name + "-bias", (out,), "zeros"))

    def layer_norm(self, x: Any, name: str) -> Any:
        return flow.layers.layer_norm(x, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5, name=name)

    def table(self, name: str, rows: int, width: int) -> Any:
        return self._weight(name, (rows, width), "embedding")

    def embedded(self, table: Any, tokens: Any) -> Any:
        return flow.gather(table, flow.reshape(tokens, (-1,)))

    def add_rows(self, x: Any, name: str, rows: int, width: int) -> Any:
        table = self._weight(name, (rows, width), "embedding")
        return flow.reshape(flow.reshape(x, (-1, rows, width)) + flow.reshape(table, (1, rows, width)), (-1, width))

    def attention(self, x: Any, q: Any, k: Any, v: Any, heads: int, length: int, causal: bool = False) -> Any:
        size = q.shape[1] // heads
        q, k, v = (flow.transpose(flow.reshape(a, (-1, length, heads, size)), (0, 2, 1, 3)) for a in (q, k, v))
        scores = flow.matmul(q, k, transpose_b=True) * size**-0.5
        if causal:
            scores = flow.math.fused_scale_tril(scores, fill_value=float("-inf"))
        return flow.reshape(flow.transpose(flow.matmul(flow.nn.softmax(scores), v), (0, 2, 1, 3)), (-1, heads * size))

    def times_transposed(self, x: Any, table: Any) -> Any:
        return flow.matmul(x, table, transpose_b=True)

    def conv_transpose(self, x: Any, name: str, out: int) -> Any:
        w = self._weight(name, (x.shape[1], out, 2, 2, 2))
        up = flow.user_op_builder(name + "-deconv").Op("deconv3d").Input("in", [x]).Input("weight", [w]).Output("out")
        up = up.Attr("filters", out).Attr("padding_before", [0, 0, 0]).Attr("data_format", "channels_first")
        up = up.Attr("kernel_size", [2, 2, 2]).Attr("strides", [2, 2, 2]).Attr("dilation_rate", [1, 1, 1])
        return up.Attr("output_padding", [0, 0, 0]).Attr("groups", 1).Build().InferAndTryRun().RemoteBlobList()[0]

    def concat(self, x: Any, y: Any) -> Any:
        return flow.concat([x, y], 1)

    def voxels(self, x: Any) -> Any:
        return flow.reshape(flow.transpose(x, (0, 2, 3, 4, 1)), (-1, x.shape[1]))

    def add_row(self, x: Any, name: str, rows: int, width: int) -> Any:
        return x + flow.gather(self._weight(name, (rows, width), "embedding"), self.position)

    def cached_attention(self, name: str, q: Any, k: Any, v: Any, heads: int) -> Any:
        batch, width = q.shape
        size, caches = width // heads, []
        for letter, new in (("k", k), ("v", v)):
            shape = (CONTEXT, batch, heads, size)
            cache = flow.get_variable(name + letter, shape, initializer=flow.zeros_initializer(), trainable=False)
            row = flow.reshape(new, (1, batch, heads, size))
            filled = flow.tensor_scatter_nd_update(cache, flow.reshape(self.position, (1, 1)), row)
            flow.assign(cache, filled)
            caches.append(flow.transpose(filled, (1, 2, 0, 3)))
        scores = flow.matmul(flow.reshape(q, (batch, heads, 1, size)), caches[0], transpose_b=True) * size**-0.5
        hidden = flow.math.greater(flow.range(CONTEXT, dtype=flow.int32), self.position)
        scores = scores + flow.masked_fill(flow.zeros((CONTEXT,)), hidden, float("-inf"))
        return flow.reshape(flow.matmul(flow.nn.softmax(scores), caches[1]), (batch, width))

    mul = staticmethod(flow.math.multiply)
    sub = staticmethod(flow.math.subtract)
    sigmoid = staticmethod(flow.math.sigmoid)
    tanh = staticmethod(flow.math.tanh)

    def times(self, x: Any, name: str, out: int) -> Any:
        return flow.matmul(x, self._weight(name, (out, x.shape[1])), transpose_b=True)

    def steps(self, x: Any, length: int) -> Any:
        x = flow.reshape(x, (-1, length, x.shape[1]))
        return [x[:, t] for t in range(length)]

    def split(self, x: Any, parts: int) -> Any:
        width = x.shape[1] // parts
        return [x[:, i * width : (i + 1) * width] for i in range(parts)]

    def grouped(self, x: Any, rows: int) -> Any:
        return flow.reshape(x, (-1, rows * x.shape[1]))

    def joined(self, outputs: Any) -> Any:
        return flow.reshape(flow.stack(outputs, 1), (-1, outputs[0].shape[1]))

    def lstm(self, x: Any, name: str, width: int, length: int) -> Any:
        return recurrence(self, x, name, width, length)


def make(
    model: str, mode: str, batch: int = 0, native: bool = True, asynchronous: bool = False, precision: str = "", device: str = "",
    devices: int = 0, attention: bool = True, cudnn_attention: bool = False,
) -> Any:  # fmt: skip
    """``precision`` is "float32", "tf32" or "bfloat16"; "" and no device leave the library's defaults.

    ``devices``: virtual ones of the CPU, which share the batch. ``attention``: may be one call of the native part.
    """
    if not attention:
        mock.patch.object(arrangement, "find_attention", lambda *_: FoundAttention()).start()  # fails where there is no such name
    about = MODELS[model]
    if precision:
        flow.config.enable_tensor_float_32_compute(precision != "float32")
    flow.config.cudnn_attention(cudnn_attention)
    if device == "cpu" or devices:
        flow.config.cpu_device_num(devices or 1)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(precision == "bfloat16")
    if about.rule == "row-sparse adam":
        config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["features"]}})
    inputs, labels = about.data(batch or about.batch)
    if mode == "decode":
        inputs = inputs[:, 0]
    kind = flow.int32 if about.vocabulary else flow.float32
    flow.config.enable_native_cpu(native)
    nn = Layers(mode == "train")

    def body(x: Any) -> Any:
        return about.build(nn, x)

    returns = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy
    if mode == "train":

        @flow.global_function(type="train", function_config=config)
        def job(x: tp.Numpy.Placeholder(inputs.shape, kind), y: tp.Numpy.Placeholder(labels.shape, flow.int32)) -> returns:
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, body(x))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1e-4 if "adam" in about.rule else RATE])
            if "adam" in about.rule:
                flow.optimizer.Adam(rate, do_bias_correction=True).minimize(loss)
            else:
                flow.optimizer.SGD(rate, momentum=MOMENTUM if about.rule == "momentum" else 0).minimize(loss)
            return loss

        step = job
    elif mode == "decode":

        @flow.global_function(type="predict", function_config=config)
        def job(x: tp.Numpy.Placeholder(inputs.shape, kind), position: tp.Numpy.Placeholder((1,), flow.int32)) -> returns:
            nn.position = position
            return body(x)

    else:

        @flow.global_function(type="predict", function_config=config)
        def job(x: tp.Numpy.Placeholder(inputs.shape, kind)) -> returns:
            return body(x)

        step = lambda x, _: job(x)  # noqa: E731
    flow.train.CheckPoint().init()
    flow.get_all_variables()  # traces the job, so that nn knows its weights
    flow.load_variables(nn.values())
    if mode == "decode":
        numbers = np.arange(about.context, dtype=np.int32)[:, None]
        run, seen = decode_loop(lambda x, position: job(x, numbers[position]), about.data(batch or about.batch)[0])
        run.job = job
        return run, seen
    run, seen = loop(step, inputs, labels)
    if asynchronous:

        def run(steps: int) -> None:
            for _ in range(steps):
                step(inputs, labels)(seen)
            flow.sync_default_session()

    run.job = job
    return run, seen
