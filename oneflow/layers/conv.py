"""Convolution layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._variables import initializers
from ..graph.node import Blob
from ..ops._arrays import label
from ..ops._emit import want
from ..ops._names import DefaultName
from ..ops._window import want_format, want_positive
from ..ops.conv import bias_add, convolve, want_groups
from ._common import (
    Activation,
    Initializer,
    Ints,
    Made,
    Regularizer,
    activated,
    layer_name,
    layer_variable,
    want_activation,
)


def _convolution(
    n: int,
    inputs: Blob,
    filters: int,
    kernel_size: Ints,
    strides: Ints,
    padding: Any,
    data_format: str,
    dilation_rate: Ints | None,
    groups: int,
    activation: Activation,
    use_bias: bool,
    kernel: Made,
    bias: Made,
    trainable: bool,
    name: str | None,
) -> Blob:
    name = layer_name(name, f"Conv{n}d", "")
    what = label(f"conv{n}d", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    want.rank(what, inputs, n + 2, n + 2)
    channels_first = want_format(what, data_format, n)
    count = want.integer(what, "filters", filters, 1, (inputs,))
    use_bias = want.flag(what, "use_bias", use_bias, (inputs,))
    want_activation(what, activation)
    size = want_positive(what, "kernel_size", kernel_size, n)
    channels = inputs.shape[1 if channels_first else -1]
    groups = want_groups(what, groups, channels, count)
    weight_first = channels_first or n == 3  # OneFlow stores the weights of conv3d channels first, whatever the format
    fan = channels // groups
    shape = (count, fan, *size) if weight_first else (count, *size, fan)

    default = initializers.xavier_uniform_initializer("NC" if weight_first else data_format)
    weight = layer_variable(what, name, "weight", shape, inputs.dtype, default, kernel, trainable=trainable)
    y = convolve(what, inputs, weight, n, strides, padding, data_format, dilation_rate, groups, name, weight_first=weight_first)
    if use_bias:
        zeros = initializers.zeros_initializer()
        b = layer_variable(what, name, "bias", (count,), inputs.dtype, zeros, bias, trainable=trainable)
        y = bias_add(y, b, data_format, name=f"{name}-bias_add")
    return activated(y, activation, name)


# The three functions have OneFlow's parameters, which are written out in each: ``help`` and type checkers read them there.


def conv1d(
    inputs: Blob,
    filters: int,
    kernel_size: Ints = 1,
    strides: Ints = 1,
    padding: Any = "VALID",
    data_format: str = "NCW",
    dilation_rate: Ints | None = None,
    groups: int = 1,
    activation: Callable[..., Blob] | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer = None,
    bias_initializer: Initializer = None,
    kernel_regularizer: Regularizer = None,
    bias_regularizer: Regularizer = None,
    trainable: bool = True,
    name: str | None = DefaultName("Conv1d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> Blob:
    """activation(conv1d(x, W) + b).

    Args, Returns, Raises: as ``layers.conv2d``, for (N, C, W), or (N, W, C) with "NWC".
    Example: >>> y = flow.layers.conv1d(x, 16, 3, padding="SAME")   # (8, 4, 100) -> (8, 16, 100)
    """
    return _convolution(
        1, inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, groups, activation, use_bias,
        (kernel_initializer, kernel_regularizer, weight_name), (bias_initializer, bias_regularizer, bias_name), trainable, name,
    )  # fmt: skip


def conv2d(
    inputs: Blob,
    filters: int,
    kernel_size: Ints = 1,
    strides: Ints = 1,
    padding: Any = "VALID",
    data_format: str = "NCHW",
    dilation_rate: Ints | None = None,
    groups: int = 1,
    activation: Callable[..., Blob] | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer = None,
    bias_initializer: Initializer = None,
    kernel_regularizer: Regularizer = None,
    bias_regularizer: Regularizer = None,
    trainable: bool = True,
    name: str | None = DefaultName("Conv2d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> Blob:
    """activation(conv2d(x, W) + b).

    Variables: ``<name>-weight`` (filters, in / groups, kh, kw), or (filters, kh, kw, in / groups) for "NHWC", and
    ``<name>-bias`` (filters,).

    Args:
      inputs: (N, C, H, W), or (N, H, W, C) for "NHWC"; floating.
      filters: > 0; the number of channels of the result.
      kernel_size, strides, dilation_rate: an int or a pair > 0; dilation_rate None means 1.
      padding: "VALID", "SAME" (= "SAME_LOWER"), "SAME_UPPER" or a list; see ``nn.conv2d``.
      data_format: "NCHW" or "NHWC".
      groups: divides the channels and the filters.
      activation: a function that is called with the result and ``name=``, such as ``flow.nn.relu``; an int means none.
      use_bias: add b.
      kernel_initializer, bias_initializer: None means xavier_uniform and zeros.
      kernel_regularizer, bias_regularizer: ``flow.regularizers``.
      trainable: whether train jobs update the variables.
      name: the layer's; unnamed ones are numbered: ``Conv2d``, ``Conv2d_1``.
      weight_name, bias_name: full names for the variables, instead of ``<name>-weight`` and ``<name>-bias``.
    Returns: Blob (N, filters, H', W'), or (N, H', W', filters).
    Raises: ArgumentError, ShapeError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> y = flow.layers.conv2d(x, 32, 5, padding="SAME", activation=flow.nn.relu)   # (8, 1, 28, 28) -> (8, 32, 28, 28)
    """
    return _convolution(
        2, inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, groups, activation, use_bias,
        (kernel_initializer, kernel_regularizer, weight_name), (bias_initializer, bias_regularizer, bias_name), trainable, name,
    )  # fmt: skip


def conv3d(
    inputs: Blob,
    filters: int,
    kernel_size: Ints = 1,
    strides: Ints = 1,
    padding: Any = "VALID",
    data_format: str = "NCDHW",
    dilation_rate: Ints | None = None,
    groups: int = 1,
    activation: Callable[..., Blob] | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer = None,
    bias_initializer: Initializer = None,
    kernel_regularizer: Regularizer = None,
    bias_regularizer: Regularizer = None,
    trainable: bool = True,
    name: str | None = DefaultName("Conv3d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> Blob:
    """activation(conv3d(x, W) + b). The weight is (filters, in / groups, kd, kh, kw) in both formats.

    Args, Returns, Raises: as ``layers.conv2d``, for (N, C, D, H, W), or (N, D, H, W, C) with "NDHWC".
    Example: >>> y = flow.layers.conv3d(x, 8, 3, padding="SAME")   # (2, 1, 8, 8, 8) -> (2, 8, 8, 8, 8)
    """
    return _convolution(
        3, inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, groups, activation, use_bias,
        (kernel_initializer, kernel_regularizer, weight_name), (bias_initializer, bias_regularizer, bias_name), trainable, name,
    )  # fmt: skip
