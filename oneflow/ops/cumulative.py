"""Sums and products along an axis, up to each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import lax
from ..graph.node import Blob
from ._arrays import Array, label
from ._emit import emit, op, want


def _shifted(x: Array, axis: int, start: int, reverse: bool) -> Array:
    """The elements moved on by one along the axis, with ``start`` in the place that becomes free."""
    ends = [(0, 0, 0)] * x.ndim
    ends[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(x, np.asarray(start, x.dtype), ends)


@op("cumsum")
def _cumsum(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    return lax.cumsum(_shifted(x, axis, 0, reverse) if exclusive else x, axis, reverse)


@op("cumprod")
def _cumprod(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    return lax.cumprod(_shifted(x, axis, 1, reverse) if exclusive else x, axis, reverse)


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
