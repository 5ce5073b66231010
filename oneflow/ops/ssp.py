"""Stale reads of a variable, for stages that run ahead of its updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.jax import jnp, lax
from ..errors import ArgumentError
from ..graph.graph import OP_VARIABLE, Initializer, Variable, current
from ..graph.node import Blob
from ._arrays import Array, label
from ._emit import emit_many, fail, op, want
from .elementwise import identity


class _Zeros:
    """First values of the buffer and its counter; the first calls read neither."""

    def draw(self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(shape, dtype)


def _to_the_variable(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Any, None, None]:
    return cotangents[0], None, None


@op("ssp_variable_proxy", multiple_results=True, grad=_to_the_variable, nondifferentiable=(1, 2))
def _ssp_variable_proxy(now: Array, earlier: Array, calls: Array) -> tuple[Array, Array, Array]:
    """``earlier[k]`` is the value at the start of the call k + 1 calls ago."""
    held = earlier.shape[0]
    known = jnp.concatenate([now[None], earlier])
    value = jnp.take(known, jnp.minimum(calls[0], jnp.asarray(held, calls.dtype)), axis=0)
    return value, known[:held], lax.add(calls, jnp.ones_like(calls))


def ssp_variable_proxy(var: Blob, buffer_size: int = 1, name: str | None = None) -> tuple[Blob, Blob]:
    """The current value of a variable, and its value at the end of the call ``buffer_size`` calls ago.

    In the first ``buffer_size`` calls the second is the initial value. Its gradient flows to the variable.

    Args:
      var: a Blob that ``flow.get_variable`` returned.
      buffer_size: >= 1.
      name: name of the op; made unique when omitted.
    Returns: (ref, value): ``ref`` is ``var``, for ``flow.assign``.
    Raises: ArgumentError.
    Example: >>> ref, value = flow.experimental.ssp_variable_proxy(counter, buffer_size=4)
    """
    what = label("ssp_variable_proxy", name)
    want.blob(what, "var", var)
    if var.node.op is not OP_VARIABLE:
        fail(ArgumentError, what, f"var must be a variable, but {var.op_name!r} is computed by {var.node.op.name}", (var,))
    buffer_size, name = want.integer(what, "buffer_size", buffer_size, 1, (var,)), want.label(what, "name", name)
    if buffer_size == 1:  # its value at the end of the previous call
        return var, identity(var, name=name)
    graph = current(what)
    if name is None:
        fresh = graph.fresh_name("SspVariableProxy")
        name = fresh.removeprefix(graph.scope.namespace)
        full = f"{var.op_name}-{fresh}"  # ops are numbered per job: another job's first proxy has another variable's values
    else:
        full = graph.scope.namespace + name
    zeros: Initializer = _Zeros()

    def state(suffix: str, shape: tuple[int, ...], dtype: dtypes.dtype) -> Blob:
        made = Variable(f"{full}-{suffix}", shape, dtype, zeros, var.source, role="state")
        blob = graph.add_variable(made).blob
        assert blob is not None
        return blob

    earlier, calls = state("earlier", (buffer_size - 1, *var.shape), var.dtype), state("calls", (1,), dtypes.int64)
    value, new_earlier, new_calls = emit_many(_ssp_variable_proxy, var, earlier, calls, name=name)
    graph.assign(earlier, new_earlier)
    graph.assign(calls, new_calls)
    return var, value
