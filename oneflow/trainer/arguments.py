"""From a batch, in whatever structure and library it comes, to the arguments of a job's call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .._base.refuse import refuse
from .._signature.inputs import InputDef
from ..data.arrays import as_array, holds_numbers, is_array, is_frame
from ..data.loader import SAMPLE_WEIGHT
from ..errors import ArgumentError, FeedDtypeError, FeedError, FeedShapeError
from ..job import JobFunction
from ..runtime import processes


@dataclass(slots=True)
class Bound:
    """The arguments of one call.

    Attributes:
      rows: of the batch that are data; the rest is padding. 1 for a job without inputs.
      weights: of the rows, where the data or the padding bring any: float32 (batch size,); of the rows of all processes.
      padded: whether rows were added to fill the batch.
    """

    arguments: Sequence[Any]
    rows: int
    weights: np.ndarray | None = None
    padded: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no rows, so that there is nothing to feed."""
        return not self.rows and not self.arguments


class Arguments:
    """The arguments of a job, and how batches become these.

    Tuples and lists are taken by position, dictionaries and tables by the names of the job's parameters. A batch of too few
    rows is padded with its last row where ``pads``, or where the job takes weights of rows; else it is not fed.

    Args:
      extra: whether a tuple may hold more than the job takes, as batches for predictions may hold labels.

    Attributes:
      parts: the number of processes that feed a part of each batch; 1 where all feed the whole.
      batch_size: the rows of a batch as this process feeds them; None where nothing has a batch axis.
      shapes: of all arrays, as this process feeds them.
      sizes: what the first axis of a result may have where it is rows, or rows with following axes flattened into them.
    """

    def __init__(self, job: JobFunction[..., Any], *, pads: bool, extra: bool = False):
        self.job = job
        self.names = [p.name for p in job.parameters]
        self._parameters = job.parameters
        self._extra = extra
        leaves = [leaf for p in job.parameters for leaf in p.leaves()]
        self.parts = processes.count() if job.config.get("feed_own_part", False) else 1
        self.batch_size = next((self._size(d) for _, d in leaves if d.batch_axis == 0), None)
        self._devices = {spec.label: spec.blob.parallel_size for spec in job.graph.inputs}
        self._is_flat = all(isinstance(p.structure, InputDef) and p.structure.kind == "Numpy" for p in job.parameters)
        self.shapes = [self._shape(d) for _, d in leaves]
        self._weighted = self._index_of_weights()
        self._fills = pads or self._weighted is not None
        self.sizes = _sizes_of_rows([d.shape for _, d in leaves if d.batch_axis == 0])

    def _index_of_weights(self) -> int | None:
        """The place of a parameter ``sample_weight`` of shape (batch size,)."""
        if SAMPLE_WEIGHT not in self.names:
            return None
        index = self.names.index(SAMPLE_WEIGHT)
        structure = self._parameters[index].structure
        if not isinstance(structure, InputDef) or self._shape(structure) != (self.batch_size,):
            return None
        if structure.kind != "Numpy":
            rule = f"input {SAMPLE_WEIGHT!r} of job {self.job.name!r} must be one array, and is declared as tp.{structure.kind}"
            hint = "declare the job's inputs with tp.Numpy.Placeholder: short batches are padded then"
            refuse(ArgumentError, rule, hint=hint, source=self.job.source)
        return index

    def _size(self, definition: InputDef) -> int:
        return definition.shape[0] // self.parts

    def _shape(self, definition: InputDef) -> tuple[int, ...]:
        """The shape as this process feeds it."""
        return (self._size(definition), *definition.shape[1:]) if definition.batch_axis == 0 else definition.shape

    @property
    def takes_arrays(self) -> bool:
        """Whether a tuple of arrays is what a call takes, without weights that the trainer would have to add."""
        return self._is_flat and self._weighted is None and bool(self.names)

    # --- batches

    def bind(self, batch: Any) -> Bound | None:
        """The arguments that a batch stands for; None where it is too short and padding it would not be right.

        For a batch without rows they are empty.

        Raises FeedError (a structure that does not fit), ArgumentError (something that is not an array).
        """
        if type(batch) is tuple and self._is_flat and self._weighted is None and len(batch) == len(self.shapes):
            for array, shape in zip(batch, self.shapes):  # noqa: B905  their number has been compared
                if type(array) is not np.ndarray or array.shape != shape:
                    break
            else:
                return Bound(batch, self.batch_size or 1)
        return self._bind_slowly(batch)

    def _bind_slowly(self, batch: Any) -> Bound | None:
        given = self._by_parameter(batch)
        filler = _Filler()
        arguments: list[Any] = []
        for place, (parameter, value) in enumerate(zip(self._parameters, given, strict=True)):
            if place != self._weighted:
                arguments.append(self._converted(parameter.name, parameter.structure, value, filler))
        if filler.rows == 0 or (filler.rows is None and filler.varying == 0 and self.parts == 1):
            return Bound((), 0)
        if filler.is_short and not self._fills:
            return None
        size = self.batch_size or 1
        rows = size if filler.rows is None else filler.rows
        weights = None
        if self._weighted is not None:
            weights = self._weights(given[self._weighted], rows, size)
            arguments.insert(self._weighted, weights)
            weights = self._of_all_processes(weights)
        elif filler.varying is not None and not filler.is_short:
            rows = filler.varying
        return Bound(arguments, rows, weights, filler.is_short)

    def _weights(self, given: Any, rows: int, size: int) -> np.ndarray:
        """The weights of a batch: as given, else 1 for each row; 0 for padding."""
        weights = np.zeros(size, np.float32)
        if given is None:
            weights[:rows] = 1
            return weights
        what = f"input {SAMPLE_WEIGHT!r} of job {self.job.name!r}"
        array = as_array(given, what)
        if array.shape != (rows,) or not holds_numbers(array):
            kind = FeedDtypeError if array.shape == (rows,) else FeedShapeError
            found = [("a batch", f"{rows} rows"), ("got", f"{array.dtype} of shape {array.shape}")]
            refuse(kind, f"{what} must be a number for each row of a batch", found=found,
                   hint=f"an array of shape ({rows},)", source=self.job.source)  # fmt: skip
        weights[:rows] = array
        return weights

    def _of_all_processes(self, weights: np.ndarray) -> np.ndarray:
        """The weights of the whole batch, whose results each process gets."""
        if self.parts == 1:
            return weights
        each = processes.gather(f"exchanging the weights of a batch of {self.job.name!r}", weights.tolist())
        return np.concatenate([np.asarray(part, np.float32) for part in each])

    def _by_parameter(self, batch: Any) -> list[Any]:
        """The argument for each parameter; None for weights that the batch does not have."""
        names = self.names
        if not names:
            return []
        if is_frame(batch) and len(names) > 1:
            batch = {str(name): batch[name] for name in batch.columns}
        if isinstance(batch, Mapping):
            return self._by_name(batch)
        if isinstance(batch, (tuple, list)) and not self._is_one_structure(batch):
            values = list(batch)
        else:
            values = [batch]
        if self._weighted is not None and len(values) == len(names) - 1:
            values.insert(self._weighted, None)
        if self._extra:
            values = values[: len(names)]
        if len(values) != len(names):
            self._refuse_count(batch, len(values))
        return values

    def _is_one_structure(self, batch: Any) -> bool:
        """Whether a tuple is what the job's only parameter takes as a whole, a tuple of placeholders."""
        structure = self._parameters[0].structure
        if len(self.names) != 1 or isinstance(structure, (InputDef, dict)):
            return False
        return not (len(batch) == 1 and isinstance(batch[0], (tuple, list)))

    def _by_name(self, batch: Mapping[Any, Any]) -> list[Any]:
        structure = self._parameters[0].structure
        if len(self.names) == 1 and isinstance(structure, dict) and structure.keys() <= batch.keys():
            return [{key: batch[key] for key in structure}]
        optional = SAMPLE_WEIGHT if self._weighted is not None else None
        weights = None if SAMPLE_WEIGHT in self.names else batch.get(SAMPLE_WEIGHT)
        if weights is not None and np.any(np.asarray(weights) != 1):
            rule = f"job {self.job.name!r} has no parameter {SAMPLE_WEIGHT!r}, and the rows of a batch have weights"
            hint = f"give it {SAMPLE_WEIGHT}: tp.Numpy.Placeholder(({self.batch_size},)), or leave the weights (and padding) out"
            refuse(FeedError, rule, hint=hint, source=self.job.source)
        missing = [name for name in self.names if name not in batch and name != optional]
        if missing:
            found = [("it takes", ", ".join(self.names)), ("the batch", ", ".join(map(str, batch)))]
            refuse(FeedError, f"job {self.job.name!r}: a batch lacks {', '.join(map(repr, missing))}", found=found,
                   hint="name the entries of the batch as the job's parameters", source=self.job.source)  # fmt: skip
        return [batch.get(name) for name in self.names]

    def _refuse_count(self, batch: Any, count: int) -> NoReturn:
        found = [("it takes", ", ".join(self.names)), ("the batch", _described(batch))]
        rule = f"job {self.job.name!r} takes {len(self.names)} argument(s), and a batch holds {count}"
        hint = "a batch is a tuple with an entry for each parameter, or a dictionary by their names"
        if count == len(self.names) + 1 and self._may_be_weights(batch[-1]):
            hint = (
                f"if the last are weights of rows, as of a loader that pads, give the job a parameter {SAMPLE_WEIGHT}: "
                f"tp.Numpy.Placeholder(({self.batch_size},)); else leave them out"
            )
        refuse(FeedError, rule, found=found, hint=hint, source=self.job.source)

    def _may_be_weights(self, given: Any) -> bool:
        if SAMPLE_WEIGHT in self.names or not is_array(given) or tuple(given.shape) != (self.batch_size,):
            return False
        return as_array(given, SAMPLE_WEIGHT).dtype.kind == "f"

    def _converted(self, label: str, structure: Any, value: Any, filler: _Filler) -> Any:
        if isinstance(structure, InputDef):
            return self._leaf(label, structure, value, filler)
        if isinstance(structure, dict):
            if not isinstance(value, Mapping) or not structure.keys() <= value.keys():
                self._refuse_structure(label, f"a dictionary with the keys {sorted(map(str, structure))}", value)
            return {k: self._converted(f"{label}[{k!r}]", s, value[k], filler) for k, s in structure.items()}
        if not isinstance(value, (tuple, list)) or len(value) != len(structure):
            self._refuse_structure(label, f"a tuple of {len(structure)}", value)
        each = zip(structure, value, strict=True)
        return [self._converted(f"{label}[{i}]", s, v, filler) for i, (s, v) in enumerate(each)]

    def _leaf(self, label: str, definition: InputDef, value: Any, filler: _Filler) -> Any:
        what = f"input {label!r} of job {self.job.name!r}"
        if definition.kind != "Numpy":
            arrays = self._of_varying_size(label, definition, value, what)
            if definition.batch_axis == 0 and filler.varying is None:
                filler.varying = sum(array.shape[0] for array in _pieces(arrays) if array.ndim)
            return arrays
        array = as_array(value, what)
        size = self._size(definition)
        if definition.batch_axis != 0 or not array.ndim or array.shape[0] == size:
            if definition.batch_axis == 0 and array.ndim:
                filler.note(size, size, self.batch_size)
            return array
        is_empty = not array.shape[0]
        if array.shape[1:] != definition.shape[1:] or array.shape[0] > size or (is_empty and self.parts > 1):
            self._refuse_shape(label, definition, array)
        filler.note(array.shape[0], size, self.batch_size)
        if is_empty or not self._fills:
            return array
        self._refuse_parts()
        return np.concatenate([array, np.repeat(array[-1:], size - array.shape[0], axis=0)])

    def _of_varying_size(self, label: str, definition: InputDef, value: Any, what: str) -> Any:
        """One array for each device, as inputs of varying size are fed."""
        if isinstance(value, (tuple, list)) and value and (is_array(value[0]) or isinstance(value[0], (tuple, list))):
            return [[as_array(a, what) for a in v] if isinstance(v, (tuple, list)) else as_array(v, what) for v in value]
        array, devices = as_array(value, what), self._devices[label]
        return [array] if devices == 1 else np.array_split(array, devices, axis=definition.batch_axis or 0)

    def copy_of(self, place: int, argument: Any) -> np.ndarray:
        """A copy of an argument; the pieces of one of varying size are joined."""
        structure = self._parameters[place].structure
        if isinstance(structure, InputDef) and structure.kind != "Numpy":
            pieces = _pieces(argument)
            if not pieces:
                return np.empty((0, *structure.shape[1:]), structure.dtype.numpy_dtype)
            try:
                return np.concatenate(pieces, structure.batch_axis or 0)
            except ValueError:
                shapes = ", ".join(str(piece.shape) for piece in pieces)
                rule = f"a metric takes input {self.names[place]!r} of job {self.job.name!r} as one array"
                refuse(FeedShapeError, f"{rule}, and these do not fit together: {shapes}", source=self.job.source)
        return np.array(argument)

    def _refuse_parts(self) -> None:
        if self.parts > 1:
            rule = f"job {self.job.name!r}: a short batch cannot be padded where each process feeds its own part"
            hint = (
                'flow.data.ArrayLoader(..., last="pad", shard=...) gives whole batches with weights; or leave it out: last="drop"'
            )
            refuse(FeedShapeError, rule, hint=hint, source=self.job.source)

    def _refuse_shape(self, label: str, definition: InputDef, array: np.ndarray) -> NoReturn:
        shape = self._shape(definition)
        hint = f"give batches of {shape[0]} rows, or declare the placeholder for {array.shape}"
        if array.shape[1:] == shape[1:] and not array.shape[0]:
            hint = f"each process feeds its part of a batch: give {shape[0]} rows, or leave the batch out in all processes"
        elif array.shape == shape[1:]:
            hint = f"the data give single samples; give batches of {shape[0]}: DataLoader(dataset, batch_size={shape[0]})"
        refuse(FeedShapeError, f"input {label!r} of job {self.job.name!r} takes batches of shape {shape}, got {array.shape}",
               hint=hint, source=self.job.source)  # fmt: skip

    def _refuse_structure(self, label: str, expected: str, value: Any) -> NoReturn:
        refuse(FeedError, f"input {label!r} of job {self.job.name!r} takes {expected}, got {_described(value)}",
               source=self.job.source)  # fmt: skip


class _Filler:
    """The number of rows of one batch, from its arrays."""

    def __init__(self) -> None:
        self.rows: int | None = None
        self.varying: int | None = None  # those of the first input of varying size
        self.is_short = False

    def note(self, rows: int, size: int, batch_size: int | None) -> None:
        if batch_size and size != batch_size:  # an input with several rows for each of the batch
            rows = -(-rows * batch_size // size)
            size = batch_size
        if self.rows is not None and rows != self.rows:
            refuse(FeedShapeError, f"the arrays of a batch have {self.rows} and {rows} rows")
        self.rows = rows
        self.is_short = self.is_short or rows < size


def _pieces(arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays of an argument of varying size: one for each device, or a list of them for each."""
    return [piece for value in arrays for piece in (value if isinstance(value, (list, tuple)) else [value])]


def _sizes_of_rows(shapes: list[tuple[int, ...]]) -> set[int]:
    return {int(np.prod(shape[:n])) for shape in shapes for n in range(1, len(shape) + 1)}


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_described(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list)) and len(value) <= 10:
        return f"{type(value).__name__} of ({', '.join(map(_described, value))})"
    if is_array(value):
        return f"{type(value).__name__} {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
