"""The interface of metrics, and metrics of one array."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .._base import check
from .._base.refuse import refuse, shown
from ..data.arrays import as_array
from ..errors import ArgumentError, ShapeError


class Metric:
    """A number over all rows of a data set, made of their batches one after the other.

    A metric of your own defines ``accumulate`` and ``compute``, and keeps numbers and arrays in ``self.state``, which
    ``reset`` empties and checkpoints keep.

    Args:
      inputs: names of what ``update`` takes, for ``flow.Trainer``: results of a job, or its inputs. A metric is computed of
        each job that has all of them.
      name: in ``logs``; None: made of the class's name.

    Attributes:
      state: what has been accumulated, by name.

    Example:
      >>> class Largest(flow.metrics.Metric):
      ...     def accumulate(self, weights, values):
      ...         self.state["largest"] = max(self.state.get("largest", -np.inf), float(values.max()))
      ...     def compute(self):
      ...         return self.state["largest"]
      >>> metric = Largest(["predictions"])
      >>> metric.update(np.array([1.0, 3.0, 2.0]))
      >>> assert metric.compute() == 3.0
    """

    def __init__(self, inputs: Sequence[str], name: str | None = None):
        if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(n, str) and n for n in inputs):
            refuse(ArgumentError, f"{type(self).__name__}: inputs must be names of results or inputs, got {shown(inputs)}")
        name = check.checked(self, "name", check.name(name, optional=True))
        self.inputs = tuple(inputs)
        self.name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        self.state: dict[str, Any] = {}

    def update(self, *arrays: Any, weights: Any = None) -> None:
        """Counts a batch.

        Args:
          arrays: as ``inputs`` names them, with equally many rows; of NumPy, PyTorch, JAX, or lists.
          weights: how much each row counts, >= 0; None: 1.
        Raises:
          ArgumentError: another number of arrays, or a weight is negative or NaN.
          ShapeError: their rows, or those of the weights, do not agree.
        """
        if len(arrays) != len(self.inputs):
            refuse(ArgumentError, f"{type(self).__name__}.update takes {', '.join(self.inputs)}; {len(arrays)} were given")
        made = [as_array(a, n) for a, n in zip(arrays, self.inputs, strict=True)]
        rows = len(made[0]) if made[0].ndim else 1
        if any(a.ndim and len(a) != rows for a in made):
            shapes = ", ".join(f"{n} {a.shape}" for n, a in zip(self.inputs, made, strict=True))
            refuse(ShapeError, f"{type(self).__name__}: {shapes} have different numbers of rows")
        each = None if weights is None else as_array(weights, "weights").astype(np.float64).reshape(-1)
        if each is not None and len(each) != rows:
            refuse(ShapeError, f"{type(self).__name__}: {len(each)} weights were given for {rows} rows")
        if each is not None and not (each >= 0).all():
            refuse(ArgumentError, f"{type(self).__name__}: weights must be numbers >= 0, got {each[~(each >= 0)][0]}")
        self.accumulate(each, *made)

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Counts checked arrays; to be overridden. ``weights`` is float64 with one entry for each row, or None."""
        raise NotImplementedError(f"{type(self).__name__} does not define accumulate")

    def compute(self) -> Any:
        """The value over everything that was counted: a float, or an array; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute")

    def reset(self) -> None:
        """Forgets everything counted so far."""
        self.state = {}

    def state_dict(self) -> Mapping[str, Any]:
        """The numbers counted so far: a copy, which later updates do not change."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict()`` was taken."""
        self.state = copy.deepcopy(dict(state))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.inputs))}, name={self.name!r})"

    def _add(self, name: str, amount: Any) -> None:
        self.state[name] = self.state.get(name, 0.0) + amount

    def _ratio(self, above: str, below: str) -> float:
        """NaN where nothing was counted."""
        total = self.state.get(below, 0.0)
        return float(self.state[above] / total) if total else float("nan")


def per_row(values: np.ndarray) -> np.ndarray:
    """The mean of each row, in float64."""
    return rows_of(values).mean(axis=1, dtype=np.float64)


