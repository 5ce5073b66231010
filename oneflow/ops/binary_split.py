"""Splitting a dynamic Blob into pieces whose largest sizes halve, and joining them again."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.jax import lax
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, label
from ._emit import emit, emit_many, fail, op, want


@op("dynamic_binary_split", multiple_results=True)
def _split(x: Array, *, bounds: tuple[int, ...]) -> tuple[Array, ...]:
    pieces, start = [], 0
    for i, bound in enumerate(bounds):
        rest = x.shape[0] - start
        size = min(rest, bound) if i == len(bounds) - 1 or rest >= bound else 0
        pieces.append(lax.slice(x, (start,), (start + size,)))
        start += size
    return tuple(pieces)


def dynamic_binary_split(x: Blob, base_shift: int = 2, out_num: int = 2, name: str | None = None) -> list[Blob]:
    """Cuts a Blob of rank 1 whose size varies into pieces that are full or empty, after the binary digits of its size.

    Args:
      x: Blob of rank 1 and any dtype.
      base_shift: the smallest piece holds 2 ** base_shift elements, or as many more as are needed.
      out_num: the number of pieces, >= 1. The largest sizes halve from piece to piece; the last two are equal.
      name: name of the op; made unique when omitted.
    Returns: list of dynamic Blobs: 45 elements in pieces of at most 32, 16, 8 and 8 have the sizes 32, 0, 8 and 5.
    Raises: ShapeError, ArgumentError.
    Example: >>> first, second = flow.experimental.dynamic_binary_split(x)   # (8,) -> (4,), (4,)
    """
    what = label("dynamic_binary_split", name)
    want.rank(what, want.blob(what, "x", x), 1, 1)
    (shift,), (number,) = want.ints(what, "base_shift", base_shift, 1), want.ints(what, "out_num", out_num, 1)
    if not 0 <= shift <= 30 or not 1 <= number <= 30:
        fail(ArgumentError, what, f"needs base_shift in [0, 30] and out_num in [1, 30], got {base_shift} and {out_num}", (x,))
    smallest = max(1 << shift, -(-x.shape[0] >> (number - 1)))
    bounds = (*(smallest << (number - 2 - i) for i in range(number - 1)), smallest)
    outputs = emit_many(_split, x, name=name, bounds=bounds)
    for blob, bound in zip(outputs, bounds, strict=True):
        blob.shape, blob.is_dynamic = (bound,), True  # larger than the pieces of a full Blob
    return list(outputs)


@op("dynamic_binary_concat", nondifferentiable=(0,))
def _join(source: Array, *pieces: Array) -> Array:
    total = lax.concatenate(pieces, 0)
    if total.shape[0] < source.shape[0]:
        raise ValueError(f"pieces of {total.shape[0]} elements do not fill a Blob of shape {source.shape}")
    return lax.slice(total, (0,), (source.shape[0],))


def dynamic_binary_concat(
    input_blob_list: Sequence[Blob], source_blob: Blob, source_sbp: str = "S:0", name: str | None = None
) -> Blob:
    """Joins the pieces of ``dynamic_binary_split`` again.

    Args:
      input_blob_list: list or tuple of Blobs of rank 1 and one dtype.
      source_blob: the Blob that was split, which has the size.
      source_sbp: not used.
      name: name of the op; made unique when omitted.
    Returns: Blob of source_blob's shape and the pieces' dtype.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.experimental.dynamic_binary_concat(flow.experimental.dynamic_binary_split(x), x)   # (8,) -> (8,)
    """
    what = label("dynamic_binary_concat", name)
    pieces = want.blobs(what, "input_blob_list", input_blob_list)
    want.blob(what, "source_blob", source_blob)
    want.same_dtype(what, pieces)
    for blob in (*pieces, source_blob):
        want.rank(what, blob, 1, 1)
    if sum(b.shape[0] for b in pieces) < source_blob.shape[0]:
        fail(ShapeError, what, f"the pieces hold fewer elements than {source_blob.shape}", (source_blob, *pieces))
    return emit(_join, source_blob, *pieces, name=name)
