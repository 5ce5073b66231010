"""Which of an op's lowerings a step uses: XLA's, or that of the native part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.node import Blob, Node

SWITCHED_OFF = "switched off by flow.config.enable_native_cpu(False)"
NO_CPU = "the device is no CPU"


def choose(node: Node, arrays: Sequence[Any], without: str, threads: int = 0) -> Callable[..., Any]:
    """The lowering of a node for arrays of these shapes and dtypes. ``without`` says why none is native; "" where some may be.
    ``threads`` compute one that is, 0: as many as it is worth."""
    native = node.op.native
    if native is None or _objection(node, arrays, without) is not None:
        return node.op.define
    return partial(native.define, threads=threads, **({"spread": True} if _is_spread(node) else {}))


def _objection(node: Node, arrays: Sequence[Any], without: str) -> str | None:
    native = node.op.native
    assert native is not None
    if without:
        return without
    if _is_spread(node) and not native.spreads:
        return "its arrays are spread over several devices"
    return native.objection(arrays, node.attrs)


def _is_spread(node: Node) -> bool:
    return node.scope.placement.parallel_num > 1


def is_native(node: Node, narrow: dtype | None) -> bool:
    """Whether a node as it was declared takes its native lowering, where these may be taken.

    ``narrow`` is what its float32 arrays are cast to, None where they are not.
    """
    return node.op.native is not None and _objection(node, _declared(node, narrow), "") is None


def describe(node: Node, without: str, narrow: dtype | None) -> str:
    """What computes a node, and why; "" for ops that have one lowering. ``narrow``: as of ``is_native``."""
    native = node.op.native
    if native is None:
        return ""
    arrays = _declared(node, narrow)
    objection = _objection(node, arrays, without)
    if objection is not None:
        return f"XLA: {objection}"
    return native.word(arrays, node.attrs) + (", each device its samples" if _is_spread(node) else "")


def _declared(node: Node, narrow: dtype | None) -> list[Any]:
    def dtype_of(b: Blob) -> Any:
        return (b.dtype if narrow is None or b.dtype.name != "float32" else narrow).numpy_dtype

    return [jax.ShapeDtypeStruct(b.shape, dtype_of(b)) for b in node.inputs]
