"""Ops that run on the host: readers, decoders, image ops, tensor buffers. Their definition is over NumPy values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.check import real
from .._base.dtype import dtype
from .._base.refuse import shown
from .._base.registry import enter
from ..errors import ArgumentError, DtypeError, OneFlowError, ShapeError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.op import HostRule, OpDef
from ..graph.views import in_current_view
from ._emit import MOST_ELEMENTS, fail, want

HOST_OPS: dict[str, OpDef] = {}

Outputs = Sequence[tuple[tuple[int, ...], dtype]]


def host_op(
    name: str,
    *,
    reader: bool = False,
    per_sample: bool = False,
    random: Callable[..., Any] | None = None,
    counter: Callable[[Mapping[str, Any]], str | None] = lambda attrs: None,
    multiple_results: bool = False,
) -> Callable[[Callable[..., Any]], OpDef]:
    """Makes an op of a function over NumPy values; ``graph.op.HostRule`` explains the arguments."""

    def make(run: Callable[..., Any]) -> OpDef:
        rule = HostRule(run, reader=reader, per_sample=per_sample, random=random, counter=counter)
        made = OpDef(name, run, nondifferentiable=True, multiple_results=multiple_results or reader, host=rule)
        enter(HOST_OPS, name, made, f"a host op named {shown(name)}")
        return made

    return make


def emit_host(
    op: OpDef,
    *inputs: Blob,
    outputs: Outputs,
    name: str | None,
    prefix: str,
    is_dynamic: bool = False,
    is_tensor_list: bool = False,
    **attrs: Any,
) -> tuple[Blob, ...]:
    """Adds a node whose ``outputs`` (shapes and dtypes) the caller knows. Returns its Blobs."""
    what = f"{op.name} {shown(name)}" if name is not None else op.name
    if name is not None and not isinstance(name, str):
        fail(ArgumentError, what, f"name must be a str, got {shown(name)}")
    if any(b.has_dynamic_size for b in inputs):
        fail(ShapeError, what, "it runs on the host, before the step that computes sizes that depend on data", inputs,
             "flow.cast_to_static_shape(blob) has the full size, with zeros behind the true one")  # fmt: skip
    for shape, _ in outputs:
        if math.prod(shape) > MOST_ELEMENTS:
            fail(ShapeError, what, f"its result would have shape {shape}, {math.prod(shape)} numbers", inputs)
    graph = current(what)
    inputs = tuple(in_current_view(graph, blob) for blob in inputs)
    node = graph.add(
        op, inputs, attrs, list(outputs), name=name, prefix=prefix, batch_axis=0, is_dynamic=is_dynamic,
        is_tensor_list=is_tensor_list,
    )  # fmt: skip
    return node.outputs


def each(function: Callable[..., Any], *columns: Any) -> list[Any]:
    """Calls ``function`` for one sample after the other; an error knows the number of its sample (see ``runtime/host.py``)."""
    made = []
    for i, sample in enumerate(zip(*columns, strict=True)):
        try:
            made.append(function(*sample))
        except OneFlowError as error:
            error.sample = i  # type: ignore[attr-defined]
            raise
    return made


# --- checks


def here(what: str, blob: Blob) -> Blob:
    """The Blob in the current view, as an op that is added now reads it."""
    return in_current_view(current(what), blob)


def want_buffer(what: str, argument: str, value: Any, hint: str = "flow.tensor_to_tensor_buffer, or a decoder") -> Blob:
    """A Blob of tensor buffers."""
    blob = want.blob(what, argument, value)
    if blob.dtype != dtypes.tensor_buffer:
        fail(DtypeError, what, f"{argument} must be of tensor buffers, got {blob.describe()}", (blob,), f"make it with {hint}")
    return here(what, blob)


def want_one_axis(what: str, argument: str, blob: Blob) -> Blob:
    """A Blob of shape (N,)."""
    if blob.ndim != 1:
        fail(ShapeError, what, f"{argument} must have one axis, the batch, got shape {blob.shape}", (blob,))
    return blob


def want_dense(what: str, argument: str, value: Any) -> Blob:
    """A Blob of an array: no tensor buffers, records or tensor lists."""
    blob = want.blob(what, argument, value)
    if blob.is_tensor_list or blob.dtype in dtypes.HOST_ONLY:
        fail(DtypeError, what, f"{argument} must be an array, got {blob.describe()}", (blob,))
    return here(what, blob)


def want_sizes(what: str, argument: str, value: Any, length: int | None = None, least: int = 1) -> tuple[int, ...]:
    """A list or tuple of sizes."""
    if not isinstance(value, (list, tuple)):
        fail(ArgumentError, what, f"{argument} must be a list or tuple of ints, got {shown(value)}")
    sizes = want.ints(what, argument, value)
    if length is not None and len(sizes) != length:
        fail(ArgumentError, what, f"{argument} must have {length} entries, got {shown(value)}")
    if any(size < least for size in sizes):
        fail(ArgumentError, what, f"every size of {argument} must be at least {least}, got {shown(value)}")
    return sizes


def want_shape(what: str, argument: str, value: Any) -> tuple[int, ...]:
    """A list or tuple of sizes, or one size."""
    return want_sizes(what, argument, (value,) if isinstance(value, (int, np.integer)) else value)


def want_int(what: str, argument: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An int in a range."""
    whole = isinstance(value, float) and value.is_integer()  # 224.0 has always been accepted
    value = want.integer(what, argument, int(value) if whole else value)
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"in [{least}, {most}]"
        fail(ArgumentError, what, f"{argument} must be {bounds}, got {shown(value)}")
    return int(value)


def want_bool(what: str, argument: str, value: Any) -> bool:
    """True or False."""
    return want.flag(what, argument, value)


def want_str(what: str, argument: str, value: Any) -> str:
    """A str that is not empty."""
    if not isinstance(value, str) or not value:
        fail(ArgumentError, what, f"{argument} must be a str, got {shown(value)}")
    return value


def want_floats(what: str, argument: str, value: Any, lengths: Sequence[int] = ()) -> tuple[float, ...]:
    """A sequence of finite numbers, of one of these lengths."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    numbers = [real(v) for v in value] if isinstance(value, (list, tuple)) else []
    found = tuple(v for v in numbers if v is not None)
    if not found or len(found) < len(numbers):
        fail(ArgumentError, what, f"{argument} must be a list or tuple of numbers, got {shown(value)}")
    if not all(map(math.isfinite, found)):
        fail(ArgumentError, what, f"{argument} must hold finite numbers, got {shown(value)}")
    if lengths and len(value) not in lengths:
        expected = " or ".join(map(str, sorted(set(lengths))))
        fail(ArgumentError, what, f"{argument} must have {expected} entries, got {len(value)}: {shown(value)}")
    return found


def want_dtype(what: str, argument: str, value: Any, allowed: Sequence[dtype] = ()) -> dtype:
    """A dtype that arrays can have, of those allowed."""
    if not isinstance(value, dtype) or value in dtypes.HOST_ONLY:
        fail(ArgumentError, what, f"{argument} must be a dtype of oneflow that arrays have, got {shown(value)}")
    if allowed and value not in allowed:
        names = ", ".join(f"flow.{d.name}" for d in allowed)
        fail(DtypeError, what, f"{argument} must be one of {names}, got {shown(value)}")
    return value
