"""A graph of a saved model as a function: traced from its ops, or read in the compiled form that was saved beside them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from .._base.jax import jax
from .._base.refuse import refuse, shown, warn
from ..checkpoint.format import FileValue
from ..errors import CheckpointError, CheckpointWarning, ExportError, FeedDtypeError, FeedError, FeedShapeError, SavedModelError
from ..export import ExportedFunction
from ..export._axes import evaluate
from ..export._job import ExportedJob, default_axes, exported_graph
from ..export._native import natively, unavailable
from ..export._stablehlo import TensorSpec, first_argument, traced, unexportable
from ..graph.graph import Graph, Variable
from ._replay import Replayed, Tensor, replay, variables_of


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A compiled form: the exported function of a dict of weights and the inputs, and the names of both."""

    exported: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class SavedGraph:
    """A graph of a saved model, with one of its signatures or none.

    Args:
      what: the graph and its model, for errors.
      name: of the graph.
      op_list: its ``OperatorConf`` messages.
      signature: the ``JobSignatureDef`` to use; None for the job as it was saved.
      tag: the devices that it is for, ``"cpu"`` or ``"gpu"``.
      batch_size: the size of axis 0 of all inputs, instead of the saved one.
      compiled: its compiled form, where there is one that was made from these ops.
    Attributes:
      inputs, outputs: name, shape and dtype of each, in order.
    Raises: SavedModelError: ops that cannot be run.
    """

    def __init__(
        self, what: str, name: str, op_list: Sequence[Any], signature: Any, *, tag: str, batch_size: int | None = None,
        compiled: Compiled | None = None,
    ):  # fmt: skip
        self.what, self.name = what, name
        self._saved = (op_list, signature, tag)
        self._declared = variables_of(op_list, what)
        if compiled is not None and batch_size is None:
            self.exported = compiled.exported
            self.inputs, self.outputs = _described(compiled, op_list, signature)
        else:
            made = replay(what, name, op_list, signature, tag=tag, batch_size=batch_size)
            self.inputs, self.outputs = made.inputs, made.outputs
            self.exported = export(what, made, platforms=None)

    def of_batch(self, size: int) -> SavedGraph:
        """The same graph for another size of axis 0 of all inputs."""
        op_list, signature, tag = self._saved
        return SavedGraph(self.what, self.name, op_list, signature, tag=tag, batch_size=size)

    def weights(self, values: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
        """The values of its variables.

        Args:
          values: a checkpoint's values, by name. A variable that it lacks gets its first value, with a warning.
          where: the checkpoint, for errors.
        Raises: SavedModelError, CheckpointError: a value that does not fit, or cannot be read.
        """
        found = {}
        for name, (shape, element) in self._needed().items():
            variable = self._declared.get(name)
            if variable is None or variable.shape != shape or variable.dtype.numpy_dtype != element:
                refuse(SavedModelError, f"{self.what}: its compiled form needs variable {shown(name)} of {element}{list(shape)}, "
                       "which its ops do not declare")  # fmt: skip
            found[name] = _value(self.what, variable, values, where)
        return found

    def _needed(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        avals = self.exported.in_avals
        return {n: (tuple(avals[i].shape), np.dtype(avals[i].dtype)) for n, i in first_argument(self.exported).items()}

    @property
    def is_open(self) -> bool:
        """Whether one function serves every batch size."""
        return any(not isinstance(size, int) for aval in self.exported.in_avals for size in aval.shape)

    @property
    def has_variables(self) -> bool:
        """Whether it needs any variable."""
        return bool(self._needed())

    def specialise(self, function: ExportedFunction) -> str:
        """Lets ``compile`` of this graph's function use the native part.

        Returns: why it cannot; "" where it can.
        """
        op_list, signature, tag = self._saved
        try:
            graph = replay(self.what, self.name, op_list, signature, tag=tag).graph
            model = _model(graph, is_open=self.is_open)
        except (SavedModelError, ExportError) as error:  # there is a compiled form, made by another version of the library
            return f"its ops cannot be traced: {str(error).splitlines()[0]}"
        reason = unavailable(model)
        if not reason:
            function._specialise(lambda sizes: natively(model, sizes))
        return reason

    def function(self, weights: Mapping[str, np.ndarray], devices: Sequence[Any]) -> ExportedFunction:
        """The graph as a function of its inputs, in order, that returns a tuple of its outputs."""
        made = _OnDevices(self.exported, weights, devices)
        made.name = self.name
        made.inputs = [TensorSpec(t.name, s.shape, s.dtype) for t, s in zip(self.inputs, made.inputs, strict=True)]
        made.results = [TensorSpec(t.name, s.shape, s.dtype) for t, s in zip(self.outputs, made.results, strict=True)]
        return made


class _OnDevices(ExportedFunction):
    """An exported function whose weights, and so its work, are on devices of choice. Batches are split over several."""

    def __init__(self, exported: Any, weights: Mapping[str, np.ndarray], devices: Sequence[Any]):
        self._placing = threading.Lock()
        self._single = devices[0] if len(devices) == 1 else None
        self._mesh = jax.sharding.Mesh(np.array(devices), ("device",))
        super().__init__(exported, weights)

    def _sharding(self, *axes: str) -> Any:
        return self._single or jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(*axes))

    def _placed_weights(self) -> Any:
        with self._placing, jax.enable_x64(self._wide):
            if not isinstance(next(iter(self._weights.values()), None), jax.Array):
                self._weights = jax.device_put(self._weights, self._sharding())
            return self._weights

    def _placed(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        count = self._mesh.size
        with jax.enable_x64(self._wide):
            return [
                jax.device_put(a, self._sharding("device") if a.ndim and a.shape[0] % count == 0 else self._sharding())
                for a in arrays
            ]


def export(what: str, made: Replayed, platforms: Sequence[str] | None) -> Any:
    """The graph by ``jax.export``, with an open batch if possible.

    Args:
      platforms: where it is to run; None for this process's platform.
    Raises: SavedModelError: an op that runs on the host, draws random numbers or keeps state.
    """
    chosen = list(platforms) if platforms is not None else [_platform()]
    problem: Exception | None = None
    for is_open in (True, False):
        try:
            return _exported(what, made.graph, chosen, is_open=is_open)
        except ExportError as error:
            problem = error
    _refuse(what, "it cannot be run", problem)


def _platform() -> str:
    backend = jax.default_backend()
    return {"gpu": "cuda"}.get(backend, backend)


def _exported(what: str, graph: Graph, platforms: Sequence[str], *, is_open: bool) -> Any:
    return dataclasses.replace(traced(what, _model(graph, is_open=is_open), platforms, inside=False), fun_name=graph.name)


def _model(graph: Graph, *, is_open: bool) -> ExportedJob:
    return exported_graph(graph, reason=unexportable, names=lambda: default_axes(graph) if is_open else {},
                          weights=lambda variables: {}, format="a served model")  # fmt: skip


def _refuse(what: str, rule: str, cause: Exception | None) -> NoReturn:
    rows = str(cause).splitlines()
    found = [("because", rows[0]), *(("", row.strip()) for row in rows[1:])] if rows else []
    refuse(SavedModelError, f"{what}: {rule}", found=found, cause=cause)


def _value(what: str, variable: Variable, values: Mapping[str, Any], where: str) -> np.ndarray:
    value = values.get(variable.name)
    if value is None:
        warn(CheckpointWarning, f"{what}: variable {variable.name!r} is not in {where!r}; it gets its first value")
        seed = variable.random_seed or 0
        return np.asarray(variable.initializer.draw(variable.shape, variable.dtype.numpy_dtype, np.random.default_rng(abs(seed))))
    if isinstance(value, FileValue):
        if value.shape is not None and (value.shape != variable.shape or value.dtype != variable.dtype):
            refuse(CheckpointError, f"{what}: variable {variable.name!r} is {value.dtype}{list(value.shape)} in {where!r}, "
                   f"not {variable.describe()}")  # fmt: skip
        return value.read_as(variable.shape, variable.dtype)
    return np.asarray(value.numpy())


def _described(compiled: Compiled, op_list: Sequence[Any], signature: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs of a compiled form, of the sizes that the ops declare."""
    from .._base.dtype import of_values

    if signature is None:
        shapes = {c.name: c.input_conf.blob_conf.shape.dim for c in op_list if c.WhichOneof("op_type") == "input_conf"}
    else:
        shapes = {name: entry.blob_conf.shape.dim for name, entry in signature.inputs.items()}
    avals = compiled.exported.in_avals[len(first_argument(compiled.exported)) :]
    declared: dict[str, int] = {}
    inputs = []
    for name, aval in zip(compiled.inputs, avals, strict=True):
        shape = tuple(shapes[name])
        declared |= {str(size): given for size, given in zip(aval.shape, shape, strict=True) if not isinstance(size, int)}
        inputs.append(Tensor(name, shape, of_values(np.dtype(aval.dtype))))
    outputs = [
        Tensor(name, tuple(evaluate(size, declared) for size in aval.shape), of_values(np.dtype(aval.dtype)))
        for name, aval in zip(compiled.outputs, compiled.exported.out_avals, strict=True)
    ]
    return tuple(inputs), tuple(outputs)


def _function(graph: SavedGraph, weights: Mapping[str, np.ndarray], devices: Sequence[Any]) -> ExportedFunction:
    """The graph as a function, which the native part computes where it can."""
    function = graph.function(weights, devices)
    if list(devices) == jax.devices()[:1]:
        graph.specialise(function)
    return function


class Runner:
    """A graph with its weights on devices. Several threads may run it.

    A call with another batch size than the declared one compiles the graph for it, once.
    """

    def __init__(self, graph: SavedGraph, weights: Mapping[str, np.ndarray], devices: Sequence[Any]):
        self.graph = graph
        self.function = _function(graph, weights, devices)
        self._weights = weights
        self._devices = devices
        self._fixed: dict[int, ExportedFunction] = {}  # by batch size, where the batch is not open
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Compiles it for the declared sizes."""
        self.run({t.name: np.zeros(t.shape, t.dtype.numpy_dtype) for t in self.graph.inputs})

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs, in order. Raises FeedError, FeedShapeError, FeedDtypeError, SavedModelError."""
        arrays = [inputs[t.name] for t in self.graph.inputs]
        function = self.function
        if not self.graph.is_open:
            function = self._of_size(arrays)
        problem: Exception | None = None
        try:
            return [np.array(a) for a in function(*arrays)]
        except (FeedError, FeedDtypeError):
            raise
        except Exception as error:  # of XLA: for want of memory, say
            problem = error
        _refuse(self.graph.what, "it cannot be run", problem)

    def _of_size(self, arrays: Sequence[np.ndarray]) -> ExportedFunction:
        """The function for the batch size of these arrays, where each size is compiled by itself."""
        declared = {t.shape[0] for t in self.graph.inputs if t.shape}
        found = {a.shape[0] for t, a in zip(self.graph.inputs, arrays, strict=True) if t.shape and a.ndim}
        if found == declared or len(found) != 1 or len(declared) != 1:
            return self.function
        (size,) = found
        with self._lock:
            if size not in self._fixed:
                problem: Exception | None = None
                try:
                    if size == 1:  # which a graph of one size would broadcast: another one shows whether it is
                        self.graph.of_batch(3 if declared == {2} else 2)
                    self._fixed[size] = _function(self.graph.of_batch(size), self._weights, self._devices)
                except SavedModelError as error:
                    problem = error
                if problem is not None:
                    refuse(FeedShapeError, f"{self.graph.what} works for a batch of {declared.pop()} only, and was given {size}",
                           found=[("because", str(problem).splitlines()[0])])  # fmt: skip
            return self._fixed[size]
