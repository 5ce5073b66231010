"""Rules for Blobs of dynamic size in ops that move, slice, join, gather, scatter and multiply; see _dynamic_rules.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from .._base.source import caller
from .._signature.local import pieces
from ..errors import ShapeError
from ..graph.graph import Watch, current
from ..graph.node import Blob, ValidLength
from . import _dynamic_ops as dynamic
from ._arrays import groups_of_axes
from ._dynamic_rules import DIFFER, RULES, Blobs, Rule, Treatment, as_static, filled, origin, rule, same_length
from ._emit import add_node

# --- shapes


def _moved(where: Callable[[Treatment, int], int | None], verb: str = "removed") -> Rule:
    """An op that only moves axes: ``where(t, axis)`` is the position of the padded axis in the result; None if it is ``verb``."""

    def apply(t: Treatment) -> Blobs:
        length = t.the_valid_length()
        axis = where(t, length.axis)
        if axis is None:
            t.refuse(f"axis {length.axis}, whose size depends on data, cannot be {verb}")
        (y,) = t.make()
        return (t.sized(y, axis, length.count),)

    return apply


RULES.update(
    transpose=_moved(lambda t, axis: t.attrs["perm"].index(axis)),
    expand_dims=_moved(lambda t, axis: axis + (t.attrs["axis"] <= axis)),
    squeeze=_moved(lambda t, axis: None if axis in t.attrs["axes"] else axis - sum(a < axis for a in t.attrs["axes"])),
    one_hot=_moved(lambda t, axis: axis + (t.attrs["axis"] <= axis)),
    pad=_moved(lambda t, axis: axis if t.attrs["paddings"][axis] == (0, 0) else None, "padded"),
)


@rule("flatten", "reshape", "dynamic_reshape")
def _reshape(t: Treatment) -> Blobs:
    length, x = t.the_valid_length(), t.inputs[0]
    if t.op.name == "flatten":
        first, last = t.attrs["first"], t.attrs["last"]
        shape = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    else:
        shape = t.attrs["shape"]
        rest = math.prod(size for size in shape if size != -1)
        shape = tuple(math.prod(x.shape) // rest if size == -1 else size for size in shape)
    return (_reshaped(t, x, length, shape),)


@rule("reshape_like")
def _reshape_like(t: Treatment) -> Blobs:
    x, like = t.inputs
    length, other = t.valid_length(0), t.valid_length(1)
    if length is None or other is None:
        t.refuse(DIFFER)
    y = _reshaped(t, x, length, like.shape)
    if y.valid_length is None or y.valid_length.axis != other.axis or not same_length(y.valid_length, other):
        t.refuse(DIFFER)
    return (y,)


def _reshaped(t: Treatment, x: Blob, length: ValidLength, shape: Sequence[int]) -> Blob:
    place = _place_in(x.shape, length.axis, shape, Fraction(1) if length.others_vary else origin(length.count)[2])
    if place is None:
        t.refuse(
            f"axis {length.axis} of {x.shape}, whose size depends on data, is not found again in {shape}",
            "keep the axis, or join it with axes behind it",
        )
    sizes = tuple(-1 if i == place else size for i, size in enumerate(shape))
    y, count = t.make(x, length.count, op=dynamic.valid_reshape, shape=sizes, axis=length.axis, to=place)
    first, _, factor = origin(as_static(count))
    y.valid_length = ValidLength(place, first if factor == 1 else count, length.others_vary)
    return y


def _place_in(old: Sequence[int], axis: int, new: Sequence[int], factor: Fraction) -> int | None:
    """The axis of the new shape that holds consecutive blocks of the old axis, if there is one.

    ``factor``: which the valid length of the old axis is a multiple of.
    """
    for before, after in groups_of_axes(old, new):
        if axis in before:
            inner = math.prod(old[a] for a in before if a > axis)
            outer = math.prod(old[a] for a in before if a < axis)
            for place in after:
                ahead = math.prod(new[a] for a in after if a < place)
                if ahead == outer and new[place] * math.prod(new[a] for a in after if a > place) == old[axis] * inner:
                    behind = math.prod(new[a] for a in after if a > place)
                    if (factor * Fraction(inner, behind)).denominator == 1:
                        return place
    return None


@rule("concat")
def _concat(t: Treatment) -> Blobs:
    axis = t.attrs["axis"]
    lengths = [t.valid_length(i) for i in range(len(t.inputs))]
    if all(e is not None and e.axis != axis for e in lengths):
        length = t.same(*range(len(t.inputs)))
        (y,) = t.make()
        return (t.sized(y, length.axis, length.count),)
    if any(e is not None and e.axis != axis for e in lengths):
        t.refuse(DIFFER)
    counts = [e.count for e in lengths if e is not None]
    most = t.attrs.get("most")
    y, count = t.make(
        *t.inputs, *counts, op=dynamic.valid_concat, axis=axis, has_length=tuple(e is not None for e in lengths), most=most,
    )  # fmt: skip
    if most is not None:
        _check_size(t, count, most)
    return (t.sized(y, axis, as_static(count)),)


def _check_size(t: Treatment, count: Blob, most: int) -> None:
    """A step cannot stop; its count is looked at when its results are delivered, and the call raises."""
    graph, what, line = current(t.what), f"{t.what} in job {current(t.what).name!r}", caller()

    def check(value: Any) -> None:
        for size in (int(n.reshape(-1)[0]) for n in pieces(value, count)):
            if size > most:
                raise ShapeError(
                    f"{what}: the result has size {size} on axis {t.attrs['axis']}, more than max_dim_size={most}\n"
                    f"  your line  {line}   {line.text}"
                )

    graph.watches.append(Watch(count, check, False))


@rule("stack")
def _stack(t: Treatment) -> Blobs:
    length = t.same(*range(len(t.inputs)))
    (y,) = t.make()
    return (t.sized(y, length.axis + (t.attrs["axis"] <= length.axis), length.count),)


@rule("broadcast_like")
def _broadcast_like(t: Treatment) -> Blobs:
    x, like = t.inputs
    length = t.valid_length(1)
    if x.has_dynamic_size or length is None:
        t.refuse("x has a size that depends on data; only `like` may have one")
    if x.ndim != like.ndim or x.shape[length.axis] != 1:
        t.refuse(f"x must have the rank of `like`, and size 1 on axis {length.axis}, where the size of `like` depends on data",
                 "add axes of size 1 with flow.expand_dims")  # fmt: skip
    (x,) = add_node(
        t.what, dynamic.broadcast_to_length, (x, like, length.count), None, None, {"axis": length.axis - like.ndim}
    )  # fmt: skip
    (y,) = t.make(x, like)
    return (t.sized(y, length.axis, length.count),)


@rule("cast_to_static_shape")
def _cast_to_static_shape(t: Treatment) -> Blobs:
    return t.make(t.fill(0, 0))


# --- regions


def _cut(t: Treatment, length: ValidLength, triple: Any) -> tuple[Blob, Blob]:
    """A slice of inputs[0] along its padded axis, and its valid length."""
    x = t.inputs[0]
    y, count = add_node(
        t.what, dynamic.valid_slice, (x, length.count), None, None, {"axis": length.axis, "triple": triple}
    )  # fmt: skip
    return y, as_static(count)


_WHOLE = (None, None, None)


@rule("slice")
def _slice(t: Treatment) -> Blobs:
    length = t.the_valid_length()
    full = [*t.attrs["slices"], *[_WHOLE] * (t.inputs[0].ndim - len(t.attrs["slices"]))]
    triple, full[length.axis] = full[length.axis], _WHOLE
    x, count = (t.inputs[0], length.count) if triple in (_WHOLE, (0, None, None)) else _cut(t, length, triple)
    (y,) = t.make(x, slices=tuple(full))
    return (t.sized(y, length.axis, count),)


@rule("reverse")
def _reverse(t: Treatment) -> Blobs:
    length, axes = t.the_valid_length(), t.attrs["axes"]
    x = _cut(t, length, (None, None, -1))[0] if length.axis in axes else t.inputs[0]
    (y,) = t.make(x, axes=tuple(a for a in axes if a != length.axis))
    return (t.sized(y, length.axis, length.count),)


@rule("getitem")
def _getitem(t: Treatment) -> Blobs:
    length = t.the_valid_length()
    index = list(t.attrs["index"])
    axis, place = -1, len(index)
    for i, entry in enumerate(index):
        axis += entry is not None
        if axis == length.axis and entry is not None:
            place = i
    entry = index[place] if place < len(index) else _WHOLE
    if isinstance(entry, int):
        x, count = _cut(t, length, (entry, None if entry == -1 else entry + 1, None))
        x = filled(x, ValidLength(length.axis, count), 0)
        index[place] = 0
        return t.make(x, index=tuple(index))
    x, count = (t.inputs[0], length.count) if entry == _WHOLE else _cut(t, length, entry)
    if place < len(index):
        index[place] = _WHOLE
    (y,) = t.make(x, index=tuple(index))
    before = index[:place]
    dropped, added = sum(isinstance(e, int) for e in before), sum(e is None for e in index[:place])
    return (t.sized(y, length.axis - dropped + added, count),)


# --- by index


@rule("gather")
def _gather(t: Treatment) -> Blobs:
    axis, indices = t.attrs["axis"], t.inputs[1]
    rows, numbers = t.valid_length(0), t.valid_length(1)
    if rows is not None and rows.axis != axis:
        if numbers is not None:
            t.refuse(DIFFER)
        (y,) = t.make()
        return (t.sized(y, rows.axis + (indices.ndim - 1 if rows.axis > axis else 0), rows.count),)
    if numbers is None:
        return t.make(t.fill(0, 0), indices)
    return t.make_masked(axis + numbers.axis, numbers.count, t.fill(0, 0), indices)


@rule("gather_nd")
def _gather_nd(t: Treatment) -> Blobs:
    params, indices = t.inputs
    depth, lead = indices.shape[-1], indices.ndim - 1
    rows, numbers = t.valid_length(0), t.valid_length(1)
    if numbers is not None and numbers.axis == lead:
        t.refuse("the number of coordinates depends on data")
    if rows is not None and rows.axis >= depth:
        if numbers is not None:
            t.refuse(DIFFER)
        (y,) = t.make()
        return (t.sized(y, lead + rows.axis - depth, rows.count),)
    if numbers is None:
        return t.make(t.fill(0, 0), indices)
    return t.make_masked(numbers.axis, numbers.count, t.fill(0, 0), indices)


def _paired(t: Treatment, along: int) -> Blobs:
    """Axes of inputs[0] and inputs[1] correspond, except ``along``, on which inputs[1] holds indices into inputs[0]."""
    rows, numbers = t.valid_length(0), t.valid_length(1)
    if any(e is not None and e.axis != along for e in (rows, numbers)):
        length = t.same(0, 1)
        if length.axis > along and t.op.name == "batch_gather":
            t.refuse(DIFFER)
        (y,) = t.make()
        return (t.sized(y, length.axis, length.count),)
    if numbers is None:
        return t.make(t.fill(0, 0), t.inputs[1])
    return t.make_masked(along, numbers.count, t.fill(0, 0), t.inputs[1])


@rule("dim_gather")
def _dim_gather(t: Treatment) -> Blobs:
    return _paired(t, t.attrs["dim"])


@rule("batch_gather")
def _batch_gather(t: Treatment) -> Blobs:
    rows, along = t.valid_length(0), t.inputs[1].ndim - 1
    if rows is not None and rows.axis > along and t.valid_length(1) is None:
        (y,) = t.make()
        return (t.sized(y, rows.axis, rows.count),)
    return _paired(t, along)


@rule("scatter_nd")
def _scatter_nd(t: Treatment) -> Blobs:
    _updates(t, 0, 1)
    return t.make(t.inputs[0], t.fill(1, 0))


@rule("tensor_scatter_nd_add", "tensor_scatter_nd_update")
def _tensor_scatter(t: Treatment) -> Blobs:
    if t.inputs[0].has_dynamic_size:
        t.refuse("the size of params depends on data")
    _updates(t, 1, 2)
    return t.make(t.inputs[0], t.fill(1, _NOWHERE), t.fill(2, 0))


_NOWHERE = -1  # an index that is always out of range


def _updates(t: Treatment, indices: int, updates: int) -> None:
    if t.same(indices, updates).axis == t.inputs[indices].ndim - 1:
        t.refuse("the number of coordinates depends on data")


@rule("unsorted_segment_sum")
def _segment_sum(t: Treatment) -> Blobs:
    axis, ids, numbers = t.attrs["axis"], t.inputs[1], t.valid_length(1)
    rows = t.valid_length(0)
    if rows is not None and numbers is not None and rows.axis == axis + numbers.axis and same_length(rows, numbers):
        return t.make(t.fill(0, 0), ids)
    if rows is None or numbers is not None or axis <= rows.axis < axis + ids.ndim:
        t.refuse(DIFFER)
    (y,) = t.make()
    return (t.sized(y, rows.axis - (ids.ndim - 1 if rows.axis > axis else 0), rows.count),)


# --- matrix products


@rule("matmul")
def _matmul(t: Treatment) -> Blobs:
    a, b = t.inputs
    lengths = t.valid_length(0), t.valid_length(1)
    transposed = t.attrs["transpose_a"], t.attrs["transpose_b"]
    summed = a.ndim - (2 if transposed[0] else 1), b.ndim - (1 if transposed[1] else 2)
    rank = max(a.ndim, b.ndim)
    is_summed = [e is not None and e.axis == s for e, s in zip(lengths, summed, strict=True)]
    if all(is_summed):
        if not same_length(lengths[0], lengths[1]):
            t.refuse(DIFFER)
        return t.make(t.fill(0, 0), t.fill(1, 0))
    if any(is_summed):
        t.refuse("the axes that are summed over must have one size, which depends on data for one of them only")
    places = []
    for blob, length, own in zip(t.inputs, lengths, (rank - 2, rank - 1), strict=True):
        if length is not None:
            batch = length.axis < blob.ndim - 2
            places.append((length.axis + rank - blob.ndim if batch else own, length))
    if len(places) == 2 and (places[0][0] != places[1][0] or not same_length(places[0][1], places[1][1])):
        t.refuse(DIFFER)
    place, length = places[0]
    t.fixes_others = rank == 2 and place == 0 and not b.is_dynamic
    for blob in t.inputs:
        at = place - (rank - blob.ndim)
        if not blob.has_dynamic_size and place < rank - 2 and at >= 0 and blob.shape[at] != 1:
            t.refuse(f"the operand {blob.op_name!r} has a fixed size where that of the other depends on data")
    return t.make_masked(place, length.count, t.fill(0, 0), t.fill(1, 0))
