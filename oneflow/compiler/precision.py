"""Automatic mixed precision: which ops of a job compute in 16 bits, and how.

Values between ops stay float32, and so do variables and gradients; an op that computes in 16 bits casts what it is given and
casts its outputs back. XLA drops the casts between two such ops, as a narrow number survives the way through float32.
Which ops do is a field of theirs (``OpDef.autocast``), after OneFlow's lists (``FunctionConfig.enable_auto_mixed_precision``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax
from ..graph.graph import Graph
from ..graph.node import Blob, Node


def narrow_dtype(graph: Graph) -> dtype | None:
    """What the job's chosen ops compute in; None where it does not ask for mixed precision.

    bfloat16, which has float32's range; float16 on a GPU where a loss scale keeps small gradients above its range.
    """
    if graph.config is None or not graph.config.get("enable_auto_mixed_precision"):
        return None
    scaled = any(o.loss_scale is not None for o in graph.objective.optimizers)
    return dtypes.float16 if scaled and jax.default_backend() == "gpu" else dtypes.bfloat16


def assigned(graph: Graph, order: Sequence[Node]) -> dict[Node, dtype]:
    """What those nodes of ``order`` (inputs first) compute in that compute in 16 bits."""
    narrow = narrow_dtype(graph)
    return {} if narrow is None else dict.fromkeys(narrow_nodes(order), narrow)


def narrow_nodes(order: Sequence[Node]) -> set[Node]:
    """The nodes of ops that always compute in 16 bits, and of those that follow where they lie between two such nodes."""
    passing = {n for n in order if n.op.autocast == "between"}
    white = {n for n in order if n.op.autocast == "always"}
    after: set[Node] = set()
    for node in order:
        if node in passing and any(b.node in white or b.node in after for b in node.inputs):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(order):
        if node in white or node in before:
            before.update(b.node for b in node.inputs if b.node in passing)
    return white | (after & before)


def narrowed(node: Node, to: dtype | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, an op's definition, on arrays cast to what the node computes in; its outputs are cast back."""
    if to is None:
        return function

    def run(*arrays: Any) -> Any:
        made = function(*_down(node, to, arrays, node.inputs))
        return tuple(_up(made, node.outputs)) if node.op.multiple_results else _up((made,), node.outputs)[0]

    return run


def narrowed_grad(node: Node, to: dtype | None, grad: Callable[..., Any]) -> Callable[..., Any]:
    """``grad``, an op's own gradient, in what the node computes in; gradients have the dtypes of the inputs."""
    if to is None:
        return grad

    def run(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> Any:
        narrow = (_down(node, to, inputs, node.inputs), *(_down(node, to, a, node.outputs) for a in (outputs, cotangents)))
        made = grad(*narrow, **attrs)
        return tuple(None if g is None else g.astype(x.dtype) for g, x in zip(made, inputs, strict=True))

    return run


def _down(node: Node, to: dtype, arrays: Sequence[Any], blobs: Sequence[Blob]) -> tuple[Any, ...]:
    first_only = node.op.autocast_first_only
    return tuple(
        a.astype(to.numpy_dtype) if b.dtype is dtypes.float32 and not (first_only and i) else a
        for i, (a, b) in enumerate(zip(arrays, blobs, strict=True))
    )


def _up(arrays: Sequence[Any], blobs: Sequence[Blob]) -> list[Any]:
    return [a.astype(b.dtype.numpy_dtype) for a, b in zip(arrays, blobs, strict=True)]
