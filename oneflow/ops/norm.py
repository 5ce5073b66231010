"""Normalizations: batch, layer, instance and group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import lax
from .._variables import initializers
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.op import BatchNorm
from ._arrays import Array, broadcast_to, full, label, like, sum_to, widen
from ._emit import emit, emit_many, fail, op, want
from ._int8 import CHANNELWISE
from ._native_norm import GROUPS, LAYER
from .nn import mean_and_variance
from .variable import get_variable


def parameter_dtype(x: Blob) -> dtype:
    """Half-precision inputs have float32 parameters."""
    return dtypes.float32 if x.dtype.bytes == 2 else x.dtype


def _column(v: Array, x: Array, axis: int) -> Array:
    """A vector along ``axis``, or an array of x's rank, broadcast to x's shape and cast to x's dtype."""
    v = lax.convert_element_type(v, x.dtype)
    return lax.broadcast_in_dim(v, x.shape, (axis,)) if v.ndim == 1 else broadcast_to(v, x.shape)


def _scale_and_shift(x: Array, parameters: Sequence[Array], scale: bool, center: bool, spread: Any) -> Array:
    """x * gamma + beta, either of which may be missing."""
    rest = list(parameters)
    if scale:
        x = lax.mul(x, spread(rest.pop(0)))
    if center:
        x = lax.add(x, spread(rest.pop(0)))
    return x


# --- batch normalization


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    return {**attrs, "axis": rank - 1} if attrs["axis"] == 1 else None


@op("batch_normalization", channels_last=_channels_last, autocast="between", autocast_first_only=True, int8=CHANNELWISE)
def _batch_normalization(
    x: Array, mean: Array, variance: Array, *parameters: Array, axis: int, epsilon: float, scale: bool, center: bool
) -> Array:
    wide = widen(x)
    inverse = lax.rsqrt(lax.add(widen(variance), full(epsilon, widen(variance))))
    y = lax.mul(lax.sub(wide, _column(mean, wide, axis)), _column(inverse, wide, axis))
    y = _scale_and_shift(y, parameters, scale, center, lambda p: _column(p, wide, axis))
    return lax.convert_element_type(y, x.dtype)


def _training_grad(
    inputs: Any, outputs: Any, cotangents: Any, *, axis: int, scale: bool, center: bool, **rest: Any
) -> tuple[Any, ...]:
    x, gamma = widen(inputs[0]), inputs[1] if scale else None
    mean, inverse = outputs[3], outputs[4]
    dy = widen(cotangents[0])
    axes = tuple(a for a in range(x.ndim) if a != axis)
    normal = lax.mul(lax.sub(x, _column(mean, x, axis)), _column(inverse, x, axis))
    d_beta = lax.reduce_sum(dy, axes)
    d_gamma = lax.reduce_sum(lax.mul(dy, normal), axes)
    share = like(1 / max(1, math.prod(x.shape[a] for a in axes)), x)
    centred = lax.sub(dy, _column(lax.mul(d_beta, share), x, axis))
    centred = lax.sub(centred, lax.mul(normal, _column(lax.mul(d_gamma, share), x, axis)))
    slope = inverse if gamma is None else lax.mul(inverse, lax.convert_element_type(gamma, inverse.dtype))
    dx = lax.convert_element_type(lax.mul(centred, _column(slope, x, axis)), inputs[0].dtype)
    gradients = [dx, *([d_gamma] if scale else []), *([d_beta] if center else [])]
    return (*(lax.convert_element_type(g, v.dtype) for g, v in zip(gradients, inputs, strict=False)), None, None)


