"""The long tier over the op table: every row at other points and on other shapes, gradients by finite differences everywhere.

Run with ``--thorough``. Rows whose call fits one shape only (an axis, a size written into it) say so with an error, and are
left out for that shape.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from table import Row, forward, gradients, run, trace_arrays
from test_table import ROWS, _cast, _expected

from oneflow.errors import OneFlowError

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def _shuffled(arrays: Any, seed: int) -> list[np.ndarray]:
    """The same numbers at other places, so that ranges and differences stay as the row wants them."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(a.ravel()).reshape(a.shape) if a.dtype.kind == "f" else a for a in arrays]


def _slope(row: Row, arrays: list[np.ndarray], place: int, rng: np.random.Generator) -> tuple[float, float]:
    """The derivative in a random direction: ours, and by differences."""
    weights = [rng.standard_normal(f.shape) for f in run(row, arrays)]
    found = gradients(row, arrays, weights)[place]
    graph, results = trace_arrays(row, arrays)
    direction = rng.standard_normal(arrays[place].shape)

    def objective(step: float) -> float:
        values = forward(graph, [a + step * direction if i == place else a for i, a in enumerate(arrays)])
        return sum(float(np.sum(np.asarray(values[b.node.name, b.index]) * w)) for b, w in zip(results, weights, strict=True))

    ours = 0.0 if found is None else float(np.sum(found * direction))
    h = 1e-6
    return ours, (8 * (objective(h) - objective(-h)) - (objective(2 * h) - objective(-2 * h))) / (12 * h)


DIFFERENTIABLE = [p for p in ROWS if p.values[0].grad and "float64" in p.values[0].dtypes]


@pytest.mark.parametrize("row", DIFFERENTIABLE)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_elsewhere(row: Row, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = _cast(row.inputs if seed == 0 else _shuffled(row.inputs, seed), "float64")
    for place, array in enumerate(arrays):
        if array.dtype.kind == "f":
            ours, theirs = _slope(row, arrays, place, rng)
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6), f"gradient to input {place}"


def _larger(array: np.ndarray, axis: int, times: int) -> np.ndarray:
    """The array several times along an axis, each time a little different where it is floating."""
    if array.ndim <= (axis if axis >= 0 else -axis - 1):
        return array
    varied = array.dtype.kind == "f" and not np.isin(array, (0, 1)).all()  # probabilities of 0 and 1 stay
    parts = [array * (1 - 0.01 * i) if varied else array for i in range(times)]
    return np.concatenate(parts, axis)


COUNTS = ("elem_cnt", "reduced_shape_elem_cnt", "count_not_finite", "multi_count_not_finite")  # references that are numbers
FLEXIBLE = [
    p for p in ROWS
    if p.values[0].ref is not None and p.values[0].inputs and "float64" in p.values[0].dtypes
    and not p.values[0].name.startswith(COUNTS)
]  # fmt: skip


@pytest.mark.parametrize("row", FLEXIBLE)
@pytest.mark.parametrize(("axis", "times"), [(0, 2), (-1, 3)])
def test_values_on_other_shapes(row: Row, axis: int, times: int) -> None:
    arrays = _cast([_larger(a, axis, times) for a in row.inputs], "float64")
    try:
        found = run(row, arrays)
        expected = _expected(row, arrays)
    except (OneFlowError, ValueError, IndexError):
        return  # the row fits one shape
    if [f.shape for f in found] != [e.shape for e in expected]:
        return
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e.astype(f.dtype), rtol=1e-8, atol=1e-8)
