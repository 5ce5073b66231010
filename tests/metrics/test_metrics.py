"""Metrics: exact whatever the batches, against SciPy, PyTorch and sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oneflow as flow
from oneflow.errors import ArgumentError, ShapeError

CLASSES = 4
m = flow.metrics


def rows(seed=0, count=50):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, CLASSES)).astype(np.float32), rng.integers(0, CLASSES, count).astype(np.int32)


MAKERS = {
    "accuracy": lambda: m.Accuracy(), "top 2": lambda: m.TopKAccuracy(k=2), "matrix": lambda: m.ConfusionMatrix(CLASSES),
    "precision": lambda: m.Precision(CLASSES), "recall": lambda: m.Recall(CLASSES, average="weighted"),
    "f1": lambda: m.F1Score(CLASSES, average="micro"), "of each row": lambda: m.Function(lambda p, t: p[:, 0] * t),
    "of all rows": lambda: m.Function(lambda p, t: np.median(p) + t.sum(), per_row=False),
}  # fmt: skip
PAIRS = {"mse": m.MeanSquaredError, "mae": m.MeanAbsoluteError, "r2": m.R2Score}


def computed(metric, arrays, cuts=(), weights=None):
    edges = [0, *sorted(cuts), len(arrays[0])]
    for a, b in zip(edges, edges[1:], strict=False):
        if a < b:
            metric.update(*[x[a:b] for x in arrays], weights=None if weights is None else weights[a:b])
    return metric.compute()


@given(cuts=st.lists(st.integers(0, 50), max_size=5), seed=st.integers(0, 20))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_batches_do_not_matter(make, cuts, seed):
    np.testing.assert_allclose(computed(make(), rows(seed), cuts), computed(make(), rows(seed)), rtol=1e-9)


@given(cuts=st.lists(st.integers(0, 50), max_size=5), seed=st.integers(0, 20))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_batches_of_numbers_do_not_matter(make, cuts, seed):
    preds, _ = rows(seed)
    target = preds[:, 1] + 100
    np.testing.assert_allclose(computed(make(), (preds[:, 0], target), cuts), computed(make(), (preds[:, 0], target)), rtol=1e-7)


@pytest.mark.parametrize("make", [MAKERS[k] for k in ("accuracy", "top 2", "matrix", "precision", "recall", "of each row")])
def test_weights_count_rows_as_often(make):
    logits, labels = rows()
    weights = np.random.default_rng(1).integers(0, 4, len(labels))
    repeated = np.repeat(logits, weights, 0), np.repeat(labels, weights, 0)
    np.testing.assert_allclose(computed(make(), (logits, labels), [20], weights), computed(make(), repeated), rtol=1e-12)


def test_accuracy():
    logits, labels = rows()
    assert computed(m.Accuracy(), (logits, labels)) == np.mean(logits.argmax(1) == labels)
    assert computed(m.Accuracy(), (logits.argmax(1), labels)) == np.mean(logits.argmax(1) == labels)
    images, pixels = np.moveaxis(logits.reshape(5, 10, CLASSES), -1, 1), labels.reshape(5, 10)
    assert computed(m.Accuracy(), (images, pixels)) == np.mean(logits.argmax(1) == labels)
    assert computed(m.Accuracy(), (logits.reshape(5, 10, CLASSES), pixels)) == np.mean(logits.argmax(1) == labels)
    scores, binary = logits[:, 0], (labels > 1).astype(np.int32)
    assert computed(m.Accuracy(threshold=0.0), (scores, binary)) == np.mean((scores > 0) == binary)
    assert computed(m.Accuracy(threshold=0.0), (scores[:, None], binary)) == np.mean((scores > 0) == binary)
    keep = labels != 2
    assert computed(m.Accuracy(ignore_index=2), (logits, labels)) == np.mean((logits.argmax(1) == labels)[keep])
    assert math.isnan(m.Accuracy().compute())


def test_top_k_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    logits, labels = rows(3)
    best = torch.topk(torch.from_numpy(logits), 2).indices.numpy()
    assert computed(m.TopKAccuracy(k=2), (logits, labels), [7]) == np.mean((best == labels[:, None]).any(1))
    assert m.TopKAccuracy(k=3).name == "top_3_accuracy"
    ties = np.zeros((1, CLASSES), np.float32)
    assert [computed(m.TopKAccuracy(k=2), (ties, [c])) for c in range(CLASSES)] == [1, 1, 0, 0]


@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
def test_precision_recall_and_f1_by_hand(average):
    logits, labels = rows(5)
    predicted = logits.argmax(1)
    each = {"precision": [], "recall": [], "f1": []}
    for c in range(CLASSES):
        hit, said, true = np.sum((predicted == c) & (labels == c)), np.sum(predicted == c), np.sum(labels == c)
        p, r = hit / said, hit / true
        each["precision"].append(p), each["recall"].append(r), each["f1"].append(2 * p * r / (p + r) if p + r else 0.0)
    share = np.bincount(labels, minlength=CLASSES) / len(labels)
    for kind, name in ((m.Precision, "precision"), (m.Recall, "recall"), (m.F1Score, "f1")):
        values = np.array(each[name])
        wanted = {"macro": values.mean(), "weighted": values @ share, "micro": np.mean(predicted == labels), "none": values}[
            average
        ]
        np.testing.assert_allclose(computed(kind(CLASSES, average=average), (logits, labels), [11]), wanted, rtol=1e-12)
    assert computed(m.Recall(3, average="macro"), ([0, 0, 1], [0, 0, 0])) == pytest.approx((2 / 3 + 0) / 2)  # 2 never occurs


def test_the_area_under_the_curve_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    scores, labels = np.round(rng.standard_normal(200), 1), rng.integers(0, 2, 200)
    scores = scores + labels * 0.5
    u = stats.mannwhitneyu(scores[labels == 1], scores[labels == 0]).statistic
    wanted = u / (labels.sum() * (1 - labels).sum())
    assert computed(m.AUC(), (scores, labels), [10, 60]) == pytest.approx(wanted, rel=1e-12)
    both = np.stack([np.zeros(200), scores], 1)
    assert computed(m.AUC(), (both, labels[:, None])) == pytest.approx(wanted, rel=1e-12)
    weights = rng.integers(0, 3, 200)
    repeated = np.repeat(scores, weights), np.repeat(labels, weights)
    assert computed(m.AUC(), (scores, labels), weights=weights) == pytest.approx(computed(m.AUC(), repeated), rel=1e-12)
    assert math.isnan(computed(m.AUC(), ([1.0, 2.0], [1, 1])))
    with pytest.raises(ArgumentError, match="neither 0 nor 1"):
        m.AUC().update([0.1], [2])


def test_scores_that_are_no_numbers_are_never_right():
    scores = np.full((4, 5), np.nan, np.float32)
    metric = flow.metrics.TopKAccuracy(k=2)
    metric.update(scores, [0, 1, 2, 3])
    assert metric.compute() == 0
    scores[:, :3] = [0.1, 0.3, 0.2]  # two NaNs count as the largest, as for flow.math.top_k
    assert [_top(scores, [1] * 4, k) for k in (2, 3)] == [0, 1]
    area = flow.metrics.AUC()
    area.update([0.1, np.nan, 0.35, 0.8], [0, 0, 1, 1])
    assert np.isnan(area.compute())


def _top(scores, target, k):
    metric = flow.metrics.TopKAccuracy(k=k)
    metric.update(scores, target)
    return metric.compute()


def test_perplexity_and_means():
    loss = np.random.default_rng(0).uniform(0, 3, (20, 5)).astype(np.float32)
    assert computed(m.Perplexity(), (loss,), [3]) == pytest.approx(math.exp(loss.mean(dtype=np.float64)), rel=1e-9)
    assert computed(m.Mean("entropy"), (loss,), [3]) == pytest.approx(loss.mean(dtype=np.float64))
    assert m.Mean("entropy").name == "entropy" and m.Perplexity().name == "perplexity"


@given(hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(-100, 100)))
@settings(max_examples=50, deadline=None)
def test_r2(target):
    preds = target + np.linspace(-1, 1, len(target))
    spread = np.square(target - target.mean()).sum()
    found = computed(m.R2Score(), (preds, target), [1])
    if spread > 1e-6:
        assert found == pytest.approx(1 - np.square(target - preds).sum() / spread, rel=1e-6, abs=1e-6)


def test_states_go_on():
    logits, labels = rows()
    for make in [*MAKERS.values(), lambda: m.AUC()]:
        arrays = (logits, labels) if not isinstance(make(), m.AUC) else (logits[:, 0], labels % 2)
        whole, part, rest = make(), make(), make()
        whole.update(*arrays)
        part.update(*[a[:20] for a in arrays])
        state, before = part.state_dict(), part.compute()
        rest.load_state_dict(state)
        rest.update(*[a[20:] for a in arrays])
        np.testing.assert_allclose(rest.compute(), whole.compute(), rtol=1e-12)
        np.testing.assert_array_equal(part.compute(), before)
        rest.load_state_dict(state)
        np.testing.assert_array_equal(rest.compute(), before)
        rest.reset()
        rest.update(*arrays)
        np.testing.assert_allclose(rest.compute(), whole.compute(), rtol=1e-12)


def test_a_weight_of_0_leaves_a_row_out():
    metric = m.Function(np.median, ["loss"], per_row=False)
    metric.update([1.0, 3.0, 2.0], weights=[1, 1, 0])
    metric.update([5.0])
    assert metric.compute() == 3


@pytest.mark.parametrize("weights", [[1, -1], [float("nan"), 1]])
def test_weights_are_not_negative(weights):
    with pytest.raises(ArgumentError, match="weights must be numbers >= 0"):
        m.Accuracy().update([0, 1], [0, 1], weights=weights)


def test_scores_and_one_hot_targets_are_refused():
    logits, labels = np.eye(3)[[0, 1, 2, 2]] + 0.25, np.eye(3)[[0, 1, 2, 1]]
    for metric in (m.Precision(3), m.ConfusionMatrix(3), m.TopKAccuracy(k=2)):
        with pytest.raises(ShapeError, match="do not fit"):
            metric.update(logits, labels)
    for metric in (m.Accuracy(), m.Accuracy("a", "b", threshold=0.0)):
        with pytest.raises(ShapeError, match=rf"(?s){metric.inputs[1]} \(4, 3\) are one-hot.*try +{metric.inputs[1]}.argmax"):
            metric.update(logits, labels)
    with pytest.raises(ShapeError, match="are one-hot"):
        m.F1Score().update(logits[:, :2], np.eye(2)[[0, 1, 1, 0]])


def test_several_classes_in_a_row_are_a_yes_or_no_each():
    several, metric = np.array([[1, 1, 0], [0, 0, 1]]), m.Accuracy()
    metric.update(several * 0.9, several)
    metric.update(np.eye(3)[[0, 1]], np.eye(3, dtype=int)[[0, 2]])  # one-hot by chance
    assert metric.compute() == 10 / 12
    flat = m.Accuracy()
    flat.update(np.eye(3).reshape(-1), np.eye(3).reshape(-1))
    assert flat.compute() == 1.0


def test_other_arrays():
    torch = pytest.importorskip("torch")
    logits, labels = rows()
    metric = m.Accuracy()
    metric.update(torch.from_numpy(logits), labels.tolist())
    assert metric.compute() == np.mean(logits.argmax(1) == labels)


def test_names():
    assert {name: getattr(m, name)(2).name if name == "ConfusionMatrix" else getattr(m, name)().name for name in
            ("Accuracy", "AUC", "F1Score", "MeanSquaredError", "R2Score", "ConfusionMatrix")} == {
        "Accuracy": "accuracy", "AUC": "auc", "F1Score": "f1_score", "MeanSquaredError": "mean_squared_error",
        "R2Score": "r2_score", "ConfusionMatrix": "confusion_matrix"}  # fmt: skip
    assert m.Accuracy(name="top").name == "top"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: m.Accuracy().update([1]), ArgumentError, "takes logits, labels; 1 were given"),
        (lambda: m.Accuracy().update([1], [1, 2]), ShapeError, "different numbers of rows"),
        (lambda: m.Accuracy().update(np.zeros((2, 3)), np.zeros((2, 2))), ShapeError, "do not fit"),
        (lambda: m.Accuracy().update([1], [1], weights=[1, 2]), ShapeError, "2 weights were given for 1 rows"),
        (lambda: m.Accuracy().update(np.eye(2), ["a", "b"]), ArgumentError, "labels must be the numbers of classes, got <U1"),
        (lambda: m.Accuracy().update(np.eye(2), [0.0, 0.5]), ArgumentError, "numbers of classes, got fractions"),
        (lambda: m.ConfusionMatrix(2).update(np.eye(2), [0.0, math.nan]), ArgumentError, "numbers of classes, got fractions"),
        (lambda: m.TopKAccuracy(k=2).update(np.eye(2), ["a", "b"]), ArgumentError, "labels must be the numbers of classes"),
        (lambda: m.TopKAccuracy(k=5).update(np.zeros((2, 3)), [0, 1]), ShapeError, "do not fit"),
        (lambda: m.TopKAccuracy(k=0), ArgumentError, "k must be"),
        (lambda: m.ConfusionMatrix(1), ArgumentError, "num_classes must be"),
        (lambda: m.ConfusionMatrix(3).update([3], [0]), ArgumentError, "a prediction is outside"),
        (lambda: m.F1Score().update(np.eye(3), [0, 1, 2]), ArgumentError, r"(?s)a target is outside.*try +num_classes=3"),
        (lambda: m.F1Score(3).update(np.eye(3), [0, -1, 2]), ArgumentError, r"(?s)a target is outside.*try +ignore_index=-1"),
        (lambda: m.Precision(3, average="binary"), ArgumentError, "average must be"),
        (lambda: m.MeanSquaredError().update(np.zeros((2, 3)), np.zeros((2, 2))), ShapeError, "differ"),
        (lambda: m.Function(3), ArgumentError, "needs a function"),
        (
            lambda: m.Function(np.median, ["loss"], per_row=False).update([1.0, 3.0, 2.0], weights=[1, 3, 0.5]),
            ArgumentError,
            r"(?s)'median': a function of all rows knows no weights but 0 and 1, got 3.*try +per_row=True",
        ),
        (lambda: m.Function(lambda p, t: 1.0).update([1, 2], [1, 2]), ShapeError, "gave shape .. for 2 rows"),
        (lambda: m.Metric("logits"), ArgumentError, "inputs must be names"),
        (lambda: m.Accuracy(name=""), ArgumentError, "name must be"),
    ],
)
def test_mistakes(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_scores_that_are_nan_are_wrong():
    logits, labels = rows()
    lost = np.arange(len(labels)) % 3 == 0
    logits = np.where(lost[:, None] & (np.arange(CLASSES) == 1), np.nan, logits)
    right = (logits.argmax(1) == labels) & ~lost
    assert computed(m.Accuracy(), (logits, labels), [20]) == np.mean(right)
    matrix = computed(m.ConfusionMatrix(CLASSES), (logits, labels))
    assert matrix.trace() == right.sum() and matrix.sum() == len(labels)
    assert computed(m.Recall(CLASSES, average="micro"), (logits, labels)) == np.mean(right)
    assert computed(m.Accuracy(), ([np.nan, 0.9], [0, 1])) == 0.5
    assert computed(m.ConfusionMatrix(2), ([np.nan, 0.9], [1, 1])).tolist() == [[0, 0], [1, 1]]


def test_targets_may_be_a_column():
    logits, labels = rows()
    for metric in (m.Accuracy(), m.TopKAccuracy(k=2), m.F1Score(CLASSES)):
        column = computed(metric, (logits, labels[:, None]))
        metric.reset()
        assert column == computed(metric, (logits, labels))


@pytest.mark.parametrize("make", [m.MeanSquaredError, m.MeanAbsoluteError, m.R2Score, lambda: m.Mean("loss")])
def test_a_batch_without_rows_counts_nothing(make):
    metric, nothing = make(), np.zeros((0,), np.float32)
    metric.update(*[nothing] * len(metric.inputs))
    assert math.isnan(metric.compute())


@pytest.mark.parametrize("kind", ["ConfusionMatrix", "Precision", "Recall", "F1Score"])
@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 3)])
def test_scores_of_several_classes_without_rows_count_nothing(kind, shape):
    metric, expected = getattr(flow.metrics, kind)(5), getattr(flow.metrics, kind)(5)
    empty = np.zeros(shape), np.zeros((0, *shape[2:]), int)
    rows = np.eye(5)[[0, 1, 1]], np.array([0, 1, 2])
    metric.update(*empty)
    for each in (metric, expected):
        each.update(*rows)
    metric.update(*empty)
    np.testing.assert_equal(metric.compute(), expected.compute())
