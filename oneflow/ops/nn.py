"""Activations, softmax, moments, pixel shuffle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._base.jax import jnp, lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ..graph.op import AttentionStep
from ._arrays import Array, broadcast_to, full, in_float32, label, like, select, softplus_of, where_else_zero, widen
from ._emit import emit, emit_many, fail, op, want, with_moved_axis
from .loss import log_softmax_of

# --- activations


def _between_grad(inputs: Any, outputs: Any, cotangents: Any, *, low: float, high: float) -> tuple[Array]:
    (x,), (dy,) = inputs, cotangents
    return (where_else_zero(lax.bitwise_and(lax.gt(x, full(low, x)), lax.lt(x, full(high, x))), dy),)


@op("hardtanh", batch_inputs=(0,), elementwise=True, grad=_between_grad)
def _hardtanh(x: Array, *, low: float, high: float) -> Array:
    return lax.clamp(like(low, x), x, like(high, x))


@op("leaky_relu", batch_inputs=(0,), elementwise=True, zeros="all")
def _leaky_relu(x: Array, *, alpha: float) -> Array:
    return lax.select(lax.gt(x, full(0, x)), x, lax.mul(x, like(alpha, x)))


@op("elu", batch_inputs=(0,), elementwise=True, zeros="all")
def _elu(x: Array, *, alpha: float) -> Array:
    above = lax.gt(x, full(0, x))
    below = lax.mul(lax.expm1(select(above, full(0, x), x)), like(alpha, x))
    return lax.select(above, x, below)


@op("prelu", newer_autocast="always", channels_last=lambda attrs, rank: {"channels_last": True})
def _prelu(x: Array, alpha: Array, *, channels_last: bool = False) -> Array:
    """``channels_last``: of x; alpha has its axes in the order of channels first."""
    if channels_last:
        alpha = jnp.moveaxis(lax.expand_dims(alpha, range(x.ndim - 1 - alpha.ndim)), 0, -1)
    slope = lax.broadcast_in_dim(broadcast_to(alpha, x.shape[1:]), x.shape, tuple(range(1, x.ndim)))
    return lax.select(lax.gt(x, full(0, x)), x, lax.mul(x, slope))


def parametric_relu(x: Blob, alpha: Blob, name: str | None = None) -> Blob:
    """x where x > 0, else alpha * x; alpha broadcasts to x's shape without axis 0. See ``layers.prelu``."""
    return emit(_prelu, x, alpha, name=name, prefix="PRelu")


def _ramp(x: Array) -> Array:
    """clip(x / 6 + 0.5, 0, 1)"""
    return lax.clamp(like(0, x), lax.add(lax.mul(x, like(1 / 6, x)), like(0.5, x)), like(1, x))


def _inside(x: Array) -> Array:
    return lax.lt(lax.abs(x), full(3, x))


def _hardsigmoid_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[Array]:
    (x,), (dy,) = inputs, cotangents
    return (where_else_zero(_inside(x), lax.mul(dy, like(1 / 6, x))),)


@op("hardsigmoid", batch_inputs=(0,), elementwise=True, grad=_hardsigmoid_grad)
def _hardsigmoid(x: Array) -> Array:
    return in_float32(_ramp, x)


def _hardswish_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[Array]:
    x, dy = widen(inputs[0]), widen(cotangents[0])
    slope = lax.add(lax.mul(x, like(1 / 3, x)), like(0.5, x))
    outside = lax.convert_element_type(lax.ge(x, full(3, x)), x.dtype)
    dx = lax.mul(dy, lax.select(_inside(x), slope, outside))
    return (lax.convert_element_type(dx, inputs[0].dtype),)


@op("hardswish", batch_inputs=(0,), elementwise=True, grad=_hardswish_grad)
def _hardswish(x: Array) -> Array:
    return in_float32(lambda wide: lax.mul(wide, _ramp(wide)), x)  # in 16 bits the ramp's rounding, times x, is too much


@op("mish", batch_inputs=(0,), elementwise=True)
def _mish(x: Array) -> Array:
    return lax.mul(x, lax.tanh(softplus_of(x)))


