"""Metrics of predicted numbers."""

from __future__ import annotations

import numpy as np

from .._base.refuse import refuse
from ..errors import ShapeError
from .base import Metric, per_row, rows_of


class _Pairs(Metric):
    """A metric of predictions and targets of one shape."""

    def __init__(self, preds: str = "predictions", target: str = "targets", name: str | None = None):
        super().__init__([preds, target], name)

    def _pair(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        preds, target = arrays
        if preds.shape != target.shape and preds.size == target.size:
            preds = preds.reshape(target.shape)  # (rows, 1) and (rows,)
        if preds.shape != target.shape:
            refuse(
                ShapeError, f"{type(self).__name__}: {self.inputs[0]} {preds.shape} and {self.inputs[1]} {target.shape} differ"
            )
        return preds.astype(np.float64), target.astype(np.float64)

    def _count(self, weights: np.ndarray | None, each: np.ndarray) -> None:
        self._add("sum", float(each.sum() if weights is None else each @ weights))
        self._add("count", float(len(each) if weights is None else weights.sum()))

    def compute(self) -> float:
        """The mean; NaN before the first row."""
        return self._ratio("sum", "count")


class MeanSquaredError(_Pairs):
    """The mean of squared differences.

    Args:
      preds: the name of the predictions; ``target`` that of what they should be.
      name: in ``logs``.
    Example:
      >>> metric = flow.metrics.MeanSquaredError()
      >>> metric.update([1.0, 2.0], [1.0, 4.0])
      >>> assert metric.compute() == 2.0
    """

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Adds the rows."""
        preds, target = self._pair(arrays)
        self._count(weights, per_row(np.square(preds - target)))


class MeanAbsoluteError(_Pairs):
    """The mean of absolute differences.

    Args:
      preds: the name of the predictions; ``target`` that of what they should be.
      name: in ``logs``.
    Example:
      >>> metric = flow.metrics.MeanAbsoluteError()
      >>> metric.update([1.0, 2.0], [1.0, 4.0])
      >>> assert metric.compute() == 1.0
    """

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Adds the rows."""
        preds, target = self._pair(arrays)
        self._count(weights, per_row(np.abs(preds - target)))


class R2Score(_Pairs):
    """The share of the targets' variance that the predictions explain: 1 is perfect, 0 is no better than the mean.

    Args:
      preds: the name of the predictions; ``target`` that of what they should be; one number for each row.
      name: in ``logs``.
    Example:
      >>> metric = flow.metrics.R2Score()
      >>> metric.update([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
      >>> assert metric.compute() == 1.0
    """

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Merges the rows' mean and spread with those of earlier ones."""
        preds, target = (rows_of(a) for a in self._pair(arrays))
        if target.shape[1] != 1:
            refuse(ShapeError, f"R2Score takes one number for each row, got {target.shape[1]}")
        w = np.ones(len(target)) if weights is None else weights
        total, y = float(w.sum()), target[:, 0]
        if not total:
            return
        mean = float(w @ y) / total
        before, count = self.state.get("mean", 0.0), self.state.get("count", 0.0)
        self._add("residual", float(w @ np.square(y - preds[:, 0])))
        self._add("spread", float(w @ np.square(y - mean)) + (mean - before) ** 2 * total * count / (total + count))
        self._add("count", total)
        self.state["mean"] = before + (mean - before) * total / (total + count)

    def compute(self) -> float:
        """The share; NaN where the targets do not vary."""
        ratio = self._ratio("residual", "spread")
        return 1.0 - ratio
