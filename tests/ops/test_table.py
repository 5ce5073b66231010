"""Runs every row of every table: value, dtype, shape, gradient, refusals, and no stray 64-bit values."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from table import Gradient, Refusal, Row, compiled, forward, gradients, run, trace, trace_arrays

import oneflow.ops
from oneflow._base import dtype as dtypes
from oneflow.graph.graph import OP_INPUT
from oneflow.ops._emit import OPS

for _module in pkgutil.iter_modules(oneflow.ops.__path__):
    importlib.import_module(f"oneflow.ops.{_module.name}")

TABLES = [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("table_*.py"))]


def _collected(kind: str) -> list[Any]:
    rows = [(table, row) for table in TABLES for row in getattr(table, kind, [])]
    return [pytest.param(row, id=f"{table.__name__.removeprefix('table_')}-{row.name}") for table, row in rows]


ROWS, GRADIENTS, REFUSALS = (_collected(kind) for kind in ("ROWS", "GRADIENTS", "REFUSALS"))


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def _cast(arrays: Any, dtype: str) -> list[np.ndarray]:
    """Floating arrays in that dtype; where it is an integer dtype, all arrays in it."""
    kind = np.dtype(dtype).kind
    return [a.astype(dtype) if a.dtype.kind == "f" or kind in "iu" else a for a in arrays]


def _outs(row: Row, count: int, same: str) -> list[str]:
    outs = row.out if isinstance(row.out, tuple) else [row.out or "same"] * count
    return [same if out == "same" else out for out in outs]


def _expected(row: Row, arrays: list[np.ndarray]) -> list[np.ndarray]:
    assert row.ref is not None
    exact = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    made = row.ref(*exact)
    return [np.asarray(a) for a in made] if isinstance(made, (list, tuple)) else [np.asarray(made)]


def _by_turns(params: list[Any]) -> list[Any]:
    """The first of an op's rows, and every second one of the others; those between are in the long tier."""
    seen: dict[str, int] = {}
    made = []
    for param in params:
        name = param.values[0].name.split()[0]
        seen[name] = seen.get(name, -1) + 1
        made.append(pytest.param(*param.values, id=param.id, marks=[pytest.mark.thorough] * (seen[name] % 2)))
    return made


@pytest.mark.parametrize("row", _by_turns(ROWS))
def test_value(row: Row) -> None:
    for dtype in row.dtypes if any(a.dtype.kind == "f" for a in row.inputs) or "float32" not in row.dtypes else row.dtypes[:1]:
        arrays = _cast(row.inputs, dtype)
        found = run(row, arrays)
        assert [f.dtype.name for f in found] == _outs(row, len(found), arrays[0].dtype.name if arrays else "")
        assert all(f.ndim >= 1 for f in found), "there are no Blobs of rank 0"
        if row.ref is None:
            continue
        expected = _expected(row, arrays)
        assert [f.shape for f in found] == [e.shape for e in expected]
        tight = dtype != "float32"
        for f, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(f, e.astype(f.dtype), rtol=1e-9 if tight else row.rtol, atol=1e-9 if tight else row.atol)


@pytest.mark.parametrize("row", [p for p in ROWS if p.values[0].half and any(a.dtype.kind == "f" for a in p.values[0].inputs)])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_16_bit_floats(row: Row, half: str) -> None:
    shapes = [(a.shape, getattr(dtypes, half).numpy_dtype if a.dtype.kind == "f" else a.dtype) for a in row.inputs]
    _, results = trace(row.build, shapes, row.train)
    assert [b.dtype.name for b in results] == _outs(row, len(results), half)


@pytest.mark.parametrize("row", _by_turns([p for p in ROWS if p.values[0].grad and "float64" in p.values[0].dtypes]))
def test_gradient(row: Row) -> None:
    arrays = _cast(row.inputs, "float64")
    places = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    if not places:
        return
    rng = np.random.default_rng(1)
    job = compiled(row, arrays)
    weights = [rng.standard_normal(f.shape) for f in job(*arrays)]
    found = gradients(row, arrays, weights)

    def objective(moved: list[np.ndarray]) -> float:
        return sum(float(np.sum(np.asarray(result) * w)) for result, w in zip(job(*moved), weights, strict=True))

    for i in places:
        direction = rng.standard_normal(arrays[i].shape)
        step = 1e-6
        ends = [objective([a + sign * step * direction if j == i else a for j, a in enumerate(arrays)]) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        ours = 0.0 if found[i] is None else float(np.sum(found[i] * direction))
        assert ours == pytest.approx(slope, rel=1e-5, abs=1e-6), f"gradient to input {i}"


@pytest.mark.parametrize("row", [p for p in ROWS if p.values[0].torch is not None])
def test_against_pytorch(row: Row) -> None:
    torch = pytest.importorskip("torch")
    arrays = _cast(row.inputs, "float64")
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    assert row.torch is not None
    theirs = row.torch(torch, *tensors)
    (ours,) = run(row, arrays)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9, atol=1e-9)
    if row.grad:
        weights = np.random.default_rng(2).standard_normal(ours.shape)
        theirs.backward(torch.tensor(weights))
        for mine, tensor in zip(gradients(row, arrays, [weights]), tensors, strict=True):
            if tensor.grad is not None:
                np.testing.assert_allclose(mine, tensor.grad.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", GRADIENTS)
def test_gradient_by_convention(row: Gradient) -> None:
    for found, expected in zip(gradients(row, list(row.inputs)), row.expected, strict=True):
        if expected is None:
            assert found is None
        else:
            assert found is not None, "no gradient arrives"
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-15)