@op("swish", batch_inputs=(0,), elementwise=True)
def _swish(x: Array, *, beta: float) -> Array:
    return lax.mul(x, lax.logistic(lax.mul(x, like(beta, x)) if beta != 1 else x))


def _floating(function: str, x: Any, name: str | None, argument: str = "x") -> str:
    what = label(function, name)
    want.floating(what, want.blob(what, argument, x))
    return what


def relu6(x: Blob, name: str | None = None) -> Blob:
    """min(max(x, 0), 6); its gradient is 0 at 0 and 6.

    Args:
      x: any shape, floating.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> y = flow.nn.relu6(x)
    """
    _floating("relu6", x, name)
    return emit(_hardtanh, x, name=name, prefix="Relu6", low=0.0, high=6.0)


def leaky_relu(x: Blob, alpha: float = 0.2, name: str | None = None) -> Blob:
    """x where x > 0, else alpha * x. (PyTorch's default slope is 0.01.)

    Args:
      x: any shape, floating.
      alpha: slope on the negative side.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> y = flow.nn.leaky_relu(x, alpha=0.1)
    """
    what = _floating("leaky_relu", x, name)
    return emit(_leaky_relu, x, name=name, alpha=want.number(what, "alpha", alpha))


def elu(x: Blob, alpha: float = 1.0, name: str | None = None) -> Blob:
    """x where x > 0, else alpha * (exp(x) - 1).

    Args:
      x: any shape, floating.
      alpha: the limit for x -> -inf is -alpha.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> y = flow.nn.elu(x)
    """
    what = _floating("elu", x, name)
    return emit(_elu, x, name=name, alpha=want.number(what, "alpha", alpha))


def hardsigmoid(x: Blob, name: str | None = None) -> Blob:
    """clip(x / 6 + 0.5, 0, 1).

    Args, Returns, Raises: those of ``relu6``.
    Example: >>> y = flow.nn.hardsigmoid(x)
    """
    _floating("hardsigmoid", x, name)
    return emit(_hardsigmoid, x, name=name)


def hardswish(x: Blob, name: str | None = None) -> Blob:
    """x * clip(x / 6 + 0.5, 0, 1).

    Args, Returns, Raises: those of ``relu6``.
    Example: >>> y = flow.nn.hardswish(x)   # Howard et al., 2019
    """
    _floating("hardswish", x, name)
    return emit(_hardswish, x, name=name)


def hardtanh(x: Blob, min_val: float = -1.0, max_val: float = 1.0, name: str | None = None) -> Blob:
    """x clipped to [min_val, max_val]; its gradient is 0 at both bounds.

    Args:
      x: any shape, floating.
      min_val, max_val: min_val < max_val.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> y = flow.nn.hardtanh(x)
    """
    what = _floating("hardtanh", x, name)
    low, high = want.number(what, "min_val", min_val), want.number(what, "max_val", max_val)
    if not low < high:
        fail(ArgumentError, what, f"min_val must be < max_val, got {shown(min_val)} and {shown(max_val)}", (x,))
    return emit(_hardtanh, x, name=name, low=low, high=high)


def mish(x: Blob, name: str | None = None) -> Blob:
    """x * tanh(log(1 + exp(x))), without overflow.

    Args, Returns, Raises: those of ``relu6``.
    Example: >>> y = flow.nn.mish(x)   # Misra, 2019
    """
    _floating("mish", x, name)
    return emit(_mish, x, name=name)


def swish(x: Blob, beta: float = 1.0, name: str | None = None) -> Blob:
    """x * sigmoid(beta * x).

    Args:
      x: any shape, floating.
      beta: factor inside.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, DtypeError.
    Example: >>> y = flow.nn.swish(x)   # Ramachandran et al., 2017
    """
    what = _floating("swish", x, name)
    return emit(_swish, x, name=name, beta=want.number(what, "beta", beta))


# --- softmax


def _along(values: Array, x: Array, axis: int) -> Array:
    """``values``, which lack ``axis``, repeated along it."""
    return lax.broadcast_in_dim(values, x.shape, [a for a in range(x.ndim) if a != axis])


