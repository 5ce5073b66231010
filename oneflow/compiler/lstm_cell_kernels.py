"""What a step of an LSTM computes of its gates, by the native part: one call, and its gradients another.

``lstm_cell.py`` finds the ops of a job that compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp, lax
from ..graph.op import Native, OpDef

Array = Any
Quarters = tuple[int, int, int, int]
_MIN_ELEMENTS = 1024  # of a state; with fewer a call gains nothing


@dataclass(frozen=True)
class Cell:
    """The sizes of a call.

    Attributes:
      rows, width: of states (rows, width); gates are (rows, 4 * width).
      quarters: those of the gates that hold i, f, g and o.
      has_state: there is a state from the step before; where there is none, f is not read.
    """

    rows: int
    width: int
    quarters: Quarters
    has_state: bool

    def spec(self) -> list[int]:
        """The vector that describes a call to the native part."""
        return [self.rows, self.width, *self.quarters, int(self.has_state)]


@lru_cache(maxsize=1024)
def differentiable(cell: Cell) -> Callable[..., tuple[Array, Array]]:
    """From gates, and the state before if there is one, to (h, c)."""
    state, gates = ((cell.rows, cell.width), np.float32), ((cell.rows, 4 * cell.width), np.float32)

    def run(*arrays: Array) -> tuple[Array, ...]:
        return _native.call_several("lstm_cell", cell.spec(), [state, state, gates], *arrays)

    @jax.custom_vjp
    def stepped(*arrays: Array) -> tuple[Array, Array]:
        h, c, _ = run(*arrays)
        return h, c

    def forward(*arrays: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, c, activated = run(*arrays)
        return (h, c), (activated, *arrays[1:], c)

    def backward(saved: tuple[Array, ...], cotangents: tuple[Array, Array]) -> tuple[Array, ...]:
        results = [gates, state] if cell.has_state else [gates]
        return _native.call_several("lstm_cell_grad", cell.spec(), results, *saved, *cotangents)

    stepped.defvjp(forward, backward)
    return stepped


# --- the op of a node that stands for all of it


def _cell_of(arrays: Sequence[Any], quarters: Quarters) -> Cell:
    rows, columns = arrays[0].shape
    return Cell(rows, columns // 4, quarters, len(arrays) > 1)


def lower(*arrays: Array, quarters: Quarters) -> tuple[Array, Array]:
    """By the native part."""
    return differentiable(_cell_of(arrays, quarters))(*arrays)


def define(*arrays: Array, quarters: Quarters) -> tuple[Array, Array]:
    """The same by XLA."""
    parts = jnp.split(arrays[0], 4, 1)
    i, f, g, o = (parts[quarter] for quarter in quarters)
    c = lax.logistic(i) * lax.tanh(g)
    if len(arrays) > 1:
        c = lax.logistic(f) * arrays[1] + c
    return lax.logistic(o) * lax.tanh(c), c


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    if any(a.dtype != np.float32 for a in arrays):
        return "it is not float32"
    cell = _cell_of(arrays, attrs["quarters"])
    if cell.rows * cell.width < _MIN_ELEMENTS:
        return "too small to gain by it"
    return _native.kernel_refusal("lstm_cell", cell.spec())


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    name = _native.part().library.describe("lstm_cell", _cell_of(arrays, attrs["quarters"]).spec())
    return f"an LSTM's step in one call, {name}"


LSTM_CELL = OpDef(
    "lstm_cell", define, multiple_results=True, native=Native(lower, _unsupported_reason, _describe, sharded="", narrows=False)
)
