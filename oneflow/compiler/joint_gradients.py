"""Gradients to an input that several nodes share, such as the weights of a recurrent cell, which each step multiplies by.

Each node's gradient would be as large as the weights, and be added to the others'. Where the rows that nodes multiply are fewer
numbers than the weights, the rows of all nodes are concatenated, and the gradient is computed once.

On several devices each of the gradients would be added up among the devices. There a few rows more are concatenated, too, and
each device concatenates those that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from .._base.dtype import dtype
from .._base.jax import jax, lax
from ..graph.node import Node
from .analysis import flows_to
from .shared import attributes

_FEW = 1 << 14  # numbers in the rows of a node that take less time to concatenate than a gradient takes to cross devices
SHARED = 1  # the position of the input of which ``OpDef.adds_up`` speaks


def joint_gradients(
    nodes: Iterable[Node], path: Collection[Node], precision: Mapping[Node, dtype], vmapped: Collection[Node], devices: int
) -> dict[Node, int]:
    """The nodes whose gradients to input 1 are computed together, with the number of their group.

    Args:
      nodes: that run on one place, in topological order.
      path: the nodes on the gradient path.
      precision: the dtypes of nodes that compute in a narrower dtype.
      vmapped: the nodes whose values have a leading axis of devices.
      devices: of the place.
    """
    groups: dict[Any, list[Node]] = {}
    for node in nodes:
        if node not in path or node in vmapped or len(node.inputs) != 2 or len(node.outputs) != 1 or node.op.grad is not None:
            continue
        x, shared, y = *node.inputs, node.outputs[0]
        shapes = [b.shape for b in node.inputs]
        if (
            shared.node not in path
            or not flows_to(node, SHARED)
            or node.op.adds_up is None
            or not node.op.adds_up(node.attrs, shapes)
        ):
            continue
        rows = math.prod(x.shape) + math.prod(y.shape)
        is_large = math.prod(shared.shape) > rows or (devices > 1 and rows <= _FEW)
        if not is_large or not shared.dtype.is_floating_point or node.scope.options.get("checkpointing"):
            continue
        attrs = attributes(node)
        is_spread = x.batch_axis == 0 and not x.is_dynamic and x.shape[0] % devices == 0  # each device has as many rows
        if attrs is not None and (devices == 1 or is_spread):
            shape = x.shape[1:] if devices == 1 else x.shape
            key = node.op, attrs, shared.node, shared.index, shape, y.shape[1:], precision.get(node)
            groups.setdefault(key, []).append(node)
    joint = [group for group in groups.values() if len(group) > 1]
    return {node: number for number, group in enumerate(joint) for node in group}


@dataclass(frozen=True, slots=True)
class Rows:
    """What a node's gradient to input 1 depends on.

    Attributes:
      node: the node.
      function: from both inputs to the output, for any number of rows; ``shared`` is input 1.
      x: input 0; ``cotangent``: of the output.
    """

    node: Node
    function: Callable[[Any, Any], Any]
    shared: Any
    x: Any
    cotangent: Any


def total(rows: Sequence[Rows]) -> Any:
    """The sum of the gradients to the input that nodes of one group share."""
    alike: dict[Any, list[Rows]] = {}  # the sizes of feeds may vary below those that are declared
    for each in rows:
        alike.setdefault((each.x.shape[1:], each.cotangent.shape[1:]), []).append(each)
    return reduce(lax.add, map(_total, alike.values()))


def _total(rows: Sequence[Rows]) -> Any:
    first = rows[0]
    is_spread = first.node.scope.placement.parallel_num > 1
    x, cotangent = (_together([getattr(each, name) for each in rows], is_spread) for name in ("x", "cotangent"))
    return jax.vjp(lambda shared: first.function(x, shared), first.shared)[1](cotangent)[0]


def _together(arrays: Sequence[Any], is_spread: bool) -> Any:
    """The rows of all arrays. Where they are spread over devices, first the first rows of all: a device's stay together."""
    if not is_spread:
        return lax.concatenate(arrays, 0)
    first = arrays[0].shape
    side_by_side = lax.concatenate([lax.expand_dims(array, [1]) for array in arrays], 1)
    return lax.reshape(side_by_side, (first[0] * len(arrays), *first[1:]))
