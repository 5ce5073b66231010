"""Sums and products along an axis, up to each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..graph.node import Blob
from ._arrays import Array, is_many, label, widen
from ._emit import emit, op, want


def _shifted(x: Array, axis: int, start: int, reverse: bool) -> Array:
    """The elements moved on by one along the axis, with ``start`` in the place that becomes free."""
    ends = [(0, 0, 0)] * x.ndim
    ends[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(x, np.asarray(start, x.dtype), ends)


_LEAST = 512  # numbers in a step: a loop of shorter ones is slower than XLA's sums


def _one_by_one(combine: Callable[[Array, Array], Array], x: Array, axis: int, start: int, reverse: bool) -> Array:
    """In a loop over the axis, of vectors. XLA goes over all of the array again for each doubling of the distance."""
    wide = widen(x)
    first = lax.full_like(lax.index_in_dim(wide, 0, axis, keepdims=False), start)

    def step(before: Array, row: Array) -> tuple[Array, Array]:
        upto = combine(before, row)
        return upto, upto

    _, found = lax.scan(step, first, jnp.moveaxis(wide, axis, 0), reverse=reverse)
    return lax.convert_element_type(jnp.moveaxis(found, 0, axis), x.dtype)


def _accumulated(
    by_xla: Callable[[Array, int, bool], Array], combine: Callable[[Array, Array], Array], start: int,
    x: Array, axis: int, exclusive: bool, reverse: bool,
) -> Array:  # fmt: skip
    if exclusive:
        x = _shifted(x, axis, start, reverse)
    others = [size for a, size in enumerate(x.shape) if a != axis]
    if not is_many(others, _LEAST) or not is_many(x.shape[axis : axis + 1], 2):
        return by_xla(x, axis, reverse)
    return lax.platform_dependent(
        x, cpu=lambda x: _one_by_one(combine, x, axis, start, reverse), default=lambda x: by_xla(x, axis, reverse)
    )


@op("cumsum")
def _cumsum(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    return _accumulated(lambda *a: lax.cumsum(*a), lambda a, b: lax.add(a, b), 0, x, axis, exclusive, reverse)


@op("cumprod")
def _cumprod(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    return _accumulated(lambda *a: lax.cumprod(*a), lambda a, b: lax.mul(a, b), 1, x, axis, exclusive, reverse)


def cumsum(x: Blob, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> Blob:
    """The sum of all elements up to each one, along an axis.

    Args:
      x: Blob of a number dtype.
      axis: in [-rank, rank).
      exclusive: leave each element itself out of its sum.
      reverse: sum from the end.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.math.cumsum(x, axis=1)   # (8, 4) -> (8, 4)
    """
    return _cumulative("cumsum", _cumsum, x, axis, exclusive, reverse, name)


def cumprod(x: Blob, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> Blob:
    """The product of all elements up to each one, along an axis.

    Args: those of ``cumsum``.
    Returns: Blob of x's shape and dtype.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.math.cumprod(x, axis=1)   # (8, 4) -> (8, 4)
    """
    return _cumulative("cumprod", _cumprod, x, axis, exclusive, reverse, name)


def _cumulative(kind: str, definition: Any, x: Blob, axis: int, exclusive: bool, reverse: bool, name: str | None) -> Blob:
    what = label(kind, name)
    want.blob(what, "x", x)
    at = want.axis(what, axis, x.ndim, inputs=(x,))
    exclusive, reverse = want.flag(what, "exclusive", exclusive, (x,)), want.flag(what, "reverse", reverse, (x,))
    return emit(definition, x, name=name, axis=at, exclusive=exclusive, reverse=reverse)
