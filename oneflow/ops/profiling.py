"""Ranges in profiles, and an op that waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from .._base.jax import jax
from .._base.process_state import process_state
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, ModeError
from ..graph.node import Blob
from ._arrays import Array, label
from ._emit import emit, fail, op, want
from ._host_call import call_on_host


@op("nvtx_start", newer_autocast="between")
def _nvtx_start(x: Array, *, mark: str) -> Array:
    return x


@op("nvtx_end", newer_autocast="between")
def _nvtx_end(x: Array, *, mark: str) -> Array:
    return x


def _mark(what: str, x: Any, mark_prefix: Any) -> None:
    want.blob(what, "x", x)
    if not isinstance(mark_prefix, str):
        fail(ArgumentError, what, f"mark_prefix must be a str, got {shown(mark_prefix)}", (x,))


def nvtx_start(x: Blob, mark_prefix: str, name: str | None = None) -> Blob:
    """Returns x. In OneFlow it begins a range of NVIDIA's profiler; here it has no other effect: see ``range_push``.

    Args:
      x: Blob of any dtype.
      mark_prefix: the range's name.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError.
    Example: >>> x = flow.profiler.nvtx_start(x, "encoder")
    """
    _mark(label("nvtx_start", name), x, mark_prefix)
    return emit(_nvtx_start, x, name=name, mark=mark_prefix)


def nvtx_end(x: Blob, mark_prefix: str, name: str | None = None) -> Blob:
    """Returns x. In OneFlow it ends the range that ``nvtx_start`` began; here it has no other effect.

    Args, Returns, Raises: those of ``nvtx_start``.
    Example: >>> x = flow.profiler.nvtx_end(x, "encoder")
    """
    _mark(label("nvtx_end", name), x, mark_prefix)
    return emit(_nvtx_end, x, name=name, mark=mark_prefix)


def range_push(range_name: str) -> None:
    """Begins a range of the calling thread in JAX's profiler (``jax.profiler.trace``); ranges nest.

    Raises: ArgumentError.
    Example: >>> flow.profiler.range_push("validation")
    """
    if not isinstance(range_name, str):
        refuse(ArgumentError, f"flow.profiler.range_push needs a str, got {shown(range_name)}")
    mark = jax.profiler.TraceAnnotation(range_name)
    mark.__enter__()
    ranges = process_state.profiler_ranges
    ranges.stack = [*getattr(ranges, "stack", []), mark]


def range_pop() -> None:
    """Ends the range that ``range_push`` began last on the calling thread. Raises ModeError where none is open.

    Example: >>> flow.profiler.range_pop()
    """
    ranges = process_state.profiler_ranges
    if not getattr(ranges, "stack", []):
        refuse(ModeError, "flow.profiler.range_pop: no range is open", hint='flow.profiler.range_push("name") first')
    ranges.stack.pop().__exit__(None, None, None)


def _slept(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Any]:
    return (cotangents[0],)


@op("sleep_identity", grad=_slept)
def _sleep_identity(x: Array, *, seconds: float) -> Array:
    def later(value: np.ndarray) -> list[np.ndarray]:
        time.sleep(seconds)
        return [value]

    return call_on_host(later, [(x.shape, x.dtype)], x)[0]


def sleep_identity(x: Blob, seconds: int, name: str | None = None) -> Blob:
    """Returns x after a delay on the device: for experiments with schedules.

    Args:
      x: Blob of any dtype.
      seconds: >= 0.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError.
    Example: >>> y = flow.sleep_identity(x, 1)
    """
    what = label("sleep_identity", name)
    want.blob(what, "x", x)
    return emit(_sleep_identity, x, name=name, seconds=want.number(what, "seconds", seconds, (x,), low=0, finite=True))
