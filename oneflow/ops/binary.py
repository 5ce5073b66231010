"""Arithmetic and comparison of two Blobs, or of a Blob and a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NoReturn

import numpy as np

from .._base.jax import lax
from .._base.refuse import shown, warn
from ..errors import ArgumentError, JobWarning
from ..graph.node import Blob
from ..graph.op import AttentionStep, Autocast, Int8, LstmPart, OpDef
from ._arcs import angle_of
from ._arrays import Array, as_float, broadcast, full, label, like, number_for, select, sum_to, where_else_zero, widen
from ._emit import emit, fail, is_number, op, want
from ._int8 import RESIDUAL
from ._remainders import quotient_of, remainder_of

Number = int | float

# --- the computations, on arrays of one shape and dtype


def _zero_where_x_is(function: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """function(x, y), but 0 where x is 0. There y is replaced by 1, so that both gradients are 0, too."""
    zero = lax.eq(x, like(0, x))
    return select(zero, like(0, x), function(x, select(zero, like(1, y), y)))


def _floor_divide(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return quotient_of(x, y, remainder_of(x, y))
    quotient = lax.div(x, y)
    zero, rest = like(0, quotient), lax.rem(x, y)
    down = lax.bitwise_and(lax.ne(rest, zero), lax.ne(lax.lt(x, zero), lax.lt(y, zero)))
    return lax.sub(quotient, lax.convert_element_type(down, quotient.dtype))


def _mod_grad(x: Array, y: Array, rest: Array, dy: Array) -> tuple[Array, Array]:
    whole = _floor_divide(x, y) if x.dtype.kind in "iu" else quotient_of(x, y, rest)
    return dy, lax.neg(lax.mul(dy, lax.convert_element_type(whole, dy.dtype)))


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        raise TypeError(f"powers with a Blob as the exponent need a floating dtype, got {x.dtype}")
    return lax.pow(x, y)


def _xdivy(x: Array, y: Array) -> Array:
    return _zero_where_x_is(lambda a, b: lax.div(a, b), x, y)


def _xlogy(x: Array, y: Array) -> Array:
    return _zero_where_x_is(lambda a, b: lax.mul(a, lax.log(b)), x, y)


def _squared_difference(x: Array, y: Array) -> Array:
    difference = lax.sub(x, y)
    return lax.mul(difference, difference)


def _logical_and(x: Array, y: Array) -> Array:
    return lax.bitwise_and(lax.ne(x, like(0, x)), lax.ne(y, like(0, y)))


# --- gradients that calculus does not define: (x, y, output, dy) -> (dx, dy), before summing over broadcast axes


def _tie_to_y(wins: Callable[[Array, Array], Array]) -> Callable[..., tuple[Array, Array]]:
    def grad(x: Array, y: Array, out: Array, g: Array) -> tuple[Array, Array]:
        first = wins(x, y)
        return where_else_zero(first, g), where_else_zero(lax.bitwise_not(first), g)

    return grad


def _power_grad(x: Array, y: Array, out: Array, g: Array) -> tuple[Array, Array]:
    one = like(1, x)
    at_zero = lax.eq(y, like(0, y))
    dx = lax.mul(y, lax.pow(x, select(at_zero, one, lax.sub(y, one))))
    positive = lax.gt(x, like(0, x))
    dy = where_else_zero(positive, lax.mul(out, lax.log(select(positive, x, one))))
    return lax.mul(g, dx), lax.mul(g, dy)


def _atan2_grad(x: Array, y: Array, out: Array, g: Array) -> tuple[Array, Array]:
    squared = lax.add(lax.square(x), lax.square(y))
    share = lax.div(g, select(lax.eq(squared, like(0, squared)), like(1, squared), squared))  # both are 0 at the origin
    return lax.mul(y, share), lax.mul(lax.neg(x), share)


def _no_grad(x: Array, y: Array, out: Array, g: Array) -> tuple[Array, Array]:
    return lax.full_like(g, 0), lax.full_like(g, 0)


# --- the two ops of each function: for two Blobs, and for a Blob and a number

_Pair = tuple[OpDef, OpDef]


def _pair(
    name: str,
    compute: Callable[[Array, Array], Array],
    grad: Any = None,
    scalar_name: str | None = None,
    autocast: Autocast = "never",
    zeros: Literal["all", "any"] | None = None,
    scalar_zeros: Literal["all"] | None = None,
    int8: Int8 | None = None,
    attention: Callable[[Mapping[str, Any]], AttentionStep | None] | None = None,
    scalar_attention: Callable[[Mapping[str, Any]], AttentionStep | None] | None = None,
    lstm: LstmPart | None = None,
    scalar_lstm: LstmPart | None = None,
) -> _Pair:
    def define(x: Array, y: Array) -> Array:
        return compute(*broadcast(x, y))

    def define_scalar(x: Array, *, number: Number, swapped: bool) -> Array:
        constant = full(number, x)
        return compute(constant, x) if swapped else compute(x, constant)

    def both_grads(inputs: Any, outputs: Any, cotangents: Any) -> tuple[Array, Array]:
        x, y = broadcast(*inputs)
        dx, dy = grad(x, y, outputs[0], cotangents[0])
        return sum_to(dx, inputs[0].shape), sum_to(dy, inputs[1].shape)

    def scalar_grad(inputs: Any, outputs: Any, cotangents: Any, *, number: Number, swapped: bool) -> tuple[Array]:
        x = inputs[0]
        constant = full(number, x)
        pair = (constant, x) if swapped else (x, constant)
        return (grad(*pair, outputs[0], cotangents[0])[1 if swapped else 0],)

    return (
        op(
            name,
            grad=grad and both_grads,
            batch_inputs=(0, 1),
            elementwise=True,
            autocast=autocast,
            zeros=zeros,
            int8=int8,
            attention=attention,
            lstm=lstm,
        )(define),
        op(
            scalar_name or f"scalar_{name}",
            grad=grad and scalar_grad,
            batch_inputs=(0,),
            elementwise=True,
            autocast=autocast,
            zeros=scalar_zeros,
            attention=scalar_attention,
            lstm=scalar_lstm,
        )(define_scalar),
    )


def _divided(attrs: Mapping[str, Any]) -> AttentionStep | None:
    return None if attrs["swapped"] or not attrs["number"] else AttentionStep("multiple", 1 / attrs["number"])


_add = _pair("add", lambda x, y: lax.add(x, y), autocast="between", zeros="all", int8=RESIDUAL,
             attention=lambda attrs: AttentionStep("sum"), lstm="sum", scalar_lstm="shift")  # fmt: skip
_subtract = _pair("subtract", lambda x, y: lax.sub(x, y), scalar_name="scalar_sub", autocast="between", zeros="all",
                  attention=lambda attrs: AttentionStep("sum", -1))  # fmt: skip
_multiply = _pair("multiply", lambda x, y: lax.mul(x, y), scalar_name="scalar_mul", autocast="between", zeros="any",
                  scalar_zeros="all", scalar_attention=lambda attrs: AttentionStep("multiple", attrs["number"]),
                  lstm="product")  # fmt: skip
_divide = _pair("divide", lambda x, y: lax.div(x, y), scalar_name="scalar_div", autocast="between", scalar_attention=_divided)
_mod = _pair("mod", remainder_of, _mod_grad)
_floordiv = _pair("floordiv", _floor_divide, _no_grad)
_pow = _pair("pow", _power, _power_grad)
_maximum = _pair("maximum", lambda x, y: lax.max(x, y), _tie_to_y(lambda x, y: lax.gt(x, y)))
_minimum = _pair("minimum", lambda x, y: lax.min(x, y), _tie_to_y(lambda x, y: lax.lt(x, y)))
_squared_difference_ops = _pair("squared_difference", _squared_difference)
_xdivy_ops = _pair("xdivy", _xdivy)
_xlogy_ops = _pair("xlogy", _xlogy)
_atan2 = _pair("atan2", angle_of, _atan2_grad)


def _binary(pair: _Pair, x: Any, y: Any, name: str | None, *, floating: bool = False) -> Blob:
    what = label(pair[0].name, name)
    x, y = _plain(x), _plain(y)
    if isinstance(x, Blob) and isinstance(y, Blob):
        if x.dtype is not y.dtype:
            want.same_dtype(what, (x, y))
        if floating:
            want.floating(what, x)
        return emit(pair[0], x, y, name=name)
    blob, other, swapped = (x, y, False) if isinstance(x, Blob) else (y, x, True)
    if not isinstance(blob, Blob) or not is_number(other):
        _refuse(what, x, y)
    if floating:
        want.floating(what, blob)
    number = number_for(what, other, blob)
    if blob.dtype.is_integer and isinstance(other, (float, np.floating)) and (number != other or pair is _divide):
        lost = f"{shown(other)} counts as {number}" if number != other else "a quotient loses its fraction"
        warn(JobWarning, f"{what} of a Blob of {blob.dtype.name} and a number is {blob.dtype.name}, where {lost}\n"
             "  try        flow.cast(blob, flow.float32) first")  # fmt: skip
    return emit(pair[1], blob, name=name, number=number, swapped=swapped)


def _plain(value: Any) -> Any:
    """The value; a 0-dimensional NumPy array as a number."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _refuse(what: str, x: Any, y: Any) -> NoReturn:
    hint = "feed arrays as inputs of the job, or keep them in a variable (flow.get_variable)"
    if not isinstance(x, Blob) and not isinstance(y, Blob):
        fail(ArgumentError, what, f"needs a Blob on at least one side, got {type(x).__name__} and {type(y).__name__}")
    other = y if isinstance(x, Blob) else x
    if other is None:
        hint = "to ask whether it is None, write `x is None`"
    found = f"NumPy array of shape {other.shape}" if isinstance(other, np.ndarray) else f"{type(other).__name__} {shown(other)}"
    fail(ArgumentError, what, f"a Blob can be combined with a Blob or a number, not with {found}",
         [v for v in (x, y) if isinstance(v, Blob)], hint)  # fmt: skip


