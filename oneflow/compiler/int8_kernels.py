"""What int8 inference computes: quantization, weights, and products with all that is fused behind them.

Data is uint8 with a scale and a zero point per tensor, weights are int8 with a scale per output channel, sums are exact 32-bit
integers: by oneDNN on CPUs with VNNI, by kernels of the native part's own on other CPUs with AVX2, elsewhere by XLA from the same
integers. The rest (scale, offset, residual, activation) is float32 in all, where a last bit may differ; results are rounded to
the nearest integer, halves to even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..graph.op import IntegerGrid, IntegerProduct, OpDef
from . import packed_products
from .packed_products import Affine, Epilogue

_STRETCHED = 1.05  # times its step, at most
_EXACT_TERMS = 2**24 // (255 * 127)  # products of uint8 and int8 that float32 adds up exactly


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers scale * (q - zero) for integers q from ``low`` to ``high``, between which ``zero`` need not be."""

    scale: float
    zero: int = 0
    low: int = 0
    high: int = 255

    @staticmethod
    def of_range(least: float, most: float, high: int = 255) -> Grid:
        """The grid of ``high + 1`` numbers that holds [least, most] and 0."""
        least, most = min(least, 0.0), max(most, 0.0)
        scale = float(np.float32((most - least) / high))
        if scale == 0:
            return Grid(1.0, high=high)
        return Grid(scale, min(high, max(0, round(-least / scale))), 0, high)


def grid_of_values(grid: IntegerGrid, scale: float, zero: float) -> Grid:
    """The grid of an op that rounds to one. A zero point with a fraction is rounded: values move by half a step at most.

    A grid that ends shortly before 0 is stretched to hold it, which convolutions are padded with.
    """
    top = 2 ** (grid.bits - 1) - 1
    if grid.affine:
        top = 2**grid.bits - 1
        if not scale:
            return Grid(1.0, 0, 0, 0)
        point = round(zero)
        stretched = Grid.of_range(-zero * scale, (top - zero) * scale, top)
        keeps = 0 <= point <= top or stretched.scale > _STRETCHED * scale
        return Grid(scale, point, 0, top) if keeps else stretched
    if grid.exponent:
        scale = 2.0**scale
    return Grid(scale, 128, 128 - top, 128 + top) if scale else Grid(1.0, 128, 128, 128)


# --- quantization of data


def _quantize(x: Any, *, grid: Grid, perm: tuple[int, ...] | None) -> Any:
    x = x if perm is None else jnp.transpose(x, perm)
    q = lax.round(x / np.float32(grid.scale), lax.RoundingMethod.TO_NEAREST_EVEN) + np.float32(grid.zero)
    # NaN becomes the number closest to 0: an integer has no other word for it
    return lax.convert_element_type(jnp.clip(jnp.where(q == q, q, np.float32(grid.zero)), grid.low, grid.high), np.uint8)


def _dequantize(q: Any, *, grid: Grid, perm: tuple[int, ...] | None) -> Any:
    x = (lax.convert_element_type(q, np.float32) - np.float32(grid.zero)) * np.float32(grid.scale)
    return x if perm is None else jnp.transpose(x, perm)


def _reorder(q: Any, *, perm: tuple[int, ...]) -> Any:
    return jnp.transpose(q, perm)


def _reshape(x: Any, *, shape: tuple[int, ...]) -> Any:
    return jnp.reshape(x, shape)


def _round(x: Any, *, grid: Grid) -> Any:
    """Values as integers hold them, in floating point: what int8 inference computes, for export."""
    return _dequantize(_quantize(x, grid=grid, perm=None), grid=grid, perm=None)


# --- weights


def _weights(w: Any, *scales: Any, perm: tuple[int, ...], bits: int, exponent: bool) -> tuple[Any, Any, Any]:
    """Weights as (O, ..., I) int8, their scales, and the sum of each output channel's integers.

    Without ``scales`` each channel's largest magnitude becomes 127.
    """
    w = jnp.transpose(w, perm)
    axes = tuple(range(1, w.ndim))
    high = 2 ** (bits - 1) - 1
    if scales:
        (scale,) = scales
        scale = jnp.broadcast_to(jnp.ldexp(jnp.ones_like(scale), scale.astype(np.int32)) if exponent else scale, w.shape[:1])
    else:
        scale = jnp.max(jnp.abs(w), axes) / np.float32(high)
    safe = jnp.where(scale == 0, 1, scale)
    rounding = lax.RoundingMethod.AWAY_FROM_ZERO if scales else lax.RoundingMethod.TO_NEAREST_EVEN  # as fake_quantization rounds
    q = lax.round(w / lax.expand_dims(safe, axes), rounding)
    q = lax.convert_element_type(jnp.clip(q, -high, high), np.int8)
    return q, safe, jnp.sum(lax.convert_element_type(q, np.float32), axes)


def _round_weights(w: Any, *, perm: tuple[int, ...]) -> Any:
    """Weights as ``_weights`` rounds them, in floating point and in their own order."""
    q, scale, _ = _weights(w, perm=perm, bits=8, exponent=False)
    rounded = lax.convert_element_type(q, w.dtype) * lax.expand_dims(scale, range(1, w.ndim))
    return jnp.transpose(rounded, tuple(perm.index(i) for i in range(w.ndim)))


