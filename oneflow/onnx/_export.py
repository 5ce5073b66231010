"""From a predict job to an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._base import check
from .._base.dtype import from_numpy
from .._base.extras import need
from .._base.refuse import refuse, shown, warn
from .._base.version import __version__
from .._base.whole_files import exporting
from ..errors import ArgumentError, JobWarning
from ..export._axes import is_open
from ..export._files import as_path
from ..export._job import DynamicAxes, ExportedJob, exported_job, refuse_all
from ..graph.node import Node
from ._emitter import TYPES, Emitter
from .rules import WITHOUT, Inexpressible, rules
from .rules.quantization import keep_biases_in_range

OPSETS = range(17, 24)
DEFAULT_OPSET = 17
CUSTOM_DOMAIN = "oneflow"
_MOST_BYTES = 2**31 - 2**24  # of one protobuf message, with room for the nodes
_LARGE = 1024  # bytes: tensors from this size on go into the file of external data


def write(
    what: str,
    job: Any,
    path: str | os.PathLike[str],
    *,
    dynamic_axes: DynamicAxes = None,
    opset: int | None = None,
    external_data: bool | None = None,
    weights: Any = None,
    custom_ops: int = 0,
) -> None:
    """Writes a job, see ``flow.export.onnx``; ``custom_ops`` is the version of the domain of ops without a rule."""
    onnx = need("onnx", what)
    version = _opset(what, onnx, opset)
    file = as_path(what, path)
    if external_data is not None:
        check.checked(what, "external_data", check.flag(external_data))
    known = rules()

    def reason(node: Node) -> str | None:
        if node.op.name in known or custom_ops:
            return None
        return WITHOUT.get(node.op.name, "ONNX cannot express it")

    exported = exported_job(what, job, reason=reason, dynamic_axes=dynamic_axes, weights=weights, format="ONNX")
    emitter = Emitter(exported, version)
    _emit_all(exported, emitter, custom_ops)
    keep_biases_in_range(emitter)
    results = emitter.results()
    emitter.prune(results)
    model = _model(onnx, exported, emitter, results)
    size = sum(array.nbytes for array in emitter.initializers.values())
    _save(what, onnx, model, file, size > _MOST_BYTES if external_data is None else external_data)


def _opset(what: str, onnx: Any, given: int | None) -> int:
    found = check.whole(given)
    if given is None or found == 0:
        return DEFAULT_OPSET
    newest = min(OPSETS[-1], onnx.defs.onnx_opset_version())
    if found is None or not OPSETS[0] <= found <= newest:
        refuse(ArgumentError, f"{what}: opset must be in {OPSETS[0]} to {newest}, got {shown(given)}",
               hint=f"leave it out for {DEFAULT_OPSET}, which every present runtime reads")  # fmt: skip
    return found


def _emit_all(exported: ExportedJob, emitter: Emitter, custom_ops: int) -> None:
    known = rules()
    problems: list[tuple[Node, str]] = []
    for node in exported.order:
        emitter.begin(node)
        try:
            if node.op.name in known:
                made = known[node.op.name](emitter)
            else:
                made = _custom(emitter, custom_ops)
            if made is not None:
                emitter.finish(made)
        except Inexpressible as error:
            problems.append((node, str(error)))
            emitter.finish([f"?{node.name}/{i}" for i in range(len(node.outputs))])
    if problems:
        refuse_all(
            exported.name, "ONNX", [(f"{n.op.name} {n.name!r}", f"ONNX cannot express {why}", n.source) for n, why in problems]
        )


def _custom(emitter: Emitter, version: int) -> list[str]:
    """A node of a domain of our own, for an op that ONNX does not have; who runs the model has to bring it."""
    node = emitter.node
    emitter.domains[CUSTOM_DOMAIN] = version
    warn(JobWarning, f"{node.op.name} {node.name!r} cannot be expressed in ONNX and was written as "
                     f"{CUSTOM_DOMAIN}.{node.op.name}, which runtimes do not know ({node.source})")  # fmt: skip
    made = emitter.emit(node.op.name, *emitter.inputs(), outputs=len(node.outputs), domain=CUSTOM_DOMAIN, **_plain(emitter.attrs))
    return [made] if isinstance(made, str) else list(made)


def _plain(attrs: Any) -> dict[str, Any]:
    """Attributes as ONNX has them: numbers, text, and lists of those of one kind."""
    made: dict[str, Any] = {}
    for name, value in attrs.items():
        if isinstance(value, (bool, int, float, str)):
            made[name] = int(value) if isinstance(value, bool) else value
        elif (
            isinstance(value, tuple)
            and value
            and all(type(v) is type(value[0]) and isinstance(v, (int, float, str)) for v in value)
        ):
            made[name] = list(value)
        elif value is not None:
            made[name] = str(value)
    return made


def _model(onnx: Any, exported: ExportedJob, emitter: Emitter, results: Sequence[str]) -> Any:
    helper = onnx.helper

    def info(name: str, shape: Any, element: Any) -> Any:
        return helper.make_tensor_value_info(name, TYPES[element.name], [str(s) if is_open(s) else s for s in shape])

    nodes = []
    for op in emitter.ops:
        node = helper.make_node(op.kind, op.inputs, op.outputs, op.name, op.doc, op.domain or None)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(op.attrs.items()))
        nodes.append(node)
    inputs = [info(spec.label, exported.sizes.of(spec.blob), spec.dtype) for spec in exported.inputs]
    outputs = [info(name, exported.sizes.of(blob), blob.dtype) for name, (_, blob) in zip(results, exported.results, strict=True)]
    known = {*emitter.initializers, *results, *(spec.label for spec in exported.inputs)}
    made = {name for op in emitter.ops for name in op.outputs}
    values = [info(n, shape, dt) for n, (shape, dt) in emitter.values().items() if n not in known and n in made]
    tensors = [_tensor(onnx, name, array) for name, array in emitter.initializers.items()]
    source = exported.graph.source
    graph = helper.make_graph(nodes, exported.name, inputs, outputs, tensors, doc_string=str(source or ""), value_info=values)
    opsets = [helper.make_opsetid("", emitter.opset), *(helper.make_opsetid(*d) for d in emitter.domains.items())]
    model = helper.make_model(graph, producer_name="oneflow-jax", producer_version=__version__, opset_imports=opsets)
    model.ir_version = helper.find_min_ir_version_for(opsets[:1])
    helper.set_model_props(model, {"job": exported.name, "source": str(source or "")})
    return model


def _tensor(onnx: Any, name: str, array: np.ndarray) -> Any:
    kind = 9 if array.dtype == np.bool_ else TYPES[from_numpy(array.dtype).name]
    little = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.kind in "iuf" else array
    return onnx.TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=little.tobytes())


def _save(what: str, onnx: Any, model: Any, path: Path, external: bool) -> None:
    data = path.parent / f"{path.name}.data"  # of a folder as well, which is refused below
    with exporting(what, path) as staged:
        if external:
            data.unlink(missing_ok=True)  # the library appends
            onnx.save_model(model, str(staged), save_as_external_data=True, location=data.name, size_threshold=_LARGE)
        else:
            staged.write_bytes(model.SerializeToString())
