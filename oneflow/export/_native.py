"""An exported job for fixed sizes, with the lowerings of the native part: for programs that run on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from .._base import native
from .._base.jax import jax
from ..compiler import precision
from ..compiler.arrangement import arranged
from ..compiler.lowering import Lowering, Values
from ..compiler.native import NO_CPU, SWITCHED_OFF
from ..config import Resource
from ..graph.graph import OP_VARIABLE
from ..graph.node import Blob, Node
from ._axes import evaluate
from ._job import ExportedJob, is_wide, mapped

Traceable = Callable[..., Any]  # of a dict of weights, and the inputs


def unavailable(model: ExportedJob) -> str:
    """Why a program of the job for this process's device cannot use the native part; "" where it can."""
    if jax.default_backend() != "cpu":
        return NO_CPU
    if not Resource.enable_native_cpu:
        return SWITCHED_OFF
    if any(node.scope.placement.parallel_num > 1 for node in model.order):
        return "the job is for several devices"
    if not native.part().reason and not any(node.op.native is not None for node in model.order):
        return "it has no convolution and no product"
    return native.part().reason


def natively(model: ExportedJob, sizes: Mapping[str, int]) -> Traceable:
    """The job for these values of its open sizes: a function of a dict of weights and the inputs, to be traced by JAX.

    It returns the job's results in their nesting. Only for jobs that are not ``unavailable``.
    """
    nodes, read = _with_sizes(model, sizes)
    results = [read(blob) for _, blob in model.results]
    narrow = precision.assigned(model.graph, nodes, "cpu", "")
    arrangement = arranged(nodes, set(), results, (), narrow, "", "cpu")
    lowering = Lowering(without_native="", precision=arrangement.precision)
    inputs = [read(spec.blob) for spec in model.inputs]
    variables = dict.fromkeys(b.node for node in nodes for b in node.inputs if b.node.op is OP_VARIABLE)
    variables |= dict.fromkeys(b.node for b in results if b.node.op is OP_VARIABLE)

    def run(weights: Mapping[str, Any], *arrays: Any) -> Any:
        values = Values(lowering)
        for blob, array in zip(inputs, arrays, strict=True):
            values.set_blob(blob, array)
        for node in variables:
            values[node] = (weights[node.attrs["variable"]],)
        arrangement.run(values, None)
        return mapped(model.returns, lambda blob: jax.numpy.asarray(values.get_blob(read(blob))))

    return run


def _with_sizes(model: ExportedJob, sizes: Mapping[str, int]) -> tuple[list[Node], Callable[[Blob], Blob]]:
    """Copies of the job's nodes for these sizes, and the function from a Blob of the job to its copy."""
    copies: dict[tuple[Node, int], Blob] = {}

    def read(blob: Blob) -> Blob:
        return copies.get((blob.node, blob.index), blob)

    def add(node: Node, attrs: Mapping[str, Any]) -> Node:
        outputs = [blob.copy(shape=_sized(model, blob, sizes)) for blob in node.outputs]
        made = node.copy(read, attrs=attrs, outputs=outputs)
        copies.update({(node, i): blob for i, blob in enumerate(made.outputs)})
        return made

    for spec in model.inputs:
        add(spec.blob.node, spec.blob.node.attrs)
    nodes = [add(node, {name: _with_values(v, sizes) for name, v in model.sizes.attrs_of(node).items()}) for node in model.order]
    return nodes, read


def _with_values(attr: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with numbers in place of open sizes."""
    if isinstance(attr, (tuple, list)):
        return type(attr)(_with_values(item, sizes) for item in attr)
    return evaluate(attr, sizes) if importlib.import_module("jax.export").is_symbolic_dim(attr) else attr


def serialised(model: ExportedJob, sizes: Mapping[str, int]) -> bytes:
    """``natively`` in the form of ``jax.export``. Only this version of the native part runs it, on a machine of this kind."""
    export = importlib.import_module("jax.export")
    structs = [jax.ShapeDtypeStruct(_sized(model, spec.blob, sizes), spec.dtype.numpy_dtype) for spec in model.inputs]
    declared = {name: jax.ShapeDtypeStruct(v.shape, v.dtype.numpy_dtype) for name, v in model.variables.items()}
    checks = [export.DisabledSafetyCheck.custom_call(native.target(name)) for name in native.part().library.handlers]
    with jax.enable_x64(is_wide(model)):
        made = export.export(jax.jit(natively(model, sizes)), platforms=["cpu"], disabled_checks=checks)(declared, *structs)
    return bytes(made.serialize())


def deserialised(data: bytes) -> Traceable:
    """The function that ``serialised`` was given."""
    native.part()  # its calls have to be known before a program that has some is compiled
    return cast(Traceable, importlib.import_module("jax.export").deserialize(bytearray(data)).call)


def _sized(model: ExportedJob, blob: Blob, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, sizes) for size in model.sizes.of(blob))
