"""Functions of one Blob, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from .._base.dtype import dtype
from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.node import Blob
from ._arcs import arc_cosine_of, arc_sine_of, arc_tangent_of
from ._arrays import (
    Array,
    dtype_for,
    full,
    gradient_of,
    in_float32,
    label,
    like,
    number_for,
    select,
    softplus_of,
    where_else_zero,
    widen,
)
from ._emit import emit, emit_many, fail, is_number, op, want
from ._int8 import BOUND, GATE, RECTIFY
from ._sine import cosine_of, sine_of, tangent_of


class Unary(Protocol):
    """A function of one Blob, made by ``unary``."""

    __name__: str

    def __call__(self, x: Blob, name: str | None = None) -> Blob: ...


def unary(
    op_name: str,
    sentence: str,
    define: Callable[[Array], Array],
    *,
    example: str = "",
    module: str = "flow.math",
    grad: Callable[[Array, Array, Array], Array] | None = None,
    integers: bool = False,
    **facts: Any,
) -> Unary:
    """Makes an op of one array, and its public function with a docstring.

    ``grad(x, y, dy)`` is the gradient where calculus does not define it; ``integers``: integer Blobs are accepted, too;
    ``facts`` are further fields of ``OpDef``.
    """
    wrapped = None if grad is None else lambda inputs, outputs, cotangents: (grad(inputs[0], outputs[0], cotangents[0]),)
    made = op(op_name, grad=wrapped, batch_inputs=(0,), elementwise=True, **facts)(define)

    def function(x: Blob, name: str | None = None) -> Blob:
        if not isinstance(x, Blob) or not (integers or x.dtype.is_floating_point):
            want.floating(label(op_name, name), want.blob(label(op_name, name), "x", x))
        return emit(made, x, name=name)

    kinds = "any dtype" if integers else "floating dtype"
    function.__name__ = function.__qualname__ = op_name
    function.__doc__ = f"""{sentence}

    Args:
      x: Blob of any shape, {kinds}.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError (x is not a Blob){"" if integers else ", DtypeError (x is an integer Blob)"}.
    Example: >>> y = {module}.{op_name}(x){example and "   # " + example}
    """
    return function


def _zeta_minus_one(k: int) -> float:
    """The sum of n**-k over n >= 2, by the Euler-Maclaurin formula from 200 on."""
    n = 200
    tail = n ** (1 - k) / (k - 1) + n**-k / 2 + k * n ** (-k - 1) / 12 - k * (k + 1) * (k + 2) * n ** (-k - 3) / 720
    return sum(i**-k for i in range(2, n)) + tail


@lru_cache(maxsize=1)
def _lgamma_series() -> tuple[float, ...]:
    """The coefficients of log(Gamma(2 + z)) / z; by |z| = 1/2 their terms are below 1e-17."""
    return (1.0 - np.euler_gamma, *((-1) ** k * _zeta_minus_one(k) / k for k in range(2, 27)))


def _lgamma(x: Array) -> Array:
    """XLA's, and where the result is close to zero a series about 2, of which it has the relative precision."""
    wide = widen(x)
    z = lax.sub(wide, select(lax.lt(wide, like(1.5, wide)), like(1, wide), like(2, wide)))
    series = lax.full_like(z, 0)
    for c in reversed(_lgamma_series()):
        series = lax.add(lax.mul(series, z), like(c, z))
    near = lax.mul(series, z)
    near = select(lax.lt(wide, like(1.5, wide)), lax.sub(near, lax.log1p(z)), near)  # lgamma(1 + z) = lgamma(2 + z) - log(1 + z)
    inside = lax.bitwise_and(lax.gt(wide, like(0.5, wide)), lax.lt(wide, like(2.5, wide)))
    return lax.convert_element_type(select(inside, near, lax.lgamma(wide)), x.dtype)


def _gelu(x: Array) -> Array:
    return in_float32(_gelu_of, x)  # in 16 bits 1 + erf has no digits left below -3


def _gelu_of(x: Array) -> Array:
    half = lax.mul(like(0.5, x), x)
    return lax.mul(half, lax.add(like(1, x), lax.erf(lax.mul(x, like(math.sqrt(0.5), x)))))


def _reciprocal_no_nan(x: Array) -> Array:
    zero = lax.eq(x, like(0, x))
    return select(zero, like(0, x), lax.div(full(1, x), select(zero, like(1, x), x)))


def _across(x: Array) -> Array:
    """The slope of the arc sine."""
    return lax.rsqrt(lax.sub(like(1, x), lax.square(x)))


