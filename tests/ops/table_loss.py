"""Losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special
from table import Gradient, Refusal, Row, floats, ints

import oneflow as flow
from oneflow import nn
from oneflow.errors import ArgumentError, DtypeError, ShapeError
from oneflow.ops import criterion, ctc, loss

X = floats(3, 4)
Y = floats(3, 4, seed=1)
PROBABILITIES = floats(3, 4, low=0.05, high=0.95)
TARGETS = floats(3, 4, low=0.05, high=0.95, seed=1)
LABELS = np.array([2, 0, 3], np.int32)


def _onehot(labels: Any, d: int) -> Any:
    return np.eye(d)[labels]


def _smooth_l1(x: Any, y: Any, beta: float) -> Any:
    d = np.abs(x - y)
    return np.where(d < beta, 0.5 * d * d / beta if beta else 0, d - 0.5 * beta)


def _margin(x: Any, labels: Any, m1: float, m2: float, m3: float) -> Any:
    return np.where(_onehot(labels, x.shape[1]) > 0, np.cos(m1 * np.arccos(x) + m2) - m3, x)


def _reduced(values: Any, reduction: str = "mean") -> Any:
    return values if reduction == "none" else np.reshape(values.mean() if reduction == "mean" else values.sum(), (1,))


ROWS = [
    Row(
        "sparse_softmax_cross_entropy",
        lambda x: nn.sparse_softmax_cross_entropy_with_logits(flow.constant(2, flow.int32, (3,)), x),
        lambda x: -special.log_softmax(x, -1)[:, 2],
        [X],
    ),
    Row(
        "sparse_softmax_cross_entropy of labels",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(y, x),
        lambda x, y: -special.log_softmax(x, -1)[np.arange(3), y],
        [X, LABELS],
    ),
    Row(
        "sparse_softmax_cross_entropy int64 column",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(y, x),
        lambda x, y: -special.log_softmax(x, -1)[np.arange(3), y[:, 0]],
        [X, LABELS.astype(np.int64)[:, None]],
        torch=lambda t, x, y: t.nn.functional.cross_entropy(x, y[:, 0], reduction="none"),
    ),
    Row(
        "sparse_softmax_cross_entropy rank 3",
        lambda x, y: nn.distributed_sparse_softmax_cross_entropy_with_logits(y, x),
        lambda x, y: -np.take_along_axis(special.log_softmax(x, -1), y[..., None].astype(int), -1)[..., 0],
        [floats(2, 3, 4), ints(2, 3, low=0, high=4, dtype="uint8")],
    ),
    Row(
        "sparse_softmax_cross_entropy of more classes than int8 counts",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(y, x),
        lambda x, y: -special.log_softmax(x, -1)[np.arange(3), y],
        [floats(3, 300), np.array([127, 0, 45], np.int8)],
    ),
    Row(
        "sparse_softmax_cross_entropy of as many classes as uint8 counts",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(y, x),
        lambda x, y: -special.log_softmax(x, -1)[np.arange(3), y],
        [floats(3, 256), np.array([255, 0, 45], np.uint8)],
    ),
    Row(
        "sparse_cross_entropy",
        lambda p, y: nn.sparse_cross_entropy(y, p),
        lambda p, y: -np.log(p[np.arange(3), y]),
        [PROBABILITIES, LABELS],
    ),
    Row(
        "softmax_cross_entropy",
        lambda x: nn.softmax_cross_entropy_with_logits(flow.constant_like(x, 0.25), x),
        lambda x: -0.25 * special.log_softmax(x, -1).sum(-1),
        [X],
    ),
    Row(
        "softmax_cross_entropy of labels",
        lambda x, z: nn.softmax_cross_entropy_with_logits(z, x),
        lambda x, z: -(z * special.log_softmax(x, -1)).sum(-1),
        [X, PROBABILITIES],
        grad=False,
    ),
    Row(
        "sigmoid_cross_entropy",
        lambda x, z: nn.sigmoid_cross_entropy_with_logits(z, x),
        lambda x, z: np.logaddexp(0, x) - x * z,
        [X * 20, ints(3, 4, low=0, high=2, dtype="int8")],
        rtol=1e-5,
        torch=lambda t, x, z: t.nn.functional.binary_cross_entropy_with_logits(x, z.double(), reduction="none"),
    ),
    Row(
        "smooth_l1_loss",
        lambda x: loss.smooth_l1_loss(x, flow.constant_like(x, 0.1), 0.5),
        lambda x: _smooth_l1(x, 0.1, 0.5),
        [X],
    ),
    Row(
        "smooth_l1_loss beta 0",
        lambda x: loss.smooth_l1_loss(x, flow.constant_like(x, 0.1), 0),
        lambda x: _smooth_l1(x, 0.1, 0),
        [X],
    ),
    Row(
        "combined_margin_loss",
        lambda x, y: loss.combined_margin_loss(x, y, 0.9, 0.4, 0.15),
        lambda x, y: _margin(x, y, 0.9, 0.4, 0.15),
        [floats(3, 4, low=-0.9, high=0.9), LABELS],
        rtol=1e-5,
    ),
    Row(
        "combined_margin_loss m3",
        lambda x, y: loss.combined_margin_loss(x, y, m3=0.35),
        lambda x, y: _margin(x, y, 1, 0, 0.35),
        [floats(3, 4, low=-0.9, high=0.9), LABELS],
        rtol=1e-5,
    ),
    *(
        row
        for reduction in criterion.REDUCTIONS
        for row in (
            Row(
                f"l1_loss {reduction}",
                lambda x, y, r=reduction: nn.L1Loss(x, y, r),
                lambda x, y, r=reduction: _reduced(abs(x - y), r),
                [X, Y],
            ),
            Row(
                f"mse_loss {reduction}",
                lambda x, y, r=reduction: nn.MSELoss(x, y, r),
                lambda x, y, r=reduction: _reduced((x - y) ** 2, r),
                [X, Y],
            ),
        )
    ),
    Row(
        "binary_cross_entropy",
        nn.BCELoss,
        lambda x, t: _reduced(-(t * np.log(x) + (1 - t) * np.log(1 - x))),
        [PROBABILITIES, TARGETS],
        rtol=1e-5,
        torch=lambda t, x, y: t.nn.functional.binary_cross_entropy(x, y).reshape(1),
    ),
    Row(
        "binary_cross_entropy weighted",
        lambda x, t, w: nn.BCELoss(x, t, w, "none"),
        lambda x, t, w: -(t * np.log(x) + (1 - t) * np.log(1 - x)) * w,
        [PROBABILITIES, TARGETS, floats(3, 1)],
        rtol=1e-5,
    ),
    Row(
        "binary_cross_entropy_with_logits",
        nn.BCEWithLogitsLoss,
        lambda x, t: _reduced(np.logaddexp(0, x) - x * t),
        [X * 20, TARGETS],
        rtol=1e-5,
        torch=lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y).reshape(1),
    ),
    Row(
        "binary_cross_entropy_with_logits weighted",
        lambda x, t, w, p: nn.BCEWithLogitsLoss(x, t, w, p, "sum"),
        None,
        [X * 20, TARGETS, floats(3, 4, low=0.1), floats(4, low=0.1)],
        torch=lambda t, x, y, w, p: t.nn.functional.binary_cross_entropy_with_logits(
            x, y, w.detach(), pos_weight=p.detach(), reduction="sum"
        ).reshape(1),
    ),
    Row(
        "margin_ranking_loss",
        lambda a, b, t: nn.MarginRankingLoss(a, b, t, 0.3, "none"),
        lambda a, b, t: np.maximum(0, 0.3 - t * (a - b)),
        [X, Y, np.array([[1.0], [-1.0], [1.0]])],
    ),
    Row(
        "triplet_margin_loss",
        nn.TripletMarginLoss,
        None,
        [X, Y, floats(3, 4, seed=2)],
        torch=lambda t, a, p, n: t.nn.functional.triplet_margin_loss(a, p, n).reshape(1),
    ),
    Row(
        "triplet_margin_loss p 3",
        lambda a, p, n: nn.TripletMarginLoss(a, p, n, 0.7, 3.0, reduction="none"),
        None,
        [X, Y, floats(3, 4, seed=2)],
        torch=lambda t, a, p, n: t.nn.functional.triplet_margin_loss(a, p, n, 0.7, 3.0, reduction="none"),
    ),
    Row(
        "triplet_margin_loss swap",
        lambda a, p, n: nn.TripletMarginLoss(a, p, n, 2.0, swap=True, reduction="none"),
        None,
        [X, Y, floats(3, 4, seed=2)],
        torch=lambda t, a, p, n: t.nn.functional.triplet_margin_loss(a, p, n, 2.0, swap=True, reduction="none"),
    ),
    Row(
        "kl_div_loss",
        nn.KLDivLoss,
        None,
        [X, TARGETS],
        torch=lambda t, x, y: t.nn.functional.kl_div(x, y, reduction="sum").reshape(1) / 12,
    ),
    Row(
        "kl_div_loss log",
        lambda x, y: nn.KLDivLoss(x, y, True, "sum"),
        None,
        [X, Y],
        torch=lambda t, x, y: t.nn.functional.kl_div(x, y, reduction="sum", log_target=True).reshape(1),
    ),
    Row(
        "ctc_loss",
        lambda x, y, i, t: ctc.ctc_loss(nn.logsoftmax(x), y, i, t),
        None,
        [
            floats(8, 3, 5),
            np.array([[1, 2, 2], [4, 1, 0], [3, 3, 1]], np.int32),
            np.array([8, 6, 7], np.int32),
            np.array([3, 2, 3], np.int32),
        ],
        torch=lambda t, x, y, i, n: t.nn.functional.ctc_loss(t.log_softmax(x, -1), y.long(), i.long(), n.long()).reshape(1),
    ),
    Row(
        "ctc_greedy_decoder",
        lambda x, i: ctc.ctc_greedy_decoder(x, i),
        lambda x, i: _decoded(x, i),
        [floats(8, 3, 4), np.array([8, 5, 0], np.int64)],
        out=("int64", "same"),
        grad=False,
        wide=True,
    ),
]


def _decoded(x: np.ndarray, lengths: np.ndarray, merge: bool = True) -> tuple[np.ndarray, np.ndarray]:
    decoded, score = np.zeros((x.shape[1], x.shape[0]), np.int64), np.zeros((x.shape[1], 1), x.dtype)
    for n, length in enumerate(lengths):
        best = x[:length, n].argmax(-1)
        score[n] = -x[:length, n].max(-1).sum() if length else 0
        found = [b for t, b in enumerate(best) if b != x.shape[2] - 1 and not (merge and t and b == best[t - 1])]
        decoded[n, : len(found)] = found
    return decoded, score


GRADIENTS = [
    Gradient(
        "sparse_softmax, label out of range",
        nn.sparse_softmax_cross_entropy_with_logits,
        [np.array([-1, 1], np.int32), np.zeros((2, 2))],
        [None, np.array([[0.0, 0.0], [0.5, -0.5]])],
    ),
    Gradient(
        "sparse_softmax, beyond the floor",
        nn.sparse_softmax_cross_entropy_with_logits,
        [np.array([0], np.int32), np.array([[-500.0, 0.0]])],
        [None, np.array([[-1.0, 1.0]])],
    ),
    Gradient(
        "sparse_cross_entropy of 0",
        nn.sparse_cross_entropy,
        [np.array([0], np.int32), np.array([[0.0, 1.0]])],
        [None, np.array([[-1e20, 0.0]])],
    ),
    Gradient(
        "softmax_cross_entropy gives labels none",
        nn.softmax_cross_entropy_with_logits,
        [np.ones((1, 2)), np.zeros((1, 2))],
        [None, np.array([[-0.5, -0.5]])],
    ),
    Gradient(
        "smooth_l1_loss gives labels none", loss.smooth_l1_loss, [np.array([2.0, 0.5]), np.zeros(2)], [np.array([1.0, 0.5]), None]
    ),
    Gradient(
        "combined_margin_loss at 1",
        lambda x, y: loss.combined_margin_loss(x, y, m3=0.3),
        [np.array([[1.0, 0.5]]), np.array([0], np.int32)],
        [np.ones((1, 2)), None],
    ),
    Gradient(
        "TripletMarginLoss of equal points",
        lambda a: nn.TripletMarginLoss(a, a, a, eps=0.0),
        [np.ones((1, 2))],
        [np.zeros((1, 2))],
    ),
    Gradient(
        "KLDivLoss where the target is 0",
        lambda x, t: nn.KLDivLoss(x, t, reduction="sum"),
        [np.zeros(2), np.array([0.0, 1.0])],
        [np.array([0.0, -1.0]), np.array([0.0, 1.0])],
    ),
]

REFUSALS = [
    Refusal(
        "sparse labels behind logits",
        nn.sparse_softmax_cross_entropy_with_logits,
        [X.astype(np.float32), LABELS],
        DtypeError,
        "labels come first, and then logits: got float32 (3, 4) and int32 (3,)",
    ),
    Refusal(
        "sparse labels", lambda x: nn.sparse_softmax_cross_entropy_with_logits(x, x), [X], DtypeError, "labels must be integers"
    ),
    Refusal(
        "sparse label shape",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(y, x),
        [X, ints(4)],
        ShapeError,
        "(3,) or (3, 1)",
    ),
    Refusal(
        "sparse one-hot labels",
        lambda x, y: nn.sparse_cross_entropy(y, x),
        [X, ints(3, 4)],
        ShapeError,
        "softmax_cross_entropy_with_logits",
    ),
    Refusal(
        "softmax_cross_entropy",
        lambda x, y: nn.softmax_cross_entropy_with_logits(y, x),
        [X, floats(3, 5)],
        ShapeError,
        "equal shapes",
    ),
    Refusal("L1Loss reduction", lambda x, y: nn.L1Loss(x, y, "batchmean"), [X, Y], ArgumentError, "'mean', 'sum', 'none'"),
    Refusal("TripletMarginLoss swap", lambda x, y: nn.TripletMarginLoss(x, y, y, swap=2), [X, Y], ArgumentError, "swap"),
    Refusal("BCELoss weight", lambda x, y, w: nn.BCELoss(x, y, w), [X, Y, floats(3)], ShapeError, "weight must broadcast"),
    Refusal(
        "smooth_l1_loss beta", lambda x, y: loss.smooth_l1_loss(x, y, -1.0), [X, Y], ArgumentError, "beta must be a number >= 0"
    ),
    Refusal(
        "ctc_loss blank",
        lambda x, y, i, t: ctc.ctc_loss(x, y, i, t, 5),
        [floats(4, 2, 5), ints(2, 3), ints(2), ints(2)],
        ArgumentError,
        "blank, a class, must be an int in [0, 4], got 5",
    ),
]
