"""Connectionist temporal classification."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.jax import jax, jnp, lax
from ..errors import DtypeError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, broadcast_to, full, label, like, select, widen
from ._emit import emit, emit_many, fail, op, want
from .criterion import reduced, want_reduction

_NEVER = -1e30  # the logarithm of a probability of 0; finite, so that the difference of two of them is a number


def _ctc_losses(log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int) -> Array:
    """-log P(target | log_probs) of each sample: the forward algorithm over the target with blanks between (Graves, 2006)."""
    steps, batch, _ = log_probs.shape
    width = 2 * targets.shape[1] + 1
    inputs, lengths = (lax.convert_element_type(v, np.int32) for v in (input_lengths, target_lengths))
    labels = lax.convert_element_type(targets, np.int32)
    blanks = lax.full_like(labels, np.int32(blank))
    pairs = lax.concatenate([lax.expand_dims(blanks, (2,)), lax.expand_dims(labels, (2,))], 2)
    symbols = lax.pad(lax.reshape(pairs, (batch, width - 1)), np.int32(blank), [(0, 0, 0), (0, 1, 0)])
    before = lax.pad(symbols, np.int32(-1), [(0, 0, 0), (2, -2, 0)])
    may_skip = lax.bitwise_and(lax.ne(symbols, np.int32(blank)), lax.ne(symbols, before))
    never = like(_NEVER, log_probs)
    everywhere = lax.broadcast_in_dim(symbols, (steps, batch, width), (1, 2))
    emitted = jnp.take_along_axis(log_probs, everywhere, 2)
    emitted = lax.max(emitted, lax.full_like(emitted, _NEVER))
    place = lax.broadcasted_iota(np.int32, (batch, width), 1)
    started = lax.bitwise_and(
        lax.lt(place, np.int32(2)), lax.le(place, broadcast_to(lax.mul(lengths, np.int32(2))[:, None], place.shape))
    )
    alpha = select(started, emitted[0], lax.full_like(emitted[0], _NEVER))

    def shifted(v: Array, by: int) -> Array:
        return lax.pad(v, never, [(0, 0, 0), (by, -by, 0)])

    def step(alpha: Array, now: Any) -> tuple[Array, None]:
        number, here = now
        skipped = select(may_skip, shifted(alpha, 2), lax.full_like(alpha, _NEVER))
        ways = [alpha, shifted(alpha, 1), skipped]
        top = lax.max(lax.max(ways[0], ways[1]), ways[2])
        total = sum(lax.exp(lax.sub(way, top)) for way in ways)
        moved = lax.max(lax.add(lax.add(lax.log(total), top), here), lax.full_like(here, _NEVER))
        running = broadcast_to(lax.lt(number, inputs)[:, None], alpha.shape)
        return lax.select(running, moved, alpha), None

    alpha, _ = lax.scan(step, alpha, (lax.iota(np.int32, steps - 1) + np.int32(1), emitted[1:]))
    last = lax.mul(lengths, np.int32(2))[:, None]
    ends = [lax.eq(place, broadcast_to(last, place.shape)), lax.eq(place, broadcast_to(lax.sub(last, np.int32(1)), place.shape))]
    kept = select(lax.bitwise_or(*ends), alpha, lax.full_like(alpha, _NEVER))
    top = lax.stop_gradient(lax.reduce_max(kept, (1,)))
    total = lax.add(lax.log(lax.reduce_sum(lax.exp(lax.sub(kept, broadcast_to(top[:, None], kept.shape))), (1,))), top)
    nothing = lax.eq(inputs, np.int32(0))  # no frames spell the empty target only
    total = select(nothing, select(lax.eq(lengths, np.int32(0)), full(0, total), full(_NEVER, total)), total)
    return select(lax.lt(total, full(_NEVER / 2, total)), full(math.inf, total), lax.neg(total))


def _ctc_reduced(losses: Array, target_lengths: Array, reduction: str, zero_infinity: bool) -> Array:
    if zero_infinity:
        losses = select(lax.eq(losses, full(math.inf, losses)), full(0, losses), losses)
    if reduction == "mean":
        lengths = lax.convert_element_type(lax.max(target_lengths, lax.full_like(target_lengths, 1)), losses.dtype)
        losses = lax.div(losses, lengths)
    return reduced(losses, reduction)


def _ctc_grad(inputs: Any, outputs: Any, cotangents: Any, *, blank: int, reduction: str, zero_infinity: bool) -> tuple[Any, ...]:
    log_probs, targets, input_lengths, target_lengths = inputs
    wide = widen(log_probs)
    losses, through_time = jax.vjp(lambda x: _ctc_losses(x, targets, input_lengths, target_lengths, blank), wide)
    _, through_reduction = jax.vjp(lambda v: _ctc_reduced(v, target_lengths, reduction, zero_infinity), losses)
    (each,) = through_reduction(widen(cotangents[0]))
    (posterior,) = through_time(each)
    # As in PyTorch, with respect to the input of log_softmax. Passing through log_softmax does not change this gradient.
    steps = lax.broadcasted_iota(np.int32, wide.shape, 0)
    lengths = lax.convert_element_type(input_lengths, np.int32)
    inside = lax.lt(steps, lax.broadcast_in_dim(lengths, wide.shape, (1,)))
    probabilities = lax.mul(lax.exp(wide), lax.broadcast_in_dim(each, wide.shape, (1,)))
    gradient = select(inside, lax.add(posterior, probabilities), full(0, wide))
    return lax.convert_element_type(gradient, log_probs.dtype), None, None, None


@op("ctc_loss", grad=_ctc_grad, nondifferentiable=(1, 2, 3))
def _ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    *,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Array:
    losses = _ctc_losses(widen(log_probs), targets, input_lengths, target_lengths, blank)
    return lax.convert_element_type(_ctc_reduced(losses, target_lengths, reduction, zero_infinity), log_probs.dtype)


def ctc_loss(
    log_probs: Blob,
    targets: Blob,
    input_lengths: Blob,
    target_lengths: Blob,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    name: str | None = None,
) -> Blob:
    """-log of the probability that the frames spell the target, over all alignments.

    The gradient to ``log_probs`` is that of the logits before log_softmax, as in PyTorch.

    Args:
      log_probs: (T, N, C), log-probabilities of the classes in each frame; floating.
      targets: (N, S), integers: class numbers, none of them ``blank``.
      input_lengths, target_lengths: (N,), integers: the numbers of valid frames and symbols.
      blank: the class that means "nothing".
      reduction: "mean": each loss divided by its target's length (at least 1), then averaged; "sum"; or "none".
      zero_infinity: targets that do not fit into their frames cost 0, without a gradient, instead of infinity.
      name: name of the op.
    Returns: Blob of shape (1,), or (N,) with "none".
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.ctc_loss(flow.nn.logsoftmax(x), targets, input_lengths, target_lengths)
    """
    what = label("ctc_loss", name)
    want.floating(what, want.blob(what, "log_probs", log_probs))
    want.rank(what, log_probs, 3, 3)
    batch = log_probs.shape[1]
    for argument, blob in (("targets", targets), ("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if not want.blob(what, argument, blob).dtype.is_integer:
            fail(DtypeError, what, f"{argument} must be integers, got {blob.dtype.name}", (log_probs, blob))
        rank = 2 if argument == "targets" else 1
        if blob.ndim != rank or blob.shape[0] != batch:
            fail(ShapeError, what, f"{argument} must have rank {rank} and {batch} rows, got {blob.shape}", (log_probs, blob))
    blank = want.integer(what, "blank, a class,", blank, 0, high=log_probs.shape[2] - 1)
    return emit(
        _ctc_loss, log_probs, targets, input_lengths, target_lengths, name=name,
        blank=blank, reduction=want_reduction(what, reduction), zero_infinity=want.flag(what, "zero_infinity", zero_infinity),
    )  # fmt: skip


@op("ctc_greedy_decoder", multiple_results=True, nondifferentiable=True)
def _ctc_greedy_decoder(log_probs: Array, input_lengths: Array, *, merge_repeated: bool) -> tuple[Array, Array]:
    steps, batch, classes = log_probs.shape
    lengths = lax.broadcast_in_dim(lax.convert_element_type(input_lengths, np.int64), (steps, batch), (1,))
    inside = lax.lt(lax.broadcasted_iota(np.int64, (steps, batch), 0), lengths)
    best = lax.argmax(log_probs, 2, np.int64)
    kept = lax.bitwise_and(inside, lax.ne(best, lax.full_like(best, classes - 1)))
    if merge_repeated:
        before = lax.pad(best, np.int64(-1), [(1, -1, 0), (0, 0, 0)])
        kept = lax.bitwise_and(kept, lax.ne(best, before))
    order = jnp.argsort(lax.bitwise_not(kept), axis=0, stable=True)  # those that are kept come first, in order
    decoded = jnp.take_along_axis(lax.select(kept, best, lax.full_like(best, 0)), order, 0)
    tops = select(inside, lax.reduce_max(log_probs, (2,)), full(0, log_probs[..., 0]))
    score = lax.convert_element_type(lax.neg(lax.reduce_sum(widen(tops), (0,))), log_probs.dtype)
    return lax.transpose(decoded, (1, 0)), lax.reshape(score, (batch, 1))


def ctc_greedy_decoder(
    log_probs: Blob, input_lengths: Blob, merge_repeated: bool = True, name: str | None = None
) -> tuple[Blob, Blob]:
    """The most probable class of each frame, without blanks. The blank is the last class.

    Args:
      log_probs: (T, N, C), log-probabilities of the classes in each frame; floating.
      input_lengths: (N,), integers <= T: the number of valid frames.
      merge_repeated: a class that is also that of the frame before is left out.
      name: name of the op.
    Returns: the decoded classes, int64 (N, T), zeros at the end; and minus the sum of the frames' largest log-probabilities,
      (N, 1). No gradient flows.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> decoded, score = ctc_greedy_decoder(log_probs, input_lengths)
    """
    what = label("ctc_greedy_decoder", name)
    want.floating(what, want.blob(what, "log_probs", log_probs))
    want.rank(what, log_probs, 3, 3)
    lengths = want.blob(what, "input_lengths", input_lengths)
    if not lengths.dtype.is_integer:
        fail(DtypeError, what, f"input_lengths must be integers, got {lengths.dtype.name}", (log_probs, lengths))
    if lengths.shape != (log_probs.shape[1],):
        fail(
            ShapeError, what, f"input_lengths must have shape ({log_probs.shape[1]},), got {lengths.shape}", (log_probs, lengths)
        )
    flag = want.flag(what, "merge_repeated", merge_repeated)
    decoded, score = emit_many(_ctc_greedy_decoder, log_probs, lengths, name=name, merge_repeated=flag)
    return decoded, score
