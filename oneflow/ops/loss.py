"""Losses. A loss is minimized only if it is passed to an optimizer's ``minimize`` or to ``flow.losses.add_loss``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..errors import DtypeError, ShapeError
from ..graph.node import Blob
from ._arrays import Array, broadcast_to, full, like, select, where_else_zero, widen
from ._arrays import label as label_of
from ._emit import emit, fail, in_view, op, want
from ._native_loss import FLOOR as _FLOOR
from ._native_loss import NATIVE

_LARGEST = -math.log(_FLOOR)


# --- classification


def _log_normalizer(x: Array, axis: int) -> tuple[Array, Array]:
    """log(sum(exp(x))) along an axis, which stays with size 1, as two addends: rounded, their sum may lack all digits.

    Returns: the greatest number, and the logarithm of what is left when it is subtracted from all.
    """
    top = lax.stop_gradient(lax.expand_dims(lax.reduce_max(x, (axis,)), (axis,)))
    total = lax.reduce_sum(lax.exp(lax.sub(x, broadcast_to(top, x.shape))), (axis,))
    return top, lax.expand_dims(lax.log(total), (axis,))


def log_softmax_of(x: Array, axis: int) -> Array:
    """x - log(sum(exp(x))), the maximum subtracted first."""
    top, rest = _log_normalizer(x, axis)
    return lax.sub(lax.sub(x, broadcast_to(top, x.shape)), broadcast_to(rest, x.shape))


def _wide(labels: Array) -> Array:
    """Labels in a dtype that holds every index of a last axis."""
    return lax.convert_element_type(labels, np.int32) if labels.dtype.itemsize < 4 else labels


def _at_label(labels: Array, x: Array) -> Array:
    """A mask along the last axis of x, true at the label; false everywhere for a label outside [0, D)."""
    labels = _wide(labels)
    index = lax.reshape(labels, (*x.shape[:-1], 1))
    return lax.eq(lax.broadcasted_iota(labels.dtype, x.shape, x.ndim - 1), broadcast_to(index, x.shape))


def _picked(mask: Array, x: Array) -> Array:
    return lax.reduce_sum(where_else_zero(mask, x), (x.ndim - 1,))


def _known(labels: Array, x: Array) -> Array:
    """A mask of the labels that are classes of x, whose last axis they index."""
    labels = _wide(labels)
    known = lax.bitwise_and(lax.ge(labels, like(0, labels)), lax.lt(labels, like(x.shape[-1], labels)))
    return lax.reshape(known, x.shape[:-1])


def _sparse_softmax_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[None, Array]:
    labels, logits = inputs
    x = widen(logits)
    hit = _at_label(labels, x)
    softmax = lax.exp(log_softmax_of(x, x.ndim - 1))
    dy = widen(cotangents[0])
    dy = where_else_zero(_known(labels, x), dy)
    dx = lax.mul(lax.sub(softmax, lax.convert_element_type(hit, x.dtype)), broadcast_to(lax.expand_dims(dy, (dy.ndim,)), x.shape))
    return None, lax.convert_element_type(dx, logits.dtype)


@op(
    "sparse_softmax_cross_entropy",
    grad=_sparse_softmax_grad,
    native=NATIVE,
    nondifferentiable=(0,),
    labels=(0, 1),
    newer_autocast="between",
)
def _sparse_softmax_cross_entropy(labels: Array, logits: Array) -> Array:
    x, labels = widen(logits), _wide(labels)
    index = lax.reshape(lax.clamp(like(0, labels), labels, like(max(x.shape[-1] - 1, 0), labels)), (*x.shape[:-1], 1))
    at_label = jnp.take_along_axis(x, index, axis=-1, mode="promise_in_bounds")
    top, rest = _log_normalizer(x, x.ndim - 1)
    loss = lax.squeeze(lax.sub(rest, lax.sub(at_label, top)), (x.ndim - 1,))
    known = _known(labels, x)
    loss = lax.min(select(known, loss, like(_LARGEST, x)), full(_LARGEST, loss))
    return lax.convert_element_type(loss, logits.dtype)


def _want_sparse(what: str, labels: Any, prediction: Any, argument: str) -> tuple[Blob, ...]:
    """Both in the current view."""
    prediction, labels = in_view(what, want.blob(what, argument, prediction), want.blob(what, "labels", labels))
    if prediction.dtype.is_integer and labels.dtype.is_floating_point:
        given = " and ".join(f"{blob.dtype.name} {blob.shape}" for blob in (labels, prediction))
        rule = f"labels come first, and then {argument}: got {given}"
        fail(DtypeError, what, rule, (labels, prediction), f"labels=..., {argument}=...")
    want.floating(what, prediction)
    want.rank(what, prediction, 2)
    if not labels.dtype.is_integer:
        fail(
            DtypeError,
            what,
            f"labels must be integers, got {labels.dtype.name}",
            (labels, prediction),
            "flow.cast(labels, flow.int32)",
        )
    expected = prediction.shape[:-1]
    if labels.shape not in (expected, (*expected, 1)):
        rule = f"labels must have shape {expected} or {(*expected, 1)} for {argument} {prediction.shape}, got {labels.shape}"
        hint = (
            "for labels that are probabilities use softmax_cross_entropy_with_logits" if labels.shape == prediction.shape else ""
        )
        fail(ShapeError, what, rule, (labels, prediction), hint)
    return labels, prediction


def sparse_softmax_cross_entropy_with_logits(labels: Blob, logits: Blob, name: str | None = None) -> Blob:
    """-log(max(softmax(logits)[label], 1e-20)), computed without overflow.

    The gradient is softmax - onehot, even below the floor of 1e-20. A label outside [0, D) has probability 0: the
    loss is 46.05, the gradient 0.

    Args:
      labels: (...) or (..., 1), any integer dtype, 0 <= label < D.
      logits: (..., D), rank >= 2, floating.
      name: name of the op.
    Returns: Blob (...), logits' dtype: one loss per row.
    Raises: ShapeError, DtypeError, ArgumentError (not a Blob).
    Example: >>> loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)   # (8,), (8, 10) -> (8,)
    """
    labels, logits = _want_sparse(label_of("sparse_softmax_cross_entropy_with_logits", name), labels, logits, "logits")
    return emit(_sparse_softmax_cross_entropy, labels, logits, name=name)


def distributed_sparse_softmax_cross_entropy_with_logits(labels: Blob, logits: Blob, name: str | None = None) -> Blob:
    """``sparse_softmax_cross_entropy_with_logits`` for logits that are split along their last axis; the same values.

    Args, Returns, Raises: those of ``sparse_softmax_cross_entropy_with_logits``.
    Example: >>> loss = flow.nn.distributed_sparse_softmax_cross_entropy_with_logits(labels, logits)
    """
    return sparse_softmax_cross_entropy_with_logits(labels, logits, name)


def _sparse_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[None, Array]:
    labels, prediction = inputs
    p = lax.max(prediction, full(_FLOOR, prediction))
    dy = broadcast_to(lax.expand_dims(cotangents[0], (prediction.ndim - 1,)), prediction.shape)
    return None, where_else_zero(_at_label(labels, prediction), lax.neg(lax.div(dy, p)))


@op("sparse_cross_entropy", grad=_sparse_grad, nondifferentiable=(0,), labels=(0, 1))
def _sparse_cross_entropy(labels: Array, prediction: Array) -> Array:
    p = _picked(_at_label(labels, prediction), widen(prediction))
    return lax.convert_element_type(lax.neg(lax.log(lax.max(p, full(_FLOOR, p)))), prediction.dtype)


def sparse_cross_entropy(labels: Blob, prediction: Blob, name: str | None = None) -> Blob:
    """-log(max(prediction[label], 1e-20)).

    Args:
      labels: (...) or (..., 1), any integer dtype, 0 <= label < D.
      prediction: (..., D), rank >= 2: probabilities, not logits.
      name: name of the op.
    Returns: Blob (...), prediction's dtype: one loss per row.
    Raises: ShapeError, DtypeError, ArgumentError (not a Blob).
    Example: >>> loss = flow.nn.sparse_cross_entropy(labels, flow.nn.softmax(logits))
    """
    labels, prediction = _want_sparse(label_of("sparse_cross_entropy", name), labels, prediction, "prediction")
    return emit(_sparse_cross_entropy, labels, prediction, name=name)


def _softmax_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[None, Array]:
    labels, logits = inputs
    x, z = widen(logits), widen(labels)
    softmax = lax.exp(log_softmax_of(x, x.ndim - 1))
    dy = broadcast_to(lax.expand_dims(widen(cotangents[0]), (x.ndim - 1,)), x.shape)
    return None, lax.convert_element_type(lax.mul(lax.sub(softmax, z), dy), logits.dtype)


@op("softmax_cross_entropy", grad=_softmax_grad, nondifferentiable=(0,))
def _softmax_cross_entropy(labels: Array, logits: Array) -> Array:
    x = widen(logits)
    minus_log = lax.min(lax.neg(log_softmax_of(x, x.ndim - 1)), full(_LARGEST, x))
    loss = lax.reduce_sum(lax.mul(widen(labels), minus_log), (x.ndim - 1,))
    return lax.convert_element_type(loss, logits.dtype)


def softmax_cross_entropy_with_logits(labels: Blob, logits: Blob, name: str | None = None) -> Blob:
    """-sum(labels * log(max(softmax(logits), 1e-20))) along the last axis, computed without overflow.

    The gradient with respect to logits is softmax - labels; labels receive no gradient.

    Args:
      labels: probabilities, of logits' shape and dtype.
      logits: (..., D), rank >= 2, floating.
      name: name of the op.
    Returns: Blob (...): one loss per row.
    Raises: ShapeError, DtypeError, ArgumentError (not a Blob).
    Example: >>> loss = flow.nn.softmax_cross_entropy_with_logits(flow.one_hot(labels, 10, dtype=flow.float32), logits)
    """
    what = label_of("softmax_cross_entropy_with_logits", name)
    labels, logits = want_pair(what, ("labels", labels), ("logits", logits))
    want.rank(what, logits, 2)
    return emit(_softmax_cross_entropy, labels, logits, name=name)


def _sigmoid_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[None, Array]:
    labels, x = inputs
    return None, lax.mul(cotangents[0], lax.sub(lax.logistic(x), lax.convert_element_type(labels, x.dtype)))


def with_logits(x: Array, z: Array) -> Array:
    """max(x, 0) - x * z + log(1 + exp(-|x|)): the binary cross entropy of sigmoid(x)."""
    return lax.add(lax.sub(lax.max(x, full(0, x)), lax.mul(x, z)), lax.log1p(lax.exp(lax.neg(lax.abs(x)))))


@op("sigmoid_cross_entropy", grad=_sigmoid_grad, nondifferentiable=(0,))
def _sigmoid_cross_entropy(labels: Array, logits: Array) -> Array:
    return with_logits(logits, lax.convert_element_type(labels, logits.dtype))


def sigmoid_cross_entropy_with_logits(labels: Blob, logits: Blob, name: str | None = None) -> Blob:
    """-(z log(sigmoid(x)) + (1 - z) log(1 - sigmoid(x))), element by element, without overflow.

    Args:
      labels: of logits' shape; any integer dtype, or logits' own. They receive no gradient.
      logits: floating.
      name: name of the op.
    Returns: Blob of logits' shape and dtype.
    Raises: ShapeError, DtypeError, ArgumentError (not a Blob).
    Example: >>> loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    """
    what = label_of("sigmoid_cross_entropy_with_logits", name)
    labels, logits = in_view(what, want.blob(what, "labels", labels), want.blob(what, "logits", logits))
    want.floating(what, logits)
    if not labels.dtype.is_integer:
        want.same_dtype(what, (labels, logits))
    want.same_shape(what, (labels, logits))
    return emit(_sigmoid_cross_entropy, labels, logits, name=name)


def want_pair(what: str, *arguments: tuple[str, Any], floating: bool = True) -> tuple[Blob, ...]:
    """The Blobs in the current view, of one dtype and shape."""
    blobs = in_view(what, *(want.blob(what, argument, value) for argument, value in arguments))
    if floating:
        want.floating(what, blobs[0])
    want.same_dtype(what, blobs)
    want.same_shape(what, blobs)
    return blobs


# --- with margins


def _smooth_l1_grad(inputs: Any, outputs: Any, cotangents: Any, *, beta: float) -> tuple[Array, None]:
    difference = lax.sub(*inputs)
    slope = lax.sign(difference)
    if beta:
        inside = lax.lt(lax.abs(difference), full(beta, difference))
        slope = select(inside, lax.mul(difference, like(1 / beta, difference)), slope)
    return lax.mul(cotangents[0], slope), None


@op("smooth_l1_loss", grad=_smooth_l1_grad, nondifferentiable=(1,))
def _smooth_l1(prediction: Array, target: Array, *, beta: float) -> Array:
    d = lax.abs(lax.sub(prediction, target))
    far = lax.sub(d, like(0.5 * beta, d))
    if not beta:
        return far
    near = lax.mul(lax.mul(d, d), like(0.5 / beta, d))
    return lax.select(lax.lt(d, full(beta, d)), near, far)


def smooth_l1_loss(prediction: Blob, label: Blob, beta: float = 1.0, name: str | None = None) -> Blob:
    """0.5 * d**2 / beta where d = |prediction - label| < beta, else d - 0.5 * beta; element by element.

    Args:
      prediction, label: of one shape and floating dtype; label receives no gradient.
      beta: >= 0; the end of the parabola.
      name: name of the op.
    Returns: Blob of that shape and dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> loss = flow.smooth_l1_loss(boxes, truth, beta=0.11)
    """
    what = label_of("smooth_l1_loss", name)
    prediction, label = want_pair(what, ("prediction", prediction), ("label", label))
    return emit(_smooth_l1, prediction, label, name=name, beta=want.number(what, "beta", beta, low=0))


def _angle(x: Array) -> Array:
    """acos(x); cosines that rounding moved outside [-1, 1] are clipped."""
    return lax.acos(lax.clamp(like(-1, x), x, like(1, x)))


def _margin_grad(inputs: Any, outputs: Any, cotangents: Any, *, m1: float, m2: float, m3: float) -> tuple[Array, None]:
    (x, labels), dy = inputs, cotangents[0]
    hit = _at_label(labels, x)
    if m1 == 1 and m2 == 0:
        return dy, None
    angle = _angle(_picked(hit, x))
    smallest = math.sqrt(float(jnp.finfo(x.dtype).eps))  # the sine of the smallest angle whose cosine is < 1
    sine = lax.max(lax.sin(angle), full(smallest, angle))
    turned = lax.sin(lax.add(lax.mul(angle, like(m1, x)), like(m2, x)))
    slope = lax.div(lax.mul(turned, like(m1, x)), sine)
    return select(hit, lax.mul(dy, _in_each_column(slope, x)), dy), None


@op("combined_margin_loss", grad=_margin_grad, nondifferentiable=(1,))
def _combined_margin(x: Array, labels: Array, *, m1: float, m2: float, m3: float) -> Array:
    hit = _at_label(labels, x)
    cosine = _picked(hit, x)  # one per row: angles of all classes would take most of a step
    if m1 != 1 or m2 != 0:
        cosine = lax.cos(lax.add(lax.mul(_angle(cosine), like(m1, x)), like(m2, x)))
    return select(hit, _in_each_column(lax.sub(cosine, like(m3, x)), x), x)


def _in_each_column(rows: Array, x: Array) -> Array:
    return lax.broadcast_in_dim(rows, x.shape, (0,))


def combined_margin_loss(x: Blob, label: Blob, m1: float = 1, m2: float = 0, m3: float = 0, name: str | None = None) -> Blob:
    """cos(m1 * acos(x) + m2) - m3 in the column of the label, x elsewhere: logits, not yet a loss.

    SphereFace is m1, ArcFace m2, CosFace m3; scale the result and pass it to a sparse cross entropy.

    Args:
      x: (N, C): cosines; floating.
      label: (N,) or (N, 1), any integer dtype.
      m1, m2, m3: factor of the angle, offset of the angle, margin that is subtracted from the cosine.
      name: name of the op.
    Returns: Blob (N, C), x's dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> logits = flow.combined_margin_loss(cosines, labels, m2=0.5) * 64.0   # Deng et al., 2019
    """
    what = label_of("combined_margin_loss", name)
    want.rank(what, want.blob(what, "x", x), 2, 2)
    label, x = _want_sparse(what, label, x, "x")
    m1, m2, m3 = (want.number(what, argument, value) for argument, value in (("m1", m1), ("m2", m2), ("m3", m3)))
    return emit(_combined_margin, x, label, name=name, m1=m1, m2=m2, m3=m3)
