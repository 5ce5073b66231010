"""A job as exporters read it: its nodes in order, inputs, results and variables; or all the reasons why it cannot be exported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from .. import checkpoint
from .._base.dtype import dtype as Dtype
from .._base.refuse import refuse, shown
from .._base.source import Source
from ..compiler import int8
from ..compiler.int8_kernels import Grid
from ..compiler.plan import Plan, plan
from ..errors import ArgumentError, CheckpointError, ExportError, ModeError
from ..graph.graph import OP_INPUT, OP_TO_CONSISTENT, OP_TO_MIRRORED, OP_VARIABLE, Graph, Input, Variable, current_or_none
from ..graph.node import Blob, Node
from ..job import JobFunction
from ..job.declaration import Declaration
from ._axes import Sizes, open_sizes
from ._other_sizes import described_again

DynamicAxes = Mapping[str, Mapping[int, str] | Sequence[int]] | None
Reason = Callable[[Node], str | None]


@dataclass(frozen=True, slots=True, eq=False)
class ExportedJob:
    """A job that can be exported.

    Attributes:
      order: the nodes that compute something, inputs first.
      inputs: those that the results depend on come in the order of the job's parameters; the others too.
      results: name and Blob of everything that a call returns; ``returns`` is their nesting, with Blobs as leaves.
      variables: those that the nodes read, by name.
      weights: their values, read when they are asked for.
      open_axes: the names of open axes by input label.
      precision: the dtypes of nodes that compute in a narrower one.
    """

    graph: Graph
    order: tuple[Node, ...]
    inputs: tuple[Input, ...]
    results: tuple[tuple[str, Blob], ...]
    returns: Any
    variables: Mapping[str, Variable]
    weights: Mapping[str, np.ndarray]
    open_axes: Mapping[str, Mapping[int, str]]
    sizes: Sizes
    precision: Mapping[Node, Dtype]

    @property
    def name(self) -> str:
        return self.graph.name


def exported_job(
    what: str, job: Any, *, reason: Reason, dynamic_axes: DynamicAxes = None, weights: Any = None, format: str
) -> ExportedJob:
    """Reads a predict job.

    Args:
      what: the function that the user called, for errors.
      job: what ``@flow.global_function`` made.
      reason: why a node cannot be written; None where it can.
      dynamic_axes: see ``flow.export.onnx``.
      weights: None for the session's present values, a path, or a dict of name -> array.
      format: what it is written as, for errors.
    Raises:
      ExportError: a train job; nodes that cannot be written, all of them; an op that ties an open size to a number.
      ArgumentError: not a job; axes that no input has.
    """
    if current_or_none() is not None:
        refuse(ModeError, f"{what} cannot be called inside a job function", hint="call it outside")
    if not isinstance(job, JobFunction):
        refuse(ArgumentError, f"{what} needs a job function, got {shown(job)}",
               hint='what @flow.global_function(type="predict") made')  # fmt: skip
    if job.train:
        refuse(ExportError, f"job {job.name!r} is a train job, and {format} describes what a model computes, not how it learns",
               found=[("the job", f"{job.source}   {job.source.text}")],
               hint="declare a predict job of the same layers, which shares its variables by name")  # fmt: skip
    graph = job.graph
    return exported_graph(graph, reason=reason, names=lambda: _open_axes(what, graph, dynamic_axes), format=format,
                          weights=lambda variables: _weights(what, job, variables, weights),
                          grids=job.declaration.grids, declared=job.declaration)  # fmt: skip


def exported_graph(
    graph: Graph,
    *,
    reason: Reason,
    names: Callable[[], Mapping[str, Mapping[int, str]]],
    weights: Callable[[Mapping[str, Variable]], Mapping[str, np.ndarray]],
    format: str,
    grids: Mapping[str, Grid] | None = None,
    declared: Declaration | None = None,
) -> ExportedJob:
    """``exported_job`` of a graph. ``names`` returns the names of its open axes, ``weights`` the values of its variables.

    ``grids``: of a job in int8, which is written in floating point with its data and weights rounded. ``declared``: of a job
    whose body can be run again, which shows what it makes of the open sizes.
    """
    results = list(_named(graph.returns))
    if not results:
        refuse(ExportError, f"job {graph.name!r} returns nothing, so there is nothing to export", source=graph.source)
    blobs = [blob for _, blob in results]
    made = plan(graph, blobs, native_ops=False)
    if grids is not None:
        simulated, fetches = int8.simulated(made.order, made.fetches, grids)
        made = replace(made, order=simulated, fetches=fetches)
    problems = [*_problems(graph, made, blobs), *_without_form(made.order, reason)]
    if problems:
        refuse_all(graph.name, format, problems)
    order = _inputs_first(graph, made)
    opened = names()
    sizes = _sizes(graph, order, opened, declared)
    variables = {n.attrs["variable"]: graph.variables[n.attrs["variable"]] for n in made.order if n.op is OP_VARIABLE}
    fetched = dict(zip(map(_key, blobs), made.fetches, strict=True))  # repeated parts are joined there
    return ExportedJob(
        graph,
        tuple(made.compute),
        tuple(graph.inputs),
        tuple(zip(_distinct([name for name, _ in results]), made.fetches, strict=True)),
        mapped(graph.returns, lambda blob: fetched[_key(blob)]),
        variables,
        weights(variables),
        opened,
        sizes,
        made.precision,
    )


def why_other_batches_differ(job: JobFunction[..., Any]) -> str:
    """Why the ops of a predict job compute something else for batches of other sizes than its body would describe; else ""."""
    graph, opened = job.graph, default_axes(job.graph)
    results = list(_named(graph.returns))
    if job.train or not results:
        return ""
    made = plan(graph, [blob for _, blob in results], native_ops=False)
    order = _inputs_first(graph, made)
    try:
        open_sizes(order, graph.inputs, opened)
    except ExportError:  # they do not work for other sizes
        return ""
    try:
        _sizes(graph, order, opened, job.declaration)
    except ExportError as error:
        return str(error)
    return ""


def _inputs_first(graph: Graph, made: Plan) -> list[Node]:
    return [*(spec.blob.node for spec in graph.inputs), *(n for n in made.order if n.op is not OP_INPUT)]


def _sizes(graph: Graph, order: Sequence[Node], opened: Mapping[str, Mapping[int, str]], declared: Declaration | None) -> Sizes:
    values = {name: spec.shape[axis] for spec in graph.inputs for axis, name in opened.get(spec.label, {}).items()}
    other = described_again(declared, opened, values) if declared is not None and values else None
    if other is not None and other.ignores_sizes(order):
        other = None
    sizes = open_sizes(order, graph.inputs, opened, None if other is None else other.growing(order))
    if other is not None:
        other.check(graph, order, sizes)
    return sizes


def _key(blob: Blob) -> tuple[Node, int]:
    return blob.node, blob.index


def is_wide(model: ExportedJob) -> bool:
    """Whether 64-bit values may occur; integer ops use them inside, for sums for example."""
    blobs = [b for node in (*model.order, *(s.blob.node for s in model.inputs)) for b in node.outputs]
    blobs += [v.blob for v in model.variables.values() if v.blob is not None]
    return any(b.dtype.is_integer or b.dtype.name == "float64" for b in blobs)


# --- results


def _named(value: Any, path: str = "") -> Iterator[tuple[str, Blob]]:
    """The Blobs of a nesting: those of dicts by their keys, others by their ops."""
    if isinstance(value, Blob):
        yield path or value.op_name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _named(item, f"{path}.{i}" if path else "")


def leaves(value: Any) -> Iterator[Blob]:
    """The Blobs of a nesting, in order."""
    return (blob for _, blob in _named(value))


def mapped(value: Any, function: Callable[[Blob], Any]) -> Any:
    """The same nesting of dicts, tuples and lists with other leaves."""
    if isinstance(value, Blob):
        return function(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [mapped(item, function) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _distinct(names: Sequence[str]) -> list[str]:
    taken: set[str] = set()
    made = []
    for name in names:
        unique, number = name, 0
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        made.append(unique)
    return made


# --- why a job cannot be exported


Problem = tuple[str, str, Source]  # what, why, and the line


def _problems(graph: Graph, made: Any, blobs: Sequence[Blob]) -> Iterator[Problem]:
    for spec in graph.inputs:
        if spec.kind != "Numpy":
            why = f"an input of tp.{spec.kind} has another size at each call; declare it as tp.Numpy.Placeholder"
            yield (f"input {spec.label!r}", why, graph.source or spec.blob.source)
    for node in made.host.nodes:
        yield (f"{node.op.name} {node.name!r}", "it runs on the host, before the step", node.source)
    for name, blob in graph.assigns.items():
        yield (f"variable {name!r}", "the job assigns to it, and an exported model keeps no state", blob.source)
    for node in made.order:
        if node.op in (OP_TO_MIRRORED, OP_TO_CONSISTENT):
            why = "it changes between the views of several devices; export a job of one device or of the consistent view"
            yield (f"{node.op.name} {node.name!r}", why, node.source)
        elif node.op.random:
            yield (f"{node.op.name} {node.name!r}", "it draws random numbers from the session's state", node.source)
        elif node.op.callback:
            yield (f"{node.op.name} {node.name!r}", "it runs Python code in the middle of a step", node.source)
    for blob in blobs:
        if blob.has_dynamic_size:
            yield (f"result {blob.op_name!r}", "its size depends on data", blob.source)


def _without_form(order: Sequence[Node], reason: Reason) -> Iterator[Problem]:
    for node in order:
        if node.op in (OP_INPUT, OP_VARIABLE, OP_TO_MIRRORED, OP_TO_CONSISTENT) or node.op.random or node.op.callback:
            continue
        why = reason(node)
        if why is not None:
            yield (f"{node.op.name} {node.name!r}", why, node.source)


def refuse_all(job: str, format: str, problems: Sequence[Problem]) -> NoReturn:
    """Raises ExportError with all obstacles, one per line."""
    width = max(len(what) for what, _, _ in problems)
    rows = [f"job {job!r} cannot be exported as {format}:"]
    for what, why, source in dict.fromkeys(problems):
        rows.append(f"  {what:<{width}}   {why}   {source}   {source.text}".rstrip())
    raise ExportError("\n".join(rows))


# --- open axes


def _open_axes(what: str, graph: Graph, given: DynamicAxes) -> dict[str, dict[int, str]]:
    """The names of open axes by input label and axis; by default the batch axis of those inputs that share the first's size."""
    by_label = {spec.label: spec for spec in graph.inputs}
    if given is None:
        return default_axes(graph)
    if not isinstance(given, Mapping):
        refuse(ArgumentError, f"{what}: dynamic_axes must be a dict of input -> axes, got {shown(given)}",
               hint="dynamic_axes={'x': {0: 'batch'}}; {} fixes every size")  # fmt: skip
    made: dict[str, dict[int, str]] = {}
    values: dict[str, int] = {}
    for label, axes in given.items():
        spec = by_label.get(label)
        if spec is None:
            refuse(ArgumentError, f"{what}: dynamic_axes names {shown(label)}, which is not an input of job {graph.name!r}",
                   hint=f"its inputs are {', '.join(map(repr, by_label)) or 'none'}")  # fmt: skip
        if not isinstance(axes, (Mapping, list, tuple)):
            refuse(ArgumentError, f"{what}: dynamic_axes must have a dict or a list of axes for {label!r}, got {shown(axes)}")
        named = axes.items() if isinstance(axes, Mapping) else ((a, _axis_name(spec, a)) for a in axes)
        for axis, name in named:
            if not isinstance(axis, int) or not -len(spec.shape) <= axis < len(spec.shape):
                refuse(ArgumentError, f"{what}: dynamic_axes names axis {shown(axis)} of {label!r}, which has shape {spec.shape}")
            if not isinstance(name, str) or not name.isidentifier():
                refuse(ArgumentError, f"{what}: an open axis needs an identifier as its name, got {shown(name)}")
            at = axis % len(spec.shape)
            if values.setdefault(name, spec.shape[at]) != spec.shape[at]:
                refuse(ArgumentError, f"{what}: dynamic_axes calls two sizes {name!r}, {values[name]} and {spec.shape[at]}",
                       hint="axes of one name have the same size in every call")  # fmt: skip
            made.setdefault(label, {})[at] = name
    return made


