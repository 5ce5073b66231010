"""How ops treat Blobs whose size depends on data. Ops that are not named here, and not elementwise, refuse them.

A rule is a function of a ``Treatment`` that gives the op's Blobs. It may fill what lies behind the count with a value that
does not matter to the op (0 for a sum), and it says which axis of the result is counted, if any. Where an op sums gradients
over the counted axis (for weights, say), its result is masked, so that none come from behind the count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import ShapeError
from ..graph.node import Blob, Extent
from ..graph.op import OpDef
from . import _counted as counted
from . import _emit
from ._emit import OPS, add_node, as_is, camel, fail

Blobs = tuple[Blob, ...]


@dataclass(slots=True)
class Treatment:
    """One op that was given at least one Blob whose size depends on data, and what its rule does about it."""

    what: str
    op: OpDef
    inputs: Blobs
    name: str | None
    prefix: str | None
    attrs: dict[str, Any]

    def refuse(self, why: str, hint: str = "") -> NoReturn:
        fail(ShapeError, self.what, why, self.inputs, hint or _WAYS_OUT)

    def extent(self, position: int = 0) -> Extent | None:
        """What the input's size is, where it depends on data."""
        blob = self.inputs[position]
        return blob.extent if blob.is_counted else None

    def the_extent(self) -> Extent:
        """The extent of inputs[0], which must have one here."""
        extent = self.extent()
        return self.refuse("it takes a size that depends on data as inputs[0] only") if extent is None else extent

    def same(self, *positions: int) -> Extent:
        """The extent of inputs that have it in common, axis and count."""
        extents = [self.extent(p) for p in positions]
        first = extents[0]
        if first is None or any(e is None or not same_count(e, first) or e.axis != first.axis for e in extents):
            self.refuse(DIFFER)
        return first

    def fill(self, position: int, value: float) -> Blob:
        """The input with ``value`` behind its count; as it is, where its size does not depend on data."""
        blob, extent = self.inputs[position], self.extent(position)
        return blob if extent is None else filled(blob, extent, value)

    def make(self, *inputs: Blob, op: OpDef | None = None, **changes: Any) -> Blobs:
        """Adds the node that the user asked for, or another op in its place."""
        attrs = changes if op is not None else {**self.attrs, **changes}
        return add_node(self.what, op or self.op, inputs or self.inputs, self.name, self.prefix, attrs)

    def sized(self, blob: Blob, axis: int, count: Blob) -> Blob:
        """Says that ``axis`` of the result holds as many values as ``count``."""
        blob.extent = Extent(axis, count)
        return blob

    def make_masked(self, axis: int, count: Blob, *inputs: Blob) -> Blobs:
        """As ``make`` and ``sized``, with no gradient coming from behind the count."""
        name, prefix = self.name, self.prefix or camel(self.op.name)
        raw = add_node(self.what, self.op, inputs, None, f"Whole{prefix}", self.attrs)
        return tuple(
            filled(y, Extent(axis, count), 0, name if i == 0 else None, prefix) for i, y in enumerate(raw)
        )  # fmt: skip


_WAYS_OUT = (
    "flow.cast_to_static_shape(blob) makes it a Blob of full size, 0 behind the true one; the guide's section "
    '"Sizes that depend on data" lists the ops that take it as it is'
)
DIFFER = "the sizes of the inputs depend on data in different ways, so that they may differ"


def same_count(a: Extent | None, b: Extent | None) -> bool:
    return a is not None and b is not None and a.count.node is b.count.node and a.count.index == b.count.index


def filled(blob: Blob, extent: Extent, value: float, name: str | None = None, prefix: str | None = None) -> Blob:
    """The Blob with ``value`` behind its count."""
    attrs = {"axis": extent.axis, "value": value}
    (y,) = add_node("fill_rest", counted.fill_rest, (blob, extent.count), name, prefix, attrs)
    y.extent, y.is_dynamic = extent, True
    return y


def mean_of_counted(loss: Blob) -> Blob:
    """What training on a loss means whose size depends on data: one number."""
    extent = loss.extent
    assert extent is not None
    (y,) = add_node("minimize", counted.counted_loss, (loss, extent.count), None, None, {"axis": extent.axis})
    return as_static(y)


Rule = Callable[[Treatment], Blobs]


def _treat(what: str, op: OpDef, inputs: Blobs, name: str | None, prefix: str | None, attrs: dict[str, Any]) -> Blobs:
    """Emits an op that is given a Blob whose size depends on data."""
    t = Treatment(what, op, inputs, name, prefix, attrs)
    outputs = _rule_of(op)(t)
    varies = any(b.is_dynamic and (b.extent is None or b.extent.others_vary) for b in inputs)
    for blob in outputs:
        blob.is_dynamic = varies or blob.extent is not None
        if blob.extent is not None:
            blob.extent = Extent(blob.extent.axis, blob.extent.count, varies or blob.extent.others_vary)
    return outputs


RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of ops."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def _rule_of(op: OpDef) -> Rule:
    if op.name in RULES:
        return RULES[op.name]
    if op.channels_last is as_is:
        return elementwise
    return _samples if op.samples else _refuse


def takes_counted(op: OpDef) -> bool:
    """Whether the op takes Blobs whose size depends on data, for some of its attributes at least."""
    return _rule_of(op) is not _refuse


def _refuse(t: Treatment) -> Blobs:
    blob = next(b for b in t.inputs if b.is_counted)
    assert blob.extent is not None
    axis = blob.extent.axis
    size = f"the size of {blob.op_name!r} on axis {axis} depends on data ({_up_to(blob.shape[axis])})"
    return t.refuse(f"{size}, and {t.op.name} needs to know it")


# --- element by element


@rule(
    "add_n", "gelu_grad", "sigmoid_grad", "tanh_grad", "constant_like", "random_mask_like", "bernoulli", "dropout",
    "parallel_cast", "sigmoid_cross_entropy", "smooth_l1_loss", "broadcast_to_compatible_with",
)  # fmt: skip
def elementwise(t: Treatment) -> Blobs:
    rank = max(b.ndim for b in t.inputs)
    extents = [(b, b.extent) for b in t.inputs if b.is_counted and b.extent is not None]
    leader, extent = extents[0]
    axis = extent.axis - leader.ndim  # from the end, where shapes are aligned
    capacity = leader.shape[axis]
    for blob, other in extents:
        if other.axis - blob.ndim != axis or not same_count(other, extent):
            t.refuse(DIFFER)
    inputs = []
    for i, blob in enumerate(t.inputs):
        if not blob.is_counted:
            size = blob.shape[axis] if blob.ndim >= -axis else 1
            if size != 1:
                other_size = f"that of {leader.op_name!r} depends on data ({_up_to(capacity)})"
                t.refuse(f"inputs[{i}] has size {size} on an axis where {other_size}")
            if not t.op.stops_at(i):
                (blob,) = add_node(
                    t.what, counted.repeat_up_to_count, (blob, leader, extent.count), None, None, {"axis": axis}
                )  # fmt: skip
        inputs.append(blob)
    return tuple(t.sized(y, rank + axis, extent.count) for y in t.make(*inputs))


def _up_to(capacity: int) -> str:
    return f"at most {capacity}"


@rule("identity_n")
def _each_by_itself(t: Treatment) -> Blobs:
    outputs = t.make()
    for y, x in zip(outputs, t.inputs, strict=True):
        y.extent = x.extent if x.is_counted else None
    return outputs


def _rows(t: Treatment, axis: int) -> Blobs:
    """An op that makes slice i along an axis of slice i of inputs[0] and of other inputs as a whole."""
    extent = t.the_extent()
    if extent.axis != axis or any(b.is_counted for b in t.inputs[1:]):
        t.refuse(f"it takes a Blob whose size depends on data as inputs[0] alone, with that size on axis {axis}")
    return t.make_masked(axis, extent.count, t.fill(0, 0), *t.inputs[1:])


@rule("prelu")
def _samples(t: Treatment) -> Blobs:
    return _rows(t, 0)


@rule("layer_norm")
def _layer_norm(t: Treatment) -> Blobs:
    axis = t.the_extent().axis
    if axis >= t.attrs["begin"]:
        t.refuse(f"it normalizes over axis {axis}, whose size depends on data")
    return _rows(t, axis)


@rule("batch_normalization")
def _batch_normalization(t: Treatment) -> Blobs:
    axis = t.the_extent().axis
    if axis == t.attrs["axis"]:
        t.refuse(f"the size of the channels' axis {axis} depends on data")
    return _rows(t, axis)


# --- along an axis


def _along(axes: Callable[[Treatment], Sequence[int]], value: Callable[[Treatment], float] | None) -> Rule:
    """An op that keeps the shape and works along axes; ``value``: what may stand behind the count there, None refuses."""

    def apply(t: Treatment) -> Blobs:
        extent = t.the_extent()
        if extent.axis not in axes(t):
            (y,) = t.make()
            return (t.sized(y, extent.axis, extent.count),)
        if value is None:
            t.refuse(f"it works along axis {extent.axis}, whose size depends on data")
        return t.make_masked(extent.axis, extent.count, t.fill(0, value(t)))

    return apply


def _the_axis(t: Treatment) -> Sequence[int]:
    return (t.attrs["axis"],)


def _last_place(t: Treatment) -> float:
    """What is sorted to the end."""
    return counted.lowest(t.inputs[0]) if t.attrs["descending"] else counted.highest(t.inputs[0])


