"""Ops whose signature or meaning differs between 0.3.4 and 0.6: thin functions over those of ``oneflow``.

docs/compatibility.md has a row for each.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..._base import dtype as dtypes
from ..._base.dist import Distribute, broadcast
from ..._base.dtype import dtype as _dtype
from ..._base.source import caller
from ...data import codecs
from ...errors import ArgumentError, ShapeError
from ...graph.graph import Initializer
from ...graph.node import Blob
from ...layers import other as _layers
from ...ops import coco as _coco
from ...ops import conv as _conv
from ...ops import decoding as _decoding
from ...ops import distribution as _distribution
from ...ops import dropout as _dropout
from ...ops import image as _image
from ...ops import indexing as _indexing
from ...ops import matrix as _matrix
from ...ops import padding as _padding
from ...ops import quantization as _quantization
from ...ops import reduce as _reduce
from ...ops import variable as _variable
from ...ops._arrays import label
from ...ops._emit import fail, want
from ...ops._names import DefaultName
from ...ops.constant import arange
from ...ops.constant import range as _range
from ...ops.elementwise import cast

Ints = int | Sequence[int]


def matmul(
    a: Blob, b: Blob, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0, name: str | None = None
) -> Blob:
    """``oneflow.matmul`` with ``alpha`` in fifth place; of unequal ranks, b is a matrix and a is not transposed."""
    what = label("matmul", name)
    for argument, blob in (("a", a), ("b", b)):
        want.rank(what, want.blob(what, argument, blob), 2)
    if a.ndim != b.ndim and (b.ndim != 2 or transpose_a):
        rule = f"ranks {a.ndim} and {b.ndim}: of unequal ranks b must be a matrix, and a cannot be transposed"
        fail(ShapeError, what, rule, (a, b), "add axes with flow.expand_dims")
    return _matrix.matmul(a, b, transpose_a, transpose_b, name, alpha)


def gather(
    params: Blob,
    indices: Blob,
    validate_indices: Any = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Blob:
    """``oneflow.gather``; an axis before ``batch_dims`` is a ValueError."""
    if isinstance(axis, int) and isinstance(batch_dims, int) and 0 <= axis < batch_dims:
        fail(ArgumentError, label("gather", name), f"axis={axis} must be >= batch_dims={batch_dims}", (params, indices))
    return _indexing.gather(params, indices, validate_indices, axis, batch_dims, name)


def conv1d(
    input: Blob, filters: Blob, strides: Ints, padding: Any, data_format: str = "NCW", dilations: Ints | None = None,
    groups: int = 1, name: str | None = None,
) -> Blob:  # fmt: skip
    """``oneflow.nn.conv1d``; groups need "NCW"."""
    _want_channels_first("conv1d", data_format, "NWC", groups)
    return _conv.conv1d(input, filters, strides, padding, data_format, dilations, groups, name)


def conv2d(
    input: Blob, filters: Blob, strides: Ints, padding: Any, bias: Blob | None = None, data_format: str = "NCHW",
    dilations: Ints | None = None, groups: int = 1, name: str | None = None,
) -> Blob:  # fmt: skip
    """``oneflow.nn.conv2d`` with ``bias``, a Blob (filters,) that is added per channel, in front of ``data_format``."""
    if bias is not None:
        want.blob(label("conv2d", name), "bias", bias)
    y = _conv.conv2d(input, filters, strides, padding, data_format, dilations, groups, name)
    return y if bias is None else _conv.bias_add(y, bias, data_format)


def conv3d(
    input: Blob, filters: Blob, strides: Ints, padding: Any, data_format: str = "NCDHW", dilations: Ints | None = None,
    groups: int = 1, name: str | None = None,
) -> Blob:  # fmt: skip
    """``oneflow.nn.conv3d``; groups need "NCDHW"."""
    _want_channels_first("conv3d", data_format, "NDHWC", groups)
    return _conv.conv3d(input, filters, strides, padding, data_format, dilations, groups, name)


def _want_channels_first(what: str, data_format: Any, last: str, groups: Any) -> None:
    if isinstance(data_format, str) and data_format == last and isinstance(groups, int) and groups > 1:
        fail(ArgumentError, what, f"groups={groups} cannot be combined with data_format={last!r}", (), 'data_format="NC..."')


def dropout(x: Blob, rate: float, noise_shape: Any = None, seed: int | None = None, name: str | None = None) -> Blob:
    """``oneflow.nn.dropout`` whose masks follow ``flow.manual_seed``: ``seed`` needs a name and is ignored."""
    what = label("dropout", name)
    _dropout.want_rate(what, rate, noise_shape, seed, name)
    return _dropout.dropout(x, rate, name=name)


def reduce_all(x: Blob, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """``oneflow.math.reduce_all`` with a result of ``bool``."""
    return cast(_reduce.reduce_all(x, axis, keepdims, name), dtypes.bool)


def reduce_any(x: Blob, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """``oneflow.math.reduce_any`` with a result of ``bool``."""
    return cast(_reduce.reduce_any(x, axis, keepdims, name), dtypes.bool)


def reflection_pad2d(x: Blob, padding: int | tuple[int, ...] | list[int], name: str | None = None) -> Blob:
    """Mirrors a border around images; a list is (left, right, top, bottom)."""
    return _padding.reflected(x, padding, name)


def range(start: float, limit: float | None = None, delta: float = 1, dtype: _dtype | None = None, name: str = "range") -> Blob:
    """``oneflow.range``; ``dtype=None`` means int64, and bounds may be floats where the dtype is float32 or float64."""
    if dtype not in (dtypes.float32, dtypes.float64):
        return _range(start, limit, delta, dtypes.int64 if dtype is None else dtype, name)  # type: ignore[arg-type]
    return arange(0, start, delta, dtype, name) if limit is None else arange(start, limit, delta, dtype, name)


def upsample_2d(
    x: Blob, size: Any = (2, 2), align_corners: bool = False, data_format: str = "NCHW", interpolation: str = "nearest",
    name: str | None = DefaultName("Upsample2D"),
) -> Blob:  # fmt: skip
    """``oneflow.layers.upsample_2d`` with ``align_corners`` in third place."""
    return _layers.upsample_2d(x, size, data_format, interpolation, name, align_corners)


def get_variable(
    name: str, shape: Sequence[int] | None = None, dtype: _dtype | None = dtypes.float32, initializer: Initializer | None = None,
    regularizer: Any = None, trainable: bool | None = None, model_name: str | None = None, random_seed: int | None = None,
    nd_sbp: Any = None, distribute: Distribute | None = None, reuse: bool = True, *, parallel_distribution: Any = None,
) -> Blob:  # fmt: skip
    """``oneflow.get_variable`` with ``nd_sbp``, the layout for each axis of the placement's hierarchy, before ``distribute``."""
    layouts = {"nd_sbp": nd_sbp, "parallel_distribution": parallel_distribution, "distribute": distribute}
    given = [argument for argument, layout in layouts.items() if layout is not None]
    if len(given) > 1:
        fail(ArgumentError, label("get_variable", name), f"{' and '.join(given)} cannot both be given", (), f"keep {given[0]}")
    return _variable.get_variable(
        name, shape, dtype, initializer, regularizer, trainable, model_name, random_seed,
        broadcast() if distribute is None else distribute, reuse, nd_sbp=nd_sbp, parallel_distribution=parallel_distribution,
    )  # fmt: skip