@op(
    "batch_normalization_training",
    multiple_results=True,
    grad=_training_grad,
    channels_last=_channels_last,
    autocast="between",
    autocast_first_only=True,
    batch_norm=lambda attrs: BatchNorm(**attrs),
)
def _batch_normalization_training(
    x: Array, *rest: Array, axis: int, epsilon: float, momentum: float, scale: bool, center: bool
) -> tuple[Array, ...]:
    """The normalized values, the updated moving statistics, and what the gradient needs."""
    *parameters, moving_mean, moving_variance = rest
    wide = widen(x)
    if wide.size:
        mean, variance = mean_and_variance(wide, tuple(a for a in range(x.ndim) if a != axis))
        mean, variance = lax.reshape(mean, (x.shape[axis],)), lax.reshape(variance, (x.shape[axis],))
    else:  # an empty batch, of an input that varies in size, has no statistics: the moving ones stay as they are
        mean, variance = (lax.convert_element_type(v, wide.dtype) for v in (moving_mean, moving_variance))
    inverse = lax.rsqrt(lax.add(variance, full(epsilon, variance)))
    y = lax.mul(lax.sub(wide, _column(mean, wide, axis)), _column(inverse, wide, axis))
    y = _scale_and_shift(y, parameters, scale, center, lambda p: _column(p, wide, axis))

    def moved(old: Array, new: Array) -> Array:
        if not wide.size:
            return old
        new = lax.convert_element_type(new, old.dtype)
        return lax.add(lax.mul(old, like(momentum, old)), lax.mul(new, like(1 - momentum, old)))

    return lax.convert_element_type(y, x.dtype), moved(moving_mean, mean), moved(moving_variance, variance), mean, inverse


def batch_normalization(
    x: Blob,
    mean: Blob,
    variance: Blob,
    offset: Blob | None = None,
    scale: Blob | None = None,
    variance_epsilon: float | None = 1e-5,
    axis: int = 1,
    name: str | None = None,
) -> Blob:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, with given statistics.

    Args:
      x: floating.
      mean, variance, offset, scale: (C,) where C is x's size on ``axis``, or of x's rank and broadcastable; x's dtype
        (float32 for a half-precision x).
      variance_epsilon: >= 0.
      axis: the channels', in [-rank, rank).
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.batch_normalization(x, *flow.nn.moments(x, [0, 2, 3]), axis=1)   # Ioffe and Szegedy, 2015
    """
    what = label("batch_normalization", name)
    want.floating(what, want.blob(what, "x", x))
    axis = want.axis(what, axis, x.ndim, inputs=(x,))
    given = {"mean": mean, "variance": variance, "scale": scale, "offset": offset}
    for argument, blob in given.items():
        if blob is None and argument in ("scale", "offset"):
            continue
        _want_statistic(what, argument, want.blob(what, argument, blob), x, axis)
    return emit(
        _batch_normalization, x, mean, variance, *(b for b in (scale, offset) if b is not None), name=name,
        axis=axis, epsilon=want.number(what, "variance_epsilon", variance_epsilon, low=0),
        scale=scale is not None, center=offset is not None,
    )  # fmt: skip


def _want_statistic(what: str, argument: str, blob: Blob, x: Blob, axis: int) -> None:
    if blob.dtype not in (x.dtype, parameter_dtype(x)):
        fail(DtypeError, what, f"{argument} must be {parameter_dtype(x).name}, got {blob.dtype.name}", (x, blob))
    fits = blob.ndim == x.ndim and all(b in (1, s) for b, s in zip(blob.shape, x.shape, strict=True))
    if blob.shape != (x.shape[axis],) and not fits:
        fail(
            ShapeError,
            what,
            f"{argument} must have shape ({x.shape[axis]},), x's size on axis {axis}, got {blob.shape}",
            (x, blob),
        )


def normalize_batch(
    x: Blob,
    gamma: Blob | None,
    beta: Blob | None,
    moving_mean: Blob,
    moving_variance: Blob,
    *,
    axis: int,
    epsilon: float,
    momentum: float,
    training: bool,
    name: str | None,
) -> Blob:
    """Batch normalization with its moving statistics: used if not ``training``, else moved towards the batch's."""
    parameters = [b for b in (gamma, beta) if b is not None]
    scale, center = gamma is not None, beta is not None
    if not training:
        return emit(
            _batch_normalization, x, moving_mean, moving_variance, *parameters, name=name,
            axis=axis, epsilon=epsilon, scale=scale, center=center,
        )  # fmt: skip
    y, new_mean, new_variance, *_ = emit_many(
        _batch_normalization_training, x, *parameters, moving_mean, moving_variance, name=name, prefix="BatchNormalization",
        axis=axis, epsilon=epsilon, momentum=momentum, scale=scale, center=center,
    )  # fmt: skip
    graph = current()
    graph.assign(moving_mean, new_mean)
    graph.assign(moving_variance, new_variance)
    return y


