"""Which of an op's lowerings a step uses: XLA's, or that of the native part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._jax import jax
from ..graph.node import Blob, Node
from ..graph.op import OpDef

SWITCHED_OFF = "switched off by flow.config.enable_native_cpu(False)"
NO_CPU = "the device is no CPU"
SEVERAL_DEVICES = "the job runs on several devices"


def choose(op: OpDef, arrays: Sequence[Any], attrs: Mapping[str, Any], without: str) -> Callable[..., Any]:
    """The lowering of an op for arrays of these shapes and dtypes. ``without`` says why no op is native; "" where some may be."""
    if op.native is None or without or op.native.objection(arrays, attrs) is not None:
        return op.define
    return op.native.define


def is_native(node: Node) -> bool:
    """Whether a node as it was declared takes its native lowering, where these may be taken."""
    return node.op.native is not None and node.op.native.objection(_declared(node), node.attrs) is None


def describe(node: Node, without: str) -> str:
    """What computes a node, and why; "" for ops that have one lowering."""
    native = node.op.native
    if native is None:
        return ""
    arrays = _declared(node)
    objection = without or native.objection(arrays, node.attrs)
    return f"XLA: {objection}" if objection else native.word(arrays, node.attrs)


def _declared(node: Node) -> list[Any]:
    def dtype_of(b: Blob) -> Any:
        return (b.dtype if node.compute is None or b.dtype.name != "float32" else node.compute).numpy_dtype

    return [jax.ShapeDtypeStruct(b.shape, dtype_of(b)) for b in node.inputs]
