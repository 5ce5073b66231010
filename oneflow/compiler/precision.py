"""Automatic mixed precision: which ops of a job compute in 16 bits, and how.

Values between ops stay float32, and so do variables and gradients; an op that computes in 16 bits casts what it is given and
casts its outputs back. XLA drops the casts between two such ops, as a narrow number survives the way through float32.
The lists are those of OneFlow (``FunctionConfig.enable_auto_mixed_precision``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.graph import Graph
from ..graph.node import Blob, Node

# always in 16 bits: where the time goes, and products are accumulated in float32
WHITE = frozenset({"matmul", "conv2d", "amp_white_identity", "fused_self_attention_query_mul_key_and_value"})
# in 16 bits where they lie between white ops
GREY = frozenset({
    "add_n", "avg_pool_1d", "avg_pool_2d", "avg_pool_3d", "bias_add", "multiply", "sigmoid", "tanh", "tanh_v2", "sqrt",
    "scalar_mul", "scalar_div", "scalar_add", "scalar_sub", "add", "subtract", "divide", "layer_norm", "dropout", "softmax",
    "gelu", "batch_normalization", "batch_normalization_training",
})  # fmt: skip
# move values and make none: in 16 bits where they lie between such ops
CLEAR = frozenset({
    "gather", "max_pool_1d", "max_pool_2d", "max_pool_3d", "reshape", "dynamic_reshape", "relu", "transpose", "concat", "stack",
    "pad", "same_padding", "tril", "slice", "getitem", "fused_scale_tril", "identity", "identity_n", "flatten", "squeeze",
    "expand_dims", "cast_to_static_shape", "parallel_cast",
})  # fmt: skip
# statistics and their scale and offset stay float32: only the first input is cast
ONLY_FIRST = frozenset({"batch_normalization", "batch_normalization_training", "layer_norm"})


def narrow_dtype(graph: Graph) -> dtype | None:
    """What the job's chosen ops compute in; None where it does not ask for mixed precision.

    bfloat16, which has float32's range; float16 on a GPU where a loss scale keeps small gradients above its range.
    """
    if graph.config is None or not graph.config.get("enable_auto_mixed_precision"):
        return None
    scaled = any(o.loss_scale is not None for o in graph.objective.optimizers)
    return dtypes.float16 if scaled and jax.default_backend() == "gpu" else dtypes.bfloat16


def assign(graph: Graph, order: Sequence[Node]) -> None:
    """Marks those nodes of ``order`` (inputs first) that compute in 16 bits."""
    narrow = narrow_dtype(graph)
    for node in narrow_nodes(order) if narrow is not None else ():
        node.compute = narrow


def narrow_nodes(order: Sequence[Node]) -> set[Node]:
    """White ops, and the grey and clear ones that lie between two of them."""
    passing = {n for n in order if n.op.name in GREY or n.op.name in CLEAR}
    white = {n for n in order if n.op.name in WHITE}
    after: set[Node] = set()
    for node in order:
        if node in passing and any(b.node in white or b.node in after for b in node.inputs):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(order):
        if node in white or node in before:
            before.update(b.node for b in node.inputs if b.node in passing)
    return white | (after & before)


def narrowed(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, an op's definition, on arrays cast to what the node computes in; its outputs are cast back."""
    if node.compute is None:
        return function

    def run(*arrays: Any) -> Any:
        made = function(*_down(node, arrays, node.inputs))
        return tuple(_up(made, node.outputs)) if node.op.multiple else _up((made,), node.outputs)[0]

    return run


def narrowed_grad(node: Node, grad: Callable[..., Any]) -> Callable[..., Any]:
    """``grad``, an op's own gradient, in what the node computes in; gradients have the dtypes of the inputs."""
    if node.compute is None:
        return grad

    def run(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> Any:
        made = grad(
            _down(node, inputs, node.inputs), _down(node, outputs, node.outputs), _down(node, cotangents, node.outputs), **attrs
        )
        return tuple(None if g is None else g.astype(x.dtype) for g, x in zip(made, inputs, strict=True))

    return run


def _down(node: Node, arrays: Sequence[Any], blobs: Sequence[Blob]) -> tuple[Any, ...]:
    assert node.compute is not None
    to = node.compute.numpy_dtype
    first = node.op.name in ONLY_FIRST
    return tuple(
        a.astype(to) if b.dtype is dtypes.float32 and not (first and i) else a
        for i, (a, b) in enumerate(zip(arrays, blobs, strict=True))
    )


def _up(arrays: Sequence[Any], blobs: Sequence[Blob]) -> list[Any]:
    return [a.astype(b.dtype.numpy_dtype) for a, b in zip(arrays, blobs, strict=True)]
