"""Chooses the lowering of an op in a step: XLA's, or that of the native part.

``without`` says throughout why no op takes its native lowering; "" where some may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base import native as _native
from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.node import Blob, Node

SWITCHED_OFF = "switched off by flow.config.enable_native_cpu(False)"
NO_CPU = "the device is not a CPU"


def computes_bfloat16(without: str) -> bool:
    """Whether the native part computes products of bfloat16 numbers. Says once where that is not faster than float32."""
    _native.has_bfloat16()
    return not without


def choose(node: Node, arrays: Sequence[Any], without: str, local: bool = False) -> Callable[..., Any]:
    """The lowering of a node for arrays of these shapes and dtypes.

    ``local``: they are those that one of several devices has.
    """
    native = node.op.native
    if native is None or _unsupported_reason(node, arrays, without) is not None:
        return node.op.define
    return partial(native.lower, sharded=True) if _is_sharded(node) and not local else native.lower


def choose_narrowing(
    node: Node, arrays: Sequence[Any], without: str, narrow: dtype | None, local: bool = False
) -> Callable[..., Any] | None:
    """The native lowering of a node that computes these float32 arrays in the dtype ``narrow``; None if there is none."""
    native = node.op.native
    if native is None or not native.narrows or narrow is not dtypes.bfloat16:
        return None
    if any(a.dtype != np.float32 and a.dtype.kind not in "iu" for a in arrays):
        return None
    casts = [narrow.numpy_dtype if a.dtype == np.float32 else a.dtype for a in arrays]
    lower = choose(node, [jax.ShapeDtypeStruct(a.shape, cast) for a, cast in zip(arrays, casts, strict=True)], without, local)
    return None if lower is node.op.define else partial(lower, narrow=True)


def narrowed_inputs(node: Node, narrow: dtype) -> int:
    """How many of a node's inputs, from the first on, its native lowering casts to ``narrow``; 0 where it does not take it."""
    native = node.op.native
    if native is None or not native.narrows or not is_native(node, narrow):
        return 0
    return len(node.inputs) if native.narrowed_inputs is None else native.narrowed_inputs(node.attrs)


def is_native(node: Node, narrow: dtype | None) -> bool:
    """Whether a node takes its native lowering for the shapes it was declared with, where native lowerings may be taken.

    ``narrow`` is the dtype that its float32 arrays are cast to, None where they are not.
    """
    return node.op.native is not None and unsupported_reason(node, narrow) is None


def unsupported_reason(node: Node, narrow: dtype | None) -> str | None:
    """Why a node that has a native lowering does not take it; None where it does. ``narrow``: see ``is_native``."""
    return _unsupported_reason(node, declared(node, narrow), "")


def describe(node: Node, without: str, narrow: dtype | None) -> str:
    """The kernel that computes a node, or why that is XLA's; "" for ops that have one lowering. ``narrow``: see ``is_native``."""
    native = node.op.native
    if native is None:
        return ""
    arrays = declared(node, narrow)
    reason = _unsupported_reason(node, arrays, without)
    if reason is not None:
        return f"XLA: {reason}"
    return native.describe(arrays, node.attrs) + (f", {native.sharded}" if _is_sharded(node) else "")


def _unsupported_reason(node: Node, arrays: Sequence[Any], without: str) -> str | None:
    native = node.op.native
    assert native is not None
    if without:
        return without
    if _is_sharded(node) and not native.sharded:
        return "its arrays are sharded over several devices"
    return native.unsupported_reason(arrays, node.attrs)


def _is_sharded(node: Node) -> bool:
    return node.scope.placement.parallel_num > 1


def declared(node: Node, narrow: dtype | None) -> list[Any]:
    """Shapes and dtypes of the inputs of a node as it was declared. ``narrow``: see ``is_native``."""

    def dtype_of(b: Blob) -> Any:
        return (b.dtype if narrow is None or b.dtype.name != "float32" else narrow).numpy_dtype

    return [jax.ShapeDtypeStruct(b.shape, dtype_of(b)) for b in node.inputs]