def rows_of(values: np.ndarray) -> np.ndarray:
    """The elements of each row, of a single number as of one row: a matrix."""
    return values.reshape(len(values), prod(values.shape[1:])) if values.ndim else values.reshape(1, 1)


class Mean(Metric):
    """The mean of a result over all rows.

    Args:
      value: its name.
      name: in ``logs``; None: that of the result.
    Example: >>> flow.metrics.Mean("entropy")
    """

    def __init__(self, value: str, name: str | None = None):
        super().__init__([value], value if name is None else name)

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Adds the rows."""
        each = per_row(arrays[0])
        self._add("sum", float(each.sum() if weights is None else each @ weights))
        self._add("count", float(len(each) if weights is None else weights.sum()))

    def compute(self) -> float:
        """The mean; NaN before the first row."""
        return self._ratio("sum", "count")


class Perplexity(Mean):
    """The exponential of the mean of a loss, cross-entropies in nats, over all rows.

    Args:
      loss: the name of the result.
      name: in ``logs``.
    Example:
      >>> metric = flow.metrics.Perplexity()
      >>> metric.update(np.log([2.0, 8.0]))
      >>> assert round(metric.compute(), 6) == 4.0
    """

    def __init__(self, loss: str = "loss", name: str | None = None):
        super().__init__(loss, "perplexity" if name is None else name)

    def compute(self) -> float:
        """e to the power of the mean."""
        return float(np.exp(super().compute()))


class Function(Metric):
    """A function of all rows together, or the mean of a function of each batch.

    Args:
      function: takes arrays as ``inputs`` names them. Where ``per_row``, it gives a value for each row of a batch, and their
        mean is the metric; else it is given all rows at the end, and gives the metric: exact for any function, but everything
        is kept until then. Its weights must be 0, which leaves a row out, or 1.
      inputs: names of results or inputs of a job.
      name: in ``logs``; None: the function's.
      per_row: which of the two.
    Raises:
      ArgumentError: ``function`` is not one.
    Example:
      >>> def spread(predictions):
      ...     return predictions.max() - predictions.min()
      >>> metric = flow.metrics.Function(spread, ["predictions"], per_row=False)
      >>> metric.update([1.0, 2.0])
      >>> metric.update([5.0])
      >>> assert metric.compute() == 4.0
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[str] = ("logits", "labels"),
        name: str | None = None,
        per_row: bool = True,
    ):
        if not callable(function):
            refuse(ArgumentError, f"Function needs a function, got {shown(function)}")
        super().__init__(inputs, getattr(function, "__name__", "function") if name is None else name)
        self._function, self._per_row = function, check.checked(self, "per_row", check.flag(per_row))

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Counts a batch, or keeps it."""
        if not self._per_row:
            if weights is not None and not np.isin(weights, (0, 1)).all():
                wrong = weights[~np.isin(weights, (0, 1))][0]
                refuse(ArgumentError, f"metric {self.name!r}: a function of all rows knows no weights but 0 and 1, got {wrong:g}",
                       hint="per_row=True, or a Metric of your own, whose accumulate takes weights")  # fmt: skip
            kept = arrays if weights is None else tuple(a[weights > 0] for a in arrays)
            for i, array in enumerate(kept):
                self.state.setdefault(f"input_{i}", []).append(array.copy())
            return
        each = np.asarray(self._function(*arrays), np.float64)
        if each.ndim == 0 or len(each) != len(arrays[0]):
            refuse(ShapeError, f"metric {self.name!r}: the function gave shape {each.shape} for {len(arrays[0])} rows",
                   hint="per_row=False, where it gives one value for all rows")  # fmt: skip
        each = per_row(each)
        self._add("sum", float(each.sum() if weights is None else each @ weights))
        self._add("count", float(len(each) if weights is None else weights.sum()))

    def compute(self) -> Any:
        """The mean, or what the function makes of everything; NaN before the first row."""
        if self._per_row:
            return self._ratio("sum", "count")
        if not self.state:
            return float("nan")
        value = self._function(*[np.concatenate(self.state[f"input_{i}"]) for i in range(len(self.inputs))])
        return float(value) if np.ndim(value) == 0 else np.asarray(value)
