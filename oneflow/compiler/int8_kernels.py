"""What int8 inference computes: quantization, weights, and products with all that is fused behind them.

Data is uint8 with a scale and a zero point per tensor, weights are int8 with a scale per output channel, sums are exact 32-bit
integers: by oneDNN on CPUs with VNNI, elsewhere by XLA from the same integers. The rest (scale, offset, residual, activation) is
float32 in both, where a last bit may differ; results are rounded to the nearest integer, halves to even.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .._base import native
from .._base.jax import jax, jnp, lax
from ..graph.op import IntegerGrid, IntegerProduct, OpDef

ACTIVATIONS = {"": 0, "rectify": 1, "gate": 2}  # roles of ops, as numbers of a spec
_EXACT_TERMS = 2**24 // (255 * 127)  # products of uint8 and int8 that float32 adds up exactly
Attrs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers scale * (q - zero) for integers q from ``low`` to ``high``; ``zero`` may be the number of any of them."""

    scale: float
    zero: int = 0
    low: int = 0
    high: int = 255

    @staticmethod
    def of_range(least: float, most: float) -> Grid:
        """The grid of 256 numbers that holds [least, most] and 0."""
        least, most = min(least, 0.0), max(most, 0.0)
        scale = float(np.float32((most - least) / 255))
        if scale == 0:
            return Grid(1.0)
        return Grid(scale, min(255, max(0, round(-least / scale))))


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What follows the sums: x * scale + offset [+ residual], an activation, x * factor + shift, and the range low to high.

    ``to_integers``: the result is uint8.
    """

    to_integers: bool = False
    has_residual: bool = False
    activation: str = ""
    factor: float = 1.0
    shift: float = 0.0
    low: int = 0
    high: int = 255


def grid_of_values(grid: IntegerGrid, scale: float, zero: float) -> Grid:
    """The grid of an op that rounds to one. A zero point with a fraction is rounded: values move by half a step at most."""
    top = 2 ** (grid.bits - 1) - 1
    if grid.affine:
        point = min(2**grid.bits - 1, max(0, round(zero)))
        return Grid(scale, point, 0, 2**grid.bits - 1) if scale else Grid(1.0, point, point, point)
    if grid.exponent:
        scale = 2.0**scale
    return Grid(scale, 128, 128 - top, 128 + top) if scale else Grid(1.0, 128, 128, 128)


# --- quantization of data


def _quantize(x: Any, *, grid: Grid, perm: tuple[int, ...] | None) -> Any:
    x = x if perm is None else jnp.transpose(x, perm)
    q = lax.round(x / np.float32(grid.scale), lax.RoundingMethod.TO_NEAREST_EVEN) + np.float32(grid.zero)
    # NaN becomes the zero point: an integer has no other word for it
    return lax.convert_element_type(jnp.where(q == q, jnp.clip(q, grid.low, grid.high), grid.zero), np.uint8)


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
    scale: Any, sums: Any, *constants: Any, steps: Sequence[tuple[Callable[..., Any], Attrs, int]], rank: int, channel: int,
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

    def through(x: Any) -> Any:
        rest = list(constants)
        for define, attrs, count in steps:
            x = define(x, *rest[:count], **attrs)
            del rest[:count]
        return x

    shape = [1] * rank
    shape[channel] = scale.shape[0]
    at = jnp.zeros(shape, np.float32)
    offset, slope = (v.reshape(-1) for v in jax.jvp(through, (at,), (jnp.ones_like(at),)))
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


def _result_shape(x: Sequence[int], product: IntegerProduct, kernel: Sequence[int]) -> tuple[int, ...]:
    sizes = zip(x[1:-1], kernel[1:-1], product.strides, product.dilations, product.padding, strict=False)
    space = tuple((n + low + high - (k - 1) * d - 1) // s + 1 for n, k, s, d, (low, high) in sizes)
    return (*(space and x[:1] or x[:-1]), *space, kernel[0])


def spec(x: Sequence[int], product: IntegerProduct, epilogue: Epilogue, kernel: Sequence[int]) -> list[int]:
    """The vector that describes a product to the native part (``native/src/int8.cc``)."""

    def bits(value: float) -> int:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])

    e, y = epilogue, _result_shape(x, product, kernel)
    head = [int(bool(product.strides)), int(e.to_integers), int(e.has_residual), ACTIVATIONS[e.activation],
            bits(e.factor), bits(e.shift), e.low, e.high]  # fmt: skip
    if not product.strides:
        return [*head, math.prod(x[:-1]), kernel[0], kernel[1], 1]

    def channels_second(shape: Sequence[int]) -> list[int]:
        return [shape[0], shape[-1], *shape[1:-1]]

    low, high = ([p[side] for p in product.padding] for side in (0, 1))
    shapes = [size for shape in (x, kernel, y) for size in channels_second(shape)]
    return [*head, len(x) - 2, product.groups, *shapes, *product.strides, *product.dilations, *low, *high]


@lru_cache(maxsize=4096)
def unsupported_reason(x: tuple[int, ...], product: IntegerProduct, epilogue: Epilogue, kernel: tuple[int, ...]) -> str:
    """Why the native part does not take a product; "" where it does."""
    found = native.part()
    if found.library is None:
        return found.reason
    if min((*x, *kernel, *_result_shape(x, product, kernel))) <= 0:
        return "an empty array"
    name = found.library.describe("int8_product", spec(x, product, epilogue, kernel))
    if name.startswith("!"):
        return str(name[2:])
    return f"oneDNN's kernel is a slow one ({name})" if "ref" in name else ""


def kernel_name(x: tuple[int, ...], product: IntegerProduct, epilogue: Epilogue, kernel: tuple[int, ...]) -> str:
    """The name of oneDNN's kernel for a product."""
    return str(native.part().library.describe("int8_product", spec(x, product, epilogue, kernel)))


def packed_size(x: tuple[int, ...], product: IntegerProduct, epilogue: Epilogue, kernel: tuple[int, ...]) -> int:
    """The bytes of weights in the layout that oneDNN's kernel wants."""
    return int(native.part().library.describe("int8_pack", spec(x, product, epilogue, kernel)))


def _pack(q: Any, *, spec: tuple[int, ...], size: int) -> Any:
    return _call("int8_pack", jax.ShapeDtypeStruct((size,), np.int8), spec, q)


def _call(name: str, result: Any, spec: Sequence[int], *arrays: Any) -> Any:
    return jax.ffi.ffi_call(native.target(name), result)(*arrays, spec=np.array(spec, np.int64))


def _by_native(
    x: Any, w: Any, scale: Any, offset: Any, residual: Sequence[Any], product: IntegerProduct, epilogue: Epilogue,
    kernel: Sequence[int],
) -> Any:  # fmt: skip
    dtype = np.uint8 if epilogue.to_integers else np.float32
    result = jax.ShapeDtypeStruct(_result_shape(x.shape, product, kernel), dtype)
    name = "int8_product_with_residual" if residual else "int8_product"
    return _call(name, result, spec(x.shape, product, epilogue, kernel), x, w, scale, offset, *residual)


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
PACK = OpDef("int8_pack", _pack)
PRODUCT = OpDef("int8_product", _product)


def inferred(op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Shapes and dtypes of an op's outputs."""
    arrays = [jax.ShapeDtypeStruct(b.shape, b.dtype.numpy_dtype) for b in inputs]
    found = jax.eval_shape(partial(op.define, **attrs), *arrays)
    return list(found) if op.multiple_results else [found]
