"""Products and convolutions whose weights the native part has packed before, with what it computes behind them in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base import native
from .._base.jax import jax, jnp
from ..graph.node import Blob, Node
from ..graph.op import IntegerProduct, OpDef

DTYPES = {"uint8": 0, "float32": 1, "bfloat16": 2}  # of data and results, as numbers of a spec
ACTIVATIONS = {"": 0, "rectify": 1, "gate": 2, "bound": 3}  # roles of ops, as numbers of a spec
Attrs = Mapping[str, Any]
Affine = Sequence[tuple[Callable[..., Any], Attrs, int]]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What follows the sums: an offset [+ residual], an activation, x * factor + shift, and the range ``low`` to ``high``.

    ``to_integers``: the result is uint8. The range is that of integers, or of the activation "bound".
    """

    to_integers: bool = False
    has_residual: bool = False
    activation: str = ""
    factor: float = 1.0
    shift: float = 0.0
    low: float = 0
    high: float = 255


def result_shape(x: Sequence[int], product: IntegerProduct, kernel: Sequence[int]) -> tuple[int, ...]:
    """The shape of a product of (N, ..., C) and (O, ..., I)."""
    sizes = zip(x[1:-1], kernel[1:-1], product.strides, product.dilations, product.padding, strict=False)
    space = tuple((n + low + high - (k - 1) * d - 1) // s + 1 for n, k, s, d, (low, high) in sizes)
    return (*(space and x[:1] or x[:-1]), *space, kernel[0])


def spec(x: Sequence[int], product: IntegerProduct, epilogue: Epilogue, kernel: Sequence[int], dtype: str) -> list[int]:
    """The vector that describes a product to the native part (``native/src/product_spec.h``).

    Args:
      x: the data's shape, channels last; ``kernel``: that of the weights as (O, ..., I).
      dtype: of the data, one of ``DTYPES``.
    """
    e, y = epilogue, result_shape(x, product, kernel)
    result = "uint8" if e.to_integers else "float32" if dtype == "uint8" else dtype
    head = [DTYPES[dtype], DTYPES[result], int(bool(product.strides)), int(e.has_residual), ACTIVATIONS[e.activation],
            *map(native.float_bits, (e.factor, e.shift, e.low, e.high))]  # fmt: skip
    if not product.strides:
        return [*head, math.prod(x[:-1]), kernel[0], kernel[1], 1]

    def channels_second(shape: Sequence[int]) -> list[int]:
        return [shape[0], shape[-1], *shape[1:-1]]

    low, high = ([p[side] for p in product.padding] for side in (0, 1))
    shapes = [size for shape in (x, kernel, y) for size in channels_second(shape)]
    return [*head, len(x) - 2, product.groups, *shapes, *product.strides, *product.dilations, *low, *high]


@lru_cache(maxsize=4096)
def unsupported_reason(
    x: tuple[int, ...], product: IntegerProduct, epilogue: Epilogue, kernel: tuple[int, ...], dtype: str
) -> str:
    """Why the native part does not take a product; "" where it does."""
    if min((*x, *kernel, *result_shape(x, product, kernel))) <= 0:
        return "an empty array"
    return native.kernel_refusal("product", spec(x, product, epilogue, kernel, dtype)) or ""


def kernel_name(x: Sequence[int], product: IntegerProduct, epilogue: Epilogue, kernel: Sequence[int], dtype: str) -> str:
    """The name of the kernel for a product."""
    return native.kernel_words(str(native.part().library.describe("product", spec(x, product, epilogue, kernel, dtype))))


def has_few_rows(x: Sequence[int], product: IntegerProduct, kernel: Sequence[int], dtype: str) -> bool:
    """Whether a product is one of few rows, which the native part computes as fast as it can read the weights."""
    return kernel_name(x, product, Epilogue(), kernel, dtype) == native.FEW_ROWS


def packed_size(x: Sequence[int], product: IntegerProduct, epilogue: Epilogue, kernel: Sequence[int], dtype: str) -> int:
    """The bytes of weights in the layout that the kernel wants."""
    return int(native.part().library.describe("pack_weights", spec(x, product, epilogue, kernel, dtype)))


def call(x: Any, w: Any, vectors: Sequence[Any], product: IntegerProduct, epilogue: Epilogue, kernel: Sequence[int]) -> Any:
    """A product in a traced program.

    Args:
      x: data, channels last; ``w``: packed weights; ``kernel``: their shape as (O, ..., I).
      vectors: the scale (of integers alone), the offset, and the residual if there is one.
    """
    dtype = np.dtype(x.dtype)
    made = np.dtype(np.uint8) if epilogue.to_integers else np.dtype(np.float32) if dtype == np.uint8 else dtype
    result = jax.ShapeDtypeStruct(result_shape(x.shape, product, kernel), made)
    numbers = spec(x.shape, product, epilogue, kernel, dtype.name)
    return _ffi_call("product", result, numbers, x, w, *vectors)


def packing(x: Sequence[int], product: IntegerProduct, epilogue: Epilogue, kernel: Sequence[int], dtype: str) -> Attrs:
    """The attributes of ``PACK`` for the weights of a product. The arguments are those of ``spec``."""
    numbers = x, product, epilogue, kernel, dtype
    return {"spec": tuple(spec(*numbers)), "size": packed_size(*numbers)}


def _pack(w: Any, *, spec: tuple[int, ...], size: int) -> Any:
    return _ffi_call("pack_weights", jax.ShapeDtypeStruct((size,), np.int8), spec, w)


def _ffi_call(name: str, result: Any, spec: Sequence[int], *arrays: Any) -> Any:
    return jax.ffi.ffi_call(native.target(name), result)(*arrays, spec=np.array(spec, np.int64))


PACK = OpDef("pack_weights", _pack)


def offset_and_slope(steps: Affine, constants: Sequence[Any], rank: int, channel: int, channels: int) -> tuple[Any, Any]:
    """What ops that are affine per channel make of x: x * slope + offset. Vectors; the ops are differentiated, not known.

    Args:
      steps: the ops: their function, attributes, and number of constants.
      constants: what they read beside their first input, one after another.
      rank: of their arrays; ``channel``: the axis of channels; ``channels``: their number.
    """

    def through(x: Any) -> Any:
        rest = list(constants)
        for define, attrs, count in steps:
            x = define(x, *rest[:count], **attrs)
            del rest[:count]
        return x

    shape = [1] * rank
    shape[channel] = channels
    at = jnp.zeros(shape, np.float32)
    offset, slope = (v.reshape(-1) for v in jax.jvp(through, (at,), (jnp.ones_like(at),)))
    return offset, slope


def inferred(op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Shapes and dtypes of an op's outputs."""
    arrays = [jax.ShapeDtypeStruct(b.shape, b.dtype.numpy_dtype) for b in inputs]
    found = jax.eval_shape(partial(op.define, **attrs), *arrays)
    return list(found) if op.multiple_results else [found]


def node_like(op: OpDef, like: Node, inputs: tuple[Blob, ...], **attrs: Any) -> Node:
    """A node in the place of ``like``, with outputs of the shapes and dtypes that the op computes."""
    template = like.outputs[0]
    outputs = [
        template.copy(shape=tuple(o.shape), dtype=dtypes.of_values(o.dtype), valid_length=None, is_dynamic=False)
        for o in inferred(op, inputs, attrs)
    ]
    return like.copy(op=op, inputs=inputs, attrs=attrs, outputs=outputs)
