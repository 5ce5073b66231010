"""Matrix products by oneDNN inside XLA's programs, for CPUs: the native lowering of ``matmul``.

XLA's own products of such sizes take 1.2 to 2.5 times as long (docs/performance-kernels.md), most where a gradient is a product
with its first matrix transposed.
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
from .._base.rounding import to_bfloat16
from ..graph.op import Native
from ._arrays import Array, like

_MIN_FLOPS = 1 << 20  # below, a call costs more than it gains


@dataclass(frozen=True)
class Gemm:
    """C = A B of ``batch`` pairs of matrices. C is (m, n); A is (m, k), or (k, m) where it is transposed; B likewise.

    Where ``batch`` is 1 the arrays are matrices, otherwise they have a leading axis. Where ``lead`` is more than 1, the first
    axis of A, and the same one of the other arrays, is two, of this size and of the rest: samples that devices divide unevenly
    would be gathered if their axis were joined with another.
    """

    batch: int
    m: int
    n: int
    k: int
    a_transposed: bool
    b_transposed: bool
    lead: int = 1

    def spec(self, a: Any, b: Any = None, c: Any = None) -> list[int]:
        """The vector that describes a call to the native part. ``a``, ``b`` and ``c``: dtypes, of A if None."""
        sizes = [self.batch, self.m, self.n, self.k, int(self.a_transposed), int(self.b_transposed)]
        return [_native.dtypes_code([a, b or a, c or a]), *sizes]

    @property
    def shape(self) -> tuple[int, ...]:
        rows = (self.m,) if self.lead == 1 or self.a_transposed else (self.lead, self.m // self.lead)
        return (*rows, self.n) if self.batch == 1 else (self.batch, self.m, self.n)

    def grad_a(self) -> Gemm:
        """A's gradient: dC B^T; where A is transposed, B dC^T."""
        if self.a_transposed:
            return Gemm(self.batch, self.k, self.m, self.n, self.b_transposed, True)
        return Gemm(self.batch, self.m, self.k, self.n, False, not self.b_transposed, self.lead)

    def grad_b(self) -> Gemm:
        """B's gradient: A^T dC; where B is transposed, dC^T A."""
        if self.b_transposed:
            return Gemm(self.batch, self.n, self.k, self.m, True, self.a_transposed, self.lead)
        return Gemm(self.batch, self.k, self.n, self.m, not self.a_transposed, False, self.lead)


@lru_cache(maxsize=4096)
def unsupported_reason(gemm: Gemm, dtype: str) -> str | None:
    """Why oneDNN does not take a product; None where it does."""
    reason = _native.array_refusal(dtype, (gemm.batch, gemm.m, gemm.n, gemm.k))
    if reason is None and 2 * gemm.batch * gemm.m * gemm.n * gemm.k < _MIN_FLOPS:
        return "too small to gain by it"
    each = (gemm, gemm.grad_a(), gemm.grad_b())
    computed = np.dtype(_native.product_dtype(dtype))
    return reason or _native.kernel_refusal("matmul", *(product.spec(computed) for product in each))


