"""Losses with a ``reduction``: distances, binary cross entropy, rankings, divergences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.jax import jax, lax
from .._base.refuse import shown
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ..graph.op import OpDef
from ._arrays import Array, broadcast_to, common_shape, full, label, largest_of, like, power_of, root_of, select, widen
from ._emit import emit, fail, op, want
from .loss import want_pair, with_logits

REDUCTIONS = ("mean", "sum", "none")


def reduced(values: Array, reduction: str) -> Array:
    """The mean or the sum, of shape (1,), or the values themselves."""
    if reduction == "none":
        return values
    total = lax.reduce_sum(values, tuple(range(values.ndim)))
    if reduction == "mean":
        count = math.prod(values.shape)
        total = lax.mul(total, like(1 / count if count else math.nan, values))
    return lax.reshape(total, (1,))


def _criterion(name: str, define: Callable[..., Array], nondifferentiable: tuple[int, ...] = ()) -> OpDef:
    """An op that computes in float32 at least, reduces, and has the first input's dtype."""

    def wide(*arrays: Array, reduction: str, **attrs: Any) -> Array:
        values = define(*(widen(a) for a in arrays), **attrs)
        return lax.convert_element_type(reduced(values, reduction), arrays[0].dtype)

    return op(name, nondifferentiable=nondifferentiable)(wide)


def _at_least_zero(x: Array) -> Array:
    return select(lax.lt(x, full(0, x)), full(0, x), x)  # NaN stays


def want_reduction(what: str, reduction: Any) -> str:
    """The reduction. Raises ArgumentError for an unknown one."""
    return want.choice(what, "reduction", reduction, REDUCTIONS)


_l1 = _criterion("l1_loss", lambda x, t: lax.abs(lax.sub(t, x)))
_mse = _criterion("mse_loss", lambda x, t: lax.integer_pow(lax.sub(t, x), 2))


def L1Loss(input: Blob, target: Blob, reduction: str = "mean", name: str | None = None) -> Blob:
    """|target - input|.

    Args:
      input, target: of one shape and floating dtype.
      reduction: "mean" over all elements, "sum", or "none".
      name: name of the op.
    Returns: Blob of shape (1,), or of input's shape with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.nn.L1Loss(x, target)
    """
    what = label("L1Loss", name)
    input, target = want_pair(what, ("input", input), ("target", target))
    return emit(_l1, input, target, name=name, reduction=want_reduction(what, reduction))


def MSELoss(input: Blob, target: Blob, reduction: str = "mean", name: str | None = None) -> Blob:
    """(target - input)**2.

    Args, Returns, Raises: those of ``L1Loss``.
    Example: >>> loss = flow.nn.MSELoss(x, target)
    """
    what = label("MSELoss", name)
    input, target = want_pair(what, ("input", input), ("target", target))
    return emit(_mse, input, target, name=name, reduction=want_reduction(what, reduction))


# --- binary cross entropy


def _clamped_log(x: Array) -> Array:
    """max(log(x), -100), as in PyTorch, so that a probability of exactly 0 costs 100 and not infinity."""
    return lax.max(lax.log(x), full(-100, x))


def _bce_values(x: Array, t: Array, *weight: Array) -> Array:
    one = full(1, x)
    loss = lax.neg(lax.add(lax.mul(t, _clamped_log(x)), lax.mul(lax.sub(one, t), _clamped_log(lax.sub(one, x)))))
    return lax.mul(loss, broadcast_to(weight[0], x.shape)) if weight else loss


def _bce_grad(inputs: Any, outputs: Any, cotangents: Any, *, reduction: str) -> tuple[Array | None, ...]:
    x, t, *weight = (widen(a) for a in inputs)
    _, pullback = jax.vjp(lambda values: reduced(values, reduction), x)
    (dy,) = pullback(widen(cotangents[0]))
    scaled = lax.mul(dy, broadcast_to(weight[0], x.shape)) if weight else dy
    one = full(1, x)
    slope = lax.div(lax.sub(x, t), lax.max(lax.mul(x, lax.sub(one, x)), full(1e-12, x)))
    to_target = lax.sub(_clamped_log(lax.sub(one, x)), _clamped_log(x))
    found = [lax.mul(scaled, slope), lax.mul(scaled, to_target)]
    if weight:
        _, to_weight = jax.vjp(lambda w: lax.mul(_bce_values(x, t), broadcast_to(w, x.shape)), weight[0])
        found += to_weight(dy)
    return tuple(lax.convert_element_type(g, a.dtype) for g, a in zip(found, inputs, strict=True))


