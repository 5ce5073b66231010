"""What a step of an LSTM computes of its gates, by the native part: one call, and its gradients another.

``lstm_cell.py`` finds the ops of a job that compute it.
"""

from __future__ import annotations

import math
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
_MIN_ELEMENTS = 1024  # of a state; with fewer the call of one step gains nothing


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


@dataclass(frozen=True)
class Gates:
    """How the arrays of a step, or of a sequence of steps, hold the gates.

    Attributes:
      quarters: those of the columns of one array that hold i, f, g and o.
      apart: each gate has arrays of its own instead, in this order.
      added: numbers added to i, f, g and o.
    """

    quarters: Quarters = (0, 1, 2, 3)
    apart: bool = False
    added: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @property
    def arrays(self) -> int:
        """How many there are of each kind."""
        return 4 if self.apart else 1

    def shift(self, width: int) -> Array | None:
        """What is added to all columns (4 * width,); None for nothing."""
        if not any(self.added):
            return None
        in_order = sorted(zip(self.quarters, self.added, strict=True))
        return jnp.asarray(np.repeat(np.array([number for _, number in in_order], np.float32), width))


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


def _cell_of(arrays: Sequence[Any], gates: Gates) -> Cell:
    rows, columns = arrays[0].shape
    return Cell(rows, columns * gates.arrays // 4, gates.quarters, len(arrays) > gates.arrays)


def _in_one_array(arrays: Sequence[Array], gates: Gates) -> tuple[Array, Sequence[Array]]:
    """The gates, and the state before if there is one."""
    joined = jnp.concatenate(arrays[:4], 1) if gates.apart else arrays[0]
    shift = gates.shift(joined.shape[1] // 4)
    return joined if shift is None else joined + shift, arrays[gates.arrays :]


def lower(*arrays: Array, gates: Gates) -> tuple[Array, Array]:
    """By the native part."""
    joined, state = _in_one_array(arrays, gates)
    return differentiable(_cell_of(arrays, gates))(joined, *state)


def define(*arrays: Array, gates: Gates) -> tuple[Array, Array]:
    """The same by XLA."""
    joined, state = _in_one_array(arrays, gates)
    parts = jnp.split(joined, 4, 1)
    i, f, g, o = (parts[quarter] for quarter in gates.quarters)
    c = lax.logistic(i) * lax.tanh(g)
    for before in state:
        c = lax.logistic(f) * before + c
    return lax.logistic(o) * lax.tanh(c), c


def gains_alone(shape: Sequence[int], gates: Gates) -> bool:
    """Whether a step with a state of this shape gains by a call of its own, without those around it."""
    return not gates.apart and math.prod(shape) >= _MIN_ELEMENTS


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    if any(a.dtype != np.float32 for a in arrays):
        return "it is not float32"
    return _native.kernel_refusal("lstm_cell", _cell_of(arrays, attrs["gates"]).spec())


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    name = _native.part().library.describe("lstm_cell", _cell_of(arrays, attrs["gates"]).spec())
    return f"an LSTM's step in one call, {name}"


LSTM_CELL = OpDef(
    "lstm_cell", define, multiple_results=True, native=Native(lower, _unsupported_reason, _describe, sharded="", narrows=False)
)