def default_axes(graph: Graph) -> dict[str, dict[int, str]]:
    """The batch axis of all inputs that share the first one's batch size, named "batch"."""
    batched = [spec for spec in graph.inputs if spec.blob.batch_axis >= 0]
    sizes = [spec.shape[spec.blob.batch_axis] for spec in batched]
    return {s.label: {s.blob.batch_axis: "batch"} for s, size in zip(batched, sizes, strict=True) if size == sizes[0]}


def _axis_name(spec: Input, axis: Any) -> str:
    if axis == spec.blob.batch_axis:
        return "batch"
    label = "".join(c if c.isalnum() else "_" for c in spec.label)
    return f"{label}_axis_{axis}"


# --- weights


class _Reader(Mapping[str, np.ndarray]):
    """Arrays by name, each read when it is asked for."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def _weights(what: str, job: JobFunction[..., Any], variables: Mapping[str, Variable], given: Any) -> Mapping[str, np.ndarray]:
    if given is None:
        session = job._session
        session.start()
        return session.read(list(variables)) if variables else {}
    values = given
    if isinstance(given, (str, os.PathLike)):
        values = checkpoint.get(given)
    if not isinstance(values, Mapping):
        refuse(ArgumentError, f"{what}: weights must be a checkpoint's path or a dict of name -> array, got {shown(given)}")
    missing = [name for name in variables if name not in values]
    if missing:
        refuse(CheckpointError, f"{what}: {len(missing)} of the {len(variables)} variables of job {job.name!r} are missing in "
               f"the weights: {', '.join(missing[:10])}")  # fmt: skip
    return _Reader({name: partial(_fitting, what, variable, values[name]) for name, variable in variables.items()})


def _fitting(what: str, variable: Variable, value: Any) -> np.ndarray:
    read_as = getattr(value, "read_as", None)  # of checkpoints, some of which have neither shape nor dtype
    if isinstance(value, np.ndarray):
        array = value
    elif read_as is not None:
        array = read_as(variable.shape, variable.dtype)
    elif hasattr(value, "numpy"):
        array = value.numpy()
    else:
        refuse(CheckpointError, f"{what}: the value for variable {variable.name!r} is not an array but a {type(value).__name__}")
    if array.shape != variable.shape or array.dtype != variable.dtype.numpy_dtype:
        refuse(CheckpointError, f"{what}: the value for variable {variable.name!r} is {array.dtype}{list(array.shape)}, "
               f"not {variable.describe()}", found=[("declared", f"{variable.source}")])  # fmt: skip
    return array
