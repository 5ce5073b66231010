"""The layers that the image models are made of: named, recorded, in either data format."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import oneflow as flow

Blob = flow.Blob
Sizes = int | tuple[int, int]


@dataclass
class Layers:
    """How the layers of one network are built, and what they gave.

    training: use batch statistics and dropout; predict jobs never do.
    data_format: of images and weights, "NCHW" or "NHWC".
    regularizer: for the weights of convolutions and dense layers, e.g. flow.regularizers.l2(1e-4).
    momentum, epsilon: of batch normalization.
    outputs: every layer's Blob by its full name, filled while the network is built.
    """

    training: bool = True
    data_format: str = "NCHW"
    regularizer: Any = None
    momentum: float = 0.9
    epsilon: float = 1e-5
    outputs: dict[str, Blob] = field(default_factory=dict)

    @property
    def channel_axis(self) -> int:
        return 1 if self.data_format == "NCHW" else 3

    def per_axis(self, height: Any, width: Any) -> list[Any]:
        """A padding list: the batch and the channels are never padded."""
        return [0, 0, height, width] if self.data_format == "NCHW" else [0, height, width, 0]

    def _kept(self, name: str, y: Blob) -> Blob:
        self.outputs[flow.current_scope().namespace + name] = y
        return y

    def conv2d(
        self,
        x: Blob,
        filters: int,
        kernel: Sizes,
        name: str,
        strides: int = 1,
        pad: Sizes = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> Blob:
        """A convolution with `pad` pixels of zeros on each side (height, width)."""
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        high, wide = (pad, pad) if isinstance(pad, int) else pad
        fan = x.shape[self.channel_axis] // groups
        weight = flow.get_variable(
            f"{name}-weight",
            shape=(filters, fan, *kernel) if self.data_format == "NCHW" else (filters, *kernel, fan),
            dtype=x.dtype,
            initializer=flow.variance_scaling_initializer(2.0, "fan_out", "random_normal", self.data_format),
            regularizer=self.regularizer,
            model_name="weight",
        )
        padding = self.per_axis((high, high), (wide, wide))
        y = flow.nn.conv2d(x, weight, strides, padding, self.data_format, groups=groups, name=name)
        if bias:
            b = flow.get_variable(
                f"{name}-bias", shape=(filters,), dtype=x.dtype, initializer=flow.zeros_initializer(), model_name="bias"
            )
            y = flow.nn.bias_add(y, b, self.data_format, name=f"{name}-bias_add")
        return self._kept(name, y)

    def batch_norm(self, x: Blob, name: str, gamma: float = 1.0) -> Blob:
        """`gamma` is what its factors start with."""
        y = flow.layers.batch_normalization(
            x, axis=self.channel_axis, momentum=self.momentum, epsilon=self.epsilon,
            gamma_initializer=flow.constant_initializer(gamma), training=self.training, name=name,
        )  # fmt: skip
        return self._kept(name, y)

    def max_pool(self, x: Blob, size: int, strides: int, pad: int = 0, name: str = "maxpool") -> Blob:
        padding = self.per_axis((pad, pad), (pad, pad))
        return self._kept(name, flow.nn.max_pool2d(x, size, strides, padding, self.data_format, name=name))

    def avg_pool(self, x: Blob, size: int, strides: int, padding: str = "VALID", name: str = "avgpool") -> Blob:
        return self._kept(name, flow.nn.avg_pool2d(x, size, strides, padding, self.data_format, name=name))

    def global_pool(self, x: Blob, name: str = "avgpool") -> Blob:
        """The mean of each channel: (N, channels), whatever the image's size."""
        axes = [2, 3] if self.data_format == "NCHW" else [1, 2]
        return self._kept(name, flow.math.reduce_mean(x, axis=axes, name=name))

    def dense(self, x: Blob, units: int, name: str, activation: Callable[..., Blob] | None = None, stddev: float = 0.01) -> Blob:
        y = flow.layers.dense(
            x, units, activation, kernel_initializer=flow.random_normal_initializer(stddev=stddev),
            kernel_regularizer=self.regularizer, name=name,
        )  # fmt: skip
        return self._kept(name, y)

    def dropout(self, x: Blob, rate: float, name: str) -> Blob:
        return flow.nn.dropout(x, rate, name=name) if self.training else x