def _softmax_backward(y: Array, dy: Array, axis: int) -> Array:
    wide, wide_dy = widen(y), widen(dy)
    mean = _along(lax.reduce_sum(lax.mul(wide, wide_dy), (axis,)), y, axis)
    return lax.convert_element_type(lax.mul(wide, lax.sub(wide_dy, mean)), y.dtype)


@op(
    "softmax",
    grad=lambda inputs, outputs, cotangents, *, axis: (_softmax_backward(outputs[0], cotangents[0], axis),),
    autocast="between",
    attention=lambda attrs: AttentionStep("weights", axis=attrs["axis"]),
    channels_last=with_moved_axis,
)
def _softmax(x: Array, *, axis: int) -> Array:
    return lax.convert_element_type(softmax_of(widen(x), axis), x.dtype)


def softmax_of(x: Array, axis: int) -> Array:
    """exp(x) / sum(exp(x)), the maximum subtracted first."""
    e = lax.exp(lax.sub(x, _along(lax.reduce_max(x, (axis,)), x, axis)))
    return lax.div(e, _along(lax.reduce_sum(e, (axis,)), x, axis))


def _logsoftmax_grad(inputs: Any, outputs: Any, cotangents: Any, *, axis: int) -> tuple[Array]:
    y, dy = widen(outputs[0]), widen(cotangents[0])
    total = _along(lax.reduce_sum(dy, (axis,)), y, axis)
    return (lax.convert_element_type(lax.sub(dy, lax.mul(lax.exp(y), total)), inputs[0].dtype),)


@op("logsoftmax", grad=_logsoftmax_grad, channels_last=with_moved_axis)
def _logsoftmax(x: Array, *, axis: int) -> Array:
    return lax.convert_element_type(log_softmax_of(widen(x), axis), x.dtype)


@op("softmax_grad")
def _softmax_grad(y: Array, dy: Array, *, axis: int) -> Array:
    return _softmax_backward(y, dy, axis)


def _softmax_axis(what: str, x: Blob, axis: Any) -> int:
    want.rank(what, x, 2)
    return want.axis(what, -1 if axis is None else axis, x.ndim, inputs=(x,))


def softmax(logits: Blob, axis: int | None = None, name: str | None = None) -> Blob:
    """exp(x) / sum(exp(x)) along one axis, computed without overflow.

    Args:
      logits: rank >= 2, floating.
      axis: in [-rank, rank); None means the last.
      name: name of the op.
    Returns: Blob of logits' shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> p = flow.nn.softmax(logits)
    """
    what = _floating("softmax", logits, name, "logits")
    return emit(_softmax, logits, name=name, axis=_softmax_axis(what, logits, axis))


def logsoftmax(logits: Blob, axis: int | None = None, name: str | None = None) -> Blob:
    """log(softmax(x)) along one axis, finite wherever x is.

    Args, Returns, Raises: those of ``softmax``.
    Example: >>> log_p = flow.nn.logsoftmax(logits)
    """
    what = _floating("logsoftmax", logits, name, "logits")
    return emit(_logsoftmax, logits, name=name, prefix="LogSoftmax", axis=_softmax_axis(what, logits, axis))


def softmax_grad(y: Blob, dy: Blob, axis: int | None = None, name: str | None = None) -> Blob:
    """The gradient of softmax from its output: y * (dy - sum(y * dy)).

    Args:
      y, dy: softmax's output and the gradient of it; one shape and floating dtype, rank >= 2.
      axis: softmax's; None means the last.
      name: name of the op.
    Returns: Blob of y's shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> dx = flow.nn.softmax_grad(y, dy)
    """
    what = _floating("softmax_grad", y, name, "y")
    want.same_dtype(what, (y, want.blob(what, "dy", dy)))
    want.same_shape(what, (y, dy))
    return emit(_softmax_grad, y, dy, name=name, axis=_softmax_axis(what, y, axis))


# --- statistics


