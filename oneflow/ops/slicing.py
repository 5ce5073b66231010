"""Regions of a Blob: slice, slice_update, reverse, and ``blob[...]``."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.check import whole
from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError, AxisError, ShapeError
from ..graph.graph import OP_VARIABLE
from ..graph.node import INVALID_AXIS, Blob, Node
from ._arrays import Array, label, like
from ._emit import emit, fail, in_view, moved_entries, op, want

Triple = tuple[int | None, int | None, int | None]  # start, stop, step as in Python


@dataclass(frozen=True, slots=True)
class _Run:
    """The indices of one axis that a slice selects, in ascending order: ``range(start, stop, step)``, ``count`` of them."""

    start: int
    stop: int
    step: int
    count: int
    flipped: bool  # the slice takes them in descending order

    @staticmethod
    def of(size: Any, triple: Triple) -> _Run:
        if not isinstance(size, int):
            return _Run.of_open(size, *triple)
        chosen = builtins.range(size)[builtins.slice(*triple)]
        ascending = chosen if chosen.step > 0 else chosen[::-1]
        count = len(chosen)
        start, stop = (ascending.start, ascending[-1] + 1) if count else (0, 0)
        return _Run(start, stop, ascending.step if count > 1 else 1, count, chosen.step < 0)  # a step may be any large int

    @staticmethod
    def of_open(size: Any, start: int | None, stop: int | None, step: int | None) -> _Run:
        """The same for a size that an exported model leaves to its caller; bounds are assumed to be inside."""
        step = 1 if step is None else step
        first, last = (None if v is None else v if v >= 0 else size + v for v in (start, stop))
        if step > 0:
            first, last = 0 if first is None else first, size if last is None else last
            return _Run(first, last, step, (last - first + step - 1) // step, False)
        first, last = size - 1 if first is None else first, -1 if last is None else last
        count = (first - last - step - 1) // -step
        return _Run(first + (count - 1) * step, first + 1, -step, count, True)


def _region(shape: tuple[int, ...], slices: Sequence[Triple]) -> list[_Run]:
    """The indices that each slice selects; axes beyond the slices are taken whole."""
    return [_Run.of(size, s) for size, s in zip(shape, _for_all_axes(slices, len(shape)), strict=True)]


def _for_all_axes(slices: Sequence[Triple], rank: int) -> list[Triple]:
    return [*slices, *[(None, None, None)] * (rank - len(slices))]


def _cut(x: Array, slices: Sequence[Triple]) -> Array:
    region = _region(x.shape, slices)
    y = lax.slice(x, [r.start for r in region], [r.stop for r in region], [r.step for r in region])
    flipped = [i for i, r in enumerate(region) if r.flipped]
    return lax.rev(y, flipped) if flipped else y


def _block(shape: tuple[int, ...], slices: Sequence[Triple]) -> tuple[tuple[int, int], ...] | None:
    """(start, stop) of each axis; None if a slice leaves indices out, or turns them round."""
    region = _region(shape, slices)
    return None if any(r.step != 1 or r.flipped for r in region) else tuple((r.start, r.stop) for r in region)


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    return {**attrs, "slices": moved_entries(_for_all_axes(attrs["slices"], rank))}


@op("slice", autocast="between", region=lambda attrs, shape: _block(shape, attrs["slices"]), channels_last=_channels_last)
def _slice(x: Array, *, slices: tuple[Triple, ...]) -> Array:
    return _cut(x, slices)


def _refuse_empty(what: str, x: Blob, slices: Sequence[Triple]) -> None:
    for axis, r in enumerate(_region(x.shape, slices)):
        if not r.count:
            fail(ShapeError, what, f"the slice of axis {axis} (size {x.shape[axis]}) is empty; no Blob has size 0", (x,))


def slice(x: Blob, begin: Sequence[int], size: Sequence[int], name: str | None = None) -> Blob:
    """The region of ``size`` that starts at ``begin``.

    Args:
      x: Blob of any dtype.
      begin: for each axis of size d, an int in [-d, d) or None (0).
      size: for each axis, an int in [1, d], -1 or None (to the end); a region beyond the end is shortened.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same rank and dtype.
    Raises: ArgumentError, AxisError (begin outside the axis), ShapeError (nothing left).
    Example: >>> y = flow.slice(x, begin=[0, 1], size=[-1, 2])   # (2, 3) -> (2, 2)
    """
    what = label("slice", name)
    (x,) = in_view(what, want.blob(what, "x", x))
    for argument, values in (("begin", begin), ("size", size)):
        if not isinstance(values, (list, tuple)) or len(values) != x.ndim:
            fail(ArgumentError, what, f"{argument} must be a list or tuple of {x.ndim} entries, got {shown(values)}", (x,))
    slices: list[Triple] = []
    for axis, (b, n) in enumerate(zip(begin, size, strict=True)):
        d = x.shape[axis]
        start = 0 if b is None else _bound(what, f"begin[{axis}]", b, -d, d - 1, x)
        if n is not None and n != -1:
            n = _bound(what, f"size[{axis}]", n, 1, d, x)
            stop = start + n
            slices.append((start, None if start < 0 <= stop else stop, None))
        else:
            slices.append((start, None, None))
    _refuse_empty(what, x, slices)
    return emit(_slice, x, name=name, slices=tuple(slices))


def _bound(what: str, argument: str, value: Any, low: int, high: int, x: Blob) -> int:
    found = whole(value)
    if found is None:
        fail(ArgumentError, what, f"{argument} must be an int or None, got {shown(value)}", (x,))
    if not low <= found <= high:
        fail(AxisError, what, f"{argument}={shown(value)} is outside [{low}, {high}]", (x,))
    return found


def _triples(what: str, x: Blob, slice_tup_list: Any, extra_stop: int, lowest_step: float) -> tuple[Triple, ...]:
    if not isinstance(slice_tup_list, (list, tuple)) or len(slice_tup_list) > x.ndim:
        fail(ArgumentError, what,
             f"slice_tup_list must hold up to {x.ndim} (start, stop, step), got {shown(slice_tup_list)}", (x,))  # fmt: skip
    slices: list[Triple] = []
    for axis, entry in enumerate(slice_tup_list):
        at = f"slice_tup_list[{axis}]"
        if not isinstance(entry, (list, tuple)) or len(entry) != 3:
            fail(ArgumentError, what, f"{at} must be (start, stop, step), got {shown(entry)}", (x,))
        start, stop, step = entry
        d = x.shape[axis]
        start = None if start is None else _bound(what, f"{at}'s start", start, -d, d - 1, x)
        stop = None if stop is None else _bound(what, f"{at}'s stop", stop, -d - extra_stop, d, x)
        if step is not None:
            found = whole(step)
            if not found or found < lowest_step:
                kind = "an int > 0" if lowest_step == 1 else "an int, not 0"
                fail(ArgumentError, what, f"{at}'s step must be {kind}, got {shown(step)}", (x,))
            step = found
        slices.append((start, stop, step))
    _refuse_empty(what, x, slices)
    return tuple(slices)


def slice_v2(x: Blob, slice_tup_list: Sequence[tuple[int, int, int]], name: str | None = None) -> Blob:
    """The region that Python slices select.

    Args:
      x: Blob of any dtype.
      slice_tup_list: list or tuple of (start, stop, step), at most one for each axis of size d; entries may be None,
        steps negative. start is in [-d, d), stop in [-d - 1, d]: unlike in NumPy, other bounds are errors.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same rank and dtype.
    Raises: ArgumentError, AxisError, ShapeError (nothing selected).
    Example: >>> y = flow.slice_v2(x, [(None, None, None), (0, 2, 1)])   # (2, 3) -> (2, 2)
    """
    what = label("slice_v2", name)
    (x,) = in_view(what, want.blob(what, "x", x))
    return emit(_slice, x, name=name, prefix="SliceV2", slices=_triples(what, x, slice_tup_list, 1, -math.inf))


@op("slice_update")
def _slice_update(x: Array, update: Array, *, slices: tuple[Triple, ...]) -> Array:
    region = _region(x.shape, slices)
    if update.shape != tuple(r.count for r in region):
        raise ValueError(f"the update has shape {update.shape}, the region {tuple(r.count for r in region)}")
    flipped = [i for i, r in enumerate(region) if r.flipped]
    update = lax.rev(update, flipped) if flipped else update
    if all(r.step == 1 for r in region):
        return lax.dynamic_update_slice(x, update, [like(r.start, np.int32(0)) for r in region])
    # with steps: zeros between the rows of the update move each to its position; a mask selects those positions
    config = [(r.start, size - r.start - (r.count - 1) * r.step - 1, r.step - 1) for r, size in zip(region, x.shape, strict=True)]
    spread = lax.pad(update, np.zeros((), x.dtype), config)
    mask = lax.pad(lax.full(update.shape, True), np.zeros((), np.bool_), config)
    return lax.select(mask, spread, x)


def slice_update(x: Blob, update: Blob, slice_tup_list: Sequence[tuple[int, int, int]], name: str | None = None) -> Blob:
    """x with a region replaced.

    Args:
      x: Blob.
      update: Blob of x's dtype and the region's shape.
      slice_tup_list: the region, as in ``slice_v2``.
      name: name of the op; made unique when omitted.
    Returns: a new Blob of x's shape and dtype.
    Raises: ArgumentError, AxisError, ShapeError, DtypeError.
    Example: >>> y = flow.slice_update(x, row, [(0, 1, 1)])
    """
    what = label("slice_update", name)
    want.blob(what, "x", x)
    want.blob(what, "update", update)
    want.same_dtype(what, (x, update))
    x, update = in_view(what, x, update)
    slices = _fitting(what, x, update, _triples(what, x, slice_tup_list, 1, -math.inf))
    return emit(_slice_update, x, update, name=name, slices=slices)


def _fitting(what: str, x: Blob, update: Blob, slices: tuple[Triple, ...]) -> tuple[Triple, ...]:
    shape = tuple(r.count for r in _region(x.shape, slices))
    if update.shape != shape:
        fail(ShapeError, what, f"the update must have the region's shape {shape}, got {update.shape}", (x, update))
    return slices


def logical_slice(x: Blob, slice_tup_list: Sequence[tuple[int, int, int]], name: str | None = None) -> Blob:
    """``slice_v2`` with steps > 0 and stop in [-d, d]; works on variables that are split over devices.

    Example: >>> y = flow.experimental.logical_slice(x, [(0, 1, 1)])
    """
    what = label("logical_slice", name)
    (x,) = in_view(what, want.blob(what, "x", x))
    return emit(_slice, x, name=name, prefix="LogicalSlice", slices=_triples(what, x, slice_tup_list, 0, 1))


def logical_slice_assign(x: Blob, value: Blob, slice_tup_list: Sequence[tuple[int, int, int]], name: str | None = None) -> Node:
    """Assigns ``value`` to a region of the variable x at the end of the call.

    Args:
      x: a Blob that ``flow.get_variable`` returned.
      value: Blob of x's dtype and the region's shape.
      slice_tup_list: the region, as in ``logical_slice``.
      name: name of the op; made unique when omitted.
    Returns: the op (not a Blob).
    Raises: ArgumentError (x is not a variable), AxisError, ShapeError, DtypeError.
    Example: >>> flow.experimental.logical_slice_assign(table, rows, [(0, 2, 1)])   # (4, 3), (2, 3) -> the op
    """
    what = label("logical_slice_assign", name)
    want.blob(what, "x", x)
    want.blob(what, "value", value)
    if x.node.op is not OP_VARIABLE:
        fail(ArgumentError, what, f"x must be a variable, but {x.op_name!r} is computed by {x.node.op.name}", (x, value))
    want.same_dtype(what, (x, value))
    slices = _fitting(what, x, value, _triples(what, x, slice_tup_list, 0, 1))
    graph = x.node.graph
    before = graph.assigns.get(x.node.attrs["variable"], x)  # several regions may be written in one job
    y = emit(_slice_update, before, value, name=name, prefix="LogicalSliceAssign", slices=slices)
    graph.assign(x, y)
    return y.node


@op("reverse")
def _reverse(x: Array, *, axes: tuple[int, ...]) -> Array:
    return lax.rev(x, axes)


def reverse(input: Blob, axis: int | Sequence[int], name: str | None = None) -> Blob:
    """The elements in reverse order along axes.

    Args:
      input: Blob of any dtype.
      axis: int, list or tuple of ints in [-rank, rank).
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape and dtype.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.reverse(x, axis=1)
    """
    what = label("reverse", name)
    want.blob(what, "input", input)
    if axis is None:
        fail(ArgumentError, what, "axis must be an int, a list or a tuple of ints, got None", (input,))
    return emit(_reverse, input, name=name, axes=want.axes(what, axis, input.ndim, inputs=(input,)))


# --- blob[...]

Index = int | Triple | None  # an axis dropped, an axis cut, a new axis


def _slices_of(index: Sequence[Index]) -> list[Triple]:
    """What an index cuts of each axis, ints included."""
    slices: list[Triple] = []
    for entry in index:
        if isinstance(entry, tuple):
            slices.append(entry)
        elif entry is not None:
            slices.append((entry, None if entry == -1 else entry + 1, None))
    return slices


def _index_channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    index = attrs["index"]
    keeps_axes = all(isinstance(entry, tuple) for entry in index)
    return {**attrs, "index": moved_entries(_for_all_axes(index, rank))} if keeps_axes else None


@op(
    "getitem", autocast="between", region=lambda attrs, shape: _block(shape, _slices_of(attrs["index"])),
    channels_last=_index_channels_last,
)  # fmt: skip
def _getitem(x: Array, *, index: tuple[Index, ...]) -> Array:
    y = _cut(x, _slices_of(index))
    shape, axis = [], 0
    for entry in index:
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, tuple):
            shape.append(y.shape[axis])
        elif not y.shape[axis]:  # of an input whose size varies
            raise ValueError(f"index {entry} is outside axis {axis}, which has size {x.shape[axis]}")
        axis += 1
    shape += y.shape[axis:]
    return lax.reshape(y, tuple(shape) or (1,))


def getitem(x: Blob, key: Any) -> Blob:
    """``x[key]`` with ints, slices, Ellipsis and None, as in NumPy; a single element has shape (1,)."""
    parts = key if isinstance(key, tuple) else (key,)
    dots = sum(part is Ellipsis for part in parts)
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if dots > 1:
        fail(ArgumentError, "blob[...]", "an index can hold one Ellipsis only", (x,))
    if used > x.ndim:
        fail(AxisError, "blob[...]", f"{used} indices are too many for a Blob of rank {x.ndim}", (x,))
    index: list[Index] = []
    axis = 0
    for part in parts:
        if part is None:
            index.append(None)
        elif part is Ellipsis:
            index += [(None, None, None)] * (x.ndim - used)
            axis += x.ndim - used
        else:
            index.append(_index(x, axis, part))
            axis += 1
    y = emit(_getitem, x, index=tuple(index))
    y.batch_axis = _followed(x.batch_axis, index)
    return y


def _index(x: Blob, axis: int, part: Any) -> Index:
    size = x.shape[axis]
    place = whole(part)
    if place is not None:
        if not -size <= place < size:
            fail(AxisError, "blob[...]", f"index {shown(part)} is outside axis {axis}, which has size {size}", (x,))
        return place
    if not isinstance(part, builtins.slice):
        found = f"a Blob {part.describe()}" if isinstance(part, Blob) else f"{type(part).__name__} {shown(part)}"
        fail(ArgumentError, "blob[...]", f"an index can hold ints, slices, Ellipsis and None, not {found}", (x,),
             "use flow.gather(blob, indices, axis=...) for rows by number, flow.where for a mask")  # fmt: skip
    try:
        start, stop, step = (None if v is None else v.__index__() for v in (part.start, part.stop, part.step))
    except Exception:  # of the user's object
        fail(ArgumentError, "blob[...]", f"the bounds of a slice must be ints or None, got {shown(part)}", (x,))
    if step == 0:
        fail(ArgumentError, "blob[...]", "a slice's step must not be 0", (x,))
    if not len(builtins.range(size)[builtins.slice(start, stop, step)]):
        written = ":".join("" if v is None else shown(v) for v in (start, stop) + ((step,) if step is not None else ()))
        fail(ShapeError, "blob[...]", f"the slice {written} of axis {axis} (size {size}) is empty; no Blob has size 0", (x,))
    return start, stop, step


def _followed(batch_axis: int, index: Sequence[Index]) -> int:
    """The position of the batch axis in the result; INVALID_AXIS if an int dropped it."""
    old = new = 0
    for entry in index:
        if entry is None:
            new += 1
            continue
        if old == batch_axis and not isinstance(entry, tuple):
            return INVALID_AXIS
        if old == batch_axis:
            return new
        new += isinstance(entry, tuple)
        old += 1
    return batch_axis if batch_axis < 0 else new + batch_axis - old
