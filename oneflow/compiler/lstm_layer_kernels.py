"""All steps of an LSTM over a sequence by the native part: one call, and its gradients another.

``lstm_layer.py`` finds the ops of a job that compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp, lax
from ..graph.op import Native, OpDef
from . import lstm_cell_kernels

Array = Any
Quarters = tuple[int, int, int, int]
_MIN_WIDTH, _MIN_FLOPS = 32, 1 << 18  # of a step's product; with less a call gains nothing


@dataclass(frozen=True)
class Layer:
    """The sizes of a call.

    Attributes:
      steps, rows, width: of states (rows, width), one after each step.
      quarters: those of the gates that hold i, f, g and o.
      has_state: there are h and c from before the first step.
      by_row: arrays of all steps are (rows, steps, ...), not (steps, rows, ...).
      transposed: weights are (4 * width, width), not (width, 4 * width).
      keeps: the call has further results, which its gradient needs.
    """

    steps: int
    rows: int
    width: int
    quarters: Quarters
    has_state: bool
    by_row: bool
    transposed: bool
    keeps: bool = False

    def spec(self) -> list[int]:
        """The vector that describes a call to the native part."""
        flags = (self.has_state, self.by_row, self.transposed, self.keeps)
        return [self.steps, self.rows, self.width, *self.quarters, *map(int, flags)]

    def all_steps(self, columns: int) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of an array of all steps."""
        sizes = (self.rows, self.steps) if self.by_row else (self.steps, self.rows)
        return (*sizes, columns), np.float32

    @property
    def state(self) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of a state."""
        return (self.rows, self.width), np.float32

    @property
    def axis(self) -> int:
        """That of the steps."""
        return int(self.by_row)


@lru_cache(maxsize=1024)
def differentiable(layer: Layer) -> Callable[..., tuple[Array, ...]]:
    """From (gates of all steps[, h, c before], weights) to (h of each step ..., the last c)."""
    hidden, gates = layer.all_steps(layer.width), layer.all_steps(4 * layer.width)

    def split(h: Array) -> list[Array]:
        return [lax.index_in_dim(h, step, layer.axis, keepdims=False) for step in range(layer.steps)]

    @jax.custom_vjp
    def run(*arrays: Array) -> tuple[Array, ...]:
        h, c = _native.call_several("lstm_layer", layer.spec(), [hidden, layer.state], *arrays)
        return *split(h), c

    def forward(*arrays: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        kept = [gates, ((layer.steps, layer.rows, layer.width), np.float32), hidden]
        spec = replace(layer, keeps=True).spec()
        h, c, activated, cells, before = _native.call_several("lstm_layer", spec, [hidden, layer.state, *kept], *arrays)
        return (*split(h), c), (activated, cells, *arrays[1 + layer.has_state :], before)

    def backward(saved: tuple[Array, ...], cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
        *operands, before = saved
        to_hidden = jnp.stack(cotangents[:-1], layer.axis)
        results = [gates, *[layer.state] * (2 * layer.has_state)]
        to_gates, *to_state = _native.call_several("lstm_layer_grad", layer.spec(), results, *operands, to_hidden, cotangents[-1])
        return to_gates, *to_state, _to_weights(layer, before, to_gates)

    run.defvjp(forward, backward)
    return run


def _to_weights(layer: Layer, before: Array, to_gates: Array) -> Array:
    """The gradient to the weights, a product of the rows of all steps."""
    rows, width = layer.steps * layer.rows, layer.width
    h, gates = before.reshape(rows, width), to_gates.reshape(rows, 4 * width)
    left, right = (gates, h) if layer.transposed else (h, gates)
    shape = (left.shape[1], right.shape[1])
    return _native.call("matmul", [0, 1, *shape, rows, 1, 0], shape, left, right)


# --- the op of a node that stands for all of it: its inputs are the gates of all steps, in one array or one for each step, h and
# c from before if there are any, and the weights


def _layer_of(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Layer:
    has_state, transposed = attrs["has_state"], attrs["transposed"]
    gates = arrays[: len(arrays) - 1 - 2 * has_state]
    if attrs["by_row"]:
        rows, steps, columns = gates[0].shape
    elif gates[0].ndim == 3:
        steps, rows, columns = gates[0].shape
    else:
        steps, (rows, columns) = len(gates), gates[0].shape
    return Layer(steps, rows, columns // 4, attrs["quarters"], has_state, attrs["by_row"], transposed)


def _gates_and_rest(arrays: Sequence[Array], has_state: bool) -> tuple[Array, Sequence[Array]]:
    count = len(arrays) - 1 - 2 * has_state
    return (arrays[0] if arrays[0].ndim == 3 else jnp.stack(arrays[:count])), arrays[count:]


def lower(*arrays: Array, **attrs: Any) -> tuple[Array, ...]:
    """By the native part."""
    gates, rest = _gates_and_rest(arrays, attrs["has_state"])
    return differentiable(_layer_of(arrays, attrs))(gates, *rest)


def define(*arrays: Array, quarters: Quarters, has_state: bool, by_row: bool, transposed: bool) -> tuple[Array, ...]:
    """The same by XLA."""
    gates, (*state, weights) = _gates_and_rest(arrays, has_state)
    weights = weights.T if transposed else weights
    outputs = []
    for step in range(gates.shape[int(by_row)]):
        x = lax.index_in_dim(gates, step, int(by_row), keepdims=False)
        x = x + jnp.matmul(state[0], weights, precision=lax.Precision.HIGHEST) if state else x
        state = list(lstm_cell_kernels.define(x, *state[1:], quarters=quarters))
        outputs.append(state[0])
    return *outputs, state[1]


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    if any(a.dtype != np.float32 for a in arrays):
        return "it is not float32"
    layer = _layer_of(arrays, attrs)
    if layer.width < _MIN_WIDTH or 8 * layer.rows * layer.width**2 < _MIN_FLOPS:
        return "too small to gain by it"
    size = math.prod(layer.all_steps(4 * layer.width)[0])
    refusal = _native.array_refusal("float32", (size,))
    return refusal or _native.kernel_refusal("lstm_layer", layer.spec())


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    name = _native.part().library.describe("lstm_layer", _layer_of(arrays, attrs).spec())
    return f"all steps of an LSTM in one call, {name}"


LSTM_LAYER = OpDef(
    "lstm_layer", define, multiple_results=True, native=Native(lower, _unsupported_reason, _describe, sharded="", narrows=False)
)