# --- arithmetic


def add(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x + y, elementwise.

    Args:
      x, y: two Blobs of one dtype whose shapes broadcast as in NumPy, or a Blob and a number, which is converted to the
        Blob's dtype (its fraction dropped where that is an integer dtype).
      name: name of the op; made unique when omitted.
    Returns: Blob of the common shape and dtype. Integers wrap around.
    Raises: DtypeError (unequal dtypes), ShapeError (shapes do not broadcast), ArgumentError (neither Blob nor number).
    Example: >>> y = flow.math.add(x, 1)   # the same as x + 1
    """
    return _binary(_add, x, y, name)


def subtract(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x - y, elementwise; arguments and result are those of ``add``.

    Example: >>> y = flow.math.subtract(1, x)   # the same as 1 - x
    """
    return _binary(_subtract, x, y, name)


def multiply(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x * y, elementwise; arguments and result are those of ``add``. An integer Blob times 0.5 is 0.

    Example: >>> y = flow.math.multiply(x, 2)   # the same as x * 2
    """
    return _binary(_multiply, x, y, name)


def divide(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x / y, elementwise; arguments are those of ``add``.

    Floating dtypes follow IEEE 754 (1 / 0 is infinite), except that a number divided by a Blob is 0 where the
    Blob is 0, and so is its gradient. Integer division drops the fraction, as in C: there is no promotion.

    Example: >>> y = flow.math.divide(x, 2)   # the same as x / 2
    """
    return _divide_number(x, y, name) if isinstance(y, Blob) and not isinstance(x, Blob) else _binary(_divide, x, y, name)


def mod(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """The remainder of x / y with the sign of y, as in Python; arguments and result are those of ``add``.

    Example: >>> y = flow.math.mod(x, 3)   # the same as x % 3
    """
    return _binary(_mod, x, y, name)


def floordiv(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """floor(x / y), elementwise; arguments and result are those of ``add``. Its gradient is 0.

    Example: >>> y = flow.math.floordiv(x, 2)   # the same as x // 2
    """
    return _binary(_floordiv, x, y, name)


def maximum(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """The larger of x and y, elementwise; arguments and result are those of ``add``. Where they are equal, y gets the gradient.

    Example: >>> y = flow.math.maximum(a, b)
    """
    return _binary(_maximum, x, y, name)


def minimum(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """The smaller of x and y, elementwise; arguments and result are those of ``add``. Where they are equal, y gets the gradient.

    Example: >>> y = flow.math.minimum(a, b)
    """
    return _binary(_minimum, x, y, name)


def squared_difference(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """(x - y) ** 2, elementwise; arguments and result are those of ``add``.

    Example: >>> y = flow.math.squared_difference(prediction, target)
    """
    return _binary(_squared_difference_ops, x, y, name)


def atan2(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """The angle of the point (y, x) in (-pi, pi]: x is the ordinate, y the abscissa, as in C's ``atan2(x, y)``.

    Arguments and result are those of ``add``, for floating dtypes only.
    Example: >>> y = flow.math.atan2(ordinate, abscissa)
    """
    return _binary(_atan2, x, y, name, floating=True)


def xdivy(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x / y, and 0 where x is 0, whatever y is; the gradient with respect to x is 0 there too.

    Arguments and result are those of ``add``, for floating dtypes only.
    Example: >>> y = flow.math.xdivy(a, b)
    """
    return _binary(_xdivy_ops, x, y, name, floating=True)


def xlogy(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x * log(y), and 0 where x is 0, whatever y is; the gradient with respect to x is 0 there too.

    Arguments and result are those of ``add``, for floating dtypes only.
    Example: >>> y = flow.math.xlogy(p, q)
    """
    return _binary(_xlogy_ops, x, y, name, floating=True)


@op(batch_inputs=(0,), elementwise=True)
def _power_of_number(x: Array, *, exponent: Number) -> Array:
    whole = int(exponent) if math.isfinite(exponent) else 0
    if (
        whole == exponent and -8 <= whole <= 8 and (whole >= 0 or x.dtype.kind not in "iu")
    ):  # by products, which are exact and fast
        return lax.integer_pow(x, whole)
    return lax.pow(x, like(exponent, x))


def pow(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """x to the power y, elementwise.

    Args:
      x, y: two Blobs of one floating dtype whose shapes broadcast, or a Blob and a number. An integer Blob can be raised
        to 0, 1, ... 8.
      name: name of the op; made unique when omitted.
    Returns: Blob of the common shape and dtype. The gradient with respect to an exponent that is a Blob is 0 where x <= 0.
    Raises: DtypeError, ShapeError, ArgumentError.
    Example: >>> y = flow.math.pow(x, 2)   # the same as x ** 2
    """
    x, y = _plain(x), _plain(y)
    if not isinstance(x, Blob) or not is_number(y):
        blob = y if isinstance(y, Blob) else x
        return _binary(_pow, x, y, name, floating=isinstance(blob, Blob))
    what = label("pow", name)
    if x.dtype.is_integer and (not 0 <= y <= 8 or int(y) != y):
        fail(ArgumentError, what, f"an integer Blob can be raised to 0, 1, ... 8 only, not to {shown(y)}", (x,),
             "convert the Blob with flow.cast(x, flow.float32)")  # fmt: skip
    return emit(_power_of_number, x, name=name, prefix="Pow", exponent=number_for(what, y, x, "the exponent"))


@op("scalar_divided_by", batch_inputs=(0,), elementwise=True)
def _number_by_blob(x: Array, *, number: Number) -> Array:
    zero = lax.eq(x, like(0, x))
    return select(zero, like(0, x), lax.div(like(number, x), select(zero, like(1, x), x)))


def _divide_number(x: Any, y: Blob, name: str | None) -> Blob:
    what, x = label("divide", name), _plain(x)
    if not is_number(x):
        _refuse(what, x, y)
    return emit(_number_by_blob, y, name=name, prefix="ScalarDiv", number=number_for(what, x, y))


@op("add_n", autocast="between", zeros="all", elementwise=True)
def _add_n(*arrays: Array) -> Array:
    return lax.convert_element_type(reduce(lax.add, map(widen, arrays)), arrays[0].dtype)


def add_n(inputs: Sequence[Blob], name: str | None = None) -> Blob:
    """The sum of Blobs of one shape and dtype.

    Args:
      inputs: list or tuple of at least one Blob.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and dtype; a single input is returned itself.
    Raises: ShapeError, DtypeError, ArgumentError.
    Example: >>> y = flow.math.add_n([a, b, c])
    """
    what = label("add_n", name)
    blobs = want.blobs(what, "inputs", inputs)
    if len(blobs) == 1:
        return blobs[0]
    want.same_dtype(what, blobs)
    want.same_shape(what, blobs)
    return emit(_add_n, *blobs, name=name)


# --- comparison and logic


def _comparison(name: str, compute: Callable[[Array, Array], Array]) -> _Pair:
    def define(x: Array, y: Array) -> Array:
        return lax.convert_element_type(compute(*broadcast(x, y)), np.int8)

    def define_scalar(x: Array, *, number: Number, constant: bool | None) -> Array:
        if constant is not None:
            return lax.full(x.shape, int(constant), np.int8)
        return lax.convert_element_type(compute(x, like(number, x)), np.int8)

    both = op(name, nondifferentiable=True, batch_inputs=(0, 1), elementwise=True)(define)
    return both, op(f"scalar_{name}", nondifferentiable=True, batch_inputs=(0,), elementwise=True)(define_scalar)


COMPARISONS = {
    "equal": _comparison("equal", lambda x, y: lax.eq(x, y)),
    "not_equal": _comparison("not_equal", lambda x, y: lax.ne(x, y)),
    "less": _comparison("less", lambda x, y: lax.lt(x, y)),
    "less_equal": _comparison("less_equal", lambda x, y: lax.le(x, y)),
    "greater": _comparison("greater", lambda x, y: lax.gt(x, y)),
    "greater_equal": _comparison("greater_equal", lambda x, y: lax.ge(x, y)),
    "logical_and": _comparison("logical_and", _logical_and),
}
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def _compare(kind: str, x: Any, y: Any, name: str | None) -> Blob:
    what = label(kind, name)
    x, y = _plain(x), _plain(y)
    if isinstance(x, Blob) and isinstance(y, Blob):
        if x.dtype is not y.dtype:
            want.same_dtype(what, (x, y))
        return emit(COMPARISONS[kind][0], x, y, name=name)
    if isinstance(y, Blob):
        x, y, kind = y, x, _MIRRORED.get(kind, kind)
    if not isinstance(x, Blob) or not is_number(y):
        _refuse(what, x, y)
    number, constant = _threshold(kind, y, x)
    return emit(COMPARISONS[kind][1], x, name=name, number=number, constant=constant)


def _threshold(kind: str, number: Any, blob: Blob) -> tuple[Number, bool | None]:
    """The number to compare with, in the Blob's dtype; or the result, where every value of that dtype has the same.

    Dropping the fraction would make ``integer < 0.5`` wrong at 0, so the bound is rounded to the side that is right.
    """
    if not blob.dtype.is_integer:
        return as_float(number), None
    if kind == "logical_and":
        return int(number != 0), None
    limits = np.iinfo(blob.dtype.numpy_dtype)
    if math.isnan(number):
        return 0, kind == "not_equal"
    if kind in ("equal", "not_equal"):
        possible = limits.min <= number <= limits.max and int(number) == number
        return (int(number), None) if possible else (0, kind == "not_equal")
    if not limits.min <= number <= limits.max:
        return 0, (number > 0) == (kind in ("less", "less_equal"))
    return (math.ceil(number) if kind in ("less", "greater_equal") else math.floor(number)), None


def equal(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where x == y, else 0.

    Args:
      x, y: two Blobs of one dtype whose shapes broadcast, or a Blob and a number.
      name: name of the op; made unique when omitted.
    Returns: int8 Blob of the common shape. No gradient flows through comparisons.
    Raises: DtypeError (unequal dtypes), ShapeError (shapes do not broadcast), ArgumentError (neither Blob nor number).
    Example: >>> hits = flow.math.equal(predictions, labels)   # the same as predictions == labels
    """
    return _compare("equal", x, y, name)


def not_equal(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where x != y, else 0; arguments and result are those of ``equal``.

    Example: >>> misses = flow.math.not_equal(predictions, labels)
    """
    return _compare("not_equal", x, y, name)


def less(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where x < y, else 0; arguments and result are those of ``equal``.

    Example: >>> mask = flow.math.less(x, 0)
    """
    return _compare("less", x, y, name)


def less_equal(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where x <= y, else 0; arguments and result are those of ``equal``.

    Example: >>> mask = flow.math.less_equal(x, 0)
    """
    return _compare("less_equal", x, y, name)


def greater(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where x > y, else 0; arguments and result are those of ``equal``.

    Example: >>> mask = flow.math.greater(x, 0)
    """
    return _compare("greater", x, y, name)


def greater_equal(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where x >= y, else 0; arguments and result are those of ``equal``.

    Example: >>> mask = flow.math.greater_equal(x, 0)
    """
    return _compare("greater_equal", x, y, name)


def logical_and(x: Number | Blob, y: Number | Blob, name: str | None = None) -> Blob:
    """1 where neither x nor y is 0, else 0; arguments and result are those of ``equal``.

    Example: >>> mask = flow.math.logical_and(x > 0, x < 1)
    """
    return _compare("logical_and", x, y, name)
