"""Tensor buffers and tensor lists: arrays of different shapes in one Blob. They live on the host and have no gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import shown
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail, is_number, want
from ._host import (
    each,
    emit_host,
    here,
    host_op,
    want_bool,
    want_buffer,
    want_dense,
    want_dtype,
    want_int,
    want_one_axis,
    want_sizes,
)

Array = Any


@host_op("tensor_buffer_to_tensor", per_sample=True)
def _to_tensor(buffers: Sequence[Array], *, lead: tuple[int, ...], instance_shape: tuple[int, ...], dtype: np.dtype) -> Array:
    def checked(buffer: Array) -> Array:
        if buffer.shape != instance_shape or buffer.dtype != dtype:
            raise ShapeError(
                f"is {buffer.dtype}{list(buffer.shape)}, and every one must be {dtype}{list(instance_shape)}; "
                f"resize images to one size with flow.image.Resize"
            )
        return buffer

    made = np.stack(each(checked, buffers)) if len(buffers) else np.empty((0, *instance_shape), dtype)
    return made.reshape(-1, *lead, *instance_shape)


def tensor_buffer_to_tensor(x: Blob, dtype: dtype, instance_shape: Sequence[int], name: str | None = None) -> Blob:
    """Joins the elements of a Blob of tensor buffers, which all have one shape and dtype, into one array.

    Args:
      x: tensor buffers, any shape.
      dtype: of the elements; nothing is converted.
      instance_shape: of each element.
      name: name of the op; made unique when omitted.
    Returns: Blob of ``x.shape + instance_shape``, without a gradient.
    Raises: DtypeError, ArgumentError; ShapeError at the call whose elements differ.
    Example: >>> pixels = flow.tensor_buffer_to_tensor(images, flow.uint8, (224, 224, 3))
    """
    what = label("tensor_buffer_to_tensor", name)
    x = want_buffer(what, "x", x)
    kind, shape = want_dtype(what, "dtype", dtype), want_sizes(what, "instance_shape", instance_shape)
    return emit_host(
        _to_tensor, x, outputs=[((*x.shape, *shape), kind)], name=name, prefix="TensorBufferToTensor",
        lead=x.shape[1:], instance_shape=shape, dtype=kind.numpy_dtype,
    )[0]  # fmt: skip


@host_op("tensor_to_tensor_buffer", per_sample=True)
def _to_buffer(x: Array, *, lead: tuple[int, ...] | None, instance_dims: int) -> list[Array]:
    if lead is not None and x.shape[:-instance_dims] != lead:
        raise ShapeError(f"the input has shape {x.shape}; its leading sizes must be {lead}, as they were declared")
    return list(x.reshape(-1, *x.shape[-instance_dims:]))


def tensor_to_tensor_buffer(x: Blob, instance_dims: int, name: str | None = None) -> Blob:
    """A Blob of tensor buffers, each of which holds the last axes of x.

    Args:
      x: an array that does not depend on variables; any dtype.
      instance_dims: how many of the last axes go into the elements; in [1, rank of x).
      name: name of the op; made unique when omitted.
    Returns: Blob of tensor buffers, shape ``x.shape[:-instance_dims]``.
    Raises: ArgumentError, DtypeError; HostError where x is computed from variables.
    Example: >>> rows = flow.tensor_to_tensor_buffer(x, instance_dims=1)   # (8, 5) -> 8 buffers of shape (5,)
    """
    what = label("tensor_to_tensor_buffer", name)
    x = want_dense(what, "x", x)
    count = want_int(what, "instance_dims", instance_dims)
    if count >= x.ndim:
        fail(ArgumentError, what, f"instance_dims must be less than x's rank {x.ndim}, got {count}", (x,))
    lead = x.shape[:-count]
    return emit_host(
        _to_buffer, x, outputs=[(lead, dtypes.tensor_buffer)], name=name, prefix="TensorToTensorBuffer",
        lead=lead if x.is_dynamic else None, instance_dims=count,
    )[0]  # fmt: skip


@host_op("tensor_list_to_tensor_buffer")
def _list_to_buffer(arrays: tuple[Array, ...], *, count: int) -> list[Array]:
    if len(arrays) != count:
        raise ShapeError(f"the list has {len(arrays)} arrays; {count} were declared")

    def dropped(array: Array) -> Array:
        if array.shape[0] != 1:
            raise ShapeError(f"has shape {array.shape}; its axis 0 must have size 1, and is dropped")
        return array[0]

    return each(dropped, arrays)


def _want_list(what: str, argument: str, value: Any) -> Blob:
    blob = want.blob(what, argument, value)
    if not blob.is_tensor_list:
        fail(DtypeError, what, f"{argument} must be a list of tensors, got {blob.describe()}", (blob,),
             "feed one: tp.ListListNumpy.Placeholder(...), or make one with flow.tensor_buffer_to_tensor_list")  # fmt: skip
    return here(what, blob)


def tensor_list_to_tensor_buffer(input: Blob, name: str | None = None) -> Blob:
    """Turns the arrays of a tensor list into tensor buffers. Their axis 0, of size 1, is dropped.

    Args:
      input: a tensor list of ``input.shape[0]`` arrays, such as a ``ListListNumpy`` input.
      name: name of the op; made unique when omitted.
    Returns: Blob of tensor buffers, shape (input.shape[0],).
    Raises: DtypeError; ShapeError at a call with another number of arrays, or one whose axis 0 is not 1.
    Example: >>> images = flow.tensor_list_to_tensor_buffer(fed)   # fed: tp.ListListNumpy.Placeholder((4, 640, 640, 3))
    """
    what = label("tensor_list_to_tensor_buffer", name)
    input = _want_list(what, "input", input)
    outputs = [((input.shape[0],), dtypes.tensor_buffer)]
    return emit_host(_list_to_buffer, input, outputs=outputs, name=name, prefix="TensorListToTensorBuffer", count=input.shape[0])[
        0
    ]


@host_op("tensor_buffer_to_tensor_list", per_sample=True)
def _buffer_to_list(buffers: Sequence[Array], *, shape: tuple[int, ...], dtype: np.dtype) -> list[Array]:
    made = []
    for i, buffer in enumerate(buffers):
        if buffer.ndim != len(shape) or buffer.size > math.prod(shape):
            raise ShapeError(
                f"element {i} has shape {buffer.shape}; it must have rank {len(shape)} and at most {math.prod(shape)} numbers"
            )
        made.append(buffer.astype(dtype, copy=False)[np.newaxis])
    return made


def tensor_buffer_to_tensor_list(input: Blob, shape: Sequence[int], dtype: dtype, name: str | None = None) -> Blob:
    """Turns tensor buffers into a tensor list, which a job can return: ``-> tp.ListListNumpy``.

    Args:
      input: tensor buffers (N,).
      shape: has the rank of the elements; its product bounds how many numbers each of them holds, single axes may be longer.
      dtype: of the result; elements are converted to it.
      name: name of the op; made unique when omitted.
    Returns: tensor list of N arrays, each with a leading axis of size 1; declared shape (N,) + shape.
    Raises: DtypeError, ShapeError, ArgumentError; ShapeError at the call whose elements do not fit.
    Example: >>> flow.tensor_buffer_to_tensor_list(images, shape=(640, 640, 3), dtype=flow.float)
    """
    what = label("tensor_buffer_to_tensor_list", name)
    input = want_one_axis(what, "input", want_buffer(what, "input", input))
    sizes, kind = want_sizes(what, "shape", shape), want_dtype(what, "dtype", dtype)
    return emit_host(
        _buffer_to_list, input, outputs=[((*input.shape, *sizes), kind)], name=name, prefix="TensorBufferToTensorList",
        is_dynamic=True, is_tensor_list=True, shape=sizes, dtype=kind.numpy_dtype,
    )[0]  # fmt: skip


@host_op("tensor_list_split", multiple_results=True)
def _list_split(arrays: tuple[Array, ...], *, count: int) -> tuple[Array, ...]:
    return tuple(_list_to_buffer.define(arrays, count=count))


def tensor_list_split(input_tensor_list: Blob, name: str | None = None) -> tuple[Blob, ...]:
    """Splits a tensor list into Blobs whose sizes may vary. Axis 0 of its arrays, of size 1, is dropped.

    Args:
      input_tensor_list: a tensor list.
      name: name of the op; made unique when omitted.
    Returns: a tuple of ``shape[0]`` Blobs of declared shape ``shape[1:]``.
    Raises: DtypeError; ShapeError as for ``tensor_list_to_tensor_buffer``.
    Example: >>> first, second = flow.tensor_list_split(pair)
    """
    what = label("tensor_list_split", name)
    arrays = _want_list(what, "input_tensor_list", input_tensor_list)
    count, *shape = arrays.shape
    if not shape:
        fail(ShapeError, what, "the arrays of the list have no axis besides the one that is dropped", (arrays,))
    outputs = [(tuple(shape), arrays.dtype)] * count
    return emit_host(
        _list_split, arrays, outputs=outputs, name=name, prefix="TensorListSplit", is_dynamic=True, count=count
    )  # fmt: skip


@host_op("gen_tensor_buffer")
def _generate(*, shapes: tuple[tuple[int, ...], ...], numbers: tuple[float, ...], dtype: np.dtype) -> list[Array]:
    return [np.full(shape, number, dtype) for shape, number in zip(shapes, numbers, strict=True)]


def gen_tensor_buffer(
    shape: Sequence[int],
    shape_list: Sequence[Sequence[int]],
    value_list: Sequence[float],
    data_type: dtype | None = dtypes.float32,
    dynamic_out: bool | None = False,
    name: str | None = None,
) -> Blob:
    """Tensor buffers of given shapes, each filled with one number (of OneFlow 0.4).

    Args:
      shape: of the Blob.
      shape_list: the shape of every element, in row-major order.
      value_list: the number that every element is filled with.
      data_type: of the elements.
      dynamic_out: no effect, because every buffer has its own shape anyway.
      name: name of the op; made unique when omitted.
    Returns: Blob of tensor buffers.
    Raises: ArgumentError.
    Example: >>> pair = flow.gen_tensor_buffer([2], [[2, 1], [1, 2]], [0.0, 1.0])
    """
    what = label("gen_tensor_buffer", name)
    sizes = want_sizes(what, "shape", shape)
    kind = want_dtype(what, "data_type", dtypes.float32 if data_type is None else data_type)
    want_bool(what, "dynamic_out", False if dynamic_out is None else dynamic_out)
    for argument, given in (("shape_list", shape_list), ("value_list", value_list)):
        if not isinstance(given, (list, tuple)) or len(given) != math.prod(sizes):
            fail(ArgumentError, what, f"{argument} must be a list with one entry for each of the {math.prod(sizes)} elements")
    shapes = tuple(want_sizes(what, f"shape_list[{i}]", s, least=0) for i, s in enumerate(shape_list))
    if not all(is_number(v) for v in value_list):
        fail(ArgumentError, what, f"value_list must hold numbers, got {shown(value_list)}")
    return emit_host(
        _generate, outputs=[(sizes, dtypes.tensor_buffer)], name=name, prefix="GenTensorBuffer", shapes=shapes,
        numbers=tuple(float(v) for v in value_list), dtype=kind.numpy_dtype,
    )[0]  # fmt: skip


@host_op("tensor_buffer_to_list_of_tensors", multiple_results=True)
def _to_list_of_tensors(buffers: Sequence[Array], *, shape: tuple[int, ...], dtype: np.dtype, dynamic: bool) -> tuple[Array, ...]:
    def checked(buffer: Array) -> Array:
        fits = buffer.size <= math.prod(shape) if dynamic else buffer.shape == shape
        if not fits or buffer.dtype != dtype:
            raise ShapeError(f"is {buffer.dtype}{list(buffer.shape)}, and it must be {dtype}{list(shape)}")
        return buffer

    return tuple(each(checked, buffers))


def tensor_buffer_to_list_of_tensors(
    x: Blob, out_shape: Sequence[int], out_dtype: dtype, dynamic_out: bool | None = False, name: str | None = None
) -> list[Blob]:
    """The elements of a Blob of tensor buffers as separate Blobs (of OneFlow 0.4).

    Args:
      x: tensor buffers, any shape.
      out_shape: of the elements; with ``dynamic_out`` its product bounds how many numbers each of them holds.
      out_dtype: of the elements; nothing is converted.
      dynamic_out: whether the elements' shapes may vary.
      name: name of the op; made unique when omitted.
    Returns: a list of Blobs, one for each element in row-major order.
    Raises: DtypeError, ArgumentError; ShapeError at the call whose elements do not fit.
    Example: >>> first, second = flow.tensor_buffer_to_list_of_tensors(pair, (2, 2), flow.float, dynamic_out=True)
    """
    what = label("tensor_buffer_to_list_of_tensors", name)
    x = want_buffer(what, "x", x)
    shape, kind = want_sizes(what, "out_shape", out_shape), want_dtype(what, "out_dtype", out_dtype)
    dynamic = want_bool(what, "dynamic_out", False if dynamic_out is None else dynamic_out)
    made = emit_host(
        _to_list_of_tensors, x, outputs=[(shape, kind)] * math.prod(x.shape), name=name, prefix="TensorBufferToListOfTensors",
        is_dynamic=dynamic, shape=shape, dtype=kind.numpy_dtype, dynamic=dynamic,
    )  # fmt: skip
    return list(made)