ZEROS = {name for name, op in OPS.items() if op.zeros}


@pytest.mark.parametrize("row", [p for p in ROWS if any(name in p.id for name in ZEROS)])
def test_zeros_give_zeros_where_the_op_says_so(row: Row) -> None:
    graph, _ = trace_arrays(row, row.inputs)
    for op, node in [(node.op, node) for node in graph.nodes if node.op.zeros]:
        key = {"key": jax.random.key(0)} if op.random else {}
        sets = [range(len(node.inputs))] if op.zeros == "all" else [[i] for i in range(len(node.inputs))]
        for zeros in sets:
            arrays = [(np.zeros if i in zeros else np.ones)(b.shape, b.dtype.numpy_dtype) for i, b in enumerate(node.inputs)]
            found = op.define(*arrays, **node.attrs, **key)
            assert not np.any(found), "some of the output is not zero"
        if op.flat_at_zero:
            assert op.grad is not None
            assert not np.any(op.grad((arrays[0],), (found,), (found + 1,), **node.attrs)[0])


def _avals(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield from ((equation, v.aval) for v in (*equation.invars, *equation.outvars))
        for inner in jaxprs_in_params(equation.params):
            yield from _avals(inner)


@pytest.mark.parametrize("row", [p for p in ROWS if not p.values[0].wide and "float32" in p.values[0].dtypes])
def test_no_stray_64_bit_values(row: Row) -> None:
    arrays = _cast(row.inputs, "float32")
    if any(a.dtype.itemsize == 8 for a in arrays):
        return
    graph, results = trace_arrays(row, arrays)
    if any(b.dtype.numpy_dtype.itemsize == 8 for b in results):
        return

    def step(*xs: Any) -> Any:
        values = forward(graph, xs)
        return [values[b.node.name, b.index] for b in results]

    for equation, aval in _avals(jax.make_jaxpr(step)(*arrays).jaxpr):
        dtype = getattr(aval, "dtype", np.dtype(np.int8))
        assert jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or dtype.itemsize < 8, f"{dtype} in {equation}"


@pytest.mark.parametrize("row", REFUSALS)
def test_refusal(row: Refusal) -> None:
    with pytest.raises(row.error) as caught:
        trace_arrays(row, row.inputs)
    text = str(caught.value)
    assert row.text in text, text
    assert "your line  " in text and "oneflow/" not in text, f"the user's line is missing:\n{text}"


def test_every_op_has_a_row() -> None:
    reached: set[str] = set()
    for param in ROWS:
        row = param.values[0]
        for dtype in {row.dtypes[0], row.dtypes[-1]}:
            graph, _ = trace_arrays(row, _cast(row.inputs, dtype))
            reached |= {node.op.name for node in graph.nodes}
    several_runs_a_call = {"unpack", "pack", "repeat", "acc"}  # tests/ops/test_time_axis.py
    missing = set(OPS) - reached - several_runs_a_call
    assert not missing, f"ops without a row in tests/ops/table_*.py: {sorted(missing)}"


# Inputs that only a variable can be: tests/ops/test_gradients.py compares their gradients with PyTorch's.
OF_VARIABLES = {
    *(("batch_normalization_training", i) for i in (1, 2)), ("instance_norm", 1), ("instance_norm", 2), ("prelu", 1),
    ("ssp_variable_proxy", 0),
}  # fmt: skip
# The moving statistics of batch normalization are its state: nothing is differentiated through them.
STATE = {("batch_normalization_training", 3), ("batch_normalization_training", 4)}


def _differentiable(row: Any, arrays: list[np.ndarray]) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """(op, input) that may receive a gradient, and those of them that depend on what the row is fed."""
    graph, _ = trace_arrays(row, arrays)
    fed: set[str] = set()
    can: set[tuple[str, int]] = set()
    does: set[tuple[str, int]] = set()
    for node in graph.nodes:
        places = [i for i, b in enumerate(node.inputs) if b.dtype.is_floating_point and not node.op.is_nondifferentiable(i)]
        reached = [i for i in places if node.inputs[i].node.name in fed]
        can |= {(node.op.name, i) for i in places}
        does |= {(node.op.name, i) for i in reached}
        if reached or (node.op is OP_INPUT and node.outputs[0].dtype.is_floating_point):
            fed.add(node.name)
    return can, does


def test_every_differentiable_input_has_its_gradient_checked() -> None:
    can, checked = set(), set()
    for param in ROWS:
        row = param.values[0]
        both = _differentiable(row, _cast(row.inputs, "float64" if "float64" in row.dtypes else row.dtypes[0]))
        can |= both[0]
        if row.grad and "float64" in row.dtypes:
            checked |= both[1]
    for param in GRADIENTS:
        checked |= _differentiable(param.values[0], list(param.values[0].inputs))[1]
    missing = can - checked - OF_VARIABLES - STATE
    assert not missing, f"no row of tests/ops/table_*.py checks the gradient of {sorted(missing)}"
