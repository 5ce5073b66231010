"""From what a job returns to named numbers: a number for each result of a batch, and means over many batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .._signature.local import LocalTensor
from ..errors import JobWarning
from ..graph.node import Blob, Node
from ..job import JobFunction
from ..job.results import delivered_shape
from .arguments import Arguments, Bound

_sum = np.add.reduce
_LARGE = 1 << 14  # elements; copying several such arrays into one costs more than it saves


class Output:
    """One array among a job's results.

    Attributes:
      take: gets it from the value of a call.
      per_row: the number of its elements of axis 0 for each row of the batch; 0 where axis 0 is not that of rows.
    """

    __slots__ = ("name", "take", "per_row")

    def __init__(self, name: str, take: Callable[[Any], np.ndarray | None], per_row: int):
        self.name, self.take, self.per_row = name, take, per_row

    def rows(self, array: np.ndarray, bound: Bound) -> np.ndarray:
        """The array without what padding has made."""
        return array[: bound.rows * self.per_row] if self.per_row and bound.padded else array


class Outputs:
    """The results of a job, by name.

    One array is ``loss``; of a tuple the first is ``loss`` and the others ``output_1``, ...; of a dictionary they have its
    keys. Nested ones are joined by a slash.

    Args:
      prefix: of all names.
      apart: names that are not averaged, because metrics are computed of them.

    Attributes:
      averaged: those of which means are computed.
      bytes: of all results of a call.
    """

    def __init__(self, job: JobFunction[..., Any], arguments: Arguments, prefix: str = "", apart: frozenset[str] = frozenset()):
        self._job, self._prefix = job, prefix
        self._warned = False
        leaves = list(_leaves(job.graph.returns))
        shapes = [delivered_shape(blob) or () for _, _, blob in leaves]
        self.all = [
            Output(prefix + name, _taker(path), _elements_per_row(blob, shape, arguments))
            for (name, path, blob), shape in zip(leaves, shapes, strict=True)
        ]
        self.bytes = sum(prod(shape) * blob.dtype.bytes for (_, _, blob), shape in zip(leaves, shapes, strict=True))
        self.averaged = [output for output in self.all if output.name not in apart or output.name == prefix + "loss"]

    def logs(self, value: Any, bound: Bound) -> dict[str, float]:
        """The mean of each result over the rows of one batch."""
        logs = {}
        for output in self.averaged:
            array = output.take(value)
            if array is None:
                continue
            if bound.padded or bound.weights is not None:
                logs[output.name] = self._weighted(output, array, bound)
            else:
                logs[output.name] = _means([array])[0]
        return logs

    def many(self, values: Sequence[Any]) -> dict[str, list[float]]:
        """The mean of each result over all of its elements, for each of several whole batches."""
        numbers = {}
        for output in self.averaged:
            arrays = [output.take(value) for value in values]
            if arrays[0] is not None:
                numbers[output.name] = _means(arrays)
        return numbers

    def _weighted(self, output: Output, array: np.ndarray, bound: Bound) -> float:
        weights = bound.weights
        if weights is not None:
            if output.per_row and array.shape[0] == len(weights) * output.per_row:
                each = array.reshape(len(weights), -1).mean(axis=1, dtype=np.float64)
                return float(each @ weights) / (float(weights.sum()) or 1.0)  # 0 where no row counts
            return float(array.mean(dtype=np.float64))  # the job has weighted it
        if not output.per_row and not self._warned:
            self._warned = True
            job, name = self._job, output.name.removeprefix(self._prefix)
            text = (
                f"job {job.name!r} returns {name!r} as one value for a whole batch, and a batch of {bound.rows} "
                f"rows was padded: the value counts the padding\n"
                f"  try        return a value for each row, or give the job a parameter sample_weight, which is 0 for padding"
            )
            # this is the thread that delivers results, where no line of the user's calls
            warnings.warn_explicit(text, JobWarning, job.source.file, job.source.line)
        return float(output.rows(array, bound).mean(dtype=np.float64))


def _means(arrays: Sequence[Any]) -> list[float]:
    """The mean of each array; the same number whether they are given together or one by one."""
    if len(arrays) > 1 and (arrays[0].size > _LARGE or any(a.shape != arrays[0].shape for a in arrays)):
        return [mean for array in arrays for mean in _means([array])]
    wide = np.array(arrays, np.float64).reshape(len(arrays), -1)
    return (_sum(wide, axis=1) / (wide.shape[1] or np.nan)).tolist()


class Means:
    """Means of named numbers, weighted by rows."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, logs: Mapping[str, float], weight: float) -> None:
        """Counts the numbers of a batch; of one without weight, whatever they are."""
        sums, weights = self._sums, self._weights
        for name, number in logs.items():
            sums[name] = sums.get(name, 0.0) + (number * weight if weight else 0.0)
            weights[name] = weights.get(name, 0.0) + weight

    def add_all(self, numbers: Mapping[str, Sequence[float]], weight: float) -> None:
        """As ``add`` for each of several batches of one weight."""
        for name, each in numbers.items():
            total, weights = self._sums.get(name, 0.0), self._weights.get(name, 0.0)
            for number in each:
                total += number * weight
                weights += weight
            self._sums[name], self._weights[name] = total, weights

    def result(self) -> dict[str, float]:
        """The mean of each."""
        return {name: total / self._weights[name] if self._weights[name] else float("nan") for name, total in self._sums.items()}

    def clear(self) -> None:
        """Forgets everything added so far."""
        self._sums.clear()
        self._weights.clear()

    def state_dict(self) -> dict[str, Any]:
        """The rows added so far; JSON-able."""
        return {"sums": dict(self._sums), "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict()`` was taken."""
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])


