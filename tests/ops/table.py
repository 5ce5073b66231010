"""The op table: what a row is, and a small interpreter that runs rows on the bare graph.

A file ``table_<family>.py`` in this folder holds rows in the lists ROWS, GRADIENTS and REFUSALS; ``test_table.py`` finds it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from oneflow._base import dtype as dtypes
from oneflow._base.dist import parse_placement
from oneflow._base.source import caller
from oneflow.graph.graph import OP_INPUT, OP_VARIABLE, Graph, tracing
from oneflow.graph.node import Blob, Node, Scope

FLOATS = ("float32", "float64")
NUMBERS = ("float32", "float64", "int32", "int64", "int8")


@dataclass(frozen=True)
class Row:
    """One op, or one way to call it.

    Attributes:
      name: what the test is called; the op's name, and how it is called where there are several rows.
      build: makes the Blob (or a tuple of Blobs) from the Blobs that stand for ``inputs``.
      ref: the same over NumPy arrays, which gives what is expected; None where only shape and dtype are (random ops).
      inputs: arrays. Floating ones are tried in each of ``dtypes``; integer ones stay as they are, unless ``dtypes`` says
        otherwise for all of them.
      dtypes: which dtypes the inputs are tried in.
      out: the expected dtype where it is not that of the first input; for several Blobs of different dtypes a tuple of names,
        in which "same" is that of the first input.
      grad: compare the gradient to the floating inputs with finite differences.
      torch: the same over PyTorch tensors, to compare value and gradient with.
      rtol, atol: tolerance of values in float32; float64 is held to 1e-9.
      wide: the op may compute in 64 bits although nothing it is given has 64.
      half: the op takes float16, too.
      train: the kind of the job.
    """

    name: str
    build: Callable[..., Any]
    ref: Callable[..., Any] | None
    inputs: Sequence[np.ndarray] = ()
    dtypes: Sequence[str] = FLOATS
    out: str | tuple[str, ...] | None = None
    grad: bool = True
    torch: Callable[..., Any] | None = None
    rtol: float = 2e-6
    atol: float = 1e-6
    wide: bool = False
    half: bool = True
    train: bool = True


@dataclass(frozen=True)
class Gradient:
    """Where calculus does not say what the gradient is: ``expected`` is that of the outputs' sum, one array (or None for no
    gradient at all) an input."""

    name: str
    build: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    expected: Sequence[Any]


@dataclass(frozen=True)
class Refusal:
    """A mistake, the error's class, and a piece of its text."""

    name: str
    build: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    error: type[Exception]
    text: str


