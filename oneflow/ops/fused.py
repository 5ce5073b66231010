"""Fused ops of OneFlow 0.4, which here are sequences of ops: XLA fuses them."""

from __future__ import annotations

from typing import Any

from .._base.jax import lax
from ..errors import ShapeError
from ..graph.node import Blob
from ..graph.op import AttentionStep
from ._arrays import Array, label, like, number_for
from ._emit import emit_many, fail, op, want
from .conv import bias_add, want_bias
from .dropout import dropout, want_rate
from .elementwise import gelu
from .matrix import fused_scale_tril
from .nn import softmax


def _part(name: str | None, step: str) -> str | None:
    return None if name is None else f"{name}-{step}"


def fused_bias_add_gelu(value: Blob, bias: Blob, data_format: str | None = None, name: str | None = None) -> Blob:
    """gelu(bias_add(value, bias)).

    Args, Returns, Raises: those of ``nn.bias_add``; floating.
    Example: >>> y = flow.nn.fused_bias_add_gelu(x, b, data_format="NWC")   # (8, 5, 16), (16,)
    """
    what = label("fused_bias_add_gelu", name)
    want.floating(what, want.blob(what, "value", value))
    want_bias(what, value, bias, data_format)
    return gelu(bias_add(value, bias, data_format, name=_part(name, "bias_add")), name=name)


def fused_bias_add_dropout(
    value: Blob,
    bias: Blob,
    data_format: str | None = None,
    rate: float = 0.0,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """dropout(bias_add(value, bias)); in predict jobs, or with rate 0, the sum alone.

    Args: value, bias, data_format: those of ``nn.bias_add``; rate, noise_shape, seed: those of ``nn.dropout``.
    Returns: Blob of value's shape and dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.fused_bias_add_dropout(x, b, rate=0.1)
    """
    what = label("fused_bias_add_dropout", name)
    want_rate(what, rate, noise_shape, seed, name)
    want.floating(what, want.blob(what, "value", value))
    want_bias(what, value, bias, data_format)
    return dropout(bias_add(value, bias, data_format, name=_part(name, "bias_add")), rate, noise_shape, seed, name)


def fused_scale_tril_softmax_dropout(
    x: Blob,
    diagonal: int = 0,
    fill_value: int | float = 0,
    scale: int | float = 1,
    rate: float = 0.0,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """dropout(softmax(fused_scale_tril(x))): the weights of causal attention.

    Args:
      x: (..., rows, columns), floating.
      diagonal: entries with column > row + diagonal become fill_value.
      fill_value: a number; a very negative one removes the entry from the softmax.
      scale: factor of the entries that are kept.
      rate, noise_shape, seed: those of ``nn.dropout``.
      name: name of the op.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> p = flow.nn.fused_scale_tril_softmax_dropout(scores, fill_value=-1e9, scale=0.125, rate=0.1)
    """
    what = label("fused_scale_tril_softmax_dropout", name)
    want_rate(what, rate, noise_shape, seed, name)
    want.floating(what, want.blob(what, "x", x))
    kept = fused_scale_tril(x, diagonal, fill_value, scale, name=_part(name, "tril"))
    return dropout(softmax(kept, name=_part(name, "softmax")), rate, noise_shape, seed, name)


@op(
    "fused_self_attention_query_mul_key_and_value",
    multiple_results=True,
    autocast="always",
    attention=lambda attrs: AttentionStep("packed product", attrs["alpha"], size=attrs["head_size"]),
)
def _query_mul_key_and_value(x: Array, *, head_size: int, alpha: float) -> tuple[Array, Array]:
    length, batch, hidden = x.shape
    parts = lax.reshape(x, (length, batch, hidden // (3 * head_size), 3, head_size))
    query, key, value = (lax.squeeze(lax.slice_in_dim(parts, i, i + 1, axis=3), (3,)) for i in range(3))
    scores = lax.dot_general(query, key, (((3,), (3,)), ((1, 2), (1, 2))))
    return lax.mul(scores, like(alpha, scores)), lax.transpose(value, (1, 2, 0, 3))


def fused_self_attention_query_mul_key_and_value(
    x: Blob, head_size: int, alpha: float = 1.0, name: str | None = None
) -> tuple[Blob, Blob]:
    """The scores and the values of self-attention, from interleaved queries, keys and values.

    Args:
      x: (S, B, H), floating; H is laid out as (heads, 3, head_size): query, key, value of each head.
      head_size: > 0; H is divisible by 3 * head_size.
      alpha: factor of the scores.
      name: name of the op.
    Returns: (scores (B, heads, S, S), values (B, heads, S, head_size)).
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> scores, values = flow.nn.fused_self_attention_query_mul_key_and_value(x, head_size=64, alpha=0.125)
    """
    what = label("fused_self_attention_query_mul_key_and_value", name)
    want.floating(what, want.blob(what, "x", x))
    want.rank(what, x, 3, 3)
    head_size = want.integer(what, "head_size", head_size, 1)
    if x.shape[2] % (3 * head_size):
        fail(ShapeError, what, f"the last axis, {x.shape[2]}, must be divisible by 3 * head_size = {3 * head_size}", (x,))
    factor = number_for(what, alpha, x, "alpha")
    scores, values = emit_many(_query_mul_key_and_value, x, name=name, head_size=head_size, alpha=factor)
    return scores, values
