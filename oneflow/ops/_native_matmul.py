"""Matrix products by oneDNN inside XLA's programs, for CPUs: the native lowering of ``matmul``.

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

_MIN_FLOPS = 1 << 20  # below, a call costs more than it gains


@dataclass(frozen=True)
class Gemm:
    """C = A B of ``batch`` pairs of matrices. C is (m, n); A is (m, k), or (k, m) where it is transposed; B likewise.

    Where ``batch`` is 1 the arrays are matrices, otherwise they have a leading axis.
    """

    batch: int
    m: int
    n: int
    k: int
    a_transposed: bool
    b_transposed: bool

    def spec(self, a: Any, b: Any = None, c: Any = None) -> list[int]:
        """The vector that describes a call to the native part. ``a``, ``b`` and ``c``: dtypes, of A if None."""
        sizes = [self.batch, self.m, self.n, self.k, int(self.a_transposed), int(self.b_transposed)]
        return [_native.dtypes_code([a, b or a, c or a]), *sizes]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n) if self.batch == 1 else (self.batch, self.m, self.n)

    def grad_a(self) -> Gemm:
        """A's gradient: dC B^T; where A is transposed, B dC^T."""
        if self.a_transposed:
            return Gemm(self.batch, self.k, self.m, self.n, self.b_transposed, True)
        return Gemm(self.batch, self.m, self.k, self.n, False, not self.b_transposed)

    def grad_b(self) -> Gemm:
        """B's gradient: A^T dC; where B is transposed, dC^T A."""
        if self.b_transposed:
            return Gemm(self.batch, self.n, self.k, self.m, True, self.a_transposed)
        return Gemm(self.batch, self.k, self.n, self.m, not self.a_transposed, False)


@lru_cache(maxsize=4096)
def unsupported_reason(gemm: Gemm, dtype: str) -> str | None:
    """Why oneDNN does not take a product; None where it does."""
    if dtype not in _native.DTYPES:
        return f"oneDNN has no {dtype}"
    if min(gemm.batch, gemm.m, gemm.n, gemm.k) == 0:
        return "an empty array"
    if 2 * gemm.batch * gemm.m * gemm.n * gemm.k < _MIN_FLOPS:
        return "too small to gain by it"
    found = _native.part()
    if found.library is None:
        return found.reason
    for each in (gemm, gemm.grad_a(), gemm.grad_b()):
        name = found.library.describe("matmul", each.spec(np.dtype(dtype)))
        if name.startswith("!"):
            return f"oneDNN has no kernel: {name[2:]}"
        if "ref" in name:
            return f"oneDNN's kernel is a slow one ({name})"
    return None


def _call(gemm: Gemm, dtype: Any = None) -> Callable[[Array, Array], Array]:
    """A product; vmapped it becomes one of more rows, or of more pairs. ``dtype``: the result's, that of A if None."""

    @jax.custom_batching.custom_vmap
    def vmappable(a: Array, b: Array) -> Array:
        made = np.dtype(a.dtype if dtype is None else dtype)
        return _native.call("matmul", gemm.spec(a.dtype, b.dtype, made), gemm.shape, a, b, dtype=made)

    def rule(size: int, batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if list(batched) == [True, False] and gemm.batch == 1 and not gemm.a_transposed:
            rows = _call(replace(gemm, m=size * gemm.m), dtype)(a.reshape(-1, a.shape[-1]), b)
            return rows.reshape(size, *gemm.shape), True
        a, b = (v if is_batched else jnp.broadcast_to(v, (size, *v.shape)) for v, is_batched in zip((a, b), batched, strict=True))
        pairs = replace(gemm, batch=size * gemm.batch)
        a, b = (v.reshape(pairs.batch, *v.shape[-2:]) if pairs.batch > 1 else v.reshape(v.shape[-2:]) for v in (a, b))
        return _call(pairs, dtype)(a, b).reshape(size, *gemm.shape), True

    vmappable.def_vmap(rule)
    return vmappable


@lru_cache(maxsize=1024)
def differentiable(gemm: Gemm, narrow: bool = False) -> Callable[[Array, Array], Array]:
    """A product of a and b. ``narrow``: in bfloat16, of float32 arrays, with gradients in float32."""

    def cast(v: Array) -> Array:
        return v.astype(jnp.bfloat16) if narrow else v

    @jax.custom_vjp
    def run(a: Array, b: Array) -> Array:
        return _call(gemm)(cast(a), cast(b))

    def forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
        a, b = cast(a), cast(b)
        return _call(gemm)(a, b), (a, b)

    def backward(saved: tuple[Array, Array], dc: Array) -> tuple[Array, Array]:
        a, b = saved
        # one matrix b is a weight, whose gradient is summed in float32 and stays so; others are read in bfloat16 next
        to_a, to_b = _call(gemm.grad_a()), _call(gemm.grad_b(), np.float32 if narrow and gemm.batch == 1 else None)
        da, db = to_a(b, dc) if gemm.a_transposed else to_a(dc, b), to_b(dc, a) if gemm.b_transposed else to_b(a, dc)
        return (da.astype(np.float32), db.astype(np.float32)) if narrow else (da, db)

    run.defvjp(forward, backward)
    return run


# --- the op's lowering


def _gemm_of(a: Any, b: Any, attrs: Mapping[str, Any]) -> Gemm | str:
    """The one product that an op computes; where it is not one, a sentence that says why."""
    a_transposed, b_transposed = attrs["transpose_a"], attrs["transpose_b"]
    m, k = a.shape[-2:][::-1] if a_transposed else a.shape[-2:]
    n = b.shape[-2] if b_transposed else b.shape[-1]
    if b.ndim == 2 and (a.ndim == 2 or not a_transposed):
        return Gemm(1, math.prod(a.shape[:-1]) if a.ndim > 2 else m, n, k, a_transposed, b_transposed)
    if a.shape[:-2] != b.shape[:-2]:
        return "its leading axes are broadcast"
    return Gemm(math.prod(a.shape[:-2]), m, n, k, a_transposed, b_transposed)


def matmul(a: Array, b: Array, *, alpha: int | float, narrow: bool = False, **attrs: Any) -> Array:
    """``matmul`` by oneDNN."""
    gemm = _gemm_of(a, b, attrs)
    assert isinstance(gemm, Gemm)
    shape = (*a.shape[:-2], gemm.m if b.ndim > 2 or a.ndim == 2 else a.shape[-2], gemm.n)
    a, b = (v.reshape(gemm.batch, *v.shape[-2:]) if gemm.batch > 1 else v.reshape(-1, v.shape[-1]) for v in (a, b))
    y = differentiable(gemm, narrow)(a, b).reshape(shape)
    return y if alpha == 1 else y * like(alpha, y)


def _matmul_unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    a, b = arrays
    gemm = _gemm_of(a, b, attrs)
    return gemm if isinstance(gemm, str) else unsupported_reason(gemm, np.dtype(a.dtype).name)


def _matmul_describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    a, b = arrays
    gemm = _gemm_of(a, b, attrs)
    assert isinstance(gemm, Gemm)
    return f"oneDNN {_native.part().library.describe('matmul', gemm.spec(a.dtype))}"


NATIVE = Native(matmul, _matmul_unsupported_reason, _matmul_describe, sharded=False)