def _to_even(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _abs(x: Array) -> Array:
    return x if x.dtype.kind == "u" else lax.abs(x)


def _abs_grad(x: Array, y: Array, dy: Array) -> Array:
    return lax.select(lax.ge(x, like(0, x)), dy, lax.neg(dy))


def _relu_grad(x: Array, y: Array, dy: Array) -> Array:
    return where_else_zero(lax.gt(y, like(0, y)), dy)


abs = unary("abs", "The absolute value; its gradient at 0 is +dy.", _abs, grad=_abs_grad, integers=True)
acos = unary("acos", "The arc cosine in [0, pi].", arc_cosine_of, grad=lambda x, y, dy: lax.neg(lax.mul(dy, _across(x))))
acosh = unary("acosh", "The inverse hyperbolic cosine.", lambda x: lax.acosh(x))
asin = unary("asin", "The arc sine in [-pi/2, pi/2].", arc_sine_of, grad=lambda x, y, dy: lax.mul(dy, _across(x)))
asinh = unary("asinh", "The inverse hyperbolic sine.", lambda x: lax.asinh(x))
atan = unary(
    "atan", "The arc tangent in [-pi/2, pi/2].", arc_tangent_of,
    grad=lambda x, y, dy: lax.div(dy, lax.add(like(1, x), lax.square(x))),
)  # fmt: skip
atanh = unary("atanh", "The inverse hyperbolic tangent.", lambda x: lax.atanh(x))
ceil = unary("ceil", "The smallest whole number >= x; its gradient is 0.", lambda x: lax.ceil(x), example="1.2 -> 2.0")
cos = unary("cos", "The cosine of x in radians.", cosine_of, grad=lambda x, y, dy: lax.neg(lax.mul(dy, sine_of(x))))
cosh = unary("cosh", "The hyperbolic cosine.", lambda x: lax.cosh(x))
erf = unary("erf", "The error function, 2/sqrt(pi) times the integral of exp(-t**2) from 0 to x.", lambda x: lax.erf(x))
erfc = unary("erfc", "1 - erf(x), without cancellation for large x.", lambda x: lax.erfc(x))
exp = unary("exp", "e to the power x.", lambda x: lax.exp(x), example="0.0 -> 1.0")
expm1 = unary("expm1", "exp(x) - 1, without cancellation near 0.", lambda x: lax.expm1(x))
floor = unary("floor", "The largest whole number <= x; its gradient is 0.", lambda x: lax.floor(x), example="1.8 -> 1.0")
gelu = unary("gelu", "0.5 * x * (1 + erf(x / sqrt(2))), exactly.", _gelu, autocast="between", zeros="all", int8=GATE)
lgamma = unary(
    "lgamma", "The logarithm of |Gamma(x)|.", _lgamma, grad=lambda x, y, dy: lax.mul(dy, lax.digamma(x)), example="2.0 -> 0.0"
)
log = unary("log", "The natural logarithm.", lambda x: lax.log(x), example="1.0 -> 0.0")
log1p = unary("log1p", "log(1 + x), without cancellation near 0.", lambda x: lax.log1p(x))
log_sigmoid = unary(
    "log_sigmoid", "log(1 / (1 + exp(-x))), without overflow.", lambda x: lax.neg(softplus_of(lax.neg(x))),
    grad=lambda x, y, dy: lax.mul(dy, lax.logistic(lax.neg(x))),
)  # fmt: skip
negative = unary("negative", "-x.", lambda x: lax.neg(x), integers=True, zeros="all")
reciprocal = unary("reciprocal", "1 / x.", lambda x: lax.integer_pow(x, -1), example="2.0 -> 0.5")
reciprocal_no_nan = unary("reciprocal_no_nan", "1 / x, and 0 where x is 0, where its gradient is 0 too.", _reciprocal_no_nan)
relu = unary(
    "relu", "max(x, 0); its gradient at 0 is 0.", lambda x: lax.max(x, like(0, x)), grad=_relu_grad, integers=True,
    autocast="between", zeros="all", flat_at_zero=True, int8=RECTIFY,
)  # fmt: skip
rint = unary("rint", "The nearest whole number, halves to even; its gradient is 0.", _to_even, example="2.5 -> 2.0")
round = unary("round", "The nearest whole number, halves to even; its gradient is 0.", _to_even, example="2.5 -> 2.0")
rsqrt = unary("rsqrt", "1 / sqrt(x).", lambda x: lax.rsqrt(x), example="4.0 -> 0.5")
sigmoid = unary(
    "sigmoid", "1 / (1 + exp(-x)).", lambda x: lax.logistic(x), example="0.0 -> 0.5", autocast="between", lstm="logistic"
)
sigmoid_v2 = unary("sigmoid_v2", "1 / (1 + exp(-x)); the same as sigmoid.", lambda x: lax.logistic(x), lstm="logistic")
sign = unary("sign", "-1, 0 or 1; its gradient is 0.", lambda x: lax.sign(x), integers=True)
sin = unary("sin", "The sine of x in radians.", sine_of, grad=lambda x, y, dy: lax.mul(dy, cosine_of(x)))
sinh = unary("sinh", "The hyperbolic sine.", lambda x: lax.sinh(x))
softplus = unary(
    "softplus", "log(1 + exp(x)), without overflow.", softplus_of, grad=lambda x, y, dy: lax.mul(dy, lax.logistic(x))
)
sqrt = unary("sqrt", "The square root.", lambda x: lax.sqrt(x), example="4.0 -> 2.0", autocast="between")
square = unary("square", "x * x.", lambda x: lax.square(x), integers=True, example="3.0 -> 9.0")
tan = unary(
    "tan", "The tangent of x in radians.", tangent_of, grad=lambda x, y, dy: lax.mul(dy, lax.add(like(1, y), lax.square(y)))
)
_TANH: dict[str, Any] = {"autocast": "between", "zeros": "all", "lstm": "hyperbolic"}
tanh = unary("tanh", "The hyperbolic tangent.", lambda x: lax.tanh(x), **_TANH)
tanh_v2 = unary("tanh_v2", "The hyperbolic tangent; the same as tanh.", lambda x: lax.tanh(x), **_TANH)
identity = unary("identity", "x itself, as a new op.", lambda x: x, module="flow", integers=True, autocast="between", zeros="all")
amp_white_identity = unary(
    "amp_white_identity", "x itself; automatic mixed precision runs it in 16 bits.",
    lambda x: x, module="flow", integers=True, autocast="always",
)  # fmt: skip


@op("stop_gradient", nondifferentiable=True, autocast="between", elementwise=True)
def _stop_gradient(x: Array) -> Array:
    return x


def stop_gradient(x: Blob, name: str | None = None) -> Blob:
    """x itself, through which no gradient flows.

    Args:
      x: Blob of any dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError.
    Example: >>> target = flow.stop_gradient(x)
    """
    return emit(_stop_gradient, want.blob(label("stop_gradient", name), "x", x), name=name)


@op("identity_n", multiple_results=True, autocast="between")
def _identity_n(*arrays: Array) -> tuple[Array, ...]:
    return arrays


def identity_n(inputs: Sequence[Blob], name: str | None = None) -> tuple[Blob, ...]:
    """The same Blobs, as the outputs of one new op.

    Args:
      inputs: list or tuple of at least one Blob, of any shapes and dtypes.
      name: name of the op; made unique when omitted.
    Returns: tuple of as many Blobs.
    Raises: ArgumentError.
    Example: >>> a, b = flow.identity_n([x, y])
    """
    return emit_many(_identity_n, *want.blobs(label("identity_n", name), "inputs", inputs), name=name)


# --- gradients as ops


@op("gelu_grad", nondifferentiable=True)
def _gelu_grad(x: Array, dy: Array) -> Array:
    return gradient_of(_gelu, x, dy)


@op("sigmoid_grad", nondifferentiable=True)
def _sigmoid_grad(y: Array, dy: Array) -> Array:
    return lax.mul(dy, lax.mul(y, lax.sub(like(1, y), y)))


@op("tanh_grad", nondifferentiable=True)
def _tanh_grad(y: Array, dy: Array) -> Array:
    return lax.mul(dy, lax.sub(like(1, y), lax.mul(y, y)))


def _grad_op(made: Any, names: str, first: Blob, dy: Blob, name: str | None) -> Blob:
    what = label(made.name, name)
    blobs = (want.blob(what, names, first), want.blob(what, "dy", dy))
    want.floating(what, first)
    want.same_dtype(what, blobs)
    want.same_shape(what, blobs)
    return emit(made, *blobs, name=name)


def gelu_grad(x: Blob, dy: Blob, name: str | None = None) -> Blob:
    """The gradient of ``gelu`` at x, times dy.

    Args: x, dy: Blobs of one shape and one floating dtype.
    Returns: Blob of that shape and dtype; it has no gradient itself.
    Raises: ArgumentError, DtypeError, ShapeError.
    Example: >>> dx = flow.math.gelu_grad(x, dy)
    """
    return _grad_op(_gelu_grad, "x", x, dy, name)


def sigmoid_grad(y: Blob, dy: Blob, name: str | None = None) -> Blob:
    """The gradient of ``sigmoid`` where its value is y, times dy: dy * y * (1 - y).

    Args: y, dy: Blobs of one shape and one floating dtype.
    Returns: Blob of that shape and dtype; it has no gradient itself.
    Raises: ArgumentError, DtypeError, ShapeError.
    Example: >>> dx = flow.math.sigmoid_grad(y, dy)
    """
    return _grad_op(_sigmoid_grad, "y", y, dy, name)


def tanh_grad(y: Blob, dy: Blob, name: str | None = None) -> Blob:
    """The gradient of ``tanh`` where its value is y, times dy: dy * (1 - y * y).

    Args: y, dy: Blobs of one shape and one floating dtype.
    Returns: Blob of that shape and dtype; it has no gradient itself.
    Raises: ArgumentError, DtypeError, ShapeError.
    Example: >>> dx = flow.math.tanh_grad(y, dy)
    """
    return _grad_op(_tanh_grad, "y", y, dy, name)


# --- with parameters


def _clip_grad(inputs: Any, outputs: Any, cotangents: Any, *, low: Any, high: Any) -> tuple[Array]:
    x, dx = inputs[0], cotangents[0]
    if low is not None:
        dx = where_else_zero(lax.ge(x, like(low, x)), dx)
    if high is not None:
        dx = where_else_zero(lax.le(x, like(high, x)), dx)
    return (dx,)


@op("clip", grad=_clip_grad, batch_inputs=(0,), elementwise=True, int8=BOUND)
def _clip(x: Array, *, low: int | float | None, high: int | float | None) -> Array:
    if low is not None:
        x = lax.max(x, like(low, x))
    return x if high is None else lax.min(x, like(high, x))


def clip_by_value(
    values: Blob, min_value: int | float | None = None, max_value: int | float | None = None, name: str | None = None
) -> Blob:
    """Values below ``min_value`` become ``min_value``, values above ``max_value`` become ``max_value``.

    Args:
      values: Blob of any shape and dtype.
      min_value, max_value: numbers, at least one of them; converted to the Blob's dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape and dtype. The gradient passes where min_value <= x <= max_value, bounds included.
    Raises: ArgumentError.
    Example: >>> y = flow.clip_by_value(x, 0.0, 1.0)
    """
    what = label("clip", name)
    x = want.blob(what, "values", values)
    if min_value is None and max_value is None:
        fail(ArgumentError, what, "needs min_value or max_value", (x,), "pass at least one bound")
    low = None if min_value is None else _bound(what, "min_value", min_value, x)
    high = None if max_value is None else _bound(what, "max_value", max_value, x)
    return emit(_clip, x, name=name, low=low, high=high)


def _bound(what: str, argument: str, value: Any, x: Blob) -> int | float:
    if (
        x.dtype.is_integer and is_number(value) and not math.isnan(value)
    ):  # a bound beyond the dtype's range means the end of the range
        limits = np.iinfo(x.dtype.numpy_dtype)
        value = min(max(value, int(limits.min)), int(limits.max))
    return number_for(what, value, x, argument)


def _cast_grad(inputs: Any, outputs: Any, cotangents: Any, *, to: np.dtype) -> tuple[Array]:
    return (lax.convert_element_type(cotangents[0], inputs[0].dtype),)


@op("cast", grad=_cast_grad, batch_inputs=(0,), elementwise=True, keeps_values=True, zeros="all")
def _cast(x: Array, *, to: np.dtype) -> Array:
    return lax.convert_element_type(x, to)


def cast(x: Blob, dtype: dtype, name: str | None = None) -> Blob:
    """Converts to another dtype; from floating to integer dtypes towards zero.

    Args:
      x: Blob of any shape and dtype.
      dtype: the dtype of the result, such as ``flow.float32``.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape; x itself where it has that dtype already. The gradient is cast back to x's dtype.
    Raises: ArgumentError.
    Example: >>> y = flow.cast(labels, flow.float32)
    """
    what = label("cast", name)
    want.blob(what, "x", x)
    kind = dtype_for(what, dtype)
    return x if x.dtype == kind else emit(_cast, x, name=name, to=kind.numpy_dtype)


@op("polyval", batch_inputs=(0,), elementwise=True)
def _polyval(x: Array, *, coeffs: tuple[int | float, ...]) -> Array:
    y = full(0, x)
    for c in coeffs:
        y = lax.add(lax.mul(y, x), like(c, x))
    return y


def polyval(coeffs: list[int | float] | tuple[int | float, ...], x: Blob, name: str | None = None) -> Blob:
    """The polynomial with these coefficients at x, by Horner's scheme.

    Args:
      coeffs: list or tuple of numbers, the highest power first; without any the result is 0.
      x: Blob of any shape.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError.
    Example: >>> y = flow.math.polyval([1, 0, -2], x)   # x ** 2 - 2
    """
    what = label("polyval", name)
    want.blob(what, "x", x)
    if not isinstance(coeffs, (list, tuple)):
        fail(ArgumentError, what, f"coeffs must be a list or tuple of numbers, got {shown(coeffs)}", (x,))
    return emit(_polyval, x, name=name, coeffs=tuple(number_for(what, c, x, f"coeffs[{i}]") for i, c in enumerate(coeffs)))