@op("moments", multiple_results=True)
def _moments(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> tuple[Array, Array]:
    mean, variance = mean_and_variance(widen(x), axes)
    shape = [1 if a in axes else s for a, s in enumerate(x.shape)]
    if not keepdims:
        shape = [s for a, s in enumerate(x.shape) if a not in axes] or [1]
    return tuple(lax.convert_element_type(lax.reshape(v, shape), x.dtype) for v in (mean, variance))  # type: ignore[return-value]


def mean_and_variance(x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """Mean and biased variance, both with size 1 on ``axes``. The mean is subtracted before squaring: no cancellation."""
    elements = math.prod(x.shape[a] for a in axes)
    count = like(1 / elements if elements else math.nan, x)
    shape = [1 if a in axes else s for a, s in enumerate(x.shape)]
    mean = lax.reshape(lax.mul(lax.reduce_sum(x, axes), count), shape)
    centred = lax.sub(x, broadcast_to(mean, x.shape))
    return mean, lax.reshape(lax.mul(lax.reduce_sum(lax.mul(centred, centred), axes), count), shape)


def moments(x: Blob, axes: list[int], keepdims: bool | None = False, name: str | None = None) -> tuple[Blob, Blob]:
    """Mean and biased variance along ``axes``.

    Args:
      x: floating.
      axes: a list of axes in [-rank, rank).
      keepdims: keep the axes, with size 1.
      name: name of the op.
    Returns: (mean, variance), Blobs of x's dtype; shape (1,) where nothing remains.
    Raises: ArgumentError, AxisError, DtypeError.
    Example: >>> mean, variance = flow.nn.moments(x, [0, 2, 3])   # (8, 16, 14, 14) -> (16,), (16,)
    """
    what = _floating("moments", x, name)
    if not isinstance(axes, list):
        fail(ArgumentError, what, f"axes must be a list of ints, got {shown(axes)}", (x,))
    chosen = want.axes(what, axes, x.ndim, "axes", (x,))
    keep = keepdims is not None and want.flag(what, "keepdims", keepdims, (x,))
    mean, variance = emit_many(_moments, x, name=name, axes=chosen, keepdims=keep)
    return mean, variance


# --- pixel shuffle


@op("pixel_shuffle")
def _pixel_shuffle(x: Array, *, h: int, w: int) -> Array:
    n, c, rows, columns = x.shape
    parts = lax.reshape(x, (n, c // (h * w), h, w, rows, columns))
    return lax.reshape(lax.transpose(parts, (0, 1, 4, 2, 5, 3)), (n, c // (h * w), rows * h, columns * w))


def PixelShuffle(input: Blob, upscale_factor: int, name: str | None = None) -> Blob:
    """Blocks of factor**2 channels become factor x factor pixels.

    Args:
      input: (N, C, H, W), C divisible by factor**2.
      upscale_factor: int > 0.
      name: name of the op.
    Returns: Blob (N, C / factor**2, H * factor, W * factor); channel (c * factor + i) * factor + j becomes row i, column j
      of each block.
    Raises: ArgumentError, ShapeError.
    Example: >>> y = flow.nn.PixelShuffle(x, 2)   # (1, 12, 8, 8) -> (1, 3, 16, 16); Shi et al., 2016
    """
    return PixelShufflev2(input, upscale_factor, upscale_factor, name)


def PixelShufflev2(input: Blob, h_upscale_factor: int, w_upscale_factor: int, name: str | None = None) -> Blob:
    """``PixelShuffle`` with a factor for each axis.

    Args:
      input: (N, C, H, W), C divisible by the product of the factors.
      h_upscale_factor, w_upscale_factor: ints > 0.
      name: name of the op.
    Returns: Blob (N, C / (h * w), H * h, W * w).
    Raises: ArgumentError, ShapeError.
    Example: >>> y = flow.nn.PixelShufflev2(x, 2, 3)   # (1, 12, 8, 8) -> (1, 2, 16, 24)
    """
    what = label("PixelShuffle", name)
    want.rank(what, want.blob(what, "input", input), 4, 4)
    h = want.integer(what, "h_upscale_factor", h_upscale_factor, 1, (input,))
    w = want.integer(what, "w_upscale_factor", w_upscale_factor, 1, (input,))
    if input.shape[1] % (h * w):
        fail(ShapeError, what, f"the {input.shape[1]} channels must be divisible by {h} * {w}", (input,))
    return emit(_pixel_shuffle, input, name=name, prefix="PixelShuffle", h=h, w=w)