# --- layer normalization


@op("layer_norm", autocast="between", autocast_first_only=True, native=LAYER)
def _layer_norm(x: Array, *parameters: Array, begin: int, epsilon: float, scale: bool, center: bool) -> Array:
    wide = widen(x)
    mean, variance = mean_and_variance(wide, tuple(range(begin, x.ndim)))
    inverse = lax.rsqrt(lax.add(variance, full(epsilon, variance)))
    y = lax.mul(lax.sub(wide, broadcast_to(mean, x.shape)), broadcast_to(inverse, x.shape))
    y = _scale_and_shift(y, parameters, scale, center, lambda p: broadcast_to(lax.convert_element_type(p, y.dtype), x.shape))
    return lax.convert_element_type(y, x.dtype)


def layer_norm(
    inputs: Blob,
    gamma: Blob | None = None,
    beta: Blob | None = None,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Blob:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over all axes from ``begin_norm_axis`` on.

    Args:
      inputs: floating.
      gamma, beta: of shape inputs.shape[begin_params_axis:], inputs' dtype (float32 for half precision).
      begin_norm_axis: the first axis of the mean and (biased) variance.
      begin_params_axis: the first axis of gamma and beta.
      epsilon: >= 0.
      name: name of the op.
    Returns: Blob of inputs' shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.layer_norm(x, gamma, beta, begin_norm_axis=2)   # (8, 5, 16), (16,), (16,); Ba et al., 2016
    """
    what = label("layer_norm", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    begin, params = norm_axes(what, inputs, begin_norm_axis, begin_params_axis)
    for argument, blob in (("gamma", gamma), ("beta", beta)):
        if blob is None:
            continue
        want.blob(what, argument, blob)
        if blob.dtype not in (inputs.dtype, parameter_dtype(inputs)):
            fail(DtypeError, what, f"{argument} must be {parameter_dtype(inputs).name}, got {blob.dtype.name}", (inputs, blob))
        if blob.shape != inputs.shape[params:]:
            fail(ShapeError, what, f"{argument} must have shape {inputs.shape[params:]}, inputs' from begin_params_axis on, "
                 f"got {blob.shape}", (inputs, blob))  # fmt: skip
    return emit(
        _layer_norm, inputs, *(b for b in (gamma, beta) if b is not None), name=name, begin=begin,
        epsilon=want.number(what, "epsilon", epsilon, low=0), scale=gamma is not None, center=beta is not None,
    )  # fmt: skip


def norm_axes(what: str, x: Blob, begin_norm_axis: int, begin_params_axis: int) -> tuple[int, int]:
    """Both axes as non-negative ints."""
    return (
        want.axis(what, begin_norm_axis, x.ndim, "begin_norm_axis", (x,)),
        want.axis(what, begin_params_axis, x.ndim, "begin_params_axis", (x,)),
    )


@op("layer_norm_grad", nondifferentiable=True)
def _layer_norm_grad(dy: Array, x: Array, mean: Array, inverse: Array, *, begin: int) -> Array:
    axes = tuple(range(begin, x.ndim))
    share = like(1 / (math.prod(x.shape[begin:]) or 1), x)
    leading = (*x.shape[:begin], *(1 for _ in axes))
    mean, inverse = (broadcast_to(lax.reshape(v, leading), x.shape) for v in (mean, inverse))
    normal = lax.mul(lax.sub(x, mean), inverse)

    def average(v: Array) -> Array:
        return broadcast_to(lax.reshape(lax.mul(lax.reduce_sum(v, axes), share), leading), x.shape)

    return lax.mul(inverse, lax.sub(lax.sub(dy, average(dy)), lax.mul(normal, average(lax.mul(dy, normal)))))


def layer_norm_grad(dy: Blob, x: Blob, mean: Blob, inv_variance: Blob, begin_norm_axis: int = 1, name: str | None = None) -> Blob:
    """The gradient of layer normalization with respect to its input.

    Args:
      dy, x: the gradient of the normalized values, and the input; one shape and floating dtype.
      mean, inv_variance: as many elements as x has on the axes before begin_norm_axis; inv_variance is
        1 / sqrt(variance + epsilon).
      begin_norm_axis: layer_norm's.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> dx = flow.layers.layer_norm_grad(dy, x, mean, inv_variance)
    """
    what = label("layer_norm_grad", name)
    want.floating(what, want.blob(what, "dy", dy))
    want.same_shape(what, (dy, want.blob(what, "x", x)))
    begin, _ = norm_axes(what, x, begin_norm_axis, -1)
    for argument, blob in (("mean", mean), ("inv_variance", inv_variance)):
        if math.prod(want.blob(what, argument, blob).shape) != math.prod(x.shape[:begin]):
            fail(ShapeError, what, f"{argument} must have {math.prod(x.shape[:begin])} elements, got {blob.shape}", (x, blob))
    want.same_dtype(what, (dy, x, mean, inv_variance))
    return emit(_layer_norm_grad, dy, x, mean, inv_variance, name=name, begin=begin)


@op("layer_norm_param_grad", multiple_results=True, nondifferentiable=True)
def _layer_norm_param_grad(dy: Array, norm: Array, gamma: Array) -> tuple[Array, Array, Array]:
    return lax.mul(dy, broadcast_to(gamma, dy.shape)), sum_to(dy, gamma.shape), sum_to(lax.mul(dy, norm), gamma.shape)


def layer_norm_param_grad(
    dy: Blob, norm: Blob, gamma: Blob, begin_params_axis: int = -1, name: str | None = None
) -> tuple[Blob, Blob, Blob]:
    """The gradients of layer normalization with respect to the normalized values, beta and gamma.

    Args:
      dy, norm: the gradient of the result, and the normalized values; one shape and floating dtype.
      gamma: of shape dy.shape[begin_params_axis:].
      begin_params_axis: layer_norm's.
      name: name of the op.
    Returns: (dy * gamma, sum of dy, sum of dy * norm), sums over the leading axes.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> d_norm, d_beta, d_gamma = flow.layers.layer_norm_param_grad(dy, norm, gamma)
    """
    what = label("layer_norm_param_grad", name)
    want.floating(what, want.blob(what, "dy", dy))
    want.same_shape(what, (dy, want.blob(what, "norm", norm)))
    _, params = norm_axes(what, dy, 0, begin_params_axis)
    if want.blob(what, "gamma", gamma).shape != dy.shape[params:]:
        fail(ShapeError, what, f"gamma must have shape {dy.shape[params:]}, got {gamma.shape}", (dy, gamma))
    want.same_dtype(what, (dy, norm, gamma))
    normalized_diff, beta_diff, gamma_diff = emit_many(_layer_norm_param_grad, dy, norm, gamma, name=name)
    return normalized_diff, beta_diff, gamma_diff


# --- instance and group normalization


@op("instance_norm", batch_inputs=(0,), native=GROUPS, channels_last=lambda attrs, rank: {**attrs, "channels_last": True})
def _instance_norm(x: Array, *parameters: Array, epsilon: float, groups: int | None, channels_last: bool = False) -> Array:
    """``channels_last``: of x; gamma and beta are (1, channels, 1) in either case."""
    channels = x.shape[-1 if channels_last else 1]
    pixels, groups = math.prod(x.shape[1:-1] if channels_last else x.shape[2:]), channels if groups is None else groups
    size = channels // max(1, groups)
    wide = lax.reshape(widen(x), (x.shape[0], *((pixels, groups, size) if channels_last else (groups, size * pixels))))
    mean, variance = mean_and_variance(wide, (1, 3) if channels_last else (2,))
    inverse = lax.rsqrt(lax.add(variance, full(epsilon, variance)))
    y = lax.mul(lax.sub(wide, broadcast_to(mean, wide.shape)), broadcast_to(inverse, wide.shape))
    affine, by_channel = bool(parameters), (x.shape[0], *((pixels, channels) if channels_last else (channels, pixels)))
    y = lax.reshape(y, by_channel)

    def spread(parameter: Array) -> Array:
        vector = lax.reshape(lax.convert_element_type(parameter, y.dtype), (channels,))
        return lax.broadcast_in_dim(vector, by_channel, (2 if channels_last else 1,))

    y = _scale_and_shift(y, parameters, affine, affine, spread)
    return lax.convert_element_type(lax.reshape(y, x.shape), x.dtype)


def _normalize_instances(kind: str, x: Blob, groups: int | None, eps: float, affine: bool, name: str | None, what: str) -> Blob:
    graph = current(what)
    if name is None:  # the names of the variables are derived from it
        name = graph.fresh_name(kind)[len(graph.scope.namespace) :]
    epsilon = want.number(what, "eps", eps, low=0)
    parameters: list[Blob] = []
    if want.flag(what, "affine", affine, (x,)):
        shape = (1, x.shape[1], 1)
        for suffix, initializer in (("gamma", initializers.ones_initializer()), ("beta", initializers.zeros_initializer())):
            parameters.append(get_variable(f"{name}_{suffix}", shape, parameter_dtype(x), initializer, model_name=suffix))
    return emit(_instance_norm, x, *parameters, name=name, epsilon=epsilon, groups=groups)


def _instance(n: int, x: Any, eps: float, affine: bool, name: str | None) -> Blob:
    what = label(f"InstanceNorm{n}d", name)
    want.floating(what, want.blob(what, "x", x))
    want.rank(what, x, n + 2, n + 2)
    return _normalize_instances(f"InstanceNorm{n}D", x, None, eps, affine, name, what)


def InstanceNorm1d(x: Blob, eps: float = 1e-5, affine: bool = True, name: str | None = None) -> Blob:
    """Normalizes each channel of each sample over its spatial axis; see ``InstanceNorm2d``.

    Example: >>> y = flow.nn.InstanceNorm1d(x)   # (8, 3, 28) -> (8, 3, 28)
    """
    return _instance(1, x, eps, affine, name)


def InstanceNorm2d(x: Blob, eps: float = 1e-5, affine: bool = True, name: str | None = None) -> Blob:
    """Normalizes each channel of each sample over its spatial axes, by mean and biased variance.

    Args:
      x: (N, C, H, W), floating (one spatial axis for InstanceNorm1d, three for InstanceNorm3d).
      eps: >= 0; added to the variance.
      affine: multiply by the variable ``<name>_gamma`` and add ``<name>_beta``, both of shape (1, C, 1). On by default.
      name: name of the op; None numbers it.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.InstanceNorm2d(x)   # Ulyanov et al., 2016
    """
    return _instance(2, x, eps, affine, name)


def InstanceNorm3d(x: Blob, eps: float = 1e-5, affine: bool = True, name: str | None = None) -> Blob:
    """Normalizes each channel of each sample over its three spatial axes; see ``InstanceNorm2d``.

    Example: >>> y = flow.nn.InstanceNorm3d(x)   # (2, 3, 8, 8, 8) -> (2, 3, 8, 8, 8)
    """
    return _instance(3, x, eps, affine, name)


def GroupNorm(x: Blob, num_groups: int = 32, eps: float = 1e-5, affine: bool = True, name: str | None = None) -> Blob:
    """Normalizes groups of channels of each sample, by mean and biased variance.

    Args:
      x: (N, C, ...), rank >= 3, floating.
      num_groups: divides C.
      eps: >= 0; added to the variance.
      affine: multiply by the variable ``<name>_gamma`` and add ``<name>_beta``, both of shape (1, C, 1): one value per
        channel.
      name: name of the op; None numbers it.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.GroupNorm(x, num_groups=8)   # Wu and He, 2018
    """
    what = label("GroupNorm", name)
    want.floating(what, want.blob(what, "x", x))
    want.rank(what, x, 3)
    num_groups = want.integer(what, "num_groups", num_groups, 1, (x,))
    if x.shape[1] % num_groups:
        fail(ArgumentError, what, f"num_groups must divide the {x.shape[1]} channels, got {num_groups}", (x,))
    return _normalize_instances("GroupNorm", x, num_groups, eps, affine, name, what)