def floats(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Evenly drawn numbers that no two rows share by accident, in float64."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, low, high, seed)).encode()))
    return rng.uniform(low, high, shape)


def ints(*shape: int, low: int = -4, high: int = 5, seed: int = 0, dtype: str = "int32") -> np.ndarray:
    """Whole numbers in [low, high)."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, low, high, seed)).encode()))
    return rng.integers(low, high, shape).astype(dtype)


# --- the interpreter


Traced = tuple[Graph, tuple[Blob, ...]]


def trace(build: Callable[..., Any], shapes: Sequence[tuple[Sequence[int], Any]], train: bool = True) -> Traced:
    """The graph of a job whose body is ``build``, and what it gives."""
    graph = Graph("table", train=train, scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(graph):
        blobs = [
            graph.add_input(f"x{i}", tuple(shape), dtypes.from_numpy(dtype), "Numpy", 0, caller())
            for i, (shape, dtype) in enumerate(shapes)
        ]
        result = build(*blobs)
    return graph, tuple(result) if isinstance(result, (list, tuple)) else (result,)


def trace_arrays(row: Any, arrays: Sequence[np.ndarray]) -> Traced:
    return trace(row.build, [(a.shape, a.dtype) for a in arrays], getattr(row, "train", True))


Values = dict[tuple[str, int], Any]


def forward(graph: Graph, arrays: Sequence[Any], varying: bool = False) -> Values:
    """Every value of the graph, op by op; ``varying``: the arrays may have other shapes than the graph was made for."""
    values: Values = {}
    fed = iter(arrays)
    for number, node in enumerate(graph.nodes):
        for i, value in enumerate(_outputs(node, values, fed, number)):
            blob = node.outputs[i]
            found = (value.shape, value.dtype)
            assert varying or found == (blob.shape, blob.dtype.numpy_dtype), f"{blob} turned out {value.dtype}{value.shape}"
            values[node.name, i] = value
    return values


def _outputs(node: Node, values: Values, fed: Any, number: int) -> tuple[Any, ...]:
    if node.op is OP_INPUT:
        return (next(fed),)
    if node.op is OP_VARIABLE:
        variable = node.graph.variables[node.attrs["variable"]]
        return (np.asarray(variable.initializer.draw(variable.shape, variable.dtype.numpy_dtype, np.random.default_rng(0))),)
    key = {"key": jax.random.key(np.uint32(number))} if node.op.random else {}
    made = node.op.define(*[values[b.node.name, b.index] for b in node.inputs], **node.attrs, **key)
    return tuple(made) if node.op.multiple_results else (made,)


def backward(graph: Graph, values: Values, seeds: dict[tuple[str, int], Any]) -> dict[tuple[str, int], Any]:
    """The gradient of every Blob on a path to the seeded ones: ``op.grad``, or the vjp of ``op.define``."""
    cotangents = dict(seeds)
    for number, node in reversed(list(enumerate(graph.nodes))):
        keys = [(node.name, i) for i in range(len(node.outputs))]
        if node.op in (OP_INPUT, OP_VARIABLE) or not any(k in cotangents for k in keys):
            continue
        wanted = [i for i in range(len(node.inputs)) if not node.op.is_nondifferentiable(i)]
        if not wanted:
            continue
        inputs = tuple(values[b.node.name, b.index] for b in node.inputs)
        outputs = tuple(values[k] for k in keys)
        arriving = tuple(
            cotangents[k] if k in cotangents else np.zeros(o.shape, o.dtype) for k, o in zip(keys, outputs, strict=True)
        )
        for i, gradient in zip(wanted, _pulled(node, inputs, outputs, arriving, wanted, number), strict=True):
            if gradient is not None and gradient.dtype != jax.dtypes.float0:
                assert gradient.shape == inputs[i].shape, f"gradient {gradient.shape} of an input {inputs[i].shape} of {node}"
                assert gradient.dtype == inputs[i].dtype, f"gradient {gradient.dtype} of an input {inputs[i].dtype} of {node}"
                at = (node.inputs[i].node.name, node.inputs[i].index)
                cotangents[at] = cotangents[at] + gradient if at in cotangents else gradient
    return cotangents


def _pulled(node: Node, inputs: Any, outputs: Any, arriving: Any, wanted: list[int], number: int) -> list[Any]:
    if node.op.grad is not None:
        gradients = node.op.grad(inputs, outputs, arriving, **node.attrs)
        return [gradients[i] for i in wanted]
    if not any(np.issubdtype(inputs[i].dtype, np.inexact) for i in wanted):
        return [None] * len(wanted)
    key = {"key": jax.random.key(np.uint32(number))} if node.op.random else {}

    def of_wanted(*chosen: Any) -> Any:
        full = list(inputs)
        for i, array in zip(wanted, chosen, strict=True):
            full[i] = array
        made = node.op.define(*full, **node.attrs, **key)
        return tuple(made) if node.op.multiple_results else (made,)

    return list(jax.vjp(of_wanted, *(inputs[i] for i in wanted))[1](arriving))


def compiled(row: Any, arrays: Sequence[np.ndarray]) -> Callable[..., list[Any]]:
    """The row's job for arrays of these shapes, as one program: op by op, XLA compiles each one for each shape."""
    graph, results = trace_arrays(row, arrays)

    def step(*fed: Any) -> list[Any]:
        values = forward(graph, fed)
        return [values[b.node.name, b.index] for b in results]

    return jax.jit(step)


def run(row: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The values of the row's Blobs."""
    return [np.asarray(value) for value in compiled(row, arrays)(*arrays)]


def gradients(row: Any, arrays: Sequence[np.ndarray], weights: Sequence[np.ndarray] | None = None) -> list[np.ndarray | None]:
    """The gradients to the inputs of the sum of the row's results, or of their products with ``weights``."""
    graph, results = trace_arrays(row, arrays)
    seeds: dict[tuple[str, int], Any] = {}
    for i, blob in enumerate(results):
        at = (blob.node.name, blob.index)
        weight = np.ones(blob.shape) if weights is None else weights[i]
        seeds[at] = seeds.get(at, 0) + np.asarray(weight).astype(blob.dtype.numpy_dtype)

    def step(seeds: list[Any], *fed: Any) -> list[Any]:
        found = backward(graph, forward(graph, fed), dict(zip(seeded, seeds, strict=True)))
        return [found.get((node.name, 0)) for node in graph.nodes if node.op is OP_INPUT]

    seeded = list(seeds)
    job = jax.jit(step)
    made = job(list(seeds.values()), *arrays)  # seeds are arguments: gradients of constants alone would not be run
    return [None if gradient is None else np.asarray(gradient) for gradient in made]
