"""Nodes that are alike are traced once: op, attributes, shapes, dtypes and the gradients that are asked for are the same.

JAX takes about a millisecond to differentiate one op. Of the layers of a deep network most repeat each other: from the third node
of a kind on, the equations that were recorded once are added to the program again, under the name of the present node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.jax import jax
from ..graph.node import Node
from .lowering import Lowering

_OFTEN = 3  # to record equations and add them costs more than to trace an op twice

Vjp = Callable[..., tuple[tuple[Any, ...], Any]]


def alike(node: Node, arrays: Sequence[Any], wanted: tuple[int, ...], lowering: Lowering, vjp: Vjp) -> Vjp | None:
    """The equations of nodes like this one, as a function like ``vjp``; None if it is one of the first, or may not share them.

    Args:
      node: the node; its gradient is not the one that its op defines.
      arrays: its inputs, inside a trace.
      wanted: positions of the inputs that a gradient is wanted of.
      lowering: keeps what has been recorded.
      vjp: from arrays to the outputs of the node and the pullback to the inputs at ``wanted``.
    """
    key = _key(node, arrays, wanted, lowering)
    if key is None:
        return None
    found = lowering.traced.get(key, 0)
    if isinstance(found, int):
        found += 1
        if found == _OFTEN:
            found = _recorded(arrays, vjp)
        lowering.traced[key] = found
    return None if isinstance(found, int) else found


def _key(node: Node, arrays: Sequence[Any], wanted: tuple[int, ...], lowering: Lowering) -> Hashable | None:
    op = node.op
    if lowering.observer is not None or node in lowering.vmapped or op.random or op.callback or op.lays_out:
        return None
    if not arrays or not all(isinstance(a, jax.core.Tracer) for a in arrays):
        return None
    avals = tuple([jax.typeof(a) for a in arrays])
    if any(aval.weak_type for aval in avals):
        return None
    placement = node.scope.placement
    sharded: Hashable = placement if op.takes_mesh else placement.parallel_num > 1
    if op.undivided is not None:
        sharded = placement, tuple(b.batch_axis for b in node.inputs)
    attrs = attributes(node)
    casts = lowering.precision.get(node), lowering.rounded.get(node), node in lowering.narrow_cotangents
    return None if attrs is None else (op, attrs, avals, wanted, casts, sharded, lowering.addends.get(node))


def attributes(node: Node) -> Hashable | None:
    """The attributes of a node, to be compared with those of others; None where one is a list, or an array."""
    attrs = tuple([(name, _typed(value)) for name, value in sorted(node.attrs.items())])
    try:
        hash(attrs)
    except TypeError:
        return None
    return attrs


def _typed(value: Any) -> Any:
    """An attribute's value, so that 1, 1.0 and True are told apart, and 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(map(_typed, value))
    return type(value), value.hex() if isinstance(value, float) else value


def _recorded(arrays: Sequence[Any], vjp: Vjp) -> Vjp:
    from jax.extend.core import jaxpr_as_fun

    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    trees: list[Any] = []

    def forward(*arrays: Any) -> tuple[tuple[Any, ...], list[Any]]:
        outputs, pullback = vjp(*arrays)
        residuals, tree = jax.tree.flatten(pullback)
        trees.append(tree)
        return outputs, residuals

    recorded, (outputs, residuals) = jax.make_jaxpr(forward, return_shape=True)(*structs)
    (tree,) = trees
    pulled = jax.make_jaxpr(lambda residuals, cotangents: tree.unflatten(residuals)(cotangents))(residuals, outputs)
    run, pullback = jaxpr_as_fun(recorded), _Pullback(jaxpr_as_fun(pulled))

    def shared(*arrays: Any) -> tuple[tuple[Any, ...], Any]:
        made = run(*arrays)
        return tuple(made[: len(outputs)]), jax.tree_util.Partial(pullback, made[len(outputs) :])

    return shared


@dataclass(frozen=True, slots=True, eq=False)
class _Pullback:
    """The recorded equations from residuals and cotangents to gradients."""

    equations: Callable[..., list[Any]]

    def __call__(self, residuals: Sequence[Any], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.equations(*residuals, *cotangents))
