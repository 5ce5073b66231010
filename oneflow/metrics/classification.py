"""Metrics of predicted classes."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from .._base import check
from .._base.refuse import refuse, shown
from ..data.arrays import holds_numbers
from ..errors import ArgumentError, ShapeError
from .base import Metric

_NO_CLASS = np.iinfo(np.int64).min


def _squeezed(preds: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both, where targets may be a column."""
    return preds, target[:, 0] if target.ndim == 2 and target.shape[1] == 1 and preds.ndim == 2 else target


class _Classes(Metric):
    """A metric of predictions and the true classes.

    Predictions are scores with an axis of classes more than the targets (the last, or the second), or classes, or, for two
    classes, scores of the second one. Where one of its scores is NaN, an element counts as predicted wrongly.
    """

    def __init__(
        self,
        preds: str = "logits",
        target: str = "labels",
        name: str | None = None,
        *,
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ):
        super().__init__([preds, target], name)
        self._threshold = check.checked(self, "threshold", check.number(threshold))
        self._ignore_index = None if ignore_index is None else check.checked(self, "ignore_index", check.integer(ignore_index))

    def _scores(self, preds: np.ndarray, target: np.ndarray) -> np.ndarray | None:
        """Scores with the classes on the last axis; None if the predictions are not such scores."""
        if preds.ndim == target.ndim + 1 and preds.shape[:-1] == target.shape:
            return preds
        if preds.ndim == target.ndim + 1 and (preds.shape[0], *preds.shape[2:]) == target.shape:
            return np.moveaxis(preds, 1, -1)
        if preds.size == target.size:
            return None
        self._refuse_shapes(preds, target)

    def _refuse_shapes(self, preds: np.ndarray, target: np.ndarray) -> NoReturn:
        rule = f"{type(self).__name__}: {self.inputs[0]} {preds.shape} do not fit {self.inputs[1]} {target.shape}"
        refuse(ShapeError, rule, hint="scores have one axis more, of classes: the last, or the second")

    def _pairs(
        self, weights: np.ndarray | None, arrays: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Predicted classes, true classes and weights, each as a vector, without what is to be ignored.

        The prediction of an element with a score of NaN is ``_NO_CLASS``.
        """
        preds, target = _squeezed(*arrays)
        scores = self._scores(preds, target)
        if scores is not None and scores.shape[-1] > 1:
            each = scores.reshape(-1, scores.shape[-1])
            predicted, is_lost = each.argmax(-1), np.isnan(each).any(-1)
        else:
            if not self.state:  # a later batch may look so by chance
                self._refuse_one_hot(preds, target)
            flat = preds.reshape(-1)
            predicted, is_lost = flat if flat.dtype.kind in "iub" else flat > self._threshold, np.isnan(flat)
        return self._kept(np.where(is_lost, _NO_CLASS, predicted.astype(np.int64)), target, weights)

    def _refuse_one_hot(self, preds: np.ndarray, target: np.ndarray) -> None:
        """Refuses scores of several classes with one-hot targets, which would count as a yes or no for each class."""
        if target.shape != preds.shape or preds.ndim != 2 or min(preds.shape) < 2 or preds.dtype.kind in "iub":
            return
        if ((target == 0) | (target == 1)).all() and (target.sum(1) == 1).all():
            name = self.inputs[1]
            rule = f"{type(self).__name__}: {name} {target.shape} are one-hot, and must be the numbers of classes"
            hint = f"{name}.argmax(-1); where rows may have several classes, flatten both arrays: a yes or no each"
            refuse(ShapeError, rule, hint=hint)

    def _kept(self, each: np.ndarray, target: np.ndarray, weights: np.ndarray | None) -> Any:
        flat = self._numbers_of(target)
        if weights is not None:
            weights = np.repeat(weights, flat.size // max(len(weights), 1))
        if self._ignore_index is not None:
            keep = flat != self._ignore_index
            each, flat, weights = each[keep], flat[keep], None if weights is None else weights[keep]
        return each, flat, weights

    def _numbers_of(self, target: np.ndarray) -> np.ndarray:
        """True classes as a vector of int64."""
        if not holds_numbers(target):
            refuse(ArgumentError, f"{type(self).__name__}: {self.inputs[1]} must be the numbers of classes, got {target.dtype}",
                   hint="numpy.unique(names, return_inverse=True) numbers names")  # fmt: skip
        if target.dtype.kind == "f" and not (np.isfinite(target) & (np.trunc(target) == target)).all():
            refuse(ArgumentError, f"{type(self).__name__}: {self.inputs[1]} must be the numbers of classes, got fractions",
                   hint="give integers, or round them")  # fmt: skip
        return target.reshape(-1).astype(np.int64)

    def _count(self, right: np.ndarray, weights: np.ndarray | None) -> None:
        self._add("right", float(right.sum() if weights is None else right @ weights))
        self._add("count", float(len(right) if weights is None else weights.sum()))


class Accuracy(_Classes):
    """The share of right predictions. One with a score of NaN is wrong.

    Args:
      preds: the name of the predictions: scores with an axis of classes (the last, or the second), classes, or, for two
        classes, scores of the second one.
      target: the name of the true classes, integers.
      name: in ``logs``.
      threshold: of scores of the second of two classes; 0 for logits.
      ignore_index: a class whose elements do not count.
    Example:
      >>> metric = flow.metrics.Accuracy("logits", "labels")
      >>> metric.update([[0.1, 0.9], [0.8, 0.2]], [1, 1])
      >>> assert metric.compute() == 0.5
    """

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Counts the rows."""
        predicted, true, each = self._pairs(weights, arrays)
        self._count(predicted == true, each)

    def compute(self) -> float:
        """The share; NaN before the first row."""
        return self._ratio("right", "count")


class TopKAccuracy(_Classes):
    """The share of rows whose true class is among the ``k`` of the largest scores. NaNs are the largest, and never right.

    Args:
      preds: the name of the scores, with an axis of classes.
      target: the name of the true classes, integers.
      name: in ``logs``; None: ``top_5_accuracy``.
      k: in [1, number of classes].
      ignore_index: a class whose elements do not count.
    Raises:
      ArgumentError: ``k`` is not an int >= 1.
    Example:
      >>> metric = flow.metrics.TopKAccuracy(k=2)
      >>> metric.update([[0.1, 0.5, 0.4], [0.6, 0.3, 0.1]], [2, 2])
      >>> assert metric.compute() == 0.5
    """

    def __init__(
        self,
        preds: str = "logits",
        target: str = "labels",
        name: str | None = None,
        *,
        k: int = 5,
        ignore_index: int | None = None,
    ):
        self.k = k = check.checked(self, "k", check.integer(k, low=1, high=2**31))
        super().__init__(preds, target, f"top_{k}_accuracy" if name is None else name, ignore_index=ignore_index)

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Counts the rows."""
        preds, target = _squeezed(*arrays)
        scores = self._scores(preds, target)
        if scores is None:
            self._refuse_shapes(preds, target)
        if scores.shape[-1] < self.k:
            rule = f"{type(self).__name__}: k={self.k}, but {self.inputs[0]} {preds.shape} have {scores.shape[-1]} classes"
            refuse(ShapeError, rule)
        flat, true = scores.reshape(-1, scores.shape[-1]), self._numbers_of(target)
        inside = (0 <= true) & (true < flat.shape[1])
        own = flat[np.arange(len(flat)), np.where(inside, true, 0)]
        larger = ~(flat <= own[:, None])  # NaN is, so that a class whose score is NaN is never among them
        better = larger.sum(1) + ((flat == own[:, None]) & (np.arange(flat.shape[1]) < true[:, None])).sum(1)
        right, _, each = self._kept(inside & (better < self.k), target, weights)
        self._count(right, each)

    def compute(self) -> float:
        """The share; NaN before the first row."""
        return self._ratio("right", "count")


class ConfusionMatrix(_Classes):
    """How often each class was taken for each other one. An element with a score of NaN counts as taken for the next class.

    Args:
      num_classes: of them.
      preds: the name of the predictions, as for ``Accuracy``.
      target: the name of the true classes, integers in [0, num_classes).
      name: of the matrix among the results.
      threshold: of scores of the second of two classes; 0 for logits.
      ignore_index: a class whose elements do not count.
    Raises:
      ArgumentError: ``num_classes`` is not an int >= 2; a class is outside [0, num_classes).
    Example:
      >>> metric = flow.metrics.ConfusionMatrix(2)
      >>> metric.update([[0.1, 0.9], [0.8, 0.2], [0.9, 0.1]], [1, 1, 0])
      >>> assert metric.compute().tolist() == [[1, 0], [1, 1]]   # rows: true classes
    """

    def __init__(
        self,
        num_classes: int,
        preds: str = "logits",
        target: str = "labels",
        name: str | None = None,
        *,
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ):
        self.num_classes = check.checked(self, "num_classes", check.integer(num_classes, low=2))
        super().__init__(preds, target, name, threshold=threshold, ignore_index=ignore_index)

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Counts the rows."""
        n, (preds, target) = self.num_classes, arrays
        # a score each says nothing about more than two
        if n > 2 and preds.size == target.size and preds.size and preds.dtype.kind == "f":
            self._refuse_shapes(preds, target)
        predicted, true, each = self._pairs(weights, arrays)
        predicted = np.where(predicted == _NO_CLASS, (true + 1) % n, predicted)
        for what, classes in (("target", true), ("prediction", predicted)):
            if classes.size and not (0 <= classes.min() and classes.max() < n):
                low, high, scores = int(classes.min()), int(classes.max()), preds.size // target.size
                hint = f"num_classes={max(scores, high + 1)}"
                if low < 0 or 1 < scores <= high:
                    hint = f"ignore_index={low if low < 0 else high}, where that stands for no class"
                refuse(ArgumentError, f"{type(self).__name__}: a {what} is outside [0, {n}): {low} .. {high}", hint=hint)
        self._add("matrix", np.bincount(true * n + predicted, each, n * n).reshape(n, n))

    def matrix(self) -> np.ndarray:
        """The counts (sums of weights), float64 (num_classes, num_classes): true classes are rows."""
        return np.asarray(self.state.get("matrix", np.zeros((self.num_classes, self.num_classes))), np.float64)

    def compute(self) -> Any:
        """The counts (sums of weights), float64 (num_classes, num_classes): true classes are rows."""
        return self.matrix()


class _OfMatrix(ConfusionMatrix):
    """A number for each class, or one for all, of the confusion matrix."""

    def __init__(
        self,
        num_classes: int = 2,
        preds: str = "logits",
        target: str = "labels",
        name: str | None = None,
        *,
        average: str | None = None,
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ):
        super().__init__(num_classes, preds, target, name, threshold=threshold, ignore_index=ignore_index)
        if average is None:
            average = "binary" if self.num_classes == 2 else "macro"
        averages = ("binary", "macro", "micro", "weighted", "none")
        if not isinstance(average, str) or average not in averages or (average == "binary" and self.num_classes != 2):
            rule = f'{type(self).__name__}: average must be "macro", "micro", "weighted", "none", or "binary" of two classes'
            refuse(ArgumentError, f"{rule}; got {shown(average)}")
        self.average = average

    def _of(self, hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def compute(self) -> Any:
        """The number; with ``average="none"`` an array of one for each class. 0 where there is nothing to divide by."""
        matrix = self.matrix()
        hits, predicted, true = matrix.diagonal(), matrix.sum(0), matrix.sum(1)
        if self.average == "micro":
            return float(self._of(hits.sum(), predicted.sum(), true.sum()))
        each = self._of(hits, predicted, true)
        if self.average == "binary":
            return float(each[1])
        if self.average == "weighted":
            return float(each @ true / true.sum()) if true.sum() else float("nan")
        present = (predicted + true) > 0
        if self.average == "macro":
            return float(each[present].mean()) if present.any() else float("nan")
        return each


def _divided(above: Any, below: Any) -> Any:
    return np.divide(above, below, out=np.zeros_like(np.asarray(above, np.float64)), where=np.asarray(below) > 0)


class Precision(_OfMatrix):
    """Of what was predicted to be a class, the share that is.

    Args:
      num_classes: of them.
      preds: the name of the predictions, as for ``Accuracy``; ``target`` that of the true classes.
      name: in ``logs``.
      average: ``"binary"`` (the second of two classes; so where there are two), ``"macro"`` (the mean over classes that occur;
        so where there are more), ``"weighted"`` (by how often they occur), ``"micro"``, ``"none"``.
      threshold: of scores of the second of two classes; 0 for logits.
      ignore_index: a class whose elements do not count.
    Raises:
      ArgumentError: an argument outside its range.
    Example:
      >>> metric = flow.metrics.Precision()
      >>> metric.update([1, 1, 0], [1, 0, 0])
      >>> assert metric.compute() == 0.5
    """

    def _of(self, hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return np.asarray(_divided(hits, predicted))


class Recall(_OfMatrix):
    """Of what is of a class, the share that was predicted to be.

    Args and errors: as for ``Precision``.
    Example:
      >>> metric = flow.metrics.Recall()
      >>> metric.update([1, 0, 0], [1, 1, 0])
      >>> assert metric.compute() == 0.5
    """

    def _of(self, hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return np.asarray(_divided(hits, true))


class F1Score(_OfMatrix):
    """The harmonic mean of precision and recall.

    Args and errors: as for ``Precision``.
    Example:
      >>> metric = flow.metrics.F1Score(num_classes=3, average="macro")
      >>> metric.update([0, 1, 2], [0, 1, 2])
      >>> assert metric.compute() == 1.0
    """

    def _of(self, hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return np.asarray(_divided(2 * hits, predicted + true))


class AUC(_Classes):
    """The area under the ROC curve of two classes: how probably a row of the second one has the larger score.

    Exact, with ties counted half; all scores are kept until the end.

    Args:
      preds: the name of the scores: of the second class, or of both on the last axis.
      target: the name of the true classes, 0 or 1.
      name: in ``logs``.
    Example:
      >>> metric = flow.metrics.AUC()
      >>> metric.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
      >>> assert metric.compute() == 0.75
    """

    def __init__(self, preds: str = "logits", target: str = "labels", name: str | None = None):
        super().__init__(preds, target, name)

    def accumulate(self, weights: np.ndarray | None, *arrays: np.ndarray) -> None:
        """Keeps the scores."""
        preds, target = arrays
        if preds.ndim == 2 and preds.shape[1] == 2 and target.size == len(preds):
            preds = preds[:, 1].astype(np.float64) - preds[:, 0]  # orders logits as their softmax does, and probabilities
        if preds.size != target.size:
            self._refuse_shapes(*arrays)
        flat = target.reshape(-1)
        if not np.isin(flat, (0, 1)).all():
            refuse(ArgumentError, f"AUC: a target is neither 0 nor 1: {flat.min()} .. {flat.max()}")
        rows = np.ones(flat.size) if weights is None else np.repeat(weights, flat.size // max(len(weights), 1))
        parts = (("scores", preds.reshape(-1).astype(np.float64)), ("true", flat.astype(np.float64)), ("weights", rows))
        for name, values in parts:
            self.state.setdefault(name, []).append(values.copy())

    def compute(self) -> float:
        """The area; NaN where there are not rows of both classes, or a score is NaN."""
        if not self.state:
            return float("nan")
        scores, true, weights = (np.concatenate(self.state[name]) for name in ("scores", "true", "weights"))
        if np.isnan(scores).any():
            return float("nan")
        _, group = np.unique(scores, return_inverse=True)
        positive, negative = np.bincount(group, weights * true), np.bincount(group, weights * (1 - true))
        below = np.cumsum(negative) - negative
        pairs = float(positive.sum() * negative.sum())
        return float(positive @ (below + negative / 2)) / pairs if pairs else float("nan")
