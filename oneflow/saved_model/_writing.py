"""A job's graph as the ``OperatorConf`` messages of a saved model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._base import dtype as dtypes
from .._base.dist import Distribute
from .._base.dtype import dtype
from .._base.refuse import warn
from .._variables import initializers
from ..compiler.plan import plan
from ..core.operator import op_conf_pb2
from ..errors import JobWarning
from ..export._job import leaves
from ..graph.graph import OP_INPUT, OP_VARIABLE, Graph, Variable
from ..graph.node import Blob, Node
from ..user_op.builder import form_for
from . import _values
from ._forms import PREFIX, UserOp, forms_of

_KINDS = {"Constant": "constant_conf", "RandomUniform": "random_uniform_conf", "RandomInteger": "random_uniform_int_conf",
          "RandomNormal": "random_normal_conf", "TruncatedNormal": "truncated_normal_conf",
          "VarianceScaling": "variance_scaling_conf", "Empty": "empty_conf"}  # fmt: skip
_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("random_uniform", "random_normal", "truncated_normal")


def op_list(graph: Graph, kept: Sequence[Blob], *, as_traced: bool) -> list[Any]:
    """The ops of a job in order of creation, and a return op for each Blob that it returns.

    Args:
      kept: Blobs that must be there, those of signatures.
      as_traced: every op of the body. Otherwise only those that ``kept`` and the job's results need, with the casts of mixed
        precision.
    """
    returned = list(leaves(graph.returns))
    precision: Mapping[Node, dtype] = {}
    nodes: Iterable[Node] = graph.nodes
    if not as_traced:
        made = plan(graph, [*returned, *kept], native_ops=False)
        precision = made.precision
        needed = {node for node in made.order if node in set(graph.nodes)} | {spec.blob.node for spec in graph.inputs}
        needed |= {blob.node for blob in kept}
        nodes = [node for node in graph.nodes if node in needed]
    confs = [conf for node in nodes for conf in _confs(graph, node, precision.get(node))]
    taken = {conf.name for conf in confs}
    number = 0
    for blob in returned:
        if blob.has_dynamic_size:
            rule = f"result {blob.op_name!r} of job {graph.name!r} is not part of the saved model: its size depends on data"
            warn(JobWarning, rule)
            continue
        while f"Return_{number}" in taken:
            number += 1
        conf = op_conf_pb2.OperatorConf(name=f"Return_{number}", device_tag=blob.node.scope.placement.tag)
        setattr(conf.return_conf, "in", blob.logical_blob_name)
        conf.return_conf.out, conf.return_conf.job_name = "out", graph.name
        taken.add(conf.name)
        confs.append(conf)
    return confs


def blob_conf(message: Any, blob: Blob) -> None:
    """Fills an ``InterfaceBlobConf``."""
    message.shape.SetInParent()
    message.shape.dim.extend(blob.shape)
    message.data_type = blob.dtype.oneflow_proto_dtype
    message.is_dynamic = blob.is_dynamic
    if blob.split_axis >= 0:
        message.nd_sbp.sbp_parallel.add().split_parallel.axis = blob.split_axis


def _confs(graph: Graph, node: Node, narrow: dtype | None) -> Iterable[Any]:
    tag = node.scope.placement.tag
    if node.op is OP_INPUT:
        conf = op_conf_pb2.OperatorConf(name=node.name, device_tag=tag)
        conf.input_conf.out, conf.input_conf.job_name = node.outputs[0].blob_name, graph.name
        blob_conf(conf.input_conf.blob_conf, node.outputs[0])
        yield conf
    elif node.op is OP_VARIABLE:
        yield _variable(graph.variables[node.attrs["variable"]], node, tag)
    else:
        for op in _narrowed(node, narrow):
            yield _user_op(node.name + op.suffix, tag, op)


def _ops(node: Node) -> Sequence[UserOp]:
    found = forms_of(node)
    if found is not None:
        return found
    inputs = {"in": [b.logical_blob_name for b in node.inputs]} if node.inputs else {}
    outputs = {"out": [b.logical_blob_name for b in node.outputs]} if node.outputs else {}
    return [UserOp(PREFIX + node.op.name, inputs, outputs, {name: _encoded(value) for name, value in node.attrs.items()})]


def _encoded(value: Any) -> str:
    try:
        return _values.encode(value)
    except _values.UnwritableError:  # of an op that runs on the host: it is listed, and cannot be loaded
        return f"{_values.UNWRITTEN}{repr(value)[:200]}"


def _narrowed(node: Node, narrow: dtype | None) -> Iterable[UserOp]:
    """The ops of a node, between casts where it computes in a narrower dtype."""
    ops = _ops(node)
    if narrow is None:
        yield from ops
        return
    renamed: dict[str, str] = {}
    after = []
    for i, blob in enumerate(node.inputs):
        if blob.dtype is dtypes.float32 and not (node.op.autocast_first_only and i) and blob.logical_blob_name not in renamed:
            suffix = f"-narrow_{i}"
            renamed[blob.logical_blob_name] = f"{node.name}{suffix}/out_0"
            yield UserOp("cast", {"in": [blob.logical_blob_name]}, {"out": [renamed[blob.logical_blob_name]]}, {"dtype": narrow},
                         suffix)  # fmt: skip
    for i, blob in enumerate(node.outputs):
        if blob.dtype is dtypes.float32:
            suffix, renamed[blob.logical_blob_name] = f"-wide_{i}", f"{node.name}-narrow/out_{i}"
            after.append(UserOp("cast", {"in": [renamed[blob.logical_blob_name]]}, {"out": [blob.logical_blob_name]},
                                {"dtype": blob.dtype}, suffix))  # fmt: skip

    def changed(bound: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        return {name: [renamed.get(b, b) for b in blobs] for name, blobs in bound.items()}

    for op in ops:
        yield replace(op, inputs=changed(op.inputs), outputs=changed(op.outputs), suffix=f"{op.suffix}-narrow")
    yield from after


def _user_op(name: str, tag: str, op: UserOp) -> Any:
    conf = op_conf_pb2.OperatorConf(name=name, device_tag=tag)
    user: Any = conf.user_conf
    user.op_type_name = op.type_name
    for bound, field, order in ((op.inputs, user.input, user.input_order), (op.outputs, user.output, user.output_order)):
        for argument, blobs in bound.items():
            field[argument].s.extend(blobs)
            order.append(argument)
    if op.type_name.startswith(PREFIX):
        for name, text in op.attributes.items():
            user.attr[name].at_string = text
        return conf
    form = form_for(f"user op {name!r}", op.type_name, op.inputs, op.outputs, op.attributes, newer=True)
    for attribute in form.attributes.values():
        value = op.attributes.get(attribute.name, attribute.default)
        if value is not None:
            _values.write(user.attr[attribute.name], attribute.type_name, value)
    return conf


def _variable(variable: Variable, node: Node, tag: str) -> Any:
    conf = op_conf_pb2.OperatorConf(name=node.name, device_tag=tag)
    v: Any = conf.variable_conf
    v.out = node.outputs[0].blob_name
    v.shape.SetInParent()
    v.shape.dim.extend(variable.shape)
    v.data_type = variable.dtype.oneflow_proto_dtype
    v.trainable = variable.trainable
    _initializer(v.initializer, variable.initializer)
    if variable.model_name is not None:
        v.model_name = variable.model_name
    if variable.random_seed is not None:
        v.random_seed = variable.random_seed
    if variable.regularizer is not None:
        v.regularizer.l1_l2_conf.l1, v.regularizer.l1_l2_conf.l2 = variable.regularizer.l1, variable.regularizer.l2
    layout = variable.distribute
    for entry in layout if isinstance(layout, tuple) else [layout] if layout is not None else []:
        v.nd_sbp.append(_sbp(entry))
    return conf


def _sbp(entry: Distribute) -> str:
    return f"S({entry.axis})" if entry.kind == "split" else "B"


def _initializer(message: Any, initializer: Any) -> None:
    """Fills an ``InitializerConf``; one that the message cannot express is left out: loading takes the saved value."""
    field = _KINDS.get(type(initializer).__name__)
    if field is None:
        return
    conf = getattr(message, field)
    conf.SetInParent()
    match initializer:
        case initializers.Constant(value=int(value)) if not isinstance(value, bool):
            message.constant_int_conf.value = value
        case initializers.Constant(value=value):
            conf.value = float(value)
        case initializers.RandomUniform(low=low, high=high) | initializers.RandomInteger(low=low, high=high):
            conf.min, conf.max = low, high
        case initializers.RandomNormal(mean=mean, stddev=std) | initializers.TruncatedNormal(mean=mean, stddev=std):
            conf.mean, conf.std = mean, std
        case initializers.VarianceScaling():
            conf.scale, conf.data_format = initializer.scale, initializer.data_format
            conf.variance_norm = _MODES.index(initializer.mode) if initializer.mode in _MODES else 2
            conf.distribution = _DISTRIBUTIONS.index(initializer.distribution)