def weight_of(bound: Bound) -> float:
    """How much a batch counts in a mean."""
    return float(bound.rows) if bound.weights is None else float(bound.weights.sum())


# --- which results there are, and where


def _leaves(returned: Any) -> Iterator[tuple[str, tuple[Any, ...], Blob]]:
    """Name, way and Blob of each result of a body."""

    def walk(value: Any, names: tuple[str, ...], path: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...], Blob]]:
        if isinstance(value, Blob):
            yield "/".join(names) or "loss", path, value
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from walk(item, (*names, str(key)), (*path, key))
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                name = "loss" if i == 0 and not names else f"output_{i}"
                yield from walk(item, (*names, name), (*path, i))

    yield from walk(returned, (), ())


def _elements_per_row(blob: Blob, shape: tuple[int, ...], arguments: Arguments) -> int:
    """``per_row`` of an Output, of a Blob whose value is delivered in ``shape``."""
    size = (arguments.batch_size or 0) * arguments.parts
    if not size or not shape or shape[0] % size:
        return 0
    is_rows = (blob.batch_axis == 0 or (blob.batch_axis < 0 and shape[0] in arguments.sizes)) and _may_have_rows(blob)
    return shape[0] // size if is_rows else 0


def _may_have_rows(blob: Blob) -> bool:
    """Whether anything of a batch axis reaches a Blob: not by variables and constants alone, nor after a reduction over it."""
    waiting, seen = [blob], set()
    while waiting:
        blob = waiting.pop()
        node = blob.node
        inputs = [x for x in node.inputs if not _reduces_batch(node, x)]
        if (blob.batch_axis >= 0 and len(inputs) == len(node.inputs)) or (node.op.draws and not inputs):
            return True
        if node not in seen:
            seen.add(node)
            waiting += inputs
    return False


def _reduces_batch(node: Node, x: Blob) -> bool:
    """Whether a reduction, or a product, makes one number of several rows."""
    if node.op.name == "matmul":
        first = x is node.inputs[0]
        return x.batch_axis == x.ndim - (2 if node.attrs["transpose_a" if first else "transpose_b"] == first else 1)
    axes = node.attrs.get("axes")
    return "keepdims" in node.attrs and isinstance(axes, tuple) and x.batch_axis in axes and x.shape[x.batch_axis] > 1


def _taker(path: tuple[Any, ...]) -> Callable[[Any], np.ndarray | None]:
    if not path:
        return _as_ndarray
    if len(path) == 1:
        key = path[0]
        return lambda value: _as_ndarray(value[key])

    def take(value: Any) -> np.ndarray | None:
        for key in path:
            value = value[key]
        return _as_ndarray(value)

    return take


def _as_ndarray(value: Any) -> np.ndarray | None:
    """The array that a result is; pieces of several devices are joined. None for a list of tensors."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, LocalTensor):
        return _joined(value.numpy_list())
    if isinstance(value, Sequence) and value and all(isinstance(piece, np.ndarray) for piece in value):
        return _joined(value)
    return None


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
