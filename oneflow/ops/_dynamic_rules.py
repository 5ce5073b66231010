"""Rules for ops that are given Blobs of dynamic size. Ops that have no rule, and are not elementwise, refuse such Blobs.

A rule is a function of a ``Treatment`` that returns the op's outputs. It may fill the padding with a neutral value (0 for a
sum), and it sets the valid lengths of the outputs. If an op sums gradients over the padded axis (those of weights, for
example), its result is masked, so that no gradient comes from the padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NoReturn

from ..errors import ShapeError
from ..graph.node import Blob, Node, ValidLength
from ..graph.op import OpDef
from . import _dynamic_ops as dynamic
from . import _emit
from ._emit import OPS, add_node, camel, fail

Blobs = tuple[Blob, ...]


@dataclass(slots=True)
class Treatment:
    """An op that is about to be added with at least one Blob of dynamic size, and the tools for its rule.

    A rule sets ``fixes_others`` where the sizes of the result's other axes are fixed, whatever those of the inputs are.
    """

    what: str
    op: OpDef
    inputs: Blobs
    name: str | None
    prefix: str | None
    attrs: dict[str, Any]
    fixes_others: bool = False

    def refuse(self, why: str, hint: str = "") -> NoReturn:
        fail(ShapeError, self.what, why, self.inputs, hint or _WAYS_OUT)

    def valid_length(self, position: int = 0) -> ValidLength | None:
        """The valid length of an input, None if its size is static."""
        blob = self.inputs[position]
        return blob.valid_length if blob.has_dynamic_size else None

    def the_valid_length(self) -> ValidLength:
        """The valid length of inputs[0], which must have one."""
        length = self.valid_length()
        return self.refuse("it takes a size that depends on data as inputs[0] only") if length is None else length

    def same(self, *positions: int) -> ValidLength:
        """The valid length that several inputs have in common, axis included."""
        lengths = [self.valid_length(p) for p in positions]
        first = lengths[0]
        if first is None or any(e is None or not same_length(e, first) or e.axis != first.axis for e in lengths):
            self.refuse(DIFFER)
        return first

    def fill(self, position: int, value: float) -> Blob:
        """An input whose padding is filled with ``value``."""
        blob, length = self.inputs[position], self.valid_length(position)
        return blob if length is None else filled(blob, length, value)

    def make(self, *inputs: Blob, op: OpDef | None = None, **changes: Any) -> Blobs:
        """Adds the node, or that of another op in its place."""
        attrs = changes if op is not None else {**self.attrs, **changes}
        return add_node(self.what, op or self.op, inputs or self.inputs, self.name, self.prefix, attrs)

    def sized(self, blob: Blob, axis: int, count: Blob) -> Blob:
        """Sets the valid length of a result."""
        blob.valid_length = ValidLength(axis, count)
        return blob

    def make_masked(self, axis: int, count: Blob, *inputs: Blob) -> Blobs:
        """Like ``make`` and ``sized``, with a mask that blocks gradients of the padding."""
        name, prefix = self.name, self.prefix or camel(self.op.name)
        raw = add_node(self.what, self.op, inputs, None, f"Whole{prefix}", self.attrs)
        return tuple(
            filled(y, ValidLength(axis, count), 0, name if i == 0 else None, prefix) for i, y in enumerate(raw)
        )  # fmt: skip


_WAYS_OUT = (
    "flow.cast_to_static_shape(blob) makes it a Blob of full size, 0 behind the true one; the guide's section "
    '"Sizes that depend on data" lists the ops that take it unchanged'
)
DIFFER = "the sizes of the inputs depend on data in different ways, so that they may differ"


def same_length(a: ValidLength | None, b: ValidLength | None) -> bool:
    """Whether two valid lengths are the same number in every call."""
    return a is not None and b is not None and origin(a.count)[1:] == origin(b.count)[1:]


def origin(count: Blob) -> tuple[Blob, Any, Fraction]:
    """The valid length that one is a multiple of, what identifies that, and the factor.

    Two that come from the same ones by the same ops are identified by these, unless other sizes, which vary from call to call,
    play a part.
    """
    node = count.node
    if node.op is dynamic.valid_reshape:
        (x, before), y = node.inputs, node.outputs[0]
        if x.valid_length is not None and not x.valid_length.others_vary:
            first, key, factor = origin(before)
            old, new = x.shape[node.attrs["axis"] + 1 :], y.shape[node.attrs["to"] + 1 :]
            return first, key, factor * Fraction(math.prod(old), math.prod(new))
    made_of = _made_of(node)
    return count, (id(node), count.index) if made_of is None else (node.op.name, *made_of), Fraction(1)


def _made_of(node: Node) -> tuple[Any, ...] | None:
    """What decides about the valid length that a node gives: others, by their origins, and numbers; None if that is not known."""
    if node.op is dynamic.at_most:
        return origin(node.inputs[0])[1:], node.attrs["limit"]
    if node.op is dynamic.valid_slice:
        return origin(node.inputs[1])[1:], node.attrs["triple"]
    if node.op is dynamic.valid_concat:
        has_length, axis = node.attrs["has_length"], node.attrs["axis"]
        counts, terms = iter(node.inputs[len(has_length) :]), []
        for x, has_one in zip(node.inputs, has_length, strict=False):  # behind the parts are the counts
            if not has_one and x.is_dynamic:
                return None
            terms.append(origin(next(counts))[1:] if has_one else x.shape[axis])
        return tuple(terms)
    return None


def filled(blob: Blob, length: ValidLength, value: float, name: str | None = None, prefix: str | None = None) -> Blob:
    """A Blob whose padding is filled with ``value``."""
    attrs = {"axis": length.axis, "value": value}
    (y,) = add_node("fill_padding", dynamic.fill_padding, (blob, length.count), name, prefix, attrs)
    y.valid_length, y.is_dynamic = length, True
    return y


def mean_of_valid(loss: Blob) -> Blob:
    """The scalar that is minimised for a loss of dynamic size."""
    length = loss.valid_length
    assert length is not None
    (y,) = add_node("minimize", dynamic.valid_loss, (loss, length.count), None, None, {"axis": length.axis})
    return as_static(y)


Rule = Callable[[Treatment], Blobs]


def _treat(what: str, op: OpDef, inputs: Blobs, name: str | None, prefix: str | None, attrs: dict[str, Any]) -> Blobs:
    """Adds an op with a Blob of dynamic size by the op's rule."""
    t = Treatment(what, op, inputs, name, prefix, attrs)
    outputs = _rule_of(op)(t)
    varies = any(b.is_dynamic and (b.valid_length is None or b.valid_length.others_vary) for b in inputs)
    for blob in outputs:
        blob.is_dynamic = varies or blob.valid_length is not None
        if blob.valid_length is not None:
            others_vary = not t.fixes_others and blob.ndim > 1 and (varies or blob.valid_length.others_vary)
            blob.valid_length = replace(blob.valid_length, others_vary=others_vary)
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
    if op.elementwise:
        return elementwise
    return _samples if op.batch_inputs else _refuse


