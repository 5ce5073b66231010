"""Batch and layer normalization with their variables."""

from __future__ import annotations

from .._base.refuse import warn
from .._variables import initializers
from ..errors import JobWarning, ShapeError
from ..graph.graph import current
from ..graph.node import Blob
from ..ops import norm as normalization
from ..ops._arrays import label
from ..ops._emit import fail, want
from ..ops._names import DefaultName
from ..ops.binary import add
from ..ops.elementwise import relu
from ._common import Initializer, Made, Regularizer, layer_name, layer_variable


def _normalized(
    inputs: Blob,
    axis: int,
    momentum: float,
    epsilon: float,
    center: bool,
    scale: bool,
    made: dict[str, Made],
    trainable: bool,
    training: bool,
    name: str | None,
) -> Blob:
    name = layer_name(name, "BatchNorm", "")
    what = label("batch_normalization", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    axis = want.axis(what, axis, inputs.ndim, inputs=(inputs,))
    momentum = want.number(what, "momentum", momentum, (inputs,), low=0, high=1)
    epsilon = want.number(what, "epsilon", epsilon, (inputs,), low=0)
    center, scale = want.flag(what, "center", center, (inputs,)), want.flag(what, "scale", scale, (inputs,))
    training = want.flag(what, "training", training, (inputs,))
    trainable = trainable is None or want.flag(what, "trainable", trainable, (inputs,))
    if 0 in inputs.shape:
        fail(ShapeError, what, "there is nothing to normalize: an axis has size 0", (inputs,))
    channels = _channels_of_convolution(inputs)
    if channels not in (None, axis):
        rule = f"{what} normalizes each index of axis {axis}, where the convolution before it has its channels on axis {channels}"
        warn(JobWarning, f"{rule}\n  try        axis={channels}")

    def variable(kind: str, default: Initializer, is_trainable: bool) -> Blob:
        shape, dtype = (inputs.shape[axis],), normalization.parameter_dtype(inputs)
        return layer_variable(what, name, kind, shape, dtype, default, made[kind], trainable=is_trainable)

    zeros, ones = initializers.zeros_initializer(), initializers.ones_initializer()
    beta = variable("beta", zeros, trainable) if center else None
    gamma = variable("gamma", ones, trainable) if scale else None
    moving_mean = variable("moving_mean", zeros, False)
    moving_variance = variable("moving_variance", ones, False)
    return normalization.normalize_batch(
        inputs, gamma, beta, moving_mean, moving_variance, axis=axis, epsilon=epsilon, momentum=momentum,
        training=bool(training and trainable and current().train), name=name,
    )  # fmt: skip


def _channels_of_convolution(blob: Blob) -> int | None:
    """The axis of the channels, where a convolution made the Blob, with a bias or an activation behind it."""
    node = blob.node
    for _ in range(3):
        if "x_spec" in node.attrs:
            return int(node.attrs["x_spec"].index("C"))
        if not node.inputs or node.inputs[0].shape != blob.shape:
            return None
        node = node.inputs[0].node
    return None


# The three functions have OneFlow's parameters, which are written out in each: ``help`` and type checkers read them there.


def batch_normalization(
    inputs: Blob,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer = None,
    gamma_initializer: Initializer = None,
    beta_regularizer: Regularizer = None,
    gamma_regularizer: Regularizer = None,
    moving_mean_initializer: Initializer = None,
    moving_variance_initializer: Initializer = None,
    trainable: bool = True,
    training: bool = True,
    name: str | None = DefaultName("BatchNorm"),
    gamma_name: str | None = None,
    beta_name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
) -> Blob:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, for each index along ``axis``.

    In training, mean and biased variance are the batch's, and each moving statistic becomes momentum * old +
    (1 - momentum) * batch (the biased variance, too). Otherwise the moving statistics are used.

    Variables: ``<name>-beta``, ``<name>-gamma``, ``<name>-moving_mean``, ``<name>-moving_variance``, each (C,), where C is
    inputs' size on ``axis``; float32 for half-precision inputs.

    Args:
      inputs: floating.
      axis: the channels', in [-rank, rank): 1 for NCHW. The default is the last.
      momentum: in [0, 1], the weight of the old value (PyTorch's momentum is 1 - this).
      epsilon: >= 0.
      center, scale: add beta, multiply by gamma.
      beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer: None means 0, 1, 0, 1.
      beta_regularizer, gamma_regularizer: ``flow.regularizers``.
      trainable: whether train jobs update beta and gamma; False also means ``training=False``.
      training: False uses the moving statistics in a train job, too. Predict jobs always do.
      name: the layer's; unnamed ones are numbered: ``BatchNorm``, ``BatchNorm_1``.
      gamma_name, beta_name, moving_mean_name, moving_variance_name: full names for the variables.
    Returns: Blob of inputs' shape and dtype.
    Raises: ArgumentError, AxisError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> y = flow.layers.batch_normalization(x, axis=1)   # (8, 16, 14, 14); Ioffe and Szegedy, 2015
    """
    made = {
        "beta": (beta_initializer, beta_regularizer, beta_name),
        "gamma": (gamma_initializer, gamma_regularizer, gamma_name),
        "moving_mean": (moving_mean_initializer, None, moving_mean_name),
        "moving_variance": (moving_variance_initializer, None, moving_variance_name),
    }
    return _normalized(inputs, axis, momentum, epsilon, center, scale, made, trainable, training, name)


def batch_normalization_add_relu(
    inputs: Blob,
    addend: Blob | None = None,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer = None,
    gamma_initializer: Initializer = None,
    beta_regularizer: Regularizer = None,
    gamma_regularizer: Regularizer = None,
    moving_mean_initializer: Initializer = None,
    moving_variance_initializer: Initializer = None,
    trainable: bool = True,
    training: bool = True,
    name: str | None = DefaultName("BatchNorm"),
    gamma_name: str | None = None,
    beta_name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
) -> Blob:
    """relu(batch_normalization(inputs) + addend), the end of a residual block.

    Args: as ``batch_normalization``, and
      addend: of inputs' shape and dtype; None means 0.
    Returns, Raises: as ``batch_normalization``; ShapeError.
    Example: >>> y = flow.layers.batch_normalization_add_relu(x, shortcut, axis=1)
    """
    name = layer_name(name, "BatchNorm", "")
    y = batch_normalization(
        inputs, axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer, beta_regularizer, gamma_regularizer,
        moving_mean_initializer, moving_variance_initializer, trainable, training, name, gamma_name, beta_name,
        moving_mean_name, moving_variance_name,
    )  # fmt: skip
    if addend is not None:
        what = label("batch_normalization_add_relu", name)
        want.same_shape(what, (inputs, want.blob(what, "addend", addend)))
        y = add(y, addend, name=f"{name}-add")
    return relu(y, name=f"{name}-relu")


def batch_normalization_relu(
    inputs: Blob,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer = None,
    gamma_initializer: Initializer = None,
    beta_regularizer: Regularizer = None,
    gamma_regularizer: Regularizer = None,
    moving_mean_initializer: Initializer = None,
    moving_variance_initializer: Initializer = None,
    trainable: bool = True,
    training: bool = True,
    name: str | None = DefaultName("BatchNorm"),
) -> Blob:
    """relu(batch_normalization(inputs)).

    Args, Returns, Raises: as ``batch_normalization``.
    Example: >>> y = flow.layers.batch_normalization_relu(x, axis=1)
    """
    return batch_normalization_add_relu(
        inputs, None, axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer, beta_regularizer,
        gamma_regularizer, moving_mean_initializer, moving_variance_initializer, trainable, training, name,
    )  # fmt: skip


def layer_norm(
    inputs: Blob,
    center: bool = True,
    scale: bool = True,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str | None = DefaultName("LayerNorm"),
) -> Blob:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over all axes from ``begin_norm_axis`` on.

    Variables: ``<name>-beta`` and ``<name>-gamma``, of shape inputs.shape[begin_params_axis:], at first 0 and 1.

    Args:
      inputs: floating.
      center, scale: add beta, multiply by gamma.
      trainable: whether train jobs update them.
      begin_norm_axis: the first of the axes over which mean and biased variance are taken; the default leaves out the batch.
      begin_params_axis: the first axis of beta and gamma.
      epsilon: >= 0.
      name: the layer's; unnamed ones are numbered: ``LayerNorm``, ``LayerNorm_1``.
    Returns: Blob of inputs' shape and dtype.
    Raises: ArgumentError, AxisError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> y = flow.layers.layer_norm(x, begin_norm_axis=2)   # (8, 5, 16); Ba et al., 2016
    """
    name = layer_name(name, "LayerNorm", "")
    what = label("layer_norm", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    center, scale = want.flag(what, "center", center, (inputs,)), want.flag(what, "scale", scale, (inputs,))
    _, params = normalization.norm_axes(what, inputs, begin_norm_axis, begin_params_axis)

    def variable(kind: str, initializer: Initializer) -> Blob:
        dtype = normalization.parameter_dtype(inputs)
        return layer_variable(what, name, kind, inputs.shape[params:], dtype, initializer, trainable=trainable)

    beta = variable("beta", initializers.zeros_initializer()) if center else None
    gamma = variable("gamma", initializers.ones_initializer()) if scale else None
    return normalization.layer_norm(inputs, gamma, beta, begin_norm_axis, begin_params_axis, epsilon, name=name)


def layer_norm_grad(
    dy: Blob, x: Blob, mean: Blob, inv_variance: Blob, begin_norm_axis: int = 1, name: str | None = DefaultName("LayerNormGrad")
) -> Blob:
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
    return normalization.layer_norm_grad(dy, x, mean, inv_variance, begin_norm_axis, layer_name(name, "LayerNormGrad", ""))


def layer_norm_param_grad(
    dy: Blob, norm: Blob, gamma: Blob, begin_params_axis: int = -1, name: str | None = DefaultName("LayerNormParamGrad")
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
    return normalization.layer_norm_param_grad(dy, norm, gamma, begin_params_axis, layer_name(name, "LayerNormParamGrad", ""))