def _call(gemm: Gemm, dtype: Any = None, sharded: bool = False) -> Callable[[Array, Array], Array]:
    """A product; vmapped it becomes one of more rows, or of more pairs.

    Args:
      gemm: its sizes.
      dtype: the result's, that of A if None.
      sharded: the matrices may be sharded over several devices.
    """

    def compute(a: Array, b: Array) -> Array:
        made = np.dtype(a.dtype if dtype is None else dtype)
        return _sharded(gemm, made)(a, b) if sharded else _on_one_device(gemm, made, a, b)

    vmappable = jax.custom_batching.custom_vmap(compute)

    def rule(size: int, batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if list(batched) == [True, False] and gemm.batch == 1 and not gemm.a_transposed:
            more = replace(gemm, m=size * gemm.m, lead=size * gemm.lead if gemm.lead > 1 else 1)
            return _call(more, dtype, sharded)(a.reshape(-1, *a.shape[2:]), b).reshape(size, *gemm.shape), True
        a, b = (v if is_batched else jnp.broadcast_to(v, (size, *v.shape)) for v, is_batched in zip((a, b), batched, strict=True))
        pairs = replace(gemm, batch=size * gemm.batch, lead=1)
        leading = () if pairs.batch == 1 else (pairs.batch,)
        a, b = (v.reshape(*leading, -1, v.shape[-1]) for v in (a, b))
        return _call(pairs, dtype, sharded)(a, b).reshape(size, *gemm.shape), True

    vmappable.def_vmap(rule)
    return vmappable


def _on_one_device(gemm: Gemm, dtype: Any, a: Array, b: Array) -> Array:
    return _native.product("matmul", gemm.spec, gemm.shape, a, b, dtype)


# --- on several devices


@lru_cache(maxsize=1024)
def _sharded(gemm: Gemm, dtype: Any) -> Callable[[Array, Array], Array]:
    """A product of which each device computes the part that its pieces of the matrices yield.

    Rows of A, columns of B and pairs may be split; where the axis that is summed over is, the devices' products are added up.
    """
    pair = "p " if gemm.batch > 1 else ""
    names_a, names_b = ("k m", "m k")[not gemm.a_transposed], ("n k", "k n")[not gemm.b_transposed]
    sizes = {"l": gemm.lead, "p": gemm.batch, "m": gemm.m, "n": gemm.n, "k": gemm.k}
    given, made, first = [pair + names_a, pair + names_b], pair + "m n", names_a[0]
    if gemm.lead > 1:
        sizes[first] //= gemm.lead
        given, made = [names.replace(first, f"l {first}") for names in given], made.replace(first, f"l {first}")

    def compute(pieces: Mapping[str, int]) -> Callable[[Array, Array], Array]:
        whole = {**pieces, first: pieces["l"] * pieces[first]}
        mine = replace(gemm, batch=pieces["p"], m=whole["m"], n=whole["n"], k=whole["k"], lead=1)
        made_dtype = np.dtype(np.float32) if mine.k < gemm.k else dtype  # addends are

        def run(a: Array, b: Array) -> Array:
            if gemm.lead > 1:
                a, b = (v.reshape(-1, v.shape[-1]) for v in (a, b))
            return _of_pieces(mine, made_dtype, a, b).reshape([pieces[name] for name in made.split()])

        return run

    return _native.split_over_devices(compute, sizes, given, [made], "l p m n k")


def _of_pieces(gemm: Gemm, dtype: Any, a: Array, b: Array) -> Array:
    """A product by oneDNN, or by XLA where it is too small."""
    if gemm.batch == 1 and a.ndim == 3:
        return _of_pieces(gemm, dtype, a[0], b[0])
    if unsupported_reason(gemm, np.dtype(a.dtype).name) is None:
        return _on_one_device(gemm, dtype, a, b)
    pairs = tuple(range(a.ndim - 2))
    summed = (a.ndim - (2 if gemm.a_transposed else 1),), (b.ndim - (1 if gemm.b_transposed else 2),)
    return jax.lax.dot_general(a, b.astype(a.dtype), (summed, (pairs, pairs)), preferred_element_type=dtype)


@lru_cache(maxsize=1024)
def differentiable(gemm: Gemm, narrow: bool = False, sharded: bool = False) -> Callable[[Array, Array], Array]:
    """A product of a and b.

    ``narrow``: in bfloat16, of float32 arrays, with gradients in float32. ``sharded``: the arrays may be, over several devices.
    """

    def cast(v: Array) -> Array:
        return to_bfloat16(v) if narrow else v

    @jax.custom_vjp
    def run(a: Array, b: Array) -> Array:
        return _call(gemm, None, sharded)(cast(a), cast(b))

    def forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
        a, b = cast(a), cast(b)
        return _call(gemm, None, sharded)(a, b), (a, b)

    def backward(saved: tuple[Array, Array], dc: Array) -> tuple[Array, Array]:
        a, b = saved
        # one matrix b is a weight, whose gradient is summed in float32 and stays so; others are read in bfloat16 next
        to_a = _call(gemm.grad_a(), None, sharded)
        to_b = _call(gemm.grad_b(), np.float32 if narrow and gemm.batch == 1 else None, sharded)
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


def matmul(a: Array, b: Array, *, alpha: int | float, sharded: bool = False, narrow: bool = False, **attrs: Any) -> Array:
    """``matmul`` by oneDNN."""
    gemm = _gemm_of(a, b, attrs)
    assert isinstance(gemm, Gemm)
    shape = (*a.shape[:-2], gemm.m if b.ndim > 2 or a.ndim == 2 else a.shape[-2], gemm.n)
    if sharded and a.ndim > b.ndim:
        gemm = replace(gemm, lead=a.shape[0])
    leading = (gemm.batch,) if gemm.batch > 1 else (gemm.lead,) if gemm.lead > 1 else ()
    a, b = a.reshape(*leading, -1, a.shape[-1]), b.reshape(*leading[: b.ndim - 2], -1, b.shape[-1])
    y = differentiable(gemm, narrow, sharded)(a, b).reshape(shape)
    return y if alpha == 1 else y * like(alpha, y)


def _matmul_unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    a, b = arrays
    gemm = _gemm_of(a, b, attrs)
    return gemm if isinstance(gemm, str) else unsupported_reason(gemm, np.dtype(a.dtype).name)


def _matmul_describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    a, b = arrays
    gemm = _gemm_of(a, b, attrs)
    assert isinstance(gemm, Gemm)
    dtype = np.dtype(a.dtype).name
    return _native.product_words(_native.product_kernel("matmul", gemm.spec, dtype), dtype)


NATIVE = Native(matmul, _matmul_unsupported_reason, _matmul_describe, sharded="each device its pieces, small ones by XLA")
