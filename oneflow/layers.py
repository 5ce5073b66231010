"""Layers: ops with variables of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import dist, initializers
from .dist import Distribute
from .errors import ArgumentError
from .graph.graph import current
from .graph.node import Blob
from .ops._arrays import label
from .ops._emit import fail, want
from .ops._window import want_format, want_positive
from .ops.conv import bias_add, convolve, want_groups
from .ops.matrix import matmul
from .ops.variable import get_variable
from .scope import namespace

Initializer = Any
Regularizer = Any
Activation = Any
Ints = int | Sequence[int]
_Made = tuple[Initializer, Regularizer, str | None]  # how a variable is made, and its name where the user gave one


class _Default(str):
    """The default of a layer's ``name``: reads as the text, but is told apart from the same text given by the user."""


def _layer_name(name: Any, kind: str, op_suffix: str) -> str:
    """The name given, or the next free one of this kind: ``Dense``, ``Dense_1``, ..."""
    graph = current(f"flow.layers, layer {kind}")
    if name is not None and not isinstance(name, _Default):
        if not isinstance(name, str) or not name:
            fail(ArgumentError, f"layer {kind}", f"name must be a non-empty str, got {name!r}")
        return name
    while True:
        fresh = graph.layer_name(kind)
        if graph.node(graph.scope.namespace + fresh + op_suffix) is None:  # nobody has given it by hand
            return fresh


def _or(initializer: Initializer, default: Initializer) -> Initializer:
    return default if initializer is None else initializer


def _activated(y: Blob, activation: Activation, name: str) -> Blob:
    """``activation(y)`` in the layer's namespace; programs of 2019 pass numbers here, which mean none."""
    if not callable(activation):
        return y
    with namespace(name):
        return activation(y, name="activation")


def dense(
    inputs: Blob,
    units: int,
    activation: Callable[..., Blob] | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer = None,
    bias_initializer: Initializer = None,
    kernel_regularizer: Regularizer = None,
    bias_regularizer: Regularizer = None,
    trainable: bool = True,
    name: str | None = _Default("Dense"),
    model_distribute: Distribute = dist.broadcast(),  # noqa: B008 - an immutable singleton
) -> Blob:
    """activation(x W' + b), along the last axis.

    Variables: ``<name>-weight`` (units, in), which starts at 0 unless told otherwise, and ``<name>-bias`` (units,).

    Args:
      inputs: (..., in), rank >= 2, floating.
      units: > 0; size of the result's last axis.
      activation: called with the result and ``name=``; anything that cannot be called is ignored.
      use_bias: add b.
      kernel_initializer, bias_initializer: None means zeros.
      kernel_regularizer, bias_regularizer: ``flow.regularizers``.
      trainable: whether train jobs update the variables.
      name: the layer's; unnamed ones are numbered: ``Dense``, ``Dense_1``.
      model_distribute: how the variables lie on several devices: ``auto()``, ``broadcast()`` or ``split(0)``, along units.
    Returns: Blob (..., units), inputs' dtype.
    Raises: ArgumentError, ShapeError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> y = flow.layers.dense(x, 10, kernel_initializer=flow.glorot_uniform_initializer())   # (8, 4) -> (8, 10)
    """
    name = _layer_name(name, "Dense", "-matmul")
    what = label("dense", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    want.rank(what, inputs, 2)
    (size,) = want_positive(what, "units", units, 1)
    split = model_distribute.kind == "split" if isinstance(model_distribute, Distribute) else None
    if split is None or (split and model_distribute.axis != 0):
        fail(
            ArgumentError, what, f"model_distribute must be auto(), broadcast() or split(0), got {model_distribute!r}", (inputs,)
        )
    if split and inputs.ndim != 2:
        fail(ArgumentError, what, f"model_distribute=split(0) needs inputs of rank 2, got {inputs.ndim}", (inputs,))
    with namespace(name):
        weight = get_variable(
            "weight", (size, inputs.shape[-1]), inputs.dtype, _or(kernel_initializer, initializers.zeros_initializer()),
            kernel_regularizer, trainable, "weight", distribute=model_distribute, reuse=False,
        )  # fmt: skip
        y = matmul(inputs, weight, transpose_b=True, name="matmul")
        if use_bias:
            bias = get_variable(
                "bias", (size,), inputs.dtype, _or(bias_initializer, initializers.zeros_initializer()),
                bias_regularizer, trainable, "bias", distribute=model_distribute, reuse=False,
            )  # fmt: skip
            y = bias_add(y, bias, "NC" if y.ndim == 2 else "NWC", name="bias_add")
    return _activated(y, activation, name)


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
    kernel: _Made,
    bias: _Made,
    trainable: bool,
    name: str | None,
) -> Blob:
    name = _layer_name(name, f"Conv{n}d", "")
    what = label(f"conv{n}d", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    want.rank(what, inputs, n + 2, n + 2)
    channels_first = want_format(what, data_format, n)
    (count,) = want_positive(what, "filters", filters, 1)
    size = want_positive(what, "kernel_size", kernel_size, n)
    channels = inputs.shape[1 if channels_first else -1]
    want_groups(what, groups, channels, count)
    weight_first = channels_first or n == 3  # OneFlow stores the weights of conv3d channels first, whatever the format
    fan = channels // groups
    shape = (count, fan, *size) if weight_first else (count, *size, fan)

    def variable(kind: str, shape: tuple[int, ...], made: _Made, default: Initializer) -> Blob:
        initializer, regularizer, given_name = made
        return get_variable(
            f"{name}-{kind}" if given_name is None else given_name, shape, inputs.dtype, _or(initializer, default), regularizer,
            trainable, kind, reuse=False,
        )  # fmt: skip

    weight = variable("weight", shape, kernel, initializers.xavier_uniform_initializer("NC" if weight_first else data_format))
    y = convolve(what, inputs, weight, n, strides, padding, data_format, dilation_rate, groups, name, weight_first=weight_first)
    if use_bias:
        y = bias_add(y, variable("bias", (count,), bias, initializers.zeros_initializer()), data_format, name=f"{name}-bias_add")
    return _activated(y, activation, name)


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
    name: str | None = _Default("Conv1d"),
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
    name: str | None = _Default("Conv2d"),
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> Blob:
    """activation(conv2d(x, W) + b).

    Variables: ``<name>-weight`` (filters, in / groups, kh, kw), or (filters, kh, kw, in / groups) for "NHWC", and
    ``<name>-bias`` (filters,).

    Args:
      inputs: (N, C, H, W), or (N, H, W, C) for "NHWC"; floating.
      filters: > 0; how many channels the result has.
      kernel_size, strides, dilation_rate: an int or a pair > 0; dilation_rate None means 1.
      padding: "VALID", "SAME" (= "SAME_LOWER"), "SAME_UPPER" or a list; see ``nn.conv2d``.
      data_format: "NCHW" or "NHWC".
      groups: divides the channels and the filters.
      activation: called with the result and ``name=``; anything that cannot be called is ignored.
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
    name: str | None = _Default("Conv3d"),
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
