"""Softmax cross-entropy of labels by the native part: the native lowering of ``sparse_softmax_cross_entropy``.

XLA reads the logits three times, and makes loops of the sums that its exponentials are not vectorized in as well. Here they are
read once by the loss and once by its gradient, which replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp, lax
from ..graph.op import Native
from ._arrays import Array, like

FLOOR = 1e-20  # the lowest probability: smaller ones are raised to it
_MIN_LOGITS = 1 << 14  # below, a call costs more than it gains


def _spec(dtype: Any, rows: int, classes: int) -> list[int]:
    """The vector that describes a call to the native part."""
    return [_native.dtype_code(dtype), rows, classes, _native.float_bits(-math.log(FLOOR))]


@lru_cache(maxsize=1024)
def _refusal(dtype: str, rows: int, classes: int) -> str | None:
    """Why the native part does not compute it; None where it does."""
    reason = _native.array_refusal(dtype, (rows, classes))
    if reason is None and rows * classes < _MIN_LOGITS:
        return "too small to gain by it"
    return reason or _native.kernel_refusal("cross_entropy", _spec(np.dtype(dtype), rows, classes))


@lru_cache(maxsize=1024)
def differentiable(samples: int, rows: int, classes: int, sharded: bool = False) -> Callable[[Array, Array], Array]:
    """The losses, float32, of logits (rows, classes) and labels, int32 (rows); differentiable in the logits.

    ``sharded``: they may be, over several devices, the samples unevenly, too; then they are (samples, rows of one[, classes]).
    """

    def result(logits: Array, labels: Array) -> Any:
        each, spec = (labels.shape, np.float32), _spec(logits.dtype, labels.size, classes)
        return _native.call_several("cross_entropy", spec, [each, ((*labels.shape, 2), np.float32)], logits, labels)

    def gradient(logits: Array, labels: Array, *others: Array) -> Any:
        spec, made = _spec(logits.dtype, labels.size, classes), (logits.shape, logits.dtype)
        return _native.call_several("cross_entropy_grad", spec, [made], logits, labels, *others, aliases={0: 0})[0]

    sizes, scores, each, normalizers = {"b": samples, "r": rows, "c": classes, "n": 2}, "b r c", "b r", "b r n"
    run = _native.split_over_devices(lambda _: result, sizes, [scores, each], [each, normalizers], "b r", sharded)
    run_back = _native.split_over_devices(lambda _: gradient, sizes, [scores, each, normalizers, each], [scores], "b r", sharded)

    @jax.custom_vjp
    def losses(logits: Array, labels: Array) -> Array:
        return run(logits, labels)[0]

    def forward(logits: Array, labels: Array) -> tuple[Array, Any]:
        loss, normalizer = run(logits, labels)
        return loss, (logits, labels, normalizer)

    def backward(saved: Any, dy: Array) -> tuple[Array, np.ndarray]:
        return run_back(*saved, dy), np.zeros(saved[1].shape, jax.dtypes.float0)

    losses.defvjp(forward, backward)
    return losses


def _as_int32(labels: Array, classes: int) -> Array:
    """Labels as the native part takes them; what does not fit is no class before and after."""
    if labels.dtype.itemsize >= 4 and labels.dtype != np.int32:
        least = -1 if np.issubdtype(labels.dtype, np.signedinteger) else 0
        labels = lax.clamp(like(least, labels), labels, like(classes, labels))
    return lax.convert_element_type(labels, np.int32)


# --- the op's lowering


def lower(labels: Array, logits: Array, *, sharded: bool = False, narrow: bool = False) -> Array:
    """``sparse_softmax_cross_entropy``; ``narrow``: of float32 logits that are read in bfloat16."""
    shape, classes = logits.shape[:-1], logits.shape[-1]
    rows = shape[0], math.prod(shape[1:])
    x = logits.astype(jnp.bfloat16) if narrow else logits
    # Matrices where they may be: products give such, and behind a reshape XLA copies what a call overwrites.
    each = rows if sharded else (math.prod(rows),)
    losses = differentiable(*rows, classes, sharded)(x.reshape(*each, classes), _as_int32(labels, classes).reshape(each))
    return losses.reshape(shape).astype(logits.dtype)


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    shape = arrays[1].shape
    return _refusal(np.dtype(arrays[1].dtype).name, math.prod(shape[:-1]), shape[-1])


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    shape = arrays[1].shape
    spec = _spec(arrays[1].dtype, math.prod(shape[:-1]), shape[-1])
    return f"cross-entropy in {_native.part().library.describe('cross_entropy', spec)}"


NATIVE = Native(lower, _unsupported_reason, _describe, follows=True)
