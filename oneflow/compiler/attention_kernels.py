"""Attention by the native part: softmax(factor Q K^T + mask) V as one call, and its three gradients as another.

Neither call has an array of queries times keys. ``attention.py`` finds the ops of a job that compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp, lax
from ..graph.op import Native, OpDef

Array = Any
Perm = tuple[int, ...]
HEADS_FIRST: Perm = (0, 1, 2, 3)
_MAX_HEAD_SIZE = 128  # the native part takes up to 256, which is no faster than two products and a softmax
_MIN_POSITIONS = 8  # of queries and of keys; nothing is known to gain below
FEW_QUERIES = 4  # so many are taken one by one where no gradient is wanted
_MIN_KEYS = 16  # of those


@dataclass(frozen=True)
class Attention:
    """The sizes of a call, and where its arrays keep their axes.

    Attributes:
      batch, heads, queries, keys, size: as in queries (batch, heads, queries, size).
      perms: of the arrays of queries, keys and values, the axes that hold (batch, heads, positions, size); last, the same of
        the result.
      factor: of the products.
      mask: which axes of (batch, heads, queries, keys) the mask has; None without a mask.
      causal: (diagonal, fill): products of keys beyond query + diagonal are replaced by fill. None where all keys count.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    perms: tuple[Perm, Perm, Perm, Perm] = (HEADS_FIRST,) * 4
    factor: float = 1.0
    mask: tuple[bool, ...] | None = None
    causal: tuple[int, float] | None = None

    def shape(self, perm: Perm, positions: int) -> tuple[int, ...]:
        """The shape of an array with these axes."""
        sizes = (self.batch, self.heads, positions, self.size)
        return tuple(sizes[perm.index(axis)] for axis in range(4))

    def part(self, pieces: Mapping[str, int]) -> Attention:
        """What a device computes that has so many of the batch (b), and of the heads (h)."""
        return replace(self, batch=pieces["b"], heads=pieces["h"])

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self.shape(self.perms[3], self.queries)

    def spec(self, dtype: Any) -> list[int]:
        """The vector that describes a call to the native part."""
        made = [_native.dtype_code(dtype), self.batch, self.heads, self.queries, self.keys, self.size]
        for perm, positions in zip(self.perms, (self.queries, self.keys, self.keys, self.queries), strict=True):
            shape = self.shape(perm, positions)
            strides = [math.prod(shape[axis + 1 :]) for axis in range(4)]
            made += [strides[axis] for axis in perm[:3]]
        made += [int(self.mask is not None), *(int(varies) for varies in reversed(self.mask or (False,) * 4))]
        diagonal, fill = self.causal or (0, 0.0)
        limit = self.queries + self.keys  # beyond that it makes no difference
        return [
            *made,
            _native.float_bits(self.factor),
            int(self.causal is not None),
            max(-limit, min(diagonal, limit)),
            _native.float_bits(fill),
        ]


@lru_cache(maxsize=1024)
def unsupported_reason(a: Attention, dtype: str) -> str | None:
    """Why the native part does not compute it; None where it does."""
    reason = _native.array_refusal(dtype, (a.batch, a.heads, a.queries, a.keys))
    if reason is not None:
        return reason
    if a.size % 16 or not 0 < a.size <= _MAX_HEAD_SIZE:
        return f"the size of a head, {a.size}, is not a multiple of 16 up to {_MAX_HEAD_SIZE}"
    if any(perm[3] != 3 for perm in a.perms):
        return "the elements of a head do not lie side by side"
    return _native.kernel_refusal("attention", a.spec(np.dtype(dtype)))


@lru_cache(maxsize=1024)
def differentiable(a: Attention, sharded: bool = False) -> Callable[..., Array]:
    """Attention of (q, k, v, mask), differentiable in the first three. Without a mask its array is not looked at.

    ``sharded``: the arrays may be, over several devices.
    """

    def result(pieces: Mapping[str, int]) -> Callable[..., Any]:
        mine = a.part(pieces)

        def compute(q: Array, k: Array, v: Array, mask: Array) -> Any:
            made = [(mine.result_shape, q.dtype), ((mine.batch, mine.heads, mine.queries, 2), np.float32)]
            return _native.call_several("attention", mine.spec(q.dtype), made, q, k, v, mask)

        return compute

    def gradients(pieces: Mapping[str, int]) -> Callable[..., Any]:
        def compute(*arrays: Array) -> Any:
            made = [(x.shape, x.dtype) for x in arrays[:3]]
            return _native.call_several("attention_grad", a.part(pieces).spec(arrays[0].dtype), made, *arrays)

        return compute

    ones = ("i", "j", "m", "n")  # axes that the mask does not have
    sizes = {"b": a.batch, "h": a.heads, "q": a.queries, "k": a.keys, "d": a.size, "s": 2, **dict.fromkeys(ones, 1)}
    q, k, v, y = (" ".join(f"bh{p}d"[perm.index(axis)] for axis in range(4)) for perm, p in zip(a.perms, "qkkq", strict=True))
    names = zip("bhqk", ones, a.mask or (), strict=a.mask is not None)
    mask = " ".join(axis if varies else one for axis, one, varies in names) or ones[0]
    given, statistics = [q, k, v, mask], "b h q s"
    run = _native.split_over_devices(result, sizes, given, [y, statistics], "b h", sharded)
    run_back = _native.split_over_devices(gradients, sizes, [*given, y, statistics, y], [q, k, v], "b h", sharded)

    @jax.custom_vjp
    def attended(q: Array, k: Array, v: Array, mask: Array) -> Array:
        return run(q, k, v, mask)[0]

    def forward(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, Any]:
        y, kept = run(q, k, v, mask)
        return y, (q, k, v, mask, y, kept)

    def backward(saved: Any, dy: Array) -> tuple[Array, ...]:
        return (*run_back(*saved, dy), jnp.zeros_like(saved[3]))

    attended.defvjp(forward, backward)
    return attended