def takes_dynamic_size(op: OpDef) -> bool:
    """Whether the op takes Blobs of dynamic size, at least with some attributes."""
    return _rule_of(op) is not _refuse


def _refuse(t: Treatment) -> Blobs:
    blob = next(b for b in t.inputs if b.has_dynamic_size)
    assert blob.valid_length is not None
    axis = blob.valid_length.axis
    size = f"the size of {blob.op_name!r} on axis {axis} depends on data ({_up_to(blob.shape[axis])})"
    return t.refuse(f"{size}, and {t.op.name} needs to know it")


# --- element by element


@rule(
    "add_n", "gelu_grad", "sigmoid_grad", "tanh_grad", "constant_like", "random_mask_like", "bernoulli", "dropout",
    "parallel_cast", "sigmoid_cross_entropy", "smooth_l1_loss", "broadcast_to_compatible_with",
)  # fmt: skip
def elementwise(t: Treatment) -> Blobs:
    rank = max(b.ndim for b in t.inputs)
    lengths = [(b, b.valid_length) for b in t.inputs if b.has_dynamic_size and b.valid_length is not None]
    leader, length = lengths[0]
    axis = length.axis - leader.ndim  # negative, as shapes are aligned at the end
    capacity = leader.shape[axis]
    for blob, other in lengths:
        if other.axis - blob.ndim != axis or not same_length(other, length):
            t.refuse(DIFFER)
    inputs = []
    for i, blob in enumerate(t.inputs):
        if not blob.has_dynamic_size:
            size = blob.shape[axis] if blob.ndim >= -axis else 1
            if size != 1:
                other_size = f"that of {leader.op_name!r} depends on data ({_up_to(capacity)})"
                t.refuse(f"inputs[{i}] has size {size} on an axis where {other_size}")
            if not t.op.is_nondifferentiable(i):
                (blob,) = add_node(
                    t.what, dynamic.broadcast_to_length, (blob, leader, length.count), None, None, {"axis": axis}
                )  # fmt: skip
        inputs.append(blob)
    return tuple(t.sized(y, rank + axis, length.count) for y in t.make(*inputs))


def _up_to(capacity: int) -> str:
    return f"at most {capacity}"


@rule("identity_n")
def _each_by_itself(t: Treatment) -> Blobs:
    outputs = t.make()
    for y, x in zip(outputs, t.inputs, strict=True):
        y.valid_length = x.valid_length if x.has_dynamic_size else None
    return outputs


