"""Ops along the time axis: parts of a job that run several times per call, each time on a piece of the batch.

The ops between ``unpack`` (or ``repeat``) and ``pack`` (or ``acc``) run once for each piece. They may use Blobs that are
computed once per call; those have the same value each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..errors import ArgumentError, ShapeError
from ..graph.node import Blob
from ..graph.repetition import Repetition
from ._arrays import Array, is_half, label
from ._emit import emit, fail, op, want


@op("unpack", newer_autocast="between", repeats=Repetition("unpack_num", begins=True, cuts=True))
def _unpack(x: Array, *, unpack_num: int, index: int = 0) -> Array:
    size = x.shape[0] // unpack_num
    return lax.slice_in_dim(x, index * size, (index + 1) * size)


@op("pack", newer_autocast="between", repeats=Repetition("pack_num", begins=False))
def _pack(*pieces: Array, pack_num: int) -> Array:
    return jnp.concatenate(pieces if len(pieces) > 1 else pieces * pack_num)


@op("repeat", newer_autocast="between", repeats=Repetition("repeat_num", begins=True))
def _repeat(x: Array, *, repeat_num: int) -> Array:
    return x


@op("acc", newer_autocast="between", repeats=Repetition("max_acc_num", begins=False))
def _acc(*terms: Array, max_acc_num: int) -> Array:
    half = is_half(terms[0])  # summed in float32, and rounded once
    total, *others = (lax.convert_element_type(t, np.float32) for t in terms) if half else terms
    for term in others:
        total = total + term
    return lax.convert_element_type(total, terms[0].dtype)


def unpack(input: Blob, unpack_num: int, name: str | None = None) -> Blob:
    """The pieces of a batch, one after another: ops that use the result run ``unpack_num`` times per call.

    Args:
      input: Blob whose axis 0 divides into ``unpack_num`` pieces.
      unpack_num: number of pieces.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape (size / unpack_num, ...): one piece.
    Raises: ArgumentError, ShapeError.
    Example: >>> y = flow.pack(flow.math.relu(flow.unpack(x, 2)), 2)   # the same as relu(x), half a batch at a time
    """
    what = label("unpack", name)
    want.blob(what, "input", input)
    count = _count(what, "unpack_num", unpack_num)
    want.rank(what, input, 1)
    if input.shape[0] % count:
        fail(ShapeError, what, f"axis 0 of size {input.shape[0]} does not divide into {count} pieces", (input,))
    piece = emit(_unpack, input, name=name, unpack_num=count)
    piece.batch_axis = input.batch_axis  # several devices share each piece as they share the batch
    return piece


def pack(input: Blob, pack_num: int, name: str | None = None) -> Blob:
    """Concatenates the results of ``pack_num`` consecutive runs along axis 0, and ends the repetition that ``unpack`` began.

    Args:
      input: Blob that is computed ``pack_num`` times in the innermost repetition.
      pack_num: number of runs.
      name: name of the op; made unique when omitted.
    Returns: Blob of shape (size * pack_num, ...).
    Raises: ArgumentError: the innermost repetition runs another number of times.
    Example: >>> y = flow.pack(flow.math.relu(flow.unpack(x, 2)), 2)   # (4, 3) -> (4, 3)
    """
    what = label("pack", name)
    want.blob(what, "input", input)
    count = _count(what, "pack_num", pack_num)
    want.rank(what, input, 1)
    if _runs(input) != count:
        fail(ArgumentError, what, f"pack_num={count}, but the input is computed {_times(_runs(input))}", (input,),
             "pack as many pieces as were unpacked")  # fmt: skip
    whole = emit(_pack, input, name=name, pack_num=count)
    whole.batch_axis = input.batch_axis
    return whole


def repeat(input: Blob, repeat_num: int, name: str | None = None) -> Blob:
    """The same value ``repeat_num`` times: for values that are computed once per call and used between ``unpack`` and ``pack``.

    The gradient is the sum of those of all runs.

    Args:
      input: Blob of any shape.
      repeat_num: number of runs.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape.
    Raises: ArgumentError.
    Example: >>> y = flow.acc(flow.repeat(x, 4), 4)   # 4 * x
    """
    what = label("repeat", name)
    want.blob(what, "input", input)
    return emit(_repeat, input, name=name, repeat_num=_count(what, "repeat_num", repeat_num))


def acc(one: Blob, max_acc_num: int, name: str | None = None) -> Blob:
    """The sum of the results of ``max_acc_num`` consecutive runs.

    Args:
      one: Blob that is computed ``max_acc_num`` times, or a multiple of that, in the innermost repetition.
      max_acc_num: number of runs to sum.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape, computed once if the repetition ends with it, else once for each group of runs.
    Raises: ArgumentError: the innermost repetition runs another number of times.
    Example: >>> y = flow.acc(flow.unpack(x, 2), 2)   # (4, 3) -> (2, 3): the sum of both halves
    """
    what = label("acc", name)
    want.blob(what, "one", one)
    count = _count(what, "max_acc_num", max_acc_num)
    if _runs(one) % count:
        fail(ArgumentError, what, f"max_acc_num={count}, but the input is computed {_times(_runs(one))}", (one,),
             "accumulate over the number of runs of unpack or repeat, or a divisor of it")  # fmt: skip
    return emit(_acc, one, name=name, max_acc_num=count)


def _count(what: str, argument: str, value: Any) -> int:
    return want.integer(what, argument, value, low=1)


def _runs(blob: Blob) -> int:
    repetition = blob.node.repetition
    return repetition[-1] if repetition else 1


def _times(runs: int) -> str:
    return "once per call" if runs == 1 else f"{runs} times per call"
