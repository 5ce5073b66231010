"""ONNX models into job bodies: nodes become ops, weights become variables.

Values that do not depend on the job's inputs (shapes, masks, indices) are computed when the body runs, by the onnx package's
reference implementation.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .. import scope
from .._base import dtype as dtypes
from .._base.dtype import dtype as Dtype
from .._base.dtype import from_numpy
from .._base.extras import need
from .._base.frames import shows_user_frames
from .._base.refuse import refuse, warn
from ..errors import ArgumentError, CheckpointWarning, DtypeError, ExportError, OneFlowError, ShapeError
from ..export._files import as_path
from ..export._stablehlo import TensorSpec
from ..graph.graph import current
from ..graph.node import Blob
from ..ops.constant import constant
from ..ops.variable import get_variable
from ..runtime.session import Session, default_session
from . import _model_file
from .readers import Known, NotRead, Reader, readers

Trainable = bool | Callable[[str], bool]
_FROM_ONNX = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 6: dtypes.int32, 7: dtypes.int64, 9: dtypes.int8, 10: dtypes.float16,
    11: dtypes.float64, 16: dtypes.bfloat16,
}  # fmt: skip


Value = Blob | Known | None


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """The first value of a variable that an ONNX file holds."""

    array: np.ndarray
    name: str

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return self.array.astype(dtype).reshape(shape)

    def __repr__(self) -> str:
        return f"<value of {self.name!r} in an ONNX file>"


class OnnxModel:
    """A model that was read from an ONNX file. Called with Blobs in a job's body, it adds the model's ops to the job.

    Attributes:
      inputs, outputs: name, shape (names for sizes that are left open) and dtype of each.
      variables: the weights by the names that their variables have.
    Example: >>> print(flow.onnx.load("model.onnx").inputs)
    """

    def __init__(self, path: str, onnx: Any, proto: Any):
        self.path = path
        self._onnx = onnx
        self._proto = proto
        graph = proto.graph
        self.name = graph.name
        self._arrays = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        self.inputs = [self._spec(v) for v in graph.input if v.name not in self._arrays]
        self.outputs = [self._spec(v) for v in graph.output]
        self._opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
        self._evaluators: dict[int, Any] = {}
        self._refuse_unknown()
        parameters = {name for node in graph.node if node.op_type in _WITH_PARAMETERS for name in node.input[1:]}
        self._weights = {n for n, a in self._arrays.items() if _is_float(a) and (a.size > 1 or (a.ndim and n in parameters))}
        self._names: dict[str, str] = {}
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()  # in which it has been called
        self.variables = {self._variable_name(name): array for name, array in self._arrays.items() if name in self._weights}

    def _variable_name(self, name: str) -> str:
        """The name of a weight as a variable's, which is a file's in checkpoints: no other weight of the model has it."""
        if name not in self._names:
            base = name.replace("/", "-").strip("-.") or "variable"
            taken, number = set(self._names.values()), 2
            made = base
            while made in taken:
                made, number = f"{base}_{number}", number + 1
            self._names[name] = made
        return self._names[name]

    def _spec(self, value: Any) -> TensorSpec:
        kind = value.type.tensor_type
        element = _FROM_ONNX.get(kind.elem_type)
        if element is None:
            name = self._onnx.TensorProto.DataType.Name(kind.elem_type) if kind.elem_type else "no tensor"
            refuse(ExportError, f"{self.path!r}: {value.name!r} is of {name}, which is not a dtype of Blobs")
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim)
        return TensorSpec(value.name, shape, element)

    def _refuse_unknown(self) -> None:
        known = readers()
        missing: dict[str, str] = {}
        for node in self._proto.graph.node:
            name = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
            if name not in known and name not in _CONSTANTS:
                missing.setdefault(name, node.name or (node.output[0] if node.output else ""))
        if missing:
            rows = [(kind, f"e.g. node {name!r}") for kind, name in sorted(missing.items())]
            refuse(
                ExportError, f"{self.path!r} cannot be read: {len(missing)} of its op types have no counterpart here", found=rows
            )

    def __call__(self, *inputs: Blob, trainable: Trainable = True, name: str | None = None) -> Any:
        """Adds the model's ops to the job whose body is running.

        Args:
          inputs: Blobs of the shapes and dtypes that ``inputs`` lists, in that order.
          trainable: whether a train job trains the model's variables; or a function from a variable's name to a bool.
          name: a namespace for its variables and ops; needed where two copies shall have weights of their own.
        Returns: the Blob of its output; a tuple of them where it has several.
        Raises: ArgumentError, ShapeError, DtypeError; ExportError (a node that has no counterpart here).
        Example: >>> y = model(x)
        """
        current("a model of flow.onnx.load")
        self._check(inputs)
        reading = _Reading(self, inputs, trainable if callable(trainable) else lambda _: bool(trainable))
        if name is None:
            made = reading.run()
        else:
            with scope.namespace(name):
                made = reading.run()
        self._tell_of_other_values(reading.stored)
        return made[0] if len(made) == 1 else tuple(made)

    def _tell_of_other_values(self, stored: Mapping[str, np.ndarray]) -> None:
        """Warns of variables that the job or the session had before, with other values than the file's, which are ``stored``."""
        session, declared = default_session(), current("a model of flow.onnx.load").variables
        other: dict[str, None] = {}
        for name, array in stored.items():
            first = declared[name].initializer
            if not (isinstance(first, _Stored) and _is_equal(first.array, array)):
                other[name] = None  # the job declared it before
        if session not in self._sessions:
            cells = {name: session.store.cells.get(name) for name in stored}
            there = [name for name, cell in cells.items() if cell is not None and cell.value is not None]
            values = session.read(there) if there else {}
            for name, value in values.items():  # those of other sizes are told elsewhere, or made anew
                array = stored[name]
                if array.size == value.size and not _is_equal(value, array.reshape(value.shape)):
                    other[name] = None
            self._sessions.add(session)
        if other:
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            first_name = next(iter(other))
            rule = (
                f"variable {first_name!r}{more} of {self.path!r} is in use for something else: the model computes with its value"
            )
            warn(CheckpointWarning, f"{rule}, not with the file's; name= gives it variables of its own")

    def _check(self, inputs: Sequence[Any]) -> None:
        what = f"the model {self.path!r}"
        if len(inputs) != len(self.inputs):
            refuse(ArgumentError, f"{what} takes {len(self.inputs)} inputs ({', '.join(s.name for s in self.inputs)}), "
                   f"and was given {len(inputs)}")  # fmt: skip
        sizes: dict[str, int] = {}
        for spec, blob in zip(self.inputs, inputs, strict=True):
            if not isinstance(blob, Blob):
                refuse(ArgumentError, f"{what}: {spec.name} must be a Blob, got {type(blob).__name__}")
            shape = spec.shape or (1,)
            fits = len(blob.shape) == len(shape) and all(
                found == size if isinstance(size, int) else size == "?" or sizes.setdefault(size, found) == found
                for size, found in zip(shape, blob.shape, strict=True)
            )
            if not fits:
                refuse(ShapeError, f"{what}: {spec.name} has shape ({', '.join(map(str, shape))}), and was given {blob.shape}")
            if blob.dtype != spec.dtype:
                refuse(DtypeError, f"{what}: {spec.name} is {spec.dtype.name}, and was given {blob.dtype.name}",
                       hint=f"convert with flow.cast(blob, flow.{spec.dtype.name})")  # fmt: skip

    def __repr__(self) -> str:
        shown = ", ".join(f"{s.name}: {s.dtype.name}[{', '.join(map(str, s.shape))}]" for s in self.inputs)
        return f"<ONNX model {self.name!r}({shown}), {len(self._proto.graph.node)} nodes, {len(self.variables)} variables>"