@op("binary_cross_entropy", grad=_bce_grad)
def _bce(*arrays: Array, reduction: str) -> Array:
    values = _bce_values(*(widen(a) for a in arrays))
    return lax.convert_element_type(reduced(values, reduction), arrays[0].dtype)


def _want_weight(what: str, argument: str, weight: Any, x: Blob) -> None:
    want.same_dtype(what, (x, want.blob(what, argument, weight)))
    fits = weight.ndim <= x.ndim and all(w in (1, s) for w, s in zip(reversed(weight.shape), reversed(x.shape), strict=False))
    if not fits:
        fail(ShapeError, what, f"{argument} must broadcast to input's shape {x.shape}, got {weight.shape}", (x, weight))


def BCELoss(input: Blob, target: Blob, weight: Blob | None = None, reduction: str = "mean", name: str | None = None) -> Blob:
    """-(t log(x) + (1 - t) log(1 - x)) * weight, logarithms not below -100.

    Args:
      input: probabilities; floating.
      target: of input's shape and dtype.
      weight: of a shape that broadcasts to input's; None means 1.
      reduction: "mean" over all elements, "sum", or "none".
      name: name of the op.
    Returns: Blob of shape (1,), or of input's shape with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.nn.BCELoss(flow.math.sigmoid(x), target)
    """
    what = label("BCELoss", name)
    input, target = want_pair(what, ("input", input), ("target", target))
    extra = []
    if weight is not None:
        _want_weight(what, "weight", weight, input)
        extra.append(weight)
    return emit(_bce, input, target, *extra, name=name, reduction=want_reduction(what, reduction))


def _bce_with_logits_values(x: Array, t: Array, *rest: Array, weighted: bool, positive: bool) -> Array:
    factors = list(rest)
    weight = factors.pop(0) if weighted else None
    if positive:
        one = full(1, x)
        more = lax.mul(lax.sub(broadcast_to(factors.pop(0), x.shape), one), t)
        softplus = lax.sub(with_logits(x, full(0, x)), x)  # log(1 + exp(-x))
        loss = lax.add(lax.mul(lax.sub(one, t), x), lax.mul(lax.add(one, more), softplus))
    else:
        loss = with_logits(x, t)
    return loss if weight is None else lax.mul(loss, broadcast_to(weight, x.shape))


_bce_with_logits = _criterion("binary_cross_entropy_with_logits", _bce_with_logits_values)


def BCEWithLogitsLoss(
    input: Blob,
    target: Blob,
    weight: Blob | None = None,
    pos_weight: Blob | None = None,
    reduction: str = "mean",
    name: str | None = None,
) -> Blob:
    """The binary cross entropy of sigmoid(input), without overflow.

    Args:
      input: logits; floating.
      target: of input's shape and dtype.
      weight: of a shape that broadcasts to input's; None means 1.
      pos_weight: (C,) for input (..., C): factor of the term of the positive class; None means 1.
      reduction: "mean" over all elements, "sum", or "none".
      name: name of the op.
    Returns: Blob of shape (1,), or of input's shape with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.nn.BCEWithLogitsLoss(x, target)
    """
    what = label("BCEWithLogitsLoss", name)
    input, target = want_pair(what, ("input", input), ("target", target))
    extra = [(argument, blob) for argument, blob in (("weight", weight), ("pos_weight", pos_weight)) if blob is not None]
    for argument, blob in extra:
        _want_weight(what, argument, blob, input)
    return emit(
        _bce_with_logits, input, target, *(blob for _, blob in extra), name=name, reduction=want_reduction(what, reduction),
        weighted=weight is not None, positive=pos_weight is not None,
    )  # fmt: skip


# --- rankings and divergences


def _ranking_values(first: Array, second: Array, target: Array, *, margin: float) -> Array:
    difference = lax.sub(first, second)
    shape = common_shape(difference.shape, target.shape)
    pushed = lax.mul(broadcast_to(target, shape), broadcast_to(difference, shape))
    return _at_least_zero(lax.sub(full(margin, pushed), pushed))


_margin_ranking = _criterion("margin_ranking_loss", _ranking_values)