def _vectors(
    scale: Any, sums: Any, *constants: Any, steps: Affine, rank: int, channel: int,
    source: Grid, unit: float, shift: float,
) -> tuple[Any, Any]:  # fmt: skip
    """Scale and offset by which a channel's sum becomes a result in units of ``unit``.

    Args:
      scale, sums: of the weights.
      constants: what the ops of ``steps`` read beside their first input, one after another.
      steps: ops that are affine per channel: their function, attributes, and number of constants.
      rank: of their arrays; ``channel``: the axis of channels.
      source: the data's grid; its zero point becomes a part of the offset.
      shift: added to the offset.
    """
    offset, slope = packed_products.offset_and_slope(steps, constants, rank, channel, scale.shape[0])
    real = slope * scale * np.float32(source.scale)
    return real / np.float32(unit), (offset - real * sums * np.float32(source.zero)) / np.float32(unit) + np.float32(shift)


# --- products


def _product(
    x: Any, w: Any, scale: Any, offset: Any, *residual: Any, product: IntegerProduct, epilogue: Epilogue, zero: int,
    kernel: tuple[int, ...], perm: tuple[int, ...] | None, is_native: bool,
) -> Any:  # fmt: skip
    """A product of (N, ..., C) uint8. ``w`` is packed where ``is_native``; ``kernel``: the shape of the weights.

    ``perm`` is applied to a result that is float32.
    """
    if zero and any(low or high for low, high in product.padding):  # padding is 0, whose integer is the zero point
        x = lax.pad(x, np.uint8(zero), [(0, 0, 0), *((low, high, 0) for low, high in product.padding), (0, 0, 0)])
    compute = _by_native if is_native else _by_xla
    y = compute(x, w, scale, offset, residual, without_padding(product, zero), epilogue, kernel)
    return y if perm is None or epilogue.to_integers else jnp.transpose(y, perm)


def without_padding(product: IntegerProduct, zero: int) -> IntegerProduct:
    """The product after data has been padded, which a zero point other than 0 needs."""
    if not zero:
        return product
    return IntegerProduct(
        product.data_perm,
        product.weight_perm,
        product.strides,
        product.dilations,
        ((0, 0),) * len(product.padding),
        product.groups,
    )


def _by_native(
    x: Any, w: Any, scale: Any, offset: Any, residual: Sequence[Any], product: IntegerProduct, epilogue: Epilogue,
    kernel: Sequence[int],
) -> Any:  # fmt: skip
    return packed_products.call(x, w, (scale, offset, *residual), product, epilogue, kernel)


def _by_xla(
    x: Any, w: Any, scale: Any, offset: Any, residual: Sequence[Any], product: IntegerProduct, epilogue: Epilogue,
    kernel: Sequence[int],
) -> Any:  # fmt: skip
    y = lax.convert_element_type(_sums(x, w, product), np.float32) * scale + offset
    if residual:
        y = y + lax.convert_element_type(residual[0], np.float32)
    if epilogue.activation == "rectify":
        y = jnp.maximum(y, 0)
    elif epilogue.activation == "gate":
        y = 0.5 * y * (1 + lax.erf(y * np.float32(math.sqrt(0.5))))
    if (epilogue.factor, epilogue.shift) != (1.0, 0.0):
        y = y * np.float32(epilogue.factor) + np.float32(epilogue.shift)
    if not epilogue.to_integers:
        return y
    y = lax.round(y, lax.RoundingMethod.TO_NEAREST_EVEN)
    return lax.convert_element_type(jnp.clip(jnp.where(y == y, y, 0), epilogue.low, epilogue.high), np.uint8)


def _sums(x: Any, w: Any, product: IntegerProduct) -> Any:
    """The exact int32 sums, in float32 over slices of the input's channels that are short enough for it."""
    taps = math.prod(w.shape[1:-1])
    step = max(1, _EXACT_TERMS // taps)
    if product.groups > 1 or taps > _EXACT_TERMS:
        step = w.shape[-1]
    wide = np.float32 if step * taps <= _EXACT_TERMS else np.int32
    total = None
    for start in range(0, w.shape[-1], step):
        data = x if step >= w.shape[-1] else lax.slice_in_dim(x, start, min(start + step, x.shape[-1]), axis=-1)
        weights = lax.slice_in_dim(w, start, min(start + step, w.shape[-1]), axis=-1)
        part = _multiplied(lax.convert_element_type(data, wide), lax.convert_element_type(weights, wide), product)
        part = lax.convert_element_type(part, np.int32)
        total = part if total is None else total + part
    return total


def _multiplied(x: Any, w: Any, product: IntegerProduct) -> Any:
    exact = lax.Precision.HIGHEST  # an accelerator's shorter formats would round
    if not product.strides:
        return lax.dot_general(x, w, (((x.ndim - 1,), (1,)), ((), ())), precision=exact)
    space = "DHW"[3 - len(product.strides) :]
    return lax.conv_general_dilated(
        x, w, product.strides, product.padding, rhs_dilation=product.dilations, feature_group_count=product.groups,
        dimension_numbers=(f"N{space}C", f"O{space}I", f"N{space}C"), precision=exact,
    )  # fmt: skip


QUANTIZE = OpDef("int8_quantize", _quantize)
DEQUANTIZE = OpDef("int8_dequantize", _dequantize)
REORDER = OpDef("int8_reorder", _reorder)
ROUND = OpDef("int8_round", _round)
ROUND_WEIGHTS = OpDef("int8_round_weights", _round_weights)
RESHAPE = OpDef("int8_reshape", _reshape)
WEIGHTS = OpDef("int8_weights", _weights, multiple_results=True)
VECTORS = OpDef("int8_vectors", _vectors, multiple_results=True)
PRODUCT = OpDef("int8_product", _product)