def hierarchical_parallel_cast(
    input: Blob, nd_sbp: Any = None, grad_mode: str | None = None, grad_nd_sbp: Any = None, name: str | None = None, *,
    parallel_distribution: Any = None, grad_parallel_distribution: Any = None,
) -> Blob:  # fmt: skip
    """``oneflow.hierarchical_parallel_cast`` with the names of 0.5; those of 0.4 are taken, too."""
    return _distribution.hierarchical_parallel_cast(
        input, parallel_distribution, grad_mode, grad_parallel_distribution, name, nd_sbp=nd_sbp, grad_nd_sbp=grad_nd_sbp
    )


def min_max_observer(
    input: Blob, quantization_bit: int = 8, quantization_scheme: str = "symmetric", quantization_formula: str = "google",
    per_layer_quantization: bool = True, name: str | None = None,
) -> tuple[Blob, Blob]:  # fmt: skip
    """``oneflow.quantization.min_max_observer`` with ``quantization_formula`` in fourth place."""
    return _quantization.min_max_observer(
        input, quantization_bit, quantization_scheme, per_layer_quantization, name, quantization_formula
    )


def fake_quantization(
    input: Blob, scale: Blob, zero_point: Blob, quantization_bit: int = 8, quantization_scheme: str = "symmetric",
    quantization_formula: str = "google", name: str | None = None,
) -> Blob:  # fmt: skip
    """``oneflow.quantization.fake_quantization`` with ``quantization_formula`` in sixth place."""
    return _quantization.fake_quantization(
        input, scale, zero_point, quantization_bit, quantization_scheme, name, quantization_formula
    )


