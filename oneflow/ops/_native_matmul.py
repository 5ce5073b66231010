"""Matrix products by oneDNN inside XLA's programs, for CPUs: what ``matmul`` becomes where it can.

XLA's own products of such sizes take 1.2 to 2.5 times as long (docs/performance.md), most where a gradient is a product with
its first matrix transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp
from ..graph.op import Native
from ._arrays import Array, like

_LEAST_WORK = 1 << 20  # floating point operations: below, a call costs more than it gains


@dataclass(frozen=True)
class Product:
    """C = A B, of ``batch`` pairs of matrices: C is (m, n); A is (m, k), or (k, m) where it lies transposed; B likewise."""

    batch: int
    m: int
    n: int
    k: int
    a_transposed: bool
    b_transposed: bool

    def spec(self, dtype: Any) -> list[int]:
        """The vector that the native part reads."""
        sizes = [self.batch, self.m, self.n, self.k, int(self.a_transposed), int(self.b_transposed)]
        return [_native.DTYPES[np.dtype(dtype).name], *sizes]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n) if self.batch == 1 else (self.batch, self.m, self.n)

    def of_a(self) -> Product:
        """A's gradient: C's times B transposed; where A lies transposed, B times C's transposed."""
        if self.a_transposed:
            return Product(self.batch, self.k, self.m, self.n, self.b_transposed, True)
        return Product(self.batch, self.m, self.k, self.n, False, not self.b_transposed)

    def of_b(self) -> Product:
        """B's gradient: A transposed times C's; where B lies transposed, C's transposed times A."""
        if self.b_transposed:
            return Product(self.batch, self.n, self.k, self.m, True, self.a_transposed)
        return Product(self.batch, self.k, self.n, self.m, not self.a_transposed, False)


@lru_cache(maxsize=4096)
def objection(p: Product, dtype: str) -> str | None:
    """Why oneDNN does not take a product; None where it does."""
    if dtype not in _native.DTYPES:
        return f"{dtype} is not among oneDNN's"
    if min(p.batch, p.m, p.n, p.k) == 0:
        return "an empty array"
    if 2 * p.batch * p.m * p.n * p.k < _LEAST_WORK:
        return "too small to gain by it"
    found = _native.part()
    if found.library is None:
        return found.reason
    for each in (p, p.of_a(), p.of_b()):
        name = found.library.describe("matmul", each.spec(dtype))
        if name.startswith("!"):
            return f"oneDNN has no kernel: {name[2:]}"
        if "ref" in name:
            return f"oneDNN's kernel is a slow one ({name})"
    return None


def _call(p: Product, a: Array, b: Array) -> Array:
    call = jax.ffi.ffi_call(_native.target("matmul"), jax.ShapeDtypeStruct(p.shape, a.dtype))
    made: Array = call(a, b, spec=np.array(p.spec(a.dtype), np.int64))
    return made


def _primitive(p: Product) -> Callable[[Array, Array], Array]:
    """A product; mapped over a further axis it becomes one of more rows, or of more pairs."""
    made = jax.custom_batching.custom_vmap(lambda a, b: _call(p, a, b))

    def rule(size: int, batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if list(batched) == [True, False] and p.batch == 1 and not p.a_transposed:
            return _primitive(replace(p, m=size * p.m))(a.reshape(-1, a.shape[-1]), b).reshape(size, *p.shape), True
        a, b = (v if is_batched else jnp.broadcast_to(v, (size, *v.shape)) for v, is_batched in zip((a, b), batched, strict=True))
        more = replace(p, batch=size * p.batch)
        a, b = (v.reshape(more.batch, *v.shape[-2:]) if more.batch > 1 else v.reshape(v.shape[-2:]) for v in (a, b))
        return _primitive(more)(a, b).reshape(size, *p.shape), True

    made.def_vmap(rule)
    return made


@lru_cache(maxsize=1024)
def _differentiable(p: Product) -> Callable[[Array, Array], Array]:
    @jax.custom_vjp
    def run(a: Array, b: Array) -> Array:
        return _primitive(p)(a, b)

    def forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
        return run(a, b), (a, b)

    def backward(kept: tuple[Array, Array], dc: Array) -> tuple[Array, Array]:
        a, b = kept
        to_a, to_b = _primitive(p.of_a()), _primitive(p.of_b())
        return to_a(b, dc) if p.a_transposed else to_a(dc, b), to_b(dc, a) if p.b_transposed else to_b(a, dc)

    run.defvjp(forward, backward)
    return run


# --- as the op's other lowering


def _product(a: Any, b: Any, attrs: Mapping[str, Any]) -> Product | str:
    """What an op computes; a sentence where that is not one product."""
    over_a, over_b = attrs["transpose_a"], attrs["transpose_b"]
    m, k = a.shape[-2:][::-1] if over_a else a.shape[-2:]
    n = b.shape[-2] if over_b else b.shape[-1]
    if b.ndim == 2 and (a.ndim == 2 or not over_a):
        return Product(1, math.prod(a.shape[:-1]) if a.ndim > 2 else m, n, k, over_a, over_b)
    if a.shape[:-2] != b.shape[:-2]:
        return "its leading axes are broadcast"
    return Product(math.prod(a.shape[:-2]), m, n, k, over_a, over_b)


def matmul(a: Array, b: Array, *, alpha: int | float, **attrs: Any) -> Array:
    """``matmul`` by oneDNN, to be called where ``reason`` has nothing to say."""
    p = _product(a, b, attrs)
    assert isinstance(p, Product)
    shape = (*a.shape[:-2], p.m if b.ndim > 2 or a.ndim == 2 else a.shape[-2], p.n)
    a, b = (v.reshape(p.batch, *v.shape[-2:]) if p.batch > 1 else v.reshape(-1, v.shape[-1]) for v in (a, b))
    y = _differentiable(p)(a, b).reshape(shape)
    return y if alpha == 1 else y * like(alpha, y)


def reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    """Why an op's product stays with XLA; None where it goes to oneDNN."""
    a, b = arrays
    p = _product(a, b, attrs)
    return p if isinstance(p, str) else objection(p, np.dtype(a.dtype).name)


def word(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    """What computes it, for the op table."""
    a, b = arrays
    p = _product(a, b, attrs)
    assert isinstance(p, Product)
    return f"oneDNN {_native.part().library.describe('matmul', p.spec(a.dtype))}"


NATIVE = Native(matmul, reason, word, spreads=False)
