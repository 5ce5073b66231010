"""Embeddings, PReLU, upsampling, and numbering categories."""

from __future__ import annotations

from collections.abc import Sequence

from .._base import dist
from .._base.dist import Distribute
from .._base.dtype import float32
from .._base.refuse import shown
from .._variables import initializers
from ..errors import ArgumentError, DtypeError
from ..graph.node import Blob
from ..graph.scopes import namespace
from ..ops._arrays import label
from ..ops._emit import fail, want
from ..ops._names import DefaultName
from ..ops.indexing import gather
from ..ops.nn import parametric_relu
from ..ops.ordinal import categorical_ordinal_encode
from ..ops.upsample import upsample_2d as upsample
from ._common import Initializer, Regularizer, layer_name, layer_variable


def embedding(
    ids: Blob,
    num_embeddings: int,
    embedding_dim: int,
    initializer: Initializer = None,
    regularizer: Regularizer = None,
    trainable: bool = True,
    name: str | None = DefaultName("Embedding"),
    model_distribute: Distribute = dist.broadcast(),  # noqa: B008 - an immutable singleton
) -> Blob:
    """A learned row per id.

    Variables: ``<name>-weight`` (num_embeddings, embedding_dim).

    Args:
      ids: int32 or int64; an id outside [0, num_embeddings) reads zeros.
      num_embeddings: the number of rows, > 0.
      embedding_dim: the size of a row, > 0.
      initializer: None means a normal distribution of standard deviation 1, as in PyTorch.
      regularizer: ``flow.regularizers``.
      trainable: whether train jobs update the variable.
      name: the layer's; unnamed ones are numbered: ``Embedding``, ``Embedding_1``.
      model_distribute: the layout of the variable on several devices.
    Returns: Blob (..., embedding_dim), float32.
    Raises: ArgumentError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> vectors = flow.layers.embedding(ids, 1000, 16)   # ids int32 (8, 5) -> (8, 5, 16)
    """
    name = layer_name(name, "Embedding", "-gather")
    what = label("embedding", name)
    want.blob(what, "ids", ids)
    if not ids.dtype.is_integer:
        fail(DtypeError, what, f"ids must be int32 or int64, got {ids.dtype.name}", (ids,), "flow.cast(ids, flow.int32)")
    want.distribution(what, "model_distribute", model_distribute, (ids,))
    shape = (
        want.integer(what, "num_embeddings", num_embeddings, 1, (ids,)),
        want.integer(what, "embedding_dim", embedding_dim, 1, (ids,)),
    )
    weight = layer_variable(
        what, name, "weight", shape, float32, initializers.random_normal_initializer(), (initializer, regularizer, None),
        trainable=trainable, distribute=model_distribute,
    )  # fmt: skip
    with namespace(name):
        return gather(weight, ids, name="gather")


def prelu(
    inputs: Blob,
    alpha_initializer: Initializer = None,
    alpha_regularizer: Regularizer = None,
    shared_axes: Sequence[int] | None = None,
    trainable: bool = True,
    name: str | None = DefaultName("PRelu"),
    model_distribute: Distribute = dist.broadcast(),  # noqa: B008 - an immutable singleton
) -> Blob:
    """x where x > 0, else alpha * x, with alpha learned.

    Variables: ``<name>-alpha``, of shape inputs.shape[1:], with size 1 on the shared axes.

    Args:
      inputs: rank >= 2, floating.
      alpha_initializer: None means 0.
      alpha_regularizer: ``flow.regularizers``.
      shared_axes: axes >= 1 of inputs along which alpha is one value: [2, 3] means one value per channel of NCHW.
      trainable: whether train jobs update alpha.
      name: the layer's; unnamed ones are numbered: ``PRelu``, ``PRelu_1``.
      model_distribute: the layout of alpha on several devices.
    Returns: Blob of inputs' shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> y = flow.layers.prelu(x, shared_axes=[2, 3])   # (8, 16, 14, 14); He et al., 2015
    """
    name = layer_name(name, "PRelu", "")
    what = label("prelu", name)
    want.floating(what, want.blob(what, "inputs", inputs))
    want.rank(what, inputs, 2)
    want.distribution(what, "model_distribute", model_distribute, (inputs,))
    shared = want.axes(what, [] if shared_axes is None else shared_axes, inputs.ndim, "shared_axes", (inputs,))
    if 0 in shared:
        rule = f"shared_axes must be >= 1 (the batch axis is always shared), got {shown(shared_axes)}"
        fail(ArgumentError, what, rule, (inputs,))
    shape = tuple(1 if axis in shared else inputs.shape[axis] for axis in range(1, inputs.ndim))
    alpha = layer_variable(
        what, name, "alpha", shape, inputs.dtype, initializers.zeros_initializer(), (alpha_initializer, alpha_regularizer, None),
        trainable=trainable, distribute=model_distribute,
    )  # fmt: skip
    return parametric_relu(inputs, alpha, name)


def upsample_2d(
    x: Blob,
    size: int | float | Sequence[int | float] = (2, 2),
    data_format: str = "NCHW",
    interpolation: str = "nearest",
    name: str | None = DefaultName("Upsample2D"),
    align_corners: bool = False,
) -> Blob:
    """Images enlarged by repetition or linear interpolation.

    Args:
      x: (N, C, H, W), or (N, H, W, C) for "NHWC"; floating.
      size: the factor of both axes, or a pair (h, w); need not be whole. The new sizes are rounded down.
      data_format: "NCHW" or "NHWC".
      interpolation: "nearest", or "bilinear" between the pixels' centres.
      name: name of the op; unnamed ones are numbered: ``Upsample2D``, ``Upsample2D_1``.
      align_corners: with "bilinear": the corner pixels' centres stay where they are.
    Returns: Blob of x's rank and dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.layers.upsample_2d(x, 2, interpolation="bilinear")   # (1, 3, 8, 8) -> (1, 3, 16, 16)
    """
    return upsample(x, size, data_format, interpolation, align_corners, layer_name(name, "Upsample2D", ""))


def categorical_ordinal_encoder(
    input_tensor: Blob,
    capacity: int,
    hash_precomputed: bool = True,
    name: str | None = DefaultName("CategoricalOrdinalEncoder"),
) -> Blob:
    """Numbers 1, 2, 3, ... for integer keys, in the order in which they first appear; kept from call to call.

    Variables: ``<name>-Table`` (2 * capacity,) and ``<name>-Size`` (1,), not trained.

    Args:
      input_tensor: the keys, integers, of any shape; key 0 has the number 0.
      capacity: the largest number of keys; keys that come later have the number 0.
      hash_precomputed: must be True: the keys are their own hashes.
      name: the layer's; unnamed ones are numbered.
    Returns: Blob of input_tensor's shape and dtype.
    Raises: ArgumentError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> numbers = flow.layers.categorical_ordinal_encoder(keys, capacity=1000)
    """
    name = layer_name(name, "CategoricalOrdinalEncoder", "-Encode")
    what = label("categorical_ordinal_encoder", name)
    places = want.integer(what, "capacity", capacity, 1)
    if not want.blob(what, "input_tensor", input_tensor).dtype.is_integer:
        fail(DtypeError, what, f"keys must be integers, got {input_tensor.dtype.name}", (input_tensor,))
    zeros = initializers.zeros_initializer()
    table = layer_variable(what, name, "Table", (2 * places,), input_tensor.dtype, zeros, trainable=False)
    size = layer_variable(what, name, "Size", (1,), input_tensor.dtype, zeros, trainable=False)
    with namespace(name):
        return categorical_ordinal_encode(table, size, input_tensor, hash_precomputed, name="Encode")
