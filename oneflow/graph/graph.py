"""The graph of a job: what its body described. Plain data, without devices, threads or files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .._base.dist import Distribute, Placement
from .._base.dtype import HOST_ONLY, dtype
from .._base.generation import V0_3, Generation
from .._base.source import Source, caller, is_library
from ..errors import BlobScopeError, DuplicateNameError, ModeError, RepetitionError, VariableConflictError
from .node import Blob, Node, Scope
from .op import OpDef
from .repetition import repetition_of


class Initializer(Protocol):
    """Draws the first value of a variable."""

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray: ...


@dataclass(slots=True, eq=False)
class Variable:
    """A tensor that outlives a call. Jobs of a session share variables by name.

    ``role`` is "parameter" for what the user asked for, "state" for what the library keeps beside it (optimizer slots,
    the step counter). ``blob`` is its value at the start of a call, None where no op of the job reads it. It lives on
    ``placement``; ``distribute`` has one entry, or one for each axis of the placement's hierarchy. An optimizer's slot has
    the variable it is kept for as its ``owner``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: dtype
    initializer: Initializer
    source: Source
    trainable: bool = False
    regularizer: Any = None
    model_name: str | None = None
    random_seed: int | None = None
    distribute: Distribute | tuple[Distribute, ...] | None = None
    role: str = "parameter"
    blob: Blob | None = None
    placement: Placement | None = None
    owner: str | None = None

    def describe(self) -> str:
        """Its dtype and shape, as ``float32[3, 4]``."""
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    def agrees(self, other: Variable) -> bool:
        """Whether both may share one storage."""
        return self.shape == other.shape and self.dtype == other.dtype

    def must_agree(self, other: Variable) -> None:
        """Raises VariableConflictError unless both may share one storage."""
        if not self.agrees(other):
            raise VariableConflictError(
                f"variable {self.name!r} is declared twice, and the declarations disagree\n"
                f"  here       {self.describe()}   {self.source}   {self.source.text}\n"
                f"  and there  {other.describe()}   {other.source}   {other.source.text}\n"
                f"  try        give one of them another name, make shape and dtype equal, declare the job over there anew, too, "
                f"or start again with flow.clear_default_session()"
            )


@dataclass(slots=True, eq=False)
class Input:
    """One array that each call is fed. ``kind`` is "Numpy", "ListNumpy" or "ListListNumpy"."""

    label: str
    shape: tuple[int, ...]
    dtype: dtype
    kind: str
    blob: Blob


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """A value, or its gradient if ``diff``, that each call hands to ``deliver``.

    Where ``deferred``, it may be handed over before the device has computed it, and a call does not wait for ``deliver``.
    """

    blob: Blob
    deliver: Callable[[Any], None]
    diff: bool
    deferred: bool = False


@dataclass(slots=True, eq=False)
class Objective:
    """The losses of a train job and the optimizers that minimise them.

    ``optimizers`` are objects with the attributes the compiler's update pass reads (see ``optimizer/base.py``); ``trained`` are
    the trainable variables that a loss depends on, in order of declaration (``compiler/analysis.py`` finds them).
    """

    losses: list[Blob] = field(default_factory=list)
    optimizers: tuple[Any, ...] = ()
    trained: tuple[Variable, ...] = ()
    source: Source | None = None


OP_INPUT = OpDef("input", lambda *a, **k: None)
OP_VARIABLE = OpDef("variable", lambda *a, **k: None)
# conversions between the views; their lowering depends on the devices (compiler/lowering.py)
OP_TO_MIRRORED = OpDef("to_mirrored", lambda x, **k: x)
OP_TO_CONSISTENT = OpDef("to_consistent", lambda x, **k: x)


