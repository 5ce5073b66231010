"""Automatic mixed precision: which nodes of a job compute in 16 bits, and how.

Values between ops, variables and gradients stay float32: a node that computes in 16 bits casts its inputs and casts its outputs
back. XLA removes the casts between two such nodes, as a 16-bit number survives the conversion to float32 and back. Ops declare
their part in ``OpDef.autocast``, after OneFlow's lists (``FunctionConfig.enable_auto_mixed_precision``). On a CPU it is the
native part alone that computes in bfloat16, where it can (see ``_gains_on_cpu``); what it reads is rounded for other readers, too
(see ``rounded_outputs``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax, jnp
from .._base.native import stored
from .._base.rounding import to_bfloat16
from ..graph.graph import OP_INPUT, OP_VARIABLE, Graph
from ..graph.node import Blob, Node
from . import native


def narrow_dtype(graph: Graph, platform: str) -> dtype | None:
    """The 16-bit dtype of a job; None if it does not enable mixed precision.

    bfloat16, which has the range of float32, or float16 on a GPU if a loss scale keeps small gradients within its range.
    """
    if graph.config is None or not graph.config.get("enable_auto_mixed_precision"):
        return None
    scaled = any(o.loss_scale is not None for o in graph.objective.optimizers)
    return dtypes.float16 if scaled and platform == "gpu" else dtypes.bfloat16


def assigned(graph: Graph, order: Sequence[Node], platform: str, without_native: str) -> dict[Node, dtype]:
    """The dtypes of those nodes of ``order`` (in topological order) that compute in 16 bits.

    Args:
      platform: of the devices: "cpu", "gpu" or "tpu".
      without_native: the reason why no op takes its native lowering; "" if some may.
    """
    narrow = narrow_dtype(graph, platform)
    if narrow is None:
        return {}
    newer = graph.generation.newer_autocast_lists
    chosen = narrow_nodes(order, newer=newer)
    if platform == "cpu" and native.computes_bfloat16(without_native):
        chosen = {n for n in chosen if _gains_on_cpu(n, narrow, newer)}
        sources = _sources(order, chosen, newer)
        chosen.update(
            n for n in order
            if _follows(n) and not any(b.is_dynamic for b in n.inputs) and native.is_native(n, narrow) and _sources_of(n, sources)
        )  # fmt: skip
    return dict.fromkeys(chosen, narrow)


def _gains_on_cpu(node: Node, narrow: dtype, newer: bool) -> bool:
    """Whether a node is to compute in 16 bits on a CPU whose native part does.

    XLA has no bfloat16 arithmetic there: it would round after every operation between two such nodes, which takes time and
    accuracy. Their arrays stay what they are without that, as XLA fuses the casts into the loops that read and write them.
    Likewise, what is native in float32 alone is faster so.
    """
    if _listed(node, newer) == "between":
        return False
    return native.is_native(node, narrow) or not native.is_native(node, None)


def _follows(node: Node) -> bool:
    return node.op.native is not None and node.op.native.follows


def _sources(order: Sequence[Node], narrow: Collection[Node], newer: bool) -> dict[Node, frozenset[Node]]:
    """The nodes in 16 bits that a node is, or that lead to it by ops that compute in 16 bits only between such nodes."""
    found: dict[Node, frozenset[Node]] = {}
    for node in order:
        if node in narrow:
            found[node] = frozenset((node,))
        elif _listed(node, newer) == "between":
            sources = frozenset().union(*(found.get(b.node, ()) for b in node.inputs))
            if sources:
                found[node] = sources
    return found


def _sources_of(node: Node, sources: Mapping[Node, frozenset[Node]]) -> frozenset[Node]:
    """The nodes in 16 bits that lead to the float32 inputs of a node; none where one of these has none."""
    found = [sources.get(b.node, frozenset()) for b in node.inputs if b.dtype is dtypes.float32]
    return frozenset().union(*found) if all(found) else frozenset()


def narrow_cotangents(nodes: Sequence[Node], precision: Mapping[Node, dtype]) -> frozenset[Node]:
    """The nodes in bfloat16 whose outputs get their gradients from nodes that make them in bfloat16 (``Native.follows``).

    XLA removes a cast of what was bfloat16 before; elsewhere it is the faster to cast by integer arithmetic.
    """
    following = {n for n in nodes if n in precision and precision[n] is dtypes.bfloat16 and _follows(n)}
    if not following:
        return frozenset()
    newer = next(iter(following)).graph.generation.newer_autocast_lists
    sources = _sources(nodes, precision.keys() - following, newer)
    return frozenset().union(*(_sources_of(n, sources) for n in following))


def _listed(node: Node, newer: bool) -> str:
    return node.op.newer_autocast or node.op.autocast if newer else node.op.autocast


def narrow_nodes(order: Sequence[Node], *, newer: bool = False) -> set[Node]:
    """Nodes whose ops always compute in 16 bits, and those between two such nodes whose ops allow it.

    ``newer``: by the lists of 0.6.
    """
    listed = {n: _listed(n, newer) for n in order}
    passing = {n for n, when in listed.items() if when == "between"}
    white = {n for n, when in listed.items() if when == "always"}
    after: set[Node] = set()
    for node in order:
        if node in passing and any(b.node in white or b.node in after for b in node.inputs):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(order):
        if node in white or node in before:
            before.update(b.node for b in node.inputs if b.node in passing)
    return white | (after & before)


def narrow_variables(order: Sequence[Node], precision: Mapping[Node, dtype]) -> dict[Node, dtype]:
    """The float32 variables that every reader casts to one 16-bit dtype, with it.

    Devices that store pieces of such a variable can send them to each other in 16 bits, which changes no result.
    """
    found: dict[Node, set[dtype | None]] = {}
    for node in order:
        narrow = precision.get(node)
        for i, blob in enumerate(node.inputs):
            if blob.node.op is OP_VARIABLE and blob.dtype is dtypes.float32:
                is_cast = not (node.op.autocast_first_only and i)
                found.setdefault(blob.node, set()).add(narrow if is_cast else None)
    return {node: to for node, readers in found.items() if len(readers) == 1 for to in readers if to is not None}


def rounded_outputs(nodes: Iterable[Node], precision: Mapping[Node, dtype]) -> dict[Node, frozenset[int]]:
    """The outputs, by node, that the native part reads in bfloat16 and something else in float32: they are rounded for both.

    XLA does not store in float32 what it casts right away. It would compute the float32 values again for each other reader, from
    what is stored: those of a residual network from all blocks before. Outputs that an op's gradient looks for stay as they are.

    Args:
      nodes: all that run, copies included, on one CPU device whose native part may be used.
      precision: the dtypes of those that compute in 16 bits.
    """
    narrow: set[tuple[Node, int]] = set()
    wide: set[tuple[Node, int]] = set()
    for node in nodes:
        if node.op.grad is not None:
            wide.update((node, i) for i in range(len(node.outputs)))  # its gradient may read them
        to = precision.get(node)
        count = native.narrowed_inputs(node, to) if to is dtypes.bfloat16 else 0
        for i, blob in enumerate(node.inputs):
            if blob.node.op not in (OP_INPUT, OP_VARIABLE) and blob.node not in precision and blob.dtype is dtypes.float32:
                (narrow if i < count else wide).add((blob.node, blob.index))
    found: dict[Node, set[int]] = {}
    for maker, index in narrow & wide:
        if not maker.op.seeks_output:
            found.setdefault(maker, set()).add(index)
    return {maker: frozenset(indices) for maker, indices in found.items()}


@cache
def _rounding() -> Callable[[Any], Any]:
    def rounded(x: Any) -> Any:
        return stored(to_bfloat16(x)).astype(np.float32)

    run = jax.custom_vjp(rounded)
    run.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))
    return run


def round_outputs(made: Any, indices: Collection[int]) -> Any:
    """The outputs of a node, of which those at ``indices`` are rounded to bfloat16. Gradients are passed on unrounded."""
    if not isinstance(made, tuple | list):
        return _rounding()(made) if indices else made
    return tuple(_rounding()(array) if i in indices else array for i, array in enumerate(made))


@cache
def _widening() -> Callable[[Any], Any]:
    run = jax.custom_vjp(lambda x: x.astype(np.float32))
    run.defvjp(lambda x: (run(x), None), lambda _, cotangent: (to_bfloat16(cotangent),))
    return run


def widen_native(made: Any, has_narrow_cotangent: bool = False) -> Any:
    """What a native lowering made in bfloat16, as float32; its cotangent is rounded the faster way.

    ``has_narrow_cotangent``: that was bfloat16 before, so that XLA removes its own conversion and there is nothing to round.
    """
    if has_narrow_cotangent:
        return jax.tree.map(lambda a: a.astype(np.float32), made)
    return jax.tree.map(lambda a: _widening()(a) if a.dtype == jnp.bfloat16 else a, made)


def narrowed(node: Node, to: dtype | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` on inputs cast to ``to``, if that is not None, with its outputs cast back."""
    if to is None:
        return function

    def run(*arrays: Any) -> Any:
        return widened(node, function(*_down(node, to, arrays, node.inputs)))

    return run


def widened(node: Node, made: Any) -> Any:
    """What a node's function made, cast to the dtypes of the node's outputs."""
    return tuple(_up(made, node.outputs)) if node.op.multiple_results else _up((made,), node.outputs)[0]


def narrowed_grad(node: Node, to: dtype | None, grad: Callable[..., Any]) -> Callable[..., Any]:
    """``grad`` on arrays cast to ``to``, if that is not None, with gradients cast to the dtypes of the inputs."""
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
