"""Replicas of mirrored nodes, one per device, for devices whose tensors differ in shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .._base.dist import Placement
from .._base.jax import jnp, lax
from ..errors import ViewError
from ..graph.graph import OP_INPUT, OP_TO_CONSISTENT, OP_TO_MIRRORED, OP_VARIABLE
from ..graph.node import Blob, Node
from ..graph.op import OpDef
from .analysis import gradient_path
from .plan import PassRecord, Plan


def _piece(x: Any, *, index: int, n: int) -> Any:
    size = x.shape[0] // n
    return lax.slice_in_dim(x, index * size, (index + 1) * size)


_PIECE = OpDef("device_piece", _piece)
_COPY = OpDef("device_copy", lambda x: x)
_OWN = OpDef("device_value", lambda x, *, index: lax.index_in_dim(x, index, keepdims=False))
_JOIN = OpDef("join_devices", lambda *pieces: jnp.concatenate(pieces))
_STACK = OpDef("stack_devices", lambda *values: jnp.stack(values))


def per_device(plan: Plan) -> Plan:
    """Replaces mirrored nodes by one copy per device. The step then returns tuples of their values, one per device.

    Raises:
      ViewError: a mirrored part of the job runs several times per call.
    """
    devices: dict[Node, tuple[Node, ...]] = {}  # copies of mirrored nodes
    others: dict[Node, Node] = {}  # the other nodes, or their copies
    order: list[Node] = []
    lowered = set(plan.order)
    for node in dict.fromkeys(blob.node for blob in plan.feeds if blob.is_mirrored and blob.node not in lowered):  # host stage
        devices[node] = tuple(_on_device(plan, node, i, devices, others, []) for i in range(node.scope.placement.parallel_num))
    for node in plan.order:
        if node.is_mirrored:
            if node.run:
                raise ViewError(
                    f"{node.op.name} {node.name!r} is repeated within a call, and its devices' tensors differ in shape\n"
                    f"  your line  {node.source}   {node.source.text}\n"
                    f"  try        tensors of one shape on all devices"
                )
            n = node.scope.placement.parallel_num
            devices[node] = tuple(_on_device(plan, node, i, devices, others, order) for i in range(n))
        else:
            order.append(_elsewhere(node, devices, others))
            others[node] = order[-1]
    each = _Each(devices, others)
    losses = tuple(c for loss in plan.losses for c in each(loss))
    assigns = {}
    for name, blob in plan.assigns.items():
        assigns[name] = each(blob)[0]
        if name in plan.replicated:
            like = plan.graph.variables[name]
            assert like.placement is not None and like.blob is not None
            scope = like.blob.node.scope.replaced(placement=like.placement, view="consistent")
            stack = like.blob.node.copy(op=_STACK, attrs={}, inputs=each(blob), scope=scope)
            order.append(stack)
            assigns[name] = stack.outputs[0]
    own = {node for node in order if node.op is OP_VARIABLE and node.attrs["variable"] in plan.replicated}
    sources = {v.blob.node for v in plan.trained if v.blob is not None}
    sources |= {c.node for w in plan.watches if w.diff for c in each(w.blob)}
    path = gradient_path(order, losses, sources) if plan.graph.train else set()
    watches = tuple(replace(w, blob=each.unmirrored(w.blob)) for w in plan.watches)
    made = [(n, copy) for n, copies in devices.items() for copy in copies] + list(others.items())
    return replace(
        plan, order=tuple(order), path=frozenset(path), losses=losses, assigns=assigns, devices=devices,
        fetches=tuple(map(each.unmirrored, plan.fetches)), watches=watches,
        roots=(*(c for b in plan.roots for c in each(b)), *assigns.values()),
        feeds=tuple(c for b in plan.feeds for c in each(b)),
        vmapped=frozenset({*own, *(b.node for b in assigns.values() if b.node.op is _STACK)}),
        precision={**plan.precision, **{copy: plan.precision[n] for n, copy in made if n in plan.precision}},
        passes=(*plan.passes, PassRecord("replicas", f"{len(devices)} mirrored nodes replaced by one copy per device")),
    )  # fmt: skip


class _Each:
    def __init__(self, devices: Mapping[Node, tuple[Node, ...]], others: Mapping[Node, Node]):
        self._devices, self._others = devices, others

    def __call__(self, blob: Blob) -> tuple[Blob, ...]:
        nodes = self._devices.get(blob.node) or (self._others.get(blob.node, blob.node),)
        return tuple(node.outputs[blob.index].with_distribute(blob.distribute) for node in nodes)

    def unmirrored(self, blob: Blob) -> Blob:
        """The Blob itself if its node is mirrored or was not copied; else that of the copy."""
        copy = self._others.get(blob.node, blob.node)
        return blob if copy is blob.node else copy.outputs[blob.index]


def _on_device(
    plan: Plan, node: Node, index: int, devices: Mapping[Node, Any], others: Mapping[Node, Node], order: list[Node]
) -> Node:
    placement = node.scope.placement
    here = node.scope.replaced(placement=Placement(placement.tag, (placement.devices[index],)), view="consistent")
    if node.op is OP_TO_MIRRORED:
        blob = node.inputs[0]
        source = others[blob.node].outputs[blob.index]
        op, attrs = _COPY, {}
        if node.attrs["pieces"]:
            op, attrs = _PIECE, {"index": index, "n": placement.parallel_num}
        elif blob.node.op is OP_VARIABLE and blob.node.attrs["variable"] in plan.replicated:
            op, attrs = _OWN, {"index": index}
        made = node.copy(op=op, attrs=attrs, inputs=(source,), scope=here)
    else:

        def read(blob: Blob) -> Blob:
            return devices[blob.node][index].outputs[blob.index] if blob.node in devices else blob

        made = node.copy(read, scope=here, run=(index,) if node.op.random else ())
    order.append(made)
    return made


def _elsewhere(node: Node, devices: Mapping[Node, tuple[Node, ...]], others: Mapping[Node, Node]) -> Node:
    if node.op in (OP_VARIABLE, OP_INPUT):
        return node
    scope = node.scope.replaced(view="consistent")
    if node.op is OP_TO_CONSISTENT:
        inputs = tuple(c.outputs[node.inputs[0].index] for c in devices[node.inputs[0].node])
        return node.copy(op=_JOIN, attrs={}, inputs=inputs, scope=scope)

    def read(blob: Blob) -> Blob:
        return others[blob.node].outputs[blob.index].with_distribute(blob.distribute) if blob.node in others else blob

    if all(read(blob).node is blob.node for blob in node.inputs):
        return node
    return node.copy(read, scope=scope)