RULES.update(
    softmax=_along(_the_axis, lambda t: -math.inf),
    logsoftmax=_along(_the_axis, lambda t: -math.inf),
    sort=_along(_the_axis, _last_place),
    argsort=_along(_the_axis, _last_place),
    l2_normalize=_along(lambda t: t.attrs["axes"], lambda t: 0),
    tril=_along(lambda t: (t.inputs[0].ndim - 2, t.inputs[0].ndim - 1), lambda t: 0),
    fused_scale_tril=_along(lambda t: (t.inputs[0].ndim - 2, t.inputs[0].ndim - 1), lambda t: 0),
)


@rule("argmax")
def _argmax(t: Treatment) -> Blobs:
    extent, axis = t.the_extent(), t.attrs["axis"]
    if extent.axis == axis:
        return t.make(t.fill(0, counted.lowest(t.inputs[0])))
    (y,) = t.make()
    return (t.sized(y, extent.axis - (axis < extent.axis), extent.count),)


@rule("top_k")
def _top_k(t: Treatment) -> Blobs:
    extent, axis = t.the_extent(), t.attrs["axis"]
    if extent.axis != axis:
        (y,) = t.make()
        return (t.sized(y, extent.axis, extent.count),)
    (y,) = t.make(t.fill(0, counted.lowest(t.inputs[0])))
    (count,) = add_node(t.what, counted.at_most, (extent.count,), None, None, {"limit": t.attrs["k"]})
    return (t.sized(y, axis, as_static(count)),)


def as_static(count: Blob) -> Blob:
    count.is_dynamic = False
    return count


# --- reductions


def _reduction(value: Callable[[Blob], float]) -> Rule:
    def apply(t: Treatment) -> Blobs:
        extent, axes = t.the_extent(), t.attrs["axes"]
        if extent.axis in axes:
            return t.make(t.fill(0, value(t.inputs[0])))
        return _reduced_elsewhere(t, extent)

    return apply


def _reduced_elsewhere(t: Treatment, extent: Extent) -> Blobs:
    (y,) = t.make()
    gone = 0 if t.attrs["keepdims"] else sum(a < extent.axis for a in t.attrs["axes"])
    return (t.sized(y, extent.axis - gone, extent.count),)


def _moment(kind: str) -> Rule:
    def apply(t: Treatment) -> Blobs:
        extent = t.the_extent()
        if extent.axis not in t.attrs["axes"]:
            return _reduced_elsewhere(t, extent)
        return t.make(t.inputs[0], extent.count, op=counted.counted_moment, **t.attrs, axis=extent.axis, kind=kind)

    return apply


def _top(x: Blob) -> float:
    return counted.highest(x) if x.dtype.is_integer else math.inf


RULES.update(
    reduce_sum=_reduction(lambda x: 0),
    reduce_max=_reduction(counted.lowest),
    reduce_min=_reduction(_top),
    reduce_prod=_reduction(lambda x: 1),
    reduce_any=_reduction(lambda x: 0),
    reduce_all=_reduction(lambda x: 1),
    reduce_euclidean_norm=_reduction(lambda x: 0),
    reduce_logsumexp=_reduction(lambda x: -math.inf),
    reduce_mean=_moment("mean"),
    reduce_variance=_moment("variance"),
    reduce_std=_moment("std"),
)


@rule("square_sum", "count_not_finite")
def _whole_sum(t: Treatment) -> Blobs:
    return t.make(*(t.fill(i, 0) for i in range(len(t.inputs))))


@rule("reduced_shape_elem_cnt")
def _element_count(t: Treatment) -> Blobs:
    extent = t.the_extent()
    if extent.axis not in t.attrs["axes"]:
        return t.make()
    return t.make(t.inputs[0], extent.count, op=counted.counted_elements, **t.attrs, axis=extent.axis)


# --- losses


@rule("sparse_softmax_cross_entropy", "sparse_cross_entropy", "softmax_cross_entropy")
def _cross_entropy(t: Treatment) -> Blobs:
    extent = t.same(0, 1)
    if extent.axis >= t.inputs[1].ndim - 1:
        t.refuse("the number of classes depends on data")
    (y,) = t.make()
    return (t.sized(y, extent.axis, extent.count),)


@rule(
    "l1_loss", "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "margin_ranking_loss", "kl_div_loss",
)  # fmt: skip
def _criterion(t: Treatment) -> Blobs:
    reduction = t.attrs["reduction"]
    t.attrs = {**t.attrs, "reduction": "none"}
    if reduction == "none":
        return elementwise(t)
    name, t.name = t.name, None
    (values,) = elementwise(t)
    values.is_dynamic = True
    reduced = OPS["reduce_mean" if reduction == "mean" else "reduce_sum"]
    attrs = {"axes": tuple(range(values.ndim)), "keepdims": False}
    return RULES[reduced.name](Treatment(t.what, reduced, (values,), name, None, attrs))


@rule("in_top_k")
def _in_top_k(t: Treatment) -> Blobs:
    extent = t.same(0, 1)
    (y,) = t.make()
    return (t.sized(y, extent.axis, extent.count),)


_emit.treat_counted = _treat
