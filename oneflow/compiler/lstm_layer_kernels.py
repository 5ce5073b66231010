"""All steps of an LSTM over a sequence by the native part: one call, and its gradients another.

``lstm_layer.py`` finds the ops of a job that compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import islice
from typing import Any, Literal

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp, lax
from ..graph.op import Native, OpDef
from . import lstm_cell_kernels
from .lstm_cell_kernels import Gates

Array = Any
Quarters = tuple[int, int, int, int]


@dataclass(frozen=True)
class Layer:
    """The sizes of a call.

    Attributes:
      steps, rows, width: of states (rows, width), one after each step.
      quarters: those of the gates that hold i, f, g and o.
      has_state: there are h and c from before the first step.
      by_row: arrays of all steps are (rows, steps, ...), not (steps, rows, ...).
      transposed: weights are (4 * width, width), not (width, 4 * width).
      has_bias: there is an array of (4 * width) that is added to the gates of all rows and steps.
      keeps: the call has further results, which its gradient needs.
      is_reversed: arrays of all steps have the last step first. The native part gets them turned round.
    """

    steps: int
    rows: int
    width: int
    quarters: Quarters
    has_state: bool
    by_row: bool
    transposed: bool
    has_bias: bool = False
    keeps: bool = False
    is_reversed: bool = False

    def spec(self) -> list[int]:
        """The vector that describes a call to the native part."""
        flags = (self.has_state, self.by_row, self.transposed, self.has_bias, self.keeps)
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

    def turned(self, array: Array) -> Array:
        """An array of all steps from the order of the job to that of the steps, or back."""
        return lax.rev(array, [self.axis]) if self.is_reversed else array


@dataclass(frozen=True)
class Product:
    """Products of what the steps of a sequence get and weights, computed at once for all steps.

    Attributes:
      op, attrs: they compute the product of two matrices.
      joined: the weights are rows of those that h is multiplied by as well, in front of h's ("before") or behind ("behind"); ""
        where they are an array of their own.
    """

    op: OpDef
    attrs: tuple[tuple[str, Any], ...]
    joined: Literal["", "before", "behind"] = ""

    @property
    def gates_axis(self) -> int:
        """The axis of the weights that is that of the gates in the product."""
        times = self.op.attention(dict(self.attrs)) if self.op.attention is not None else None
        return 0 if times is not None and times.transposed[1] else 1

    def __call__(self, x: Array, weights: Array) -> Array:
        """By the native part where it takes it."""
        native, attrs = self.op.native, dict(self.attrs)
        is_native = native is not None and native.unsupported_reason([x, weights], attrs) is None
        return native.lower(x, weights, **attrs) if native is not None and is_native else self.op.define(x, weights, **attrs)


@dataclass(frozen=True)
class Given:
    """Which arrays the gates are computed of, apart from the recurrent product.

    Attributes:
      product: of what steps get and weights; None for none.
      multiplied: how many arrays that multiplies: one for each step, or one of all steps.
      added: how many arrays are added up for each step; None for one array of all steps.
      shared: how many arrays are added in all steps.
    """

    product: Product | None = None
    multiplied: int = 0
    added: tuple[int, ...] | None = None
    shared: int = 0


@dataclass(frozen=True)
class Operands:
    """The arrays of a call, sorted. Each one that holds gates, or weights of gates, is a group: of one array, or one for each.

    Attributes:
      multiplied, added, shared: see ``Given``.
      state: h and c from before the first step, if there are any.
      input_weights: those of ``Given.product``, unless they are joined to the recurrent ones.
      weights: the recurrent ones.
    """

    multiplied: Sequence[Any]
    added: Sequence[Sequence[Any]]
    state: Sequence[Any]
    input_weights: Sequence[Sequence[Any]]
    weights: Sequence[Any]
    shared: Sequence[Sequence[Any]]

    @staticmethod
    def of(arrays: Sequence[Any], given: Given, has_state: bool, gates: Gates) -> Operands:
        """Of the inputs of the op, which come in this order."""
        left = iter(arrays)

        def groups(count: int) -> list[list[Any]]:
            return [list(islice(left, gates.arrays)) for _ in range(count)]

        multiplied = list(islice(left, given.multiplied))
        added = groups(1 if given.added is None else sum(given.added))
        state = list(islice(left, 2 * has_state))
        input_weights = groups(int(given.product is not None and not given.product.joined))
        (weights,) = groups(1)
        return Operands(multiplied, added, state, input_weights, weights, groups(given.shared))


@lru_cache(maxsize=1024)
def differentiable(layer: Layer) -> Callable[..., tuple[Array, ...]]:
    """From (gates of all steps[, bias][, h, c before], weights) to (h of all steps, the last c)."""
    hidden, gates = layer.all_steps(layer.width), layer.all_steps(4 * layer.width)

    @jax.custom_vjp
    def run(*arrays: Array) -> tuple[Array, ...]:
        h, c = _native.call_several("lstm_layer", layer.spec(), [hidden, layer.state], *arrays)
        return h, c

    def forward(*arrays: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        kept = [gates, ((layer.steps, layer.rows, layer.width), np.float32), hidden]
        spec = replace(layer, keeps=True).spec()
        h, c, activated, cells, before = _native.call_several("lstm_layer", spec, [hidden, layer.state, *kept], *arrays)
        return (h, c), (activated, cells, *arrays[1 + layer.has_bias + layer.has_state :], before)

    def backward(saved: tuple[Array, ...], cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
        *operands, before = saved
        results = [gates, *[layer.state] * (2 * layer.has_state)]
        to_gates, *to_state = _native.call_several("lstm_layer_grad", layer.spec(), results, *operands, *cotangents)
        to_bias = [jnp.sum(to_gates, (0, 1))] * layer.has_bias
        return to_gates, *to_bias, *to_state, _to_weights(layer, before, to_gates)

    run.defvjp(forward, backward)
    return run


def _to_weights(layer: Layer, before: Array, to_gates: Array) -> Array:
    """The gradient to the weights, a product of the rows of all steps."""
    rows, width = layer.steps * layer.rows, layer.width
    h, gates = before.reshape(rows, width), to_gates.reshape(rows, 4 * width)
    left, right = (gates, h) if layer.transposed else (h, gates)
    shape = (left.shape[1], right.shape[1])
    return _native.call("matmul", [0, 1, *shape, rows, 1, 0], shape, left, right)


# --- the op of a node that stands for all of it


def _layer_of(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Layer:
    given, has_state, by_row, transposed = (attrs[name] for name in ("given", "has_state", "by_row", "transposed"))
    gates: Gates = attrs["gates"]
    operands = Operands.of(arrays, given, has_state, gates)
    columns = operands.weights[0].shape[0 if transposed else 1] * gates.arrays
    of_steps = operands.multiplied or [group[0] for group in operands.added]
    if of_steps[0].ndim == 3:
        sizes = of_steps[0].shape[:2]
        rows, steps = sizes if by_row else sizes[::-1]
    else:
        steps = given.multiplied or len(given.added)
        rows = max(a.shape[0] for a in of_steps if a.ndim == 2)  # others are broadcast
    has_bias = gates.shift(columns // 4) is not None or any(_is_bias(group[0]) for group in operands.shared)
    return Layer(
        steps, rows, columns // 4, gates.quarters, has_state, by_row, transposed, has_bias, is_reversed=attrs["is_reversed"]
    )


def _is_bias(array: Any) -> bool:
    """Whether what is added in all steps is a number for each unit."""
    return len(array.shape) == 1


def _joined(group: Sequence[Array], axis: int = -1) -> Array:
    """All gates of a group, side by side."""
    return group[0] if len(group) == 1 else jnp.concatenate(group, axis)


def _operands(
    arrays: Sequence[Array], layer: Layer, given: Given, gates: Gates
) -> tuple[Array, Sequence[Array], Sequence[Array], Array]:
    """The gates of all steps without the recurrent product, the bias if there is one, h and c from before, recurrent weights."""
    operands = Operands.of(arrays, given, layer.has_state, gates)
    weights, terms = _joined(operands.weights, 0 if layer.transposed else 1), list(map(_joined, operands.shared))
    shift = gates.shift(layer.width)
    biases = [term for term in terms if _is_bias(term)] + ([] if shift is None else [shift])
    bias = [jnp.broadcast_to(reduce(jnp.add, biases), (4 * layer.width,))] if biases else []
    terms = [term for term in terms if not _is_bias(term)]
    if layer.by_row:
        terms = [a[:, None] if a.ndim == 2 else a for a in terms]
    if given.product is not None:
        axis, width = int(layer.transposed), layer.width
        if given.product.joined:
            ends = (0, weights.shape[axis] - width) if given.product.joined == "before" else (width, weights.shape[axis])
            begin = ends[1] if given.product.joined == "before" else 0
            input_weights = lax.slice_in_dim(weights, *ends, axis=axis)
            weights = lax.slice_in_dim(weights, begin, begin + width, axis=axis)
        else:
            (group,) = operands.input_weights
            input_weights = _joined(group, given.product.gates_axis)
        multiplied = operands.multiplied
        x = layer.turned(multiplied[0]) if multiplied[0].ndim == 3 else jnp.stack(multiplied)
        terms.append(given.product(x.reshape(-1, x.shape[2]), input_weights).reshape(layer.all_steps(4 * layer.width)[0]))
    if given.added is None:
        terms.append(layer.turned(_joined(operands.added[0])))
    elif any(given.added):
        left, each = iter(map(_joined, operands.added)), (layer.rows, 4 * layer.width)
        sums = [jnp.broadcast_to(sum(islice(left, count)), each) for count in given.added]
        terms.append(jnp.stack(sums, layer.axis))
    return reduce(jnp.add, reversed(terms)), bias, operands.state, weights


def lower(*arrays: Array, **attrs: Any) -> tuple[Array, ...]:
    """By the native part."""
    layer = _layer_of(arrays, attrs)
    gates, bias, state, weights = _operands(arrays, layer, attrs["given"], attrs["gates"])
    h, c = differentiable(layer)(gates, *bias, *state, weights)
    return layer.turned(h), c


def define(*arrays: Array, **attrs: Any) -> tuple[Array, ...]:
    """The same by XLA."""
    layer = _layer_of(arrays, attrs)
    gates, bias, state, weights = _operands(arrays, layer, attrs["given"], attrs["gates"])
    gates = gates + bias[0] if bias else gates
    weights = weights.T if layer.transposed else weights
    hidden = []
    for step in range(layer.steps):
        x = lax.index_in_dim(gates, step, layer.axis, keepdims=False)
        x = x + jnp.matmul(state[0], weights, precision=lax.Precision.HIGHEST) if state else x
        state = list(lstm_cell_kernels.define(x, *state[1:], gates=Gates(layer.quarters)))
        hidden.append(state[0])
    return layer.turned(jnp.stack(hidden, layer.axis)), state[1]


def _unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    if any(a.dtype != np.float32 for a in arrays):
        return "it is not float32"
    layer = _layer_of(arrays, attrs)
    size = math.prod(layer.all_steps(4 * layer.width)[0])
    refusal = _native.array_refusal("float32", (size,))
    return refusal or _native.kernel_refusal("lstm_layer", layer.spec())


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    name = _native.part().library.describe("lstm_layer", _layer_of(arrays, attrs).spec())
    return f"all steps of an LSTM in one call, {name}"


LSTM_LAYER = OpDef(
    "lstm_layer", define, multiple_results=True, native=Native(lower, _unsupported_reason, _describe, sharded="", narrows=False)
)


def state_region(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """What h of a step is of those of all steps."""
    place = attrs["place"]
    return tuple((place, place + 1) if axis == attrs["axis"] else (0, size) for axis, size in enumerate(shape))


STATE_OF_STEP = OpDef(
    "lstm_state_of_step",
    lambda h, *, axis, place: lax.index_in_dim(h, place, axis, keepdims=False),
    region=state_region,
)
