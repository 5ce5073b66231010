"""An exported job for fixed sizes, with the lowerings of the native part: for programs that run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .._base import native
from .._base.jax import jax, jax_export
from ..compiler import fusion, precision
from ..compiler.arrangement import arranged
from ..compiler.autodiff import run_nodes
from ..compiler.lowering import Lowering, Values
from ..compiler.native import NO_CPU, SWITCHED_OFF
from ..config import Resource
from ..graph.graph import OP_VARIABLE
from ..graph.node import Blob, Node
from ._axes import evaluate
from ._job import ExportedJob, is_wide, mapped

Traceable = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Specialised:
    """A job for fixed sizes, as two functions to be traced by JAX.

    Attributes:
      variables: the names of the variables that ``run`` reads.
      prepare: from a dict of all weights to the values that depend on them alone, such as packed weights; a tuple.
      run: of a dict of ``variables``, the prepared values, and the inputs. It returns the job's results in their nesting.
    """

    variables: tuple[str, ...]
    prepare: Traceable
    run: Traceable


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


def natively(model: ExportedJob, sizes: Mapping[str, int]) -> Specialised:
    """The job for these values of its open sizes. Only for jobs that are not ``unavailable``."""
    order, read_sized = _with_sizes(model, sizes)
    narrow: Mapping[Node, Any] = precision.assigned(model.graph, order, "cpu", "")
    roots = [read_sized(blob) for _, blob in model.results]
    read = read_sized
    preparation: Sequence[Node] = ()
    prepared: Sequence[Blob] = ()
    found = fusion.fused([*_variables(order, roots), *order], roots, set(), narrow)
    if found is not None:
        fused_read = found.read
        read = lambda blob: fused_read(read_sized(blob))  # noqa: E731
        order, narrow, roots = [n for n in found.order if n.op is not OP_VARIABLE], found.precision, list(map(fused_read, roots))
        preparation, prepared = found.preparation, found.prepared
    arrangement = arranged(order, set(), roots, (), narrow, "", "cpu").with_native_attention(order, roots).with_rounding()
    variables = _variables(order, roots)
    sources = [node for node in preparation if node.op is OP_VARIABLE]
    lowering, preparing = (Lowering(without_native="", precision=p) for p in (arrangement.precision, narrow))

    def prepare(weights: Mapping[str, Any]) -> tuple[Any, ...]:
        values = Values(preparing)
        for node in sources:
            values[node] = (weights[node.attrs["variable"]],)
        run_nodes([node for node in preparation if node.op is not OP_VARIABLE], values, None, ())
        return tuple(values.get_blob(blob) for blob in prepared)

    def run(weights: Mapping[str, Any], packed: Sequence[Any], *arrays: Any) -> Any:
        values = Values(lowering)
        for spec, array in zip(model.inputs, arrays, strict=True):
            values.set_blob(read_sized(spec.blob), array)
        for blob, array in zip(prepared, packed, strict=True):
            values.set_blob(blob, array)
        for node in variables:
            values[node] = (weights[node.attrs["variable"]],)
        arrangement.run(values, None)
        return mapped(model.returns, lambda blob: jax.numpy.asarray(values.get_blob(read(blob))))

    return Specialised(tuple(dict.fromkeys(node.attrs["variable"] for node in variables)), prepare, run)


def _variables(nodes: Sequence[Node], roots: Sequence[Blob]) -> list[Node]:
    """The variables among what nodes read, and among ``roots``."""
    read = [*(b.node for node in nodes for b in node.inputs), *(b.node for b in roots)]
    return list(dict.fromkeys(node for node in read if node.op is OP_VARIABLE))


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
    return evaluate(attr, sizes) if jax_export.is_symbolic_dim(attr) else attr


def serialised(model: ExportedJob, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], bytes, bytes]:
    """``natively`` in the form of ``jax.export``: the variables, and both functions. Only this version of the native part runs
    them, on a machine of this kind."""
    made = natively(model, sizes)
    structs = [jax.ShapeDtypeStruct(_sized(model, spec.blob, sizes), spec.dtype.numpy_dtype) for spec in model.inputs]
    declared = {name: jax.ShapeDtypeStruct(v.shape, v.dtype.numpy_dtype) for name, v in model.variables.items()}
    with jax.enable_x64(is_wide(model)):
        packed = jax.eval_shape(made.prepare, declared)
        prepare = _exported(made.prepare, declared)
        run = _exported(made.run, {name: declared[name] for name in made.variables}, packed, *structs)
    return made.variables, prepare, run


def _exported(function: Traceable, *structs: Any) -> bytes:
    checks = [jax_export.DisabledSafetyCheck.custom_call(native.target(name)) for name in native.part().library.handlers]
    return bytes(jax_export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)(*structs).serialize())


def deserialised(variables: Sequence[str], prepare: bytes, run: bytes) -> Specialised:
    """What ``serialised`` was given."""
    native.part()  # its calls have to be known before a program that has some is compiled
    return Specialised(
        tuple(variables), *(cast(Traceable, jax_export.deserialize(bytearray(data)).call) for data in (prepare, run))
    )


def _sized(model: ExportedJob, blob: Blob, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, sizes) for size in model.sizes.of(blob))