# --- the op of a node that stands for all of it


def unpacked(arrays: Sequence[Any], size: int) -> tuple[Any, ...]:
    """(q, k, v[, mask]), where the first array holds all three as (positions, batch, heads * 3 * size), unless size is 0."""
    if not size:
        return tuple(arrays)
    x = arrays[0]
    length, batch, hidden = x.shape
    heads = hidden // (3 * size)
    if isinstance(x, jax.ShapeDtypeStruct):
        parts = [jax.ShapeDtypeStruct((length, batch, heads, size), x.dtype)] * 3
    else:
        split = x.reshape(length, batch, heads, 3, size)
        parts = [split[:, :, :, i] for i in range(3)]
    return (*parts, *arrays[1:])


def sizes_of(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Attention:
    """What a node computes, of (q, k, v[, mask]). Arrays of three axes have one head."""
    perms, shapes, rank = attrs["perms"], [tuple(a.shape) for a in arrays], len(arrays[0].shape)
    if rank == 3:
        perms, shapes[:3] = (HEADS_FIRST,) * 4, [(s[0], 1, *s[1:]) for s in shapes[:3]]
    batch, heads, queries, size = (shapes[0][axis] for axis in perms[0])
    mask = tuple(n != 1 for n in in_four(shapes[3], rank)) if len(arrays) > 3 else None
    return Attention(batch, heads, queries, shapes[1][perms[1][2]], size, perms, attrs["factor"], mask, attrs["causal"])


def in_four(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The shape of a mask with all axes of the scores, which have ``rank`` of them; then with one of heads."""
    full = (1,) * (rank - len(shape)) + shape
    return full if rank == 4 else (full[0], 1, *full[1:])


def lower(*arrays: Array, sharded: bool = False, narrow: bool = False, **attrs: Any) -> Array:
    """Attention by the native part; ``narrow``: in bfloat16, of float32 arrays."""
    arrays = unpacked(arrays, attrs["packed"])
    rank = arrays[0].ndim
    qkv = arrays[:3] if rank == 4 else [x.reshape(x.shape[0], 1, *x.shape[1:]) for x in arrays[:3]]
    mask = jnp.zeros((1,), np.float32)
    if len(arrays) > 3:
        mask = arrays[3].reshape(in_four(arrays[3].shape, rank)).astype(np.float32) * np.float32(attrs["mask_sign"])
    qkv = [x.astype(jnp.bfloat16) if narrow else x for x in qkv]
    y = differentiable(sizes_of(arrays, attrs), sharded)(*qkv, mask)
    return y if rank == 4 else y.reshape(y.shape[0], *y.shape[2:])


def define(*arrays: Array, perms: Any, factor: float, mask_sign: int, causal: tuple[int, float] | None, packed: int) -> Array:
    """The same by XLA."""
    q, k, v, *mask = unpacked(arrays, packed)
    rank = q.ndim
    if rank == 4:
        q, k, v = (lax.transpose(x, perm) for x, perm in zip((q, k, v), perms[:3], strict=True))
    scores = jnp.einsum("...qd,...kd->...qk", q, k) * np.asarray(factor, q.dtype)
    if mask:
        scores = scores + mask[0] * np.asarray(mask_sign, scores.dtype)
    if causal is not None:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape, scores.ndim - axis) for axis in (2, 1))
        scores = jnp.where(columns <= rows + causal[0], scores, np.asarray(causal[1], scores.dtype))
    weights = jax.nn.softmax(scores.astype(np.promote_types(scores.dtype, np.float32)), -1).astype(scores.dtype)
    y = jnp.einsum("...qk,...kd->...qd", weights, v)
    return y if rank == 3 else lax.transpose(y, [perms[3].index(axis) for axis in range(4)])


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    sizes = sizes_of(unpacked(arrays, attrs["packed"]), attrs)
    reason = unsupported_reason(sizes, np.dtype(arrays[0].dtype).name)
    few = sizes.queries <= FEW_QUERIES
    if reason is None and (sizes.keys < _MIN_KEYS if few else min(sizes.queries, sizes.keys) < _MIN_POSITIONS):
        return "too short to gain by it"
    if few:
        return reason
    if reason is None and sizes.batch * sizes.heads < _native.part().library.threads:
        return "there are more threads than heads"
    return reason


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    sizes = sizes_of(unpacked(arrays, attrs["packed"]), attrs)
    return f"attention in one call, {_native.part().library.describe('attention', sizes.spec(arrays[0].dtype))}"


def _narrowed_inputs(attrs: Mapping[str, Any]) -> int:
    return 1 if attrs["packed"] else 3  # without the mask


NATIVE = Native(lower, _unsupported_reason, _describe, narrowed_inputs=_narrowed_inputs)
ATTENTION = OpDef("attention", define, native=NATIVE)
