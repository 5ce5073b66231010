"""From the ops of a saved model to a graph: each is added to a new job in its turn, the way a body would add it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .._base.dist import parse_placement
from .._base.dtype import HOST_ONLY, dtype
from .._base.refuse import refuse, shown
from .._base.source import caller
from .._variables.initializers import Empty, from_message
from ..errors import SavedModelError
from ..graph.graph import Graph, Variable, tracing
from ..graph.node import Blob, Scope
from ..ops import array, constant, elementwise
from ..ops._emit import MOST_ELEMENTS, OPS, emit_many
from ..ops.custom import REGISTERED
from ..user_op.builder import UserOpConfBuilder
from . import _values
from ._forms import PREFIX

_OTHERS = {  # single output, by the name of the field that names it
    "identity_conf": "out",
    "constant_like_conf": "out",
    "broadcast_to_compatible_with_conf": "y",
    "dynamic_reshape_conf": "out",
}


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An input or output of a loaded graph."""

    name: str
    shape: tuple[int, ...]
    dtype: dtype


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A graph that was made of saved ops. ``graph.returns`` are its outputs, in order."""

    graph: Graph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class _Op:
    """A saved op, as far as the order of ops goes: the logical names of what it reads and makes."""

    def __init__(self, conf: Any):
        self.conf = conf
        self.kind: str | None = conf.WhichOneof("op_type")
        self.reads: list[str] = []
        self.makes: list[str] = []
        body: Any = getattr(conf, self.kind) if self.kind else None
        match self.kind:
            case "variable_conf" | "input_conf":
                self.makes = [f"{conf.name}/{body.out or 'out'}"]
            case "return_conf":
                self.reads = [getattr(body, "in")]
            case "user_conf":
                self.reads = [lbn for name in sorted(body.input) for lbn in body.input[name].s]
                self.makes = [lbn for name in sorted(body.output) for lbn in body.output[name].s]
            case "broadcast_to_compatible_with_conf":
                self.reads = [body.x, *body.compatible]
            case "constant_like_conf":
                self.reads = [body.like]
            case "identity_conf" | "dynamic_reshape_conf":
                self.reads = [getattr(body, "in")]
        if self.kind in _OTHERS:
            self.makes = [f"{conf.name}/{getattr(body, _OTHERS[self.kind])}"]


def variables_of(op_list: Iterable[Any], what: str) -> dict[str, Variable]:
    """The variables that a saved graph declares, by name."""
    found = {}
    for conf in op_list:
        if conf.WhichOneof("op_type") == "variable_conf":
            v = conf.variable_conf
            shape, element = _checked(what, conf.name, v.shape.dim, v.data_type)
            found[conf.name] = Variable(conf.name, shape, element, _initializer(v.initializer), caller(),
                                        random_seed=v.random_seed if v.HasField("random_seed") else None)  # fmt: skip
    return found


def replay(what: str, name: str, op_list: Sequence[Any], signature: Any, *, tag: str, batch_size: int | None = None) -> Replayed:
    """Makes a graph of saved ops.

    Args:
      what: the graph and its model, for errors.
      name: of the graph.
      op_list: ``OperatorConf`` messages.
      signature: a ``JobSignatureDef``: only the ops between its inputs and outputs are taken. None for the job as it was saved.
      tag: the devices that it is for, ``"cpu"`` or ``"gpu"``.
      batch_size: the size of axis 0 of all inputs, instead of the saved one.
    Raises: SavedModelError: an op that this library does not have, names that no op makes, shapes that do not fit.
    """
    ops = [_Op(conf) for conf in op_list]
    makers: dict[str, int] = {}
    for i, op in enumerate(ops):
        for lbn in op.makes:
            if makers.setdefault(lbn, i) != i:
                _refuse(what, f"two ops make {shown(lbn)}")
    if signature is None:
        given = {op.makes[0]: (op.conf.name, op.conf.input_conf.blob_conf) for op in ops if op.kind == "input_conf"}
        wanted = [(op.conf.name, op.reads[0]) for op in ops if op.kind == "return_conf"]
    else:
        given, wanted = _bound(what, signature, makers)
    if not wanted:
        _refuse(what, "it has no outputs", "choose a signature" if signature is None else "")
    needed, used = _cut(what, ops, makers, {lbn for _, lbn in wanted}, set(given))
    if signature is None:
        used = set(given)
    graph = Graph(name, train=False, scope=Scope(placement=parse_placement(tag, ["0:0"])), source=caller())
    blobs: dict[str, Blob] = {}
    inputs: list[Tensor] = []
    with tracing(graph):
        for lbn, (label, conf) in given.items():
            if lbn not in used:
                continue  # no output needs it
            shape, element = _checked(what, label, conf.shape.dim, conf.data_type)
            if conf.is_dynamic:
                _refuse(what, f"input {shown(label)} has another size at each call", "save a job with tp.Numpy.Placeholder")
            if batch_size is not None and shape:
                shape = (batch_size, *shape[1:])
            blobs[lbn] = graph.add_input(label, shape, element, "Numpy", 0 if shape else None, caller())
            inputs.append(Tensor(label, shape, element))
        for i in sorted(needed):
            _add(what, ops[i], i, blobs, graph)
    if graph.assigns:
        _refuse(what, f"an op writes variable {shown(next(iter(graph.assigns)))}, and a served model keeps no state")
    graph.returns = tuple(blobs[lbn] for _, lbn in wanted)
    outputs = tuple(Tensor(label, blobs[lbn].shape, blobs[lbn].dtype) for label, lbn in wanted)
    return Replayed(graph, tuple(inputs), outputs)


def _bound(what: str, signature: Any, makers: Mapping[str, int]) -> tuple[dict[str, tuple[str, Any]], list[tuple[str, str]]]:
    """The inputs of a signature by what they are bound to, and its outputs: in the order that it was built, else that of ops."""

    def ordered(entries: Any, order: Sequence[str]) -> list[str]:
        if sorted(order) == sorted(entries):
            return list(order)
        return sorted(entries, key=lambda n: (makers.get(_lbn(entries[n].lbi), -1), n))

    def known(kind: str, label: str, lbi: Any) -> str:
        if _lbn(lbi) not in makers:
            _refuse(what, f"{kind} {shown(label)} of the signature is bound to {shown(_lbn(lbi))}, which no op makes")
        return _lbn(lbi)

    given = {}
    for label in ordered(signature.inputs, signature.input_order):
        lbn = known("input", label, signature.inputs[label].lbi)
        if lbn in given:
            _refuse(what, f"two inputs of the signature are bound to {shown(lbn)}")
        given[lbn] = (label, signature.inputs[label].blob_conf)
    outputs = ordered(signature.outputs, signature.output_order)
    return given, [(label, known("output", label, signature.outputs[label].lbi)) for label in outputs]


def _lbn(lbi: Any) -> str:
    return f"{lbi.op_name}/{lbi.blob_name}"


def _cut(
    what: str, ops: Sequence[_Op], makers: Mapping[str, int], wanted: Iterable[str], given: set[str]
) -> tuple[set[int], set[str]]:
    """The ops that the outputs need, going back to what is given; and which of that is needed."""
    needed: set[int] = set()
    used: set[str] = set()
    waiting = list(wanted)
    while waiting:
        lbn = waiting.pop()
        if lbn in given:
            used.add(lbn)
            continue
        i = makers.get(lbn)
        if i is None:
            _refuse(what, f"{shown(lbn)} is read, and no op makes it")
        if i not in needed:
            needed.add(i)
            waiting += ops[i].reads
    return needed, used


# --- one op


def _add(what: str, op: _Op, number: int, blobs: dict[str, Blob], graph: Graph) -> None:
    conf = op.conf
    if op.kind == "input_conf":
        _refuse(what, f"an output needs input {shown(conf.name)}, which is not an input of the signature")
    missing = next((lbn for lbn in op.reads if lbn not in blobs), None)
    if missing is not None:
        _refuse(what, f"op {shown(conf.name)} reads {shown(missing)} before an op makes it")
    kind = conf.user_conf.op_type_name if op.kind == "user_conf" else op.kind
    problem: Exception | None = None
    try:
        # numbered: an op may add further ones, whose names begin with its own
        made = _BUILDERS[op.kind or ""](op, f"{conf.name}.{number}", blobs, graph)
    except SavedModelError:
        raise
    except Exception as error:  # of whatever a damaged file asks for
        problem = error
    if problem is not None:
        text = (
            f"there is no op of kind {kind or 'unknown'}" if isinstance(problem, KeyError) and op.kind is None else str(problem)
        )
        _refuse(what, f"op {shown(conf.name)} of type {shown(kind)} cannot be made", cause=problem,
                found=[("because", (text or type(problem).__name__).splitlines()[0])])  # fmt: skip
    if len(made) != len(op.makes):
        _refuse(what, f"op {shown(conf.name)} of type {shown(kind)} is saved with {len(op.makes)} outputs, and has {len(made)}")
    blobs.update(zip(op.makes, made, strict=True))


def _user_op(op: _Op, name: str, blobs: Mapping[str, Blob], graph: Graph) -> Sequence[Blob]:
    user = op.conf.user_conf
    inputs = {argument: [blobs[lbn] for lbn in bound.s] for argument, bound in user.input.items() if bound.s}
    attributes = {}
    for attribute, value in user.attr.items():
        try:
            attributes[attribute] = _values.read(value)
        except ValueError as error:
            raise ValueError(f"attribute {attribute!r}: {error}") from None
    if user.op_type_name.startswith(PREFIX):
        return _own_op(user.op_type_name.removeprefix(PREFIX), inputs.get("in", []), attributes, name)
    builder = UserOpConfBuilder(name, newer=True).Op(user.op_type_name)
    for argument, bound in inputs.items():
        builder.Input(argument, bound)
    for argument in sorted(user.output):
        if user.output[argument].s:
            builder.Output(argument, len(user.output[argument].s))
    for attribute, value in attributes.items():
        if attribute != "nd_sbp":  # a layout over devices, which has no numerical role
            builder.Attr(attribute, value)
    made = builder.Build().InferAndTryRun().RemoteBlobDict()
    return [blob for argument in sorted(user.output) for blob in made.get(argument, ())]


def _own_op(kind: str, inputs: Sequence[Blob], attributes: Mapping[str, Any], name: str) -> Sequence[Blob]:
    values = {attribute: _values.decode(text) for attribute, text in attributes.items()}
    if kind in REGISTERED:
        return REGISTERED[kind].emit(inputs, values, name)
    if kind not in OPS:
        raise ValueError(f"there is no op {kind!r}; it may run on the host, or be one that its program registered")
    return emit_many(OPS[kind], *inputs, name=name, **values)


def _variable(op: _Op, name: str, blobs: Mapping[str, Blob], graph: Graph) -> Sequence[Blob]:
    (variable,) = variables_of([op.conf], "the variable").values()
    graph.add_variable(variable)
    assert variable.blob is not None
    return [variable.blob]


def _constant_like(op: _Op, name: str, blobs: Mapping[str, Blob], graph: Graph) -> Sequence[Blob]:
    conf = op.conf.constant_like_conf
    value = getattr(conf, conf.WhichOneof("op_type") or "float_operand")
    element = _values.dtype_of(conf.data_type) if conf.HasField("data_type") else None
    return [constant.constant_like(blobs[conf.like], value, element, name)]


def _compatible(op: _Op, name: str, blobs: Mapping[str, Blob], graph: Graph) -> Sequence[Blob]:
    conf = op.conf.broadcast_to_compatible_with_conf
    return [array.broadcast_to_compatible_with(blobs[conf.x], [blobs[lbn] for lbn in conf.compatible], name)]


def _dynamic_reshape(op: _Op, name: str, blobs: Mapping[str, Blob], graph: Graph) -> Sequence[Blob]:
    conf = op.conf.dynamic_reshape_conf
    return [array.dynamic_reshape(blobs[getattr(conf, "in")], tuple(conf.shape.dim), name)]


_BUILDERS: dict[str, Callable[[_Op, str, Mapping[str, Blob], Graph], Sequence[Blob]]] = {
    "user_conf": _user_op,
    "variable_conf": _variable,
    "identity_conf": lambda op, name, blobs, graph: [elementwise.identity(blobs[op.reads[0]], name)],
    "constant_like_conf": _constant_like,
    "broadcast_to_compatible_with_conf": _compatible,
    "dynamic_reshape_conf": _dynamic_reshape,
}


# --- checks


def _initializer(message: Any) -> Any:
    return Empty() if message.WhichOneof("type") is None else from_message(message)


def _checked(what: str, label: str, sizes: Iterable[int], number: int) -> tuple[tuple[int, ...], dtype]:
    shape = tuple(sizes)
    if any(size < 0 for size in shape) or math.prod(shape) > MOST_ELEMENTS or len(shape) > 32:
        _refuse(what, f"{shown(label)} has shape {shown(shape)}")
    try:
        element = _values.dtype_of(number)
    except ValueError as error:
        _refuse(what, f"{shown(label)}: {error}")
    if element in HOST_ONLY or element._numpy is None:
        _refuse(what, f"{shown(label)} is of {element}, which arrays cannot hold")
    return shape, element


def _refuse(
    what: str, rule: str, hint: str = "", *, found: Iterable[tuple[str, str]] = (), cause: Exception | None = None
) -> NoReturn:
    refuse(SavedModelError, f"{what}: {rule}", found=found, hint=hint, cause=cause)
