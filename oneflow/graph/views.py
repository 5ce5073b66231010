"""Conversion between the two views of several devices: one logical tensor, or one tensor per device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from .._base.source import caller
from ..errors import ShapeError, ViewError
from .graph import OP_TO_CONSISTENT, OP_TO_MIRRORED, OP_VARIABLE, Graph
from .node import Blob
from .op import OpDef


def in_current_view(graph: Graph, blob: Blob) -> Blob:
    """``blob``, converted to the current view, for an op that is about to be added.

    In the mirrored view each device gets its piece of a logical tensor that is split along axis 0, and all of any other
    tensor. In the consistent view the tensors of the devices are concatenated along axis 0.

    Raises:
      ShapeError: the pieces of the devices would differ in size.
      ViewError: the variable is split along another axis, or the mirrored Blob has another number of devices.
    """
    scope = graph.scope
    n = scope.placement.parallel_num
    if scope.view == "mirrored" and blob.is_mirrored and blob.parallel_size != n:
        has, needs = f"one tensor for each of {blob.parallel_size} devices", "1 device" if n == 1 else f"{n} devices"
        _fail(graph, blob, ViewError, f"it has {has}, and the scope has {needs}",
              "a placement of its devices, or join its tensors first: with flow.scope.consistent_view():")  # fmt: skip
    wants_mirrored = scope.view == "mirrored" and n > 1
    if blob.is_mirrored == wants_mirrored:
        return blob
    if blob.has_dynamic_size and (blob.is_mirrored or blob.batch_axis == 0):
        _fail(graph, blob, ShapeError, "its size depends on data, and may differ from device to device")
    if blob.is_mirrored:
        if not blob.shape:
            return blob
        shape = (blob.parallel_size * blob.shape[0], *blob.shape[1:])
        return _converted(graph, blob, OP_TO_CONSISTENT, shape, {}, "consistent", 0)
    if blob.node.op is OP_VARIABLE:
        split = blob.distribute.axis
        if split not in (None, 0):
            _fail(graph, blob, ViewError, f"a variable that is split along axis {split} has no mirrored form",
                  "distribute=flow.distribute.split(0) where the variable is declared, or broadcast()")  # fmt: skip
        pieces = split == 0
    else:
        pieces = blob.batch_axis == 0
    if pieces and blob.shape[0] % n:
        _fail(graph, blob, ShapeError, f"its axis 0 of size {blob.shape[0]} does not divide over {n} devices")
    shape = (blob.shape[0] // n, *blob.shape[1:]) if pieces else blob.shape
    return _converted(graph, blob, OP_TO_MIRRORED, shape, {"pieces": pieces}, "mirrored", 0 if pieces else None)


def _converted(
    graph: Graph, blob: Blob, op: OpDef, shape: tuple[int, ...], attrs: dict[str, Any], view: str, axis: int | None
) -> Blob:
    key = (blob.node, blob.index, view, graph.scope.placement)
    made = graph.in_views.get(key)
    if made is None:
        outer, graph.scope = graph.scope, graph.scope.replaced(namespace="", view=view)
        try:
            node = graph.add(
                op, (blob,), attrs, [(shape, blob.dtype)], prefix="View", batch_axis=axis, is_dynamic=blob.is_dynamic
            )
        finally:
            graph.scope = outer
        made = graph.in_views[key] = node.outputs[0]
        if blob.has_dynamic_size and blob.valid_length is not None:
            made.valid_length = replace(blob.valid_length, count=in_current_view(graph, blob.valid_length.count))
    return made


_SIZES = "sizes that divide, or the view it was made in: with flow.scope.consistent_view():"


def _fail(graph: Graph, blob: Blob, error: type[Exception], rule: str, hint: str = _SIZES) -> NoReturn:
    line = caller()
    raise error(
        f"{blob.op_name!r} in job {graph.name!r} cannot be brought to the {graph.scope.view} view: {rule}\n"
        f"  the Blob   {blob.describe()}   made at {blob.source}   {blob.source.text}\n"
        f"  your line  {line}   {line.text}\n"
        f"  try        {hint}"
    )
