"""Matrix products and triangular parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from .._base.jax import jnp, lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import INVALID_AXIS, Blob
from ..graph.op import AttentionStep
from ._arrays import Array, broadcast_to, common_shape, is_half, label, like, number_for, select
from ._emit import emit, fail, op, want
from ._int8 import MATRICES
from ._native_matmul import NATIVE


def _product(attrs: Mapping[str, Any]) -> AttentionStep:
    return AttentionStep("product", attrs["alpha"], transposed=(attrs["transpose_a"], attrs["transpose_b"]))


def _triangle(attrs: Mapping[str, Any]) -> AttentionStep:
    return AttentionStep("triangle", attrs.get("scale", 1), diagonal=attrs["diagonal"], fill=attrs["fill_value"])


@op(
    "matmul", native=NATIVE, autocast="always", zeros="any", int8=MATRICES, attention=_product,
    adds_up=lambda attrs, shapes: not attrs["transpose_a"] and len(shapes[1]) == 2,
)  # fmt: skip
def _matmul(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool, alpha: int | float) -> Array:
    if b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        common = common_shape(a.shape[:-2], b.shape[:-2])
        a, b = (broadcast_to(m, (*common, *m.shape[-2:])) for m in (a, b))
    contract = ((a.ndim - (2 if transpose_a else 1),), (b.ndim - (1 if transpose_b else 2),))
    batch = tuple(range(b.ndim - 2))
    y = lax.dot_general(a, b, (contract, (batch, batch)))
    return y if alpha == 1 else lax.mul(y, like(alpha, y))


def matmul(
    a: Blob,
    b: Blob,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
    alpha: int | float = 1.0,
) -> Blob:
    """The matrix product of the last two axes.

    Args:
      a: Blob (..., m, k), or (..., k, m) where ``transpose_a``.
      b: Blob (..., k, n), or (..., n, k) where ``transpose_b``; of a's dtype. The leading axes are equal or broadcast.
      transpose_a, transpose_b: swap the last two axes first.
      name: name of the op; made unique when omitted.
      alpha: factor of the result.
    Returns: Blob (..., m, n) of that dtype.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.matmul(a, b, transpose_b=True)   # (2, 3), (4, 3) -> (2, 4)
    """
    what = label("matmul", name)
    for argument, blob in (("a", a), ("b", b)):
        if not isinstance(blob, Blob):
            want.blob(what, argument, blob)
        if blob.ndim < 2:
            fail(ShapeError, what, f"{argument} must have rank >= 2, got rank {blob.ndim}", (a, b),
                 "add an axis with flow.expand_dims")  # fmt: skip
    if a.dtype is not b.dtype:
        want.same_dtype(what, (a, b))
    if transpose_a is not False or transpose_b is not False:
        transpose_a = want.flag(what, "transpose_a", transpose_a, (a, b))
        transpose_b = want.flag(what, "transpose_b", transpose_b, (a, b))
    columns, rows = a.shape[-2 if transpose_a else -1], b.shape[-1 if transpose_b else -2]
    if columns != rows:
        _explain(what, a, b, transpose_a, transpose_b)
    if a.shape[:-2] != b.shape[:-2]:
        try:
            np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            fail(ShapeError, what, f"the leading axes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast", (a, b))
    y = emit(
        _matmul, a, b, name=name, transpose_a=transpose_a, transpose_b=transpose_b,
        alpha=1 if isinstance(alpha, (int, float)) and alpha == 1 else number_for(what, alpha, a, "alpha"),
    )  # fmt: skip
    if (transpose_a or transpose_b or a.batch_axis != 0) and not y.is_mirrored:
        y.batch_axis = _batch_axis_of_product(y, ((a, transpose_a, -2), (b, not transpose_b, -1)))
    return y


def _batch_axis_of_product(y: Blob, factors: Sequence[tuple[Blob, bool, int]]) -> int:
    """Of each factor: whether its last axis is the one that the product keeps, and which one it becomes."""
    for factor, keeps_last, becomes in factors:
        if factor.batch_axis >= 0:
            axis = factor.batch_axis - factor.ndim
            if axis == (-2 if keeps_last else -1):
                return INVALID_AXIS
            return y.ndim + (becomes if axis == (-1 if keeps_last else -2) else axis)
    return INVALID_AXIS


def _explain(what: str, a: Blob, b: Blob, transpose_a: bool, transpose_b: bool) -> NoReturn:
    def shown(blob: Blob, transposed: bool) -> str:
        return f"{blob.shape}" + (" transposed" if transposed else "")

    hint = ""
    for ta, tb in ((transpose_a, not transpose_b), (not transpose_a, transpose_b), (not transpose_a, not transpose_b)):
        if not hint and a.shape[-2 if ta else -1] == b.shape[-1 if tb else -2]:
            hint = f"transpose_a={ta}, transpose_b={tb} would fit"
    fail(ShapeError, what, f"a, {shown(a, transpose_a)}, must have as many columns as b, {shown(b, transpose_b)}, has rows",
         (a, b), hint)  # fmt: skip


def _kept(x: Array, diagonal: int) -> Array:
    """A mask of the elements with column <= row + diagonal."""
    rows, columns = (lax.broadcasted_iota(np.int32, x.shape, x.ndim - axis) for axis in (2, 1))
    return lax.le(lax.sub(columns, rows), np.int32(diagonal))


@op("tril", autocast="between", attention=_triangle)
def _tril(x: Array, *, diagonal: int, fill_value: int | float) -> Array:
    return select(_kept(x, diagonal), x, like(fill_value, x))


def tril(x: Blob, diagonal: int = 0, fill_value: int | float = 0, name: str | None = None) -> Blob:
    """The lower triangle of the last two axes; the rest becomes ``fill_value``.

    Args:
      x: Blob of rank >= 2, any dtype.
      diagonal: entries with column > row + diagonal are filled.
      fill_value: number, converted to x's dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.math.tril(x, diagonal=-1)
    """
    what = label("tril", name)
    want.rank(what, want.blob(what, "x", x), 2)
    offset = want.integer(what, "diagonal", diagonal, inputs=(x,))
    return emit(_tril, x, name=name, diagonal=offset, fill_value=number_for(what, fill_value, x, "fill_value"))


@op("fused_scale_tril", autocast="between", attention=_triangle)
def _fused_scale_tril(x: Array, *, diagonal: int, fill_value: int | float, scale: int | float) -> Array:
    return select(_kept(x, diagonal), lax.mul(x, like(scale, x)), like(fill_value, x))


def fused_scale_tril(
    x: Blob, diagonal: int = 0, fill_value: int | float = 0, scale: int | float = 1, name: str | None = None
) -> Blob:
    """``tril``, with the kept entries multiplied by ``scale``.

    Args: those of ``tril``; scale is a number, converted to x's dtype.
    Returns: Blob of x's shape and dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.math.fused_scale_tril(scores, scale=0.125, fill_value=-10000.0)
    """
    what = label("fused_scale_tril", name)
    want.rank(what, want.blob(what, "x", x), 2)
    offset = want.integer(what, "diagonal", diagonal, inputs=(x,))
    return emit(
        _fused_scale_tril, x, name=name, diagonal=offset,
        fill_value=number_for(what, fill_value, x, "fill_value"), scale=number_for(what, scale, x, "scale"),
    )  # fmt: skip


@op("diag")
def _diag(x: Array, *, diagonal: int) -> Array:
    down, right = max(-diagonal, 0), max(diagonal, 0)
    if x.ndim == 1:
        size = x.shape[0] + abs(diagonal)
        rows, columns = (lax.broadcasted_iota(np.int32, (size, size), axis) for axis in (0, 1))
        on = lax.eq(columns, lax.add(rows, np.int32(diagonal)))
        line = lax.pad(x, np.zeros((), x.dtype), [(down, right, 0)])
        return select(on, lax.broadcast_in_dim(line, (size, size), (0,)), like(0, x))
    count = min(x.shape[0] - down, x.shape[1] - right)
    block = lax.slice(x, (down, right), (down + count, right + count))
    return lax.slice(lax.reshape(block, (count * count,)), (0,), (count * count,), (count + 1,))


def diag(input: Blob, diagonal: int = 0, name: str | None = None) -> Blob:
    """A square matrix with the Blob on a diagonal, or the diagonal of a matrix.

    Args:
      input: Blob of rank 1 or 2, any dtype.
      diagonal: 0 is the main diagonal, positive numbers are the diagonals above it.
      name: name of the op; made unique when omitted.
    Returns: for (n,) a matrix (n + |diagonal|, n + |diagonal|) with zeros elsewhere; for (m, n) the diagonal.
    Raises: ShapeError (another rank, or no such diagonal), ArgumentError.
    Example: >>> y = flow.diag(x)   # (3,) -> (3, 3)
    """
    what = label("diag", name)
    want.rank(what, want.blob(what, "input", input), 1, 2)
    offset = want.integer(what, "diagonal", 0 if diagonal is None else diagonal, inputs=(input,))
    if input.ndim == 2 and not -input.shape[0] < offset < input.shape[1]:
        fail(ShapeError, what, f"a matrix of shape {input.shape} has no diagonal {offset}", (input,))
    return emit(_diag, input, name=name, diagonal=offset)


@op("einsum", autocast="always")
def _einsum(*arrays: Array, equation: str) -> Array:
    half = len(arrays) == 1 and is_half(arrays[0])  # sums, which are rounded once
    y = jnp.einsum(equation, *(lax.convert_element_type(a, np.float32) if half else a for a in arrays))
    y = lax.convert_element_type(y, arrays[0].dtype) if half else y
    return lax.reshape(y, (1,)) if y.ndim == 0 else y


def einsum(equation: str, *inputs: Blob, name: str | None = None) -> Blob:
    """Products summed over indices, in Einstein's notation.

    Args:
      equation: as for ``numpy.einsum``: one group of letters per input, one letter per axis, ``...`` for further axes; after
        ``->`` the letters of the result, else those that occur once, in alphabetical order.
      inputs: Blobs of one dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of that dtype; (1,) where no letter is left.
    Raises: ArgumentError, DtypeError, ShapeError.
    Example: >>> scores = flow.einsum("bqd,bkd->bqk", a, b)   # (2, 5, 4), (2, 7, 4) -> (2, 5, 7)
    """
    what = label("einsum", name)
    if not isinstance(equation, str) or not re.fullmatch(r"[A-Za-z.,\s]*(->[A-Za-z.\s]*)?", equation):
        fail(ArgumentError, what, f"equation must be a str such as 'ij,jk->ik', got {shown(equation)}", inputs)
    blobs = want.blobs(what, "inputs", list(inputs))
    want.same_dtype(what, blobs)
    equation = re.sub(r"\s", "", equation)
    terms, arrow, result = equation.partition("->")
    groups = terms.split(",")
    if len(groups) != len(blobs):
        fail(ArgumentError, what, f"{equation!r} is of {len(groups)} input(s), and {len(blobs)} were given", blobs)
    _check_letters(what, groups, result if arrow else None, blobs)
    y = emit(_einsum, *blobs, name=name, equation=equation)
    y.batch_axis = _batch_axis_of(groups, result if arrow else None, blobs)
    return y


def _check_letters(what: str, groups: Sequence[str], result: str | None, blobs: Sequence[Blob]) -> None:
    """Refuses inputs with another number of axes than letters, and letters of several sizes or of none."""
    sizes: dict[str, int] = {}
    for group, blob in zip(groups, blobs, strict=True):
        before, dots, after = group.partition("...")
        if "." in before + after:
            fail(ArgumentError, what, f"{group!r} must have its further axes as '...', once", blobs)
        letters, rank = before + after, blob.ndim
        if len(letters) > rank or (len(letters) < rank and not dots):
            fail(ShapeError, what, f"{group!r} is of {len(letters)} axes, and its input has {rank}", blobs)
        shape = blob.shape[: len(before)] + blob.shape[rank - len(after) :]
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                fail(ShapeError, what, f"axis {letter!r} has size {sizes[letter]} and size {size}", blobs)
    if result is not None:
        named = result.replace("...", "", 1)
        if len(set(named)) < len(named) or any(letter not in sizes for letter in named):
            fail(ShapeError, what, f"the result {result!r} must have letters of the inputs, each once", blobs)


def _batch_axis_of(groups: Sequence[str], result: str | None, blobs: Sequence[Blob]) -> int:
    """The axis of the result that has the letter of an input's batch axis, where the notation names all axes."""
    if result is None or "." in result or any("." in group for group in groups):
        return INVALID_AXIS
    letters = [group[blob.batch_axis] for group, blob in zip(groups, blobs, strict=True) if blob.batch_axis >= 0]
    return next((result.index(letter) for letter in letters if letter in result), INVALID_AXIS)
