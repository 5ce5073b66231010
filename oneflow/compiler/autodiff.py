"""Forward and backward over a graph inside one trace: one vjp a node, pullbacks in reverse order.

Not ``jax.grad`` over the interpreter, because a job asks for more: gradients of any Blob (``watch_diff``), ops whose
gradient is not calculus, and integer Blobs on the way, through which OneFlow's gradients flow.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from .._jax import jax, jnp
from ..errors import CompileError, OneFlowError
from ..graph.node import Blob, Node
from .analysis import flows_to

Values = dict[Node, tuple[Any, ...]]
Pullback = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def node_key(base: Any, node: Node) -> Any:
    """The random key of a node in this call."""
    return jax.random.fold_in(base, zlib.crc32(node.name.encode()))


def evaluate(node: Node, values: Values, base_key: Any) -> tuple[Any, ...]:
    """The node's outputs, from the values of its inputs."""
    arrays = [values[b.node][b.index] for b in node.inputs]
    return _located(node, lambda: _outputs(node, _function(node, base_key)(*arrays)))


def linearize(node: Node, values: Values, base_key: Any, wanted: list[int]) -> tuple[tuple[Any, ...], Pullback]:
    """The node's outputs, and the function from their cotangents to those of the inputs at ``wanted``."""
    arrays = [values[b.node][b.index] for b in node.inputs]
    function = _function(node, base_key)
    grad = node.op.grad
    if grad is not None:
        outputs = _located(node, lambda: _outputs(node, function(*arrays)))

        def explicit(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
            gradients = grad(tuple(arrays), outputs, cotangents, **node.attrs)
            return tuple(gradients[i] for i in wanted)

        return outputs, lambda cotangents: _located(node, lambda: explicit(cotangents))

    integers = any(_is_integer(arrays[i]) for i in wanted) or any(b.dtype.is_integer for b in node.outputs)
    if integers:
        outputs = _located(node, lambda: _outputs(node, function(*arrays)))
        return outputs, lambda cotangents: _located(node, lambda: _shadow(node, function, arrays, wanted, cotangents))

    def of_wanted(*chosen: Any) -> Any:
        full = list(arrays)
        for i, array in zip(wanted, chosen, strict=True):
            full[i] = array
        return _outputs(node, function(*full))

    outputs, pullback = _located(node, lambda: jax.vjp(of_wanted, *(arrays[i] for i in wanted)))
    return outputs, pullback


def _shadow(node: Node, function: Callable[..., Any], arrays: list[Any], wanted: list[int], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The vjp of an op on integers: taken in float64, cut back to the integers' dtype."""

    def in_float(*chosen: Any) -> Any:
        full = [a.astype(jnp.float64) if _is_integer(a) and not node.op.stops_at(i) else a for i, a in enumerate(arrays)]
        for i, array in zip(wanted, chosen, strict=True):
            full[i] = array
        return tuple(o.astype(jnp.float64) for o in _outputs(node, function(*full)))

    chosen = [arrays[i].astype(jnp.float64) for i in wanted]
    _, pullback = jax.vjp(in_float, *chosen)
    gradients = pullback(tuple(c.astype(jnp.float64) for c in cotangents))
    return tuple(g.astype(arrays[i].dtype) for i, g in zip(wanted, gradients, strict=True))


def _is_integer(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.integer)


def _function(node: Node, base_key: Any) -> Callable[..., Any]:
    attrs: Mapping[str, Any] = node.attrs
    if node.op.random:
        attrs = {**attrs, "key": node_key(base_key, node)}
    return lambda *arrays: node.op.define(*arrays, **attrs)


def _outputs(node: Node, result: Any) -> tuple[Any, ...]:
    return tuple(result) if node.op.multiple else (result,)


def _located(node: Node, run: Callable[[], Any]) -> Any:
    """Runs under the node's name; an error speaks of the user's line."""
    try:
        with jax.named_scope(node.name):
            return run()
    except OneFlowError:
        raise
    except Exception as error:
        inputs = "".join(f"\n  inputs[{i}]  {b.op_name}   {b.describe()}   made at {b.source}" for i, b in enumerate(node.inputs))
        raise CompileError(
            f"{node.op.name} {node.name!r} in job {node.graph.name!r} cannot be compiled: {error}{inputs}\n"
            f"  your line  {node.source}   {node.source.text}"
        ) from error


class Backward:
    """Collects cotangents while the pullbacks run in reverse order."""

    def __init__(self, values: Values):
        self._values = values
        self._cotangents: dict[Node, list[Any]] = {}

    def add(self, blob: Blob, cotangent: Any) -> None:
        slots = self._cotangents.setdefault(blob.node, [None] * len(blob.node.outputs))
        present = slots[blob.index]
        slots[blob.index] = cotangent if present is None else present + cotangent

    def get(self, blob: Blob) -> Any | None:
        """The gradient of the sum of the losses with respect to ``blob``; None off the gradient path."""
        slots = self._cotangents.get(blob.node)
        return None if slots is None else slots[blob.index]

    def run(self, propagates: list[Propagate]) -> None:
        """Runs what the forward pass left, last first."""
        for propagate in reversed(propagates):
            propagate(self)

    def through(self, node: Node, wanted: list[int], pullback: Pullback) -> None:
        """Carries the cotangents of a node's outputs to its inputs."""
        slots = self._cotangents.get(node)
        if slots is None:
            return
        outputs = self._values[node]
        filled = tuple(jnp.zeros_like(o) if c is None else c for o, c in zip(outputs, slots, strict=True))
        for i, gradient in zip(wanted, pullback(filled), strict=True):
            if gradient is not None:
                self.add(node.inputs[i], gradient)


Propagate = Callable[[Backward], None]


def run_nodes(nodes: Iterable[Node], values: Values, base_key: Any, path: set[Node]) -> list[Propagate]:
    """The forward pass over some nodes: their outputs go to ``values``; what their backward pass needs comes back."""
    propagates: list[Propagate] = []
    for node in nodes:
        wanted = [i for i, b in enumerate(node.inputs) if b.node in path and flows_to(node, i)] if node in path else []
        if wanted:
            values[node], pullback = linearize(node, values, base_key, wanted)
            propagates.append(partial(Backward.through, node=node, wanted=wanted, pullback=pullback))
        else:
            values[node] = evaluate(node, values, base_key)
    return propagates
