"""Dense layers."""

from __future__ import annotations

from collections.abc import Callable

from .._base import dist
from .._base.dist import Distribute
from .._base.refuse import shown
from .._variables import initializers
from ..errors import ArgumentError
from ..graph.node import Blob
from ..graph.scopes import namespace
from ..ops._arrays import label
from ..ops._emit import fail, want
from ..ops._names import DefaultName
from ..ops.conv import bias_add
from ..ops.matrix import matmul
from ._common import Initializer, Made, Regularizer, activated, layer_name, layer_variable, want_activation


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
    name: str | None = DefaultName("Dense"),
    model_distribute: Distribute = dist.broadcast(),  # noqa: B008 - an immutable singleton
) -> Blob:
    """activation(x W' + b), along the last axis.

    Variables: ``<name>-weight`` (units, in) and ``<name>-bias`` (units,), which both start at 0 unless an initializer is given.

    Args:
      inputs: (..., in), rank >= 2, floating.
      units: > 0; size of the result's last axis.
      activation: a function that is called with the result and ``name=``, such as ``flow.nn.relu``; an int means none.
      use_bias: add b.
      kernel_initializer, bias_initializer: None means zeros.
      kernel_regularizer, bias_regularizer: ``flow.regularizers``.
      trainable: whether train jobs update the variables.
      name: the layer's; unnamed ones are numbered: ``Dense``, ``Dense_1``.
      model_distribute: the layout of the variables on several devices: ``auto()``, ``broadcast()`` or ``split(0)``, along units.
    Returns: Blob (..., units), inputs' dtype.
    Raises: ArgumentError, ShapeError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> y = flow.layers.dense(x, 10, kernel_initializer=flow.glorot_uniform_initializer())   # (8, 4) -> (8, 10)
    """
    name = layer_name(name, "Dense", "-matmul")
    what = label("dense", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    want.rank(what, inputs, 2)
    size = want.integer(what, "units", units, 1, (inputs,))
    use_bias = want.flag(what, "use_bias", use_bias, (inputs,))
    want_activation(what, activation)
    split = model_distribute.kind == "split" if isinstance(model_distribute, Distribute) else None
    if split is None or (split and model_distribute.axis != 0):
        rule = f"model_distribute must be auto(), broadcast() or split(0), got {shown(model_distribute)}"
        fail(ArgumentError, what, rule, (inputs,))
    if split and inputs.ndim != 2:
        fail(ArgumentError, what, f"model_distribute=split(0) needs inputs of rank 2, got {inputs.ndim}", (inputs,))

    def by_units(y: Blob) -> Blob:
        return y.with_distribute(dist.split(1)) if split else y

    zeros = initializers.zeros_initializer()

    def variable(kind: str, shape: tuple[int, ...], made: Made) -> Blob:
        return layer_variable(
            what, name, kind, shape, inputs.dtype, zeros, made, trainable=trainable, distribute=model_distribute
        )

    weight = variable("weight", (size, inputs.shape[-1]), (kernel_initializer, kernel_regularizer, None))
    bias = variable("bias", (size,), (bias_initializer, bias_regularizer, None)) if use_bias else None
    with namespace(name):
        x = inputs.with_distribute(dist.broadcast()) if split else inputs
        y = by_units(matmul(x, weight, transpose_b=True, name="matmul"))
        if bias is not None:
            y = by_units(bias_add(y, bias, "NC" if y.ndim == 2 else "NWC", name="bias_add"))
    return activated(y, activation, name)