def batch_align(
    images: Blob, shape: Sequence[int], dtype: _dtype, alignment: int, dynamic_out: bool = True, name: str | None = None
) -> Blob:
    """``oneflow.image.batch_align``; with ``dynamic_out=False`` the result has the full declared shape at each call."""
    return _image.aligned(
        images, shape, dtype, alignment, name, dynamic=want.flag("image_batch_align", "dynamic_out", dynamic_out)
    )


def OFRecordRawDecoder(
    input_blob: Blob, blob_name: str, shape: Sequence[int], dtype: _dtype, dim1_varying_length: bool = False,
    truncate: bool = False, auto_zero_padding: bool = False, name: str | None = None,
) -> Blob:  # fmt: skip
    """``oneflow.data.OFRecordRawDecoder``; with ``truncate`` longer lists are cut, and zeros follow shorter ones."""
    if auto_zero_padding is True:
        line = caller()
        warnings.warn_explicit("auto_zero_padding is deprecated, use truncate", DeprecationWarning, line.file, line.line)
        truncate = True
    return _decoding.raw_decoder(input_blob, blob_name, shape, dtype, name, {
        "dim1_varying_length": dim1_varying_length, "truncate": truncate,
    })  # fmt: skip


def coco_reader(
    annotation_file: str, image_dir: str, batch_size: int, shuffle: bool = True, random_seed: int | None = None,
    group_by_aspect_ratio: bool = True, stride_partition: bool = True, remove_images_without_annotations: bool = True,
    name: str | None = None,
) -> tuple[Blob, ...]:  # fmt: skip
    """``oneflow.data.coco_reader`` with ``remove_images_without_annotations`` before ``name``."""
    return _coco.coco_reader(
        annotation_file, image_dir, batch_size, shuffle, random_seed, group_by_aspect_ratio, stride_partition, name,
        remove_images_without_annotations=remove_images_without_annotations,
    )  # fmt: skip


def RawCodec(truncate: bool = False, auto_zero_padding: bool = False) -> codecs.RawCodec:
    """``oneflow.data.RawCodec``; with ``truncate`` longer lists are cut, and zeros follow shorter ones."""
    return codecs.RawCodec(truncate=truncate or auto_zero_padding)


__all__ = [
    "OFRecordRawDecoder", "RawCodec", "batch_align", "coco_reader", "conv1d", "conv2d", "conv3d", "dropout", "fake_quantization",
    "gather", "get_variable", "hierarchical_parallel_cast", "matmul", "min_max_observer", "range", "reduce_all", "reduce_any",
    "reflection_pad2d", "upsample_2d",
]  # fmt: skip
