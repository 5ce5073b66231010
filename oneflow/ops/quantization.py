"""Simulated integer quantization: observers of the range of values, and rounding to the grid of an integer type."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..errors import ModeError, ShapeError
from ..graph.graph import OP_VARIABLE, Graph
from ..graph.node import Blob, Node
from ._arrays import Array, broadcast_to, full, label, largest_of, least_of, like, select
from ._emit import as_is, emit, emit_many, fail, op, want
from ._int8 import GRID, STATISTICS

SCHEMES = ("symmetric", "affine")
FORMULAS = ("google", "cambricon")


def _extremes(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    rest = tuple(size for i, size in enumerate(x.shape) if i not in axes) or (1,)
    return lax.reshape(largest_of(x, axes), rest), lax.reshape(least_of(x, axes), rest)


def _grid(high: Array, low: Array, bits: int, scheme: str, formula: str) -> tuple[Array, Array]:
    """Scale and zero point for values in [low, high]; ``high`` is the largest magnitude where the scheme is symmetric."""
    zero = full(0, high)
    if formula == "cambricon":  # a power of two, given by its exponent
        _, exponent = jnp.frexp(high)  # floor(log2) and 1
        return lax.sub(lax.convert_element_type(exponent, high.dtype), like(bits - 1, high)), zero
    if scheme == "symmetric":
        return lax.div(high, like(2 ** (bits - 1) - 1, high)), zero
    scale = lax.div(lax.sub(high, low), like(2**bits - 1, high))
    flat = lax.eq(scale, like(0, scale))
    return scale, lax.neg(select(flat, zero, lax.div(low, select(flat, full(1, scale), scale))))


def _measured(x: Array, axes: tuple[int, ...], scheme: str, formula: str) -> tuple[Array, Array]:
    if scheme == "symmetric" or formula == "cambricon":
        high, _ = _extremes(lax.abs(x), axes)
        return high, high
    return _extremes(x, axes)


@op("min_max_observer", multiple_results=True, nondifferentiable=True, channels_last=as_is)
def _min_max_observer(x: Array, *, bits: int, scheme: str, formula: str, per_layer: bool) -> tuple[Array, Array]:
    axes = tuple(range(0 if per_layer else 1, x.ndim))
    return _grid(*_measured(x, axes, scheme, formula), bits, scheme, formula)


@op(
    "moving_average_min_max_observer",
    multiple_results=True,
    nondifferentiable=True,
    int8=STATISTICS,
    channels_last=as_is,
)
def _moving_average(
    x: Array, step: Array, moving_max: Array, moving_min: Array, *,
    bits: int, scheme: str, formula: str, momentum: float, training: bool, stop: int,
) -> tuple[Array, ...]:  # fmt: skip
    if training:
        going_on = lax.le(step, like(stop, step))

        def moved(old: Array, new: Array) -> Array:
            mean = lax.add(lax.mul(old, like(momentum, old)), lax.mul(new, like(1 - momentum, old)))
            return select(going_on, select(lax.eq(old, like(0, old)), new, mean), old)

        high, low = _measured(x, tuple(range(x.ndim)), scheme, formula)
        moving_max, moving_min = moved(moving_max, high), moved(moving_min, low)
    return *_grid(moving_max, moving_min, bits, scheme, formula), moving_max, moving_min


def _straight_through(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Any, None, None]:
    return cotangents[0], None, None


@op("fake_quantization", grad=_straight_through, nondifferentiable=(1, 2), int8=GRID, channels_last=as_is)
def _fake_quantization(x: Array, scale: Array, zero: Array, *, bits: int, scheme: str, formula: str) -> Array:
    def spread(p: Array) -> Array:
        p = lax.convert_element_type(p, x.dtype)
        return broadcast_to(p, x.shape) if p.shape == (1,) else lax.broadcast_in_dim(p, x.shape, (0,))

    if formula == "cambricon":
        scale = jnp.ldexp(jnp.ones_like(scale), lax.convert_element_type(scale, np.int32))
    scale, zero = spread(scale), spread(zero)
    nothing = lax.eq(scale, like(0, scale))  # nothing but zeros was observed
    quotient = lax.div(x, select(nothing, full(1, scale), scale))
    if scheme == "affine" and formula == "google":
        low, high = like(0, x), like(2**bits - 1, x)
        rounded = lax.round(lax.add(quotient, zero), lax.RoundingMethod.AWAY_FROM_ZERO)
        y = lax.mul(lax.sub(lax.clamp(low, rounded, high), zero), scale)
    else:
        high = like(2 ** (bits - 1) - 1, x)
        y = lax.mul(lax.clamp(-high, lax.round(quotient, lax.RoundingMethod.AWAY_FROM_ZERO), high), scale)
    return select(nothing, full(0, x), y)


def want_grid(what: str, x: Any, bits: Any, scheme: Any, formula: Any, per_layer: bool = True) -> dict[str, Any]:
    """Checks the arguments that observers and quantizers share; returns the attributes of their ops."""
    want.floating(what, want.blob(what, "input", x))
    bits = want.integer(what, "quantization_bit", bits, 2, (x,), high=8)
    want.choice(what, "quantization_scheme", scheme, SCHEMES)
    want.choice(what, "quantization_formula", formula, FORMULAS)
    if formula == "cambricon" and not per_layer:
        fail(ModeError, what, 'quantization_formula="cambricon" has one scale for the whole tensor', (x,),
             "per_layer_quantization=True")  # fmt: skip
    return {"bits": bits, "scheme": scheme, "formula": formula}


def min_max_observer(
    input: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    per_layer_quantization: bool = True,
    name: str | None = None,
    quantization_formula: str = "google",
) -> tuple[Blob, Blob]:
    """Scale and zero point of the integer grid that just holds ``input``; for ``fake_quantization``.

    symmetric: scale = max|x| / (2^(bits-1) - 1), zero point 0. affine: scale = (max - min) / (2^bits - 1), zero point
    -min / scale, not rounded.

    Args:
      input: floating.
      quantization_bit: 2 to 8.
      quantization_scheme: "symmetric" or "affine".
      per_layer_quantization: False measures each slice along axis 0 separately.
      name: name of the op; made unique when omitted.
      quantization_formula: "google", or "cambricon": the scale is floor(log2(max|x|)) - (bits - 2), the exponent of a power
        of two.
    Returns: (scale, zero_point) of input's dtype, shape (1,), or (input.shape[0],) with per_layer_quantization=False.
    Raises: ArgumentError, DtypeError, ModeError (cambricon with per_layer_quantization=False).
    Example: >>> scale, zero_point = flow.quantization.min_max_observer(weight, per_layer_quantization=False)
    """
    what = label("min_max_observer", name)
    per_layer = want.flag(what, "per_layer_quantization", per_layer_quantization)
    grid = want_grid(what, input, quantization_bit, quantization_scheme, quantization_formula, per_layer)
    scale, zero_point = emit_many(_min_max_observer, input, name=name, per_layer=per_layer, **grid)
    return scale, zero_point


def observe_moving_average(
    what: str, x: Blob, step: Blob, moving_max: Blob, moving_min: Blob, *,
    grid: dict[str, Any], momentum: Any, training: bool, stop: int, name: str | None,
) -> tuple[Blob, ...]:  # fmt: skip
    """(scale, zero point, new moving_max, new moving_min)."""
    momentum = want.number(what, "momentum", momentum, (x,), low=0, high=1)
    return emit_many(
        _moving_average,
        x,
        step,
        moving_max,
        moving_min,
        name=name,
        momentum=float(momentum),
        training=training,
        stop=stop,
        **grid,
    )


def moving_averages(graph: Graph) -> dict[str, Node]:
    """The observers of a graph whose moving averages are variables, by the name of that of the largest value."""
    found = ((node.inputs[2].node, node) for node in graph.nodes if node.op is _moving_average)
    return {kept.attrs["variable"]: node for kept, node in found if kept.op is OP_VARIABLE}


def fake_quantization(
    input: Blob,
    scale: Blob,
    zero_point: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    name: str | None = None,
    quantization_formula: str = "google",
) -> Blob:
    """``input`` rounded to the grid of an integer type and back, as in a quantized network. Halves round away from 0.

    symmetric: clamp(round(x / scale), -q, q) * scale with q = 2^(bits-1) - 1. affine: (clamp(round(x / scale + zero_point),
    0, 2^bits - 1) - zero_point) * scale. The gradient passes straight through, outside the grid too.

    Args:
      input: floating.
      scale, zero_point: of an observer: (1,), or (input.shape[0],) for one grid per slice along axis 0; input's dtype.
      quantization_bit, quantization_scheme, quantization_formula: the observer's.
      name: name of the op; made unique when omitted.
    Returns: Blob of input's shape and dtype; zeros where scale is 0.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.quantization.fake_quantization(x, *flow.quantization.min_max_observer(x))
    """
    what = label("fake_quantization", name)
    grid = want_grid(what, input, quantization_bit, quantization_scheme, quantization_formula)
    for argument, blob in (("scale", scale), ("zero_point", zero_point)):
        want.blob(what, argument, blob)
        want.same_dtype(what, (input, blob))
        if blob.shape not in ((1,), input.shape[:1]):
            fail(ShapeError, what, f"{argument} must have shape (1,) or {input.shape[:1]}, got {blob.shape}", (input, blob))
    return emit(_fake_quantization, input, scale, zero_point, name=name, **grid)