_CONSTANTS = ("Constant", "Shape", "Size")  # read here


# whose inputs become variables even where they are single numbers; other single numbers, and integers, are constants
_WITH_PARAMETERS = ("BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization")


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


class _Reading:
    """One walk over the nodes, in a body."""

    def __init__(self, model: OnnxModel, inputs: Sequence[Blob], trainable: Callable[[str], bool]):
        self.model = model
        self.trainable = trainable
        self.values: dict[str, Value] = {"": None}
        for name, array in model._arrays.items():
            self.values[name] = Known(array, name, weight=name in model._weights)
        for spec, blob in zip(model.inputs, inputs, strict=True):
            self.values[spec.name] = blob
        self.scalars = set(self._rank_0(inputs))
        self.made = 0
        self.stored: dict[str, np.ndarray] = {}  # the file's values of variables

    def _rank_0(self, inputs: Sequence[Blob]) -> Iterator[str]:
        """Values that have rank 0 in ONNX; as Blobs they have shape (1,)."""
        onnx, proto = self.model._onnx, self.model._proto
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        del copy.graph.value_info[:]
        for tensor in copy.graph.initializer:  # their shapes are enough, except where they are shapes themselves
            if len(tensor.raw_data) > 1024:
                tensor.raw_data = b""
        shapes = {spec.name: blob.shape for spec, blob in zip(self.model.inputs, inputs, strict=True)}
        for value in copy.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
        try:
            inferred = onnx.shape_inference.infer_shapes(copy)
        except Exception:
            inferred = proto
        for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
            kind = value.type.tensor_type
            if kind.HasField("shape") and not kind.shape.dim:
                yield value.name

    def run(self) -> list[Blob]:
        known = readers()
        for number, node in enumerate(self.model._proto.graph.node):
            if unknown := [name for name in node.input if name not in self.values]:
                self._refuse(node, NotRead(f"nothing before it computes its input {unknown[0]!r}"))
            given = [self.values[name] for name in node.input]
            try:
                made = self._constant(number, node, given)
            except OneFlowError:
                raise
            except Exception as error:  # of the reference implementation
                self._refuse(node, error)
            if made is None:
                reader = Reader(self, node, self.model._opset)
                try:
                    found = known[node.op_type](reader, *given)
                    reader.refuse_others()
                except OneFlowError:
                    raise
                except Exception as error:  # NotRead; or whatever comes of attributes that make no sense
                    self._refuse(node, error)
                made = list(found) if isinstance(found, (list, tuple)) else [found]
            for name, value in zip(node.output, made, strict=False):
                self.values[name] = value
        for spec in self.model.outputs:
            if self.values.get(spec.name) is None:
                refuse(ExportError, f"{self.model.path!r} cannot be read: no node computes its output {spec.name!r}")
        return [self.blob(self.values[spec.name]) for spec in self.model.outputs]

    def _constant(self, number: int, node: Any, given: Sequence[Value]) -> list[Value] | None:
        """The outputs of a node that do not depend on the inputs, or only on their shapes."""
        first = given[0] if given else None
        if node.op_type in ("Shape", "Size") and isinstance(first, Blob):
            shape = () if node.input[0] in self.scalars else first.shape
            if node.op_type == "Size":
                return [Known(np.asarray(int(np.prod(shape)), np.int64), node.output[0])]
            ends = {a.name: a.i for a in node.attribute}
            return [Known(np.asarray(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64), node.output[0])]
        if any(isinstance(v, Blob) for v in given):
            return None
        weight = any(isinstance(v, Known) and v.weight for v in given)
        if number not in self.model._evaluators:
            reference = need("onnx.reference", "flow.onnx.load")
            self.model._evaluators[number] = reference.ReferenceEvaluator(node, opsets={"": self.model._opset})
        feeds = {name: v.array for name, v in zip(node.input, given, strict=True) if isinstance(v, Known)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.model._evaluators[number].run(None, feeds)
        return [Known(np.asarray(a), name, weight=weight and np.asarray(a).dtype.kind == "f")
                for a, name in zip(made, node.output, strict=False)]  # fmt: skip

    def _refuse(self, node: Any, error: Exception) -> NoReturn:
        name = node.name or (node.output[0] if node.output else "")
        why = "" if isinstance(error, NotRead) else f"{type(error).__name__}: "
        refuse(ExportError, f"{self.model.path!r} cannot be read: {node.op_type} {name!r}: {why}{_reason(error)}", cause=error)

    # --- values as Blobs

    def blob(self, value: Value) -> Blob:
        """A value as a Blob: weights are variables, other arrays constants."""
        if isinstance(value, Blob):
            return value
        assert value is not None
        array = value.array
        if array.dtype == np.bool_:
            array = array.astype(np.int8)
        try:
            element = from_numpy(array.dtype)
        except ArgumentError:
            refuse(
                ExportError,
                f"{self.model.path!r} cannot be read: {value.name!r} is of {array.dtype}, which is not a dtype of Blobs",
            )
        shape = array.shape or (1,)
        flat = array.reshape(-1)
        if array.size == 0:
            refuse(ExportError, f"{self.model.path!r} cannot be read: {value.name!r} is empty, and no Blob has size 0")
        if not value.weight and (flat == flat[0]).all():
            return constant(flat[0].item(), element, shape)
        return self.variable(value, shape, element, self.trains(value))

    def trains(self, value: Value) -> bool:
        """Whether a value is a variable that a train job trains."""
        return isinstance(value, Known) and value.weight and self.trainable(self.model._variable_name(value.name))

    def statistic(self, value: Value) -> Blob:
        """A moving statistic: a variable, whatever it holds, that no optimizer trains."""
        if not isinstance(value, Known):
            return self.blob(value)
        return self.variable(value, value.array.shape, from_numpy(value.array.dtype), False)

    def variable(self, value: Known, shape: Sequence[int], element: Dtype, trained: bool) -> Blob:
        stored = _Stored(value.array, value.name)
        made = get_variable(self.model._variable_name(value.name), tuple(shape), element, stored, trainable=trained)
        self.stored[made.node.attrs["variable"]] = value.array
        return made


@shows_user_frames
def load(path: str | os.PathLike[str]) -> OnnxModel:
    """Reads an ONNX model, to be called in the bodies of jobs.

    Floating-point weights become variables of the same names, with "-" for "/" (and a number behind where two would have one
    name): train jobs train them, and checkpoints hold them. Where a session has variables of those names, the model computes with
    their values, and a CheckpointWarning says so if they are others than the file's. Control flow, sequences, strings and random
    nodes are not supported.

    Args:
      path: an .onnx file; external data are beside it.
    Returns: an ``OnnxModel``; ``model(x)`` in a body adds its ops.
    Raises: ExportError (no such file, not ONNX, or op types that are not supported, all of them), MissingExtraError.

    Example:
      >>> model = flow.onnx.load("model.onnx")
      >>> @flow.global_function()
      ... def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
      ...     return model(x)
    """
    what = "flow.onnx.load"
    onnx = need("onnx", what)
    need("onnx.numpy_helper", what), need("onnx.shape_inference", what), need("onnx.inliner", what)
    text = os.fspath(as_path(what, path))
    problem: Exception | None = None
    try:
        return OnnxModel(text, onnx, _model_file.read(onnx, text))
    except OneFlowError:
        raise
    except Exception as error:
        problem = error
    rule = f"{what}: {text!r} is not an ONNX model: {_reason(problem)}"
    if isinstance(problem, OSError):
        missing = isinstance(problem, FileNotFoundError) and not os.path.islink(text)
        rule = f"{what}: there is no file {text!r}" if missing else f"{what}: {text!r} cannot be read: {problem.strerror}"
    refuse(ExportError, rule, cause=problem)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