def _rows(t: Treatment, axis: int) -> Blobs:
    """An op whose slice i along an axis depends on slice i of inputs[0], and on the other inputs entirely."""
    length = t.the_valid_length()
    if length.axis != axis or any(b.has_dynamic_size for b in t.inputs[1:]):
        t.refuse(f"it takes a Blob whose size depends on data as inputs[0] alone, with that size on axis {axis}")
    return t.make_masked(axis, length.count, t.fill(0, 0), *t.inputs[1:])


@rule("prelu")
def _samples(t: Treatment) -> Blobs:
    return _rows(t, 0)


@rule("layer_norm")
def _layer_norm(t: Treatment) -> Blobs:
    axis = t.the_valid_length().axis
    if axis >= t.attrs["begin"]:
        t.refuse(f"it normalizes over axis {axis}, whose size depends on data")
    return _rows(t, axis)


@rule("batch_normalization")
def _batch_normalization(t: Treatment) -> Blobs:
    axis = t.the_valid_length().axis
    if axis == t.attrs["axis"]:
        t.refuse(f"the size of the channels' axis {axis} depends on data")
    return _rows(t, axis)


# --- along an axis


def _along(axes: Callable[[Treatment], Sequence[int]], value: Callable[[Treatment], float] | None) -> Rule:
    """An op that keeps the shape and works along axes. ``value`` returns the padding that it needs there; None refuses."""

    def apply(t: Treatment) -> Blobs:
        length = t.the_valid_length()
        if length.axis not in axes(t):
            (y,) = t.make()
            return (t.sized(y, length.axis, length.count),)
        if value is None:
            t.refuse(f"it works along axis {length.axis}, whose size depends on data")
        return t.make_masked(length.axis, length.count, t.fill(0, value(t)))

    return apply


def _the_axis(t: Treatment) -> Sequence[int]:
    return (t.attrs["axis"],)


def _last_place(t: Treatment) -> float:
    """A value that is sorted to the end."""
    return dynamic.lowest(t.inputs[0]) if t.attrs["descending"] else dynamic.highest(t.inputs[0])


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
    length, axis = t.the_valid_length(), t.attrs["axis"]
    if length.axis == axis:
        return t.make(t.fill(0, dynamic.lowest(t.inputs[0])))
    (y,) = t.make()
    return (t.sized(y, length.axis - (axis < length.axis), length.count),)


@rule("top_k")
def _top_k(t: Treatment) -> Blobs:
    length, axis = t.the_valid_length(), t.attrs["axis"]
    if length.axis != axis:
        (y,) = t.make()
        return (t.sized(y, length.axis, length.count),)
    (y,) = t.make(t.fill(0, dynamic.lowest(t.inputs[0])))
    (count,) = add_node(t.what, dynamic.at_most, (length.count,), None, None, {"limit": t.attrs["k"]})
    return (t.sized(y, axis, as_static(count)),)


def as_static(count: Blob) -> Blob:
    count.is_dynamic = False
    return count


# --- reductions


def _reduction(value: Callable[[Blob], float]) -> Rule:
    def apply(t: Treatment) -> Blobs:
        length, axes = t.the_valid_length(), t.attrs["axes"]
        if length.axis in axes:
            return t.make(t.fill(0, value(t.inputs[0])))
        return _reduced_elsewhere(t, length)

    return apply


def _reduced_elsewhere(t: Treatment, length: ValidLength) -> Blobs:
    (y,) = t.make()
    gone = 0 if t.attrs["keepdims"] else sum(a < length.axis for a in t.attrs["axes"])
    return (t.sized(y, length.axis - gone, length.count),)


def _moment(kind: str) -> Rule:
    def apply(t: Treatment) -> Blobs:
        length = t.the_valid_length()
        if length.axis not in t.attrs["axes"]:
            return _reduced_elsewhere(t, length)
        return t.make(t.inputs[0], length.count, op=dynamic.valid_moment, **t.attrs, axis=length.axis, kind=kind)

    return apply


def _top(x: Blob) -> float:
    return dynamic.highest(x) if x.dtype.is_integer else math.inf


RULES.update(
    reduce_sum=_reduction(lambda x: 0),
    reduce_max=_reduction(dynamic.lowest),
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
    length = t.the_valid_length()
    if length.axis not in t.attrs["axes"]:
        return t.make()
    return t.make(t.inputs[0], length.count, op=dynamic.valid_elements, **t.attrs, axis=length.axis)


# --- losses


@rule("sparse_softmax_cross_entropy", "sparse_cross_entropy", "softmax_cross_entropy")
def _cross_entropy(t: Treatment) -> Blobs:
    length = t.same(0, 1)
    if length.axis >= t.inputs[1].ndim - 1:
        t.refuse("the number of classes depends on data")
    (y,) = t.make()
    return (t.sized(y, length.axis, length.count),)


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
    length = t.same(0, 1)
    (y,) = t.make()
    return (t.sized(y, length.axis, length.count),)


_emit.treat_dynamic_size = _treat