class Graph:
    """The nodes of one job, in the order in which they were added, with its inputs, variables, results and objective."""

    def __init__(
        self, name: str, *, train: bool, scope: Scope, config: Any = None, source: Source | None = None,
        generation: Generation = V0_3,
    ):  # fmt: skip
        self.name = name
        self.generation = generation
        self.source = source  # where the job's function is written
        self.train = train
        self.scope = scope
        self.config = config
        # how often per call the sources of data run, and the pieces into which inputs are cut
        self.accumulation_steps: int = config.get("train.num_gradient_accumulation_steps", 1) if train and config else 1
        self.nodes: list[Node] = []
        self.inputs: list[Input] = []
        self.variables: dict[str, Variable] = {}
        self.assigns: dict[str, Blob] = {}
        self.watches: list[Watch] = []
        self.objective = Objective()
        self.returns: Any = None
        self.modules: dict[str, Any] = {}
        self.warned: set[Any] = set()  # the kinds of warnings that its user has had
        # replaces the inputs of an op that is about to be added; set by quantization-aware training
        self.adapt_inputs: Callable[[OpDef, tuple[Blob, ...]], tuple[Blob, ...]] | None = None
        self.in_views: dict[Any, Blob] = {}  # Blobs that were converted to the other view
        self._by_name: dict[str, Node] = {}
        self._counters: dict[str, int] = {}

    # --- names

    def fresh_name(self, prefix: str) -> str:
        """``Conv2d_0``, ``Conv2d_1``, ...: numbered per job, so that saving and loading scripts agree."""
        while True:
            number = self._counters.get(prefix, 0)
            self._counters[prefix] = number + 1
            name = f"{self.scope.namespace}{prefix}_{number}"
            if name not in self._by_name:
                return name

    def layer_name(self, kind: str) -> str:
        """``Dense``, ``Dense_1``, ``Dense_2``: the names of unnamed layers, per job and namespace."""
        key = f"{self.scope.namespace}{kind} layer"
        number = self._counters.get(key, 0)
        self._counters[key] = number + 1
        return f"{kind}_{number}" if number else kind

    # --- nodes

    def add(
        self,
        op: OpDef,
        inputs: tuple[Blob, ...],
        attrs: Mapping[str, Any],
        outputs: list[tuple[tuple[int, ...], dtype]],
        *,
        name: str | None = None,
        prefix: str = "",
        batch_axis: int | None = None,
        is_dynamic: bool = False,
        is_tensor_list: bool = False,
        suffix: str | None = None,
    ) -> Node:
        """Appends a node. ``name`` is given without the namespace; ``outputs`` are (shape, dtype) pairs."""
        source = caller()
        for blob in inputs:
            if blob.node.graph is not self:
                raise BlobScopeError(
                    f"Blob {blob.op_name!r} belongs to job {blob.job_name!r} and cannot be used in job {self.name!r}\n"
                    f"  the Blob   {blob.describe()}   made at {blob.source}   {blob.source.text}\n"
                    f"  your line  {source}   {source.text}\n"
                    f"  try        compute it in this job too, or keep it in a variable, which jobs share by name"
                )
        full_name = self.scope.namespace + name if name is not None else self.fresh_name(prefix)
        existing = self._by_name.get(full_name)
        if existing is not None:
            raise DuplicateNameError(
                f"job {self.name!r} already has an op named {full_name!r}\n"
                f"  the first  {existing.op.name}   made at {existing.source}   {existing.source.text}\n"
                f"  your line  {source}   {source.text}\n"
                f"  try        give this one another name=, or leave the name out"
            )
        try:
            repetition = repetition_of(op.repeats, [b.node.repetition for b in inputs], attrs)
        except ValueError as error:
            raise RepetitionError(
                f"{op.name} in job {self.name!r} combines {error}\n"
                + "".join(f"  inputs[{i}]  {b.op_name}   {b.describe()}   made at {b.source}\n" for i, b in enumerate(inputs))
                + f"  your line  {source}   {source.text}\n"
                "  try        flow.unpack or flow.repeat the others alike, or flow.pack / flow.acc first"
            ) from None
        if self.accumulation_steps > 1 and not inputs and op.draws:
            repetition = (self.accumulation_steps,)
        node = Node(self, op, full_name, inputs, attrs, self.scope, source, repetition=repetition)
        node.outputs = tuple(
            Blob._of(
                node, i, shape, dt, suffix=suffix or f"out_{i}",
                batch_axis=batch_axis if batch_axis is None or batch_axis < len(shape) else None,
                is_dynamic=is_dynamic, is_tensor_list=is_tensor_list,
            )
            for i, (shape, dt) in enumerate(outputs)
        )  # fmt: skip
        self.nodes.append(node)
        self._by_name[full_name] = node
        return node

    def node(self, name: str) -> Node | None:
        """The node with that full name, or None."""
        return self._by_name.get(name)

    def blob(self, logical_blob_name: str) -> Blob | None:
        """The Blob called ``op_name/blob_name``, or None."""
        op_name, _, suffix = logical_blob_name.partition("/")
        found = self._by_name.get(op_name)
        return next((b for b in found.outputs if b.blob_name == suffix), None) if found else None

    # --- what a job is made of

    def add_input(self, label: str, shape: tuple[int, ...], dt: dtype, kind: str, batch_axis: int | None, source: Source) -> Blob:
        """Adds an input of the job."""
        outer = self.scope
        if kind == "Numpy":  # one logical tensor, in the mirrored view too
            self.scope = outer.replaced(view="consistent")
        node = self.add(
            OP_INPUT, (), {}, [(shape, dt)], prefix="Input", suffix="out", batch_axis=batch_axis,
            is_dynamic=kind != "Numpy", is_tensor_list=kind == "ListListNumpy",
        )  # fmt: skip
        self.scope = outer
        node.source = source
        blob = node.outputs[0]
        self.inputs.append(Input(label, shape, dt, kind, blob))
        return blob

    def add_variable(self, variable: Variable, *, read: bool = True) -> Variable:
        """Declares a variable under its full name; if ``read``, with a node that reads its value."""
        self.variables[variable.name] = variable
        if variable.placement is None:
            variable.placement = self.scope.placement
        if read:
            outer, self.scope = self.scope, self.scope.replaced(namespace="", view="consistent")
            try:
                node = self.add(
                    OP_VARIABLE, (), {"variable": variable.name}, [(variable.shape, variable.dtype)],
                    name=variable.name, suffix="out",
                )  # fmt: skip
            finally:
                self.scope = outer
            variable.blob = node.outputs[0]
        return variable

    def assign(self, ref: Blob, value: Blob) -> None:
        """Stores ``value`` into the variable that ``ref`` reads, at the end of each call."""
        self.assigns[ref.node.attrs["variable"]] = value

    @property
    def bytes(self) -> int:
        """The size of all values that devices compute or keep, variables included."""
        made = (blob for node in self.nodes if not node.op.on_host for blob in node.outputs)
        return sum(math.prod(blob.shape) * blob.dtype.bytes for blob in made if blob.dtype not in HOST_ONLY)

    def __repr__(self) -> str:
        kind = "train" if self.train else "predict"
        return f"<Graph of {kind} job {self.name!r}: {len(self.nodes)} ops, {len(self.variables)} variables>"


_current: ContextVar[Graph | None] = ContextVar("oneflow_current_graph", default=None)


def current_or_none() -> Graph | None:
    """The graph of the job whose body is running, or None."""
    return _current.get()


def current(what: str = "this") -> Graph:
    """The graph of the job whose body is running. Raises ModeError outside a job."""
    graph = _current.get()
    if graph is None:
        line = caller()
        raise ModeError(
            f"{what} can only be called inside a job function\n"
            f"  your line  {line}   {line.text}\n"
            f"  try        move it into the body of a function under @flow.global_function(...)"
        )
    return graph


@contextmanager
def tracing(graph: Graph) -> Iterator[Graph]:
    """Makes ``graph`` the current one."""
    token = _current.set(graph)
    try:
        yield graph
    finally:
        _current.reset(token)


__all__ = [
    "OP_INPUT", "OP_TO_CONSISTENT", "OP_TO_MIRRORED", "OP_VARIABLE", "Graph", "Initializer", "Input", "Objective", "Variable",
    "Watch", "current", "current_or_none", "is_library", "tracing",
]  # fmt: skip