def MarginRankingLoss(
    input1: Blob, input2: Blob, target: Blob, margin: float = 0.0, reduction: str = "mean", name: str | None = None
) -> Blob:
    """max(0, margin - target * (input1 - input2)): input1 should be the larger where target is 1, the smaller where -1.

    Args:
      input1, input2: of one shape and floating dtype.
      target: 1 or -1; of a shape that broadcasts with the inputs', and their dtype.
      margin: the smallest difference that costs nothing.
      reduction: "mean" over all elements, "sum", or "none".
      name: name of the op.
    Returns: Blob of shape (1,), or elementwise with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.nn.MarginRankingLoss(a, b, target, margin=0.1)
    """
    what = label("MarginRankingLoss", name)
    input1, input2 = want_pair(what, ("input1", input1), ("input2", input2))
    want.same_dtype(what, (input1, want.blob(what, "target", target)))
    try:
        np.broadcast_shapes(input1.shape, target.shape)
    except ValueError:
        fail(
            ShapeError, what, f"target {target.shape} does not broadcast with the inputs {input1.shape}", (input1, input2, target)
        )
    return emit(
        _margin_ranking, input1, input2, target, name=name, reduction=want_reduction(what, reduction),
        margin=want.number(what, "margin", margin),
    )  # fmt: skip


def _distance(x: Array, p: float) -> Array:
    """The p-norm along axis 1; its gradient at 0 is 0."""
    if p == 1:
        return lax.reduce_sum(lax.abs(x), (1,))
    if math.isinf(p):
        return largest_of(lax.abs(x), (1,))
    if p == 2:
        return root_of(lax.reduce_sum(lax.square(x), (1,)))
    return power_of(lax.reduce_sum(power_of(lax.abs(x), p), (1,)), 1 / p)


def _triplet_values(anchor: Array, positive: Array, negative: Array, *, margin: float, p: float, eps: float, swap: bool) -> Array:
    def distance(x: Array, y: Array) -> Array:
        return _distance(lax.add(lax.sub(x, y), full(eps, x)), p)

    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = lax.min(far, distance(positive, negative))
    return _at_least_zero(lax.add(lax.sub(near, far), full(margin, near)))


_triplet_margin = _criterion("triplet_margin_loss", _triplet_values)


def TripletMarginLoss(
    anchor: Blob,
    positive: Blob,
    negative: Blob,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    name: str | None = None,
) -> Blob:
    """max(0, margin + |anchor - positive + eps| - |anchor - negative + eps|), p-norms along axis 1.

    Source: Balntas et al., "Learning shallow convolutional feature descriptors with triplet losses", 2016, with ``swap``.

    Args:
      anchor, positive, negative: of one shape, rank >= 2, and floating dtype.
      margin: the difference of the distances that costs nothing.
      p: > 0; of the norm.
      eps: added to the differences.
      swap: whether the second distance is the smaller one of |anchor - negative + eps| and |positive - negative + eps|.
      reduction: "mean" over all elements, "sum", or "none".
      name: name of the op.
    Returns: Blob of shape (1,), or without axis 1 with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.nn.TripletMarginLoss(a, same, other)   # (8, 64), (8, 64), (8, 64)
    """
    what = label("TripletMarginLoss", name)
    anchor, positive, negative = want_pair(what, ("anchor", anchor), ("positive", positive), ("negative", negative))
    want.rank(what, anchor, 2)
    power = want.number(what, "p", p)
    if not power > 0:
        fail(ArgumentError, what, f"p must be > 0, got {shown(p)}")
    return emit(
        _triplet_margin, anchor, positive, negative, name=name, reduction=want_reduction(what, reduction),
        margin=want.number(what, "margin", margin), p=power, eps=want.number(what, "eps", eps),
        swap=want.flag(what, "swap", swap),
    )  # fmt: skip


def _divergence_values(x: Array, t: Array, *, log_target: bool) -> Array:
    if log_target:
        return lax.mul(lax.exp(t), lax.sub(t, x))
    positive = lax.gt(t, full(0, t))
    safe = select(positive, t, full(1, t))
    return select(positive, lax.mul(t, lax.sub(lax.log(safe), x)), full(0, t))


_kl_divergence = _criterion("kl_div_loss", _divergence_values)


def KLDivLoss(input: Blob, target: Blob, log_target: bool = False, reduction: str = "mean", name: str | None = None) -> Blob:
    """t * (log(t) - input), 0 where t <= 0; with ``log_target`` exp(t) * (t - input).

    Args:
      input: log-probabilities; floating.
      target: probabilities, or their logarithms with ``log_target``; of input's shape and dtype.
      log_target: whether target holds logarithms.
      reduction: "mean" over all elements (there is no "batchmean"), "sum", or "none".
      name: name of the op.
    Returns: Blob of shape (1,), or of input's shape with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.nn.KLDivLoss(flow.nn.logsoftmax(x), target)
    """
    what = label("KLDivLoss", name)
    input, target = want_pair(what, ("input", input), ("target", target))
    logs = want.flag(what, "log_target", log_target)
    return emit(_kl_divergence, input, target, name=name, reduction=want_reduction(what, reduction), log_target=logs)
