"""Every row of the op tables with inputs whose size varies: what data decide about, and what calls are fed with.

An op that takes a Blob whose size depends on data must give what it gives for an array of the true size, as a value and as a
gradient, whatever stands behind the count: NaN in these tests, and NaN for the cotangents there.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from table import Row, backward, forward, trace
from test_table import ROWS, _cast

import oneflow as flow
from oneflow.errors import OneFlowError, ShapeError
from oneflow.graph.graph import OP_INPUT, OP_VARIABLE, Graph
from oneflow.graph.node import Blob
from oneflow.ops._dynamic_ops import resized
from oneflow.ops._emit import emit_many
from oneflow.ops.masks import with_valid_length


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def _arrays(row: Row) -> list[np.ndarray]:
    return _cast(row.inputs, "float64" if "float64" in row.dtypes else row.dtypes[0])


def _cut(array: np.ndarray, axis: int, n: int) -> np.ndarray:
    return array[(slice(None),) * axis + (slice(n),)]


def _poisoned(array: np.ndarray, axis: int, n: int) -> np.ndarray:
    bad = array.copy()
    bad[(slice(None),) * axis + (slice(n, None),)] = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max
    return bad


def _weights(shape: tuple[int, ...]) -> np.ndarray:
    """Uneven numbers that depend on the place alone, so that those of a smaller array are a part of them."""
    places = sum((a + 0.7) * i for a, i in enumerate(np.indices(shape)))
    return np.sin(places + 1.0)


def _evaluated(
    graph: Graph, results: Sequence[Blob], arrays: Sequence[np.ndarray], differentiated: bool = True
) -> tuple[list[Any], list[Any]]:
    """The values of the results up to their counts, and the gradients of a weighted sum of them to the inputs."""

    def run(*arrays: Any) -> Any:
        values = forward(graph, arrays, varying=True)
        seeds: dict[Any, Any] = {}
        for blob in results:
            at = (blob.node.name, blob.index)
            weights = jax.numpy.asarray(_weights(values[at].shape).astype(blob.dtype.numpy_dtype))
            if blob.has_dynamic_size:
                place = jax.lax.broadcasted_iota(np.int32, blob.shape, blob.valid_length.axis)
                inside = place < values[blob.valid_length.count.node.name, blob.valid_length.count.index]
                weights = jax.numpy.where(
                    inside, weights, weights + np.array(np.nan if weights.dtype.kind == "f" else 1, weights.dtype)
                )
            seeds[at] = seeds.get(at, 0) + weights
        gradients = backward(graph, values, seeds) if differentiated else {}
        keys = [(b.node.name, b.index) for b in results] + [
            (b.valid_length.count.node.name, b.valid_length.count.index) for b in results if b.has_dynamic_size
        ]
        return {key: values[key] for key in keys}, {k: g for k, g in gradients.items() if g.dtype != jax.dtypes.float0}

    values, gradients = jax.jit(run)(*arrays)
    found = []
    for blob in results:
        value = np.asarray(values[blob.node.name, blob.index])
        if blob.has_dynamic_size:
            n, axis = int(values[blob.valid_length.count.node.name, blob.valid_length.count.index][0]), blob.valid_length.axis
            assert 0 <= n <= value.shape[axis]
            value = _cut(value, axis, n)
        found.append(value)
    return found, [gradients.get((node.name, 0)) for node in graph.nodes if node.op is OP_INPUT]


def _compare(row: Row, build: Callable[..., Any], arrays: list[np.ndarray], chosen: list[int], axis: int, n: int) -> bool:
    """Whether the row takes inputs ``chosen`` with an axis of dynamic size; the results must be those of cut arrays then."""
    try:
        shapes = [((_cut(a, axis, n) if i in chosen else a).shape, a.dtype) for i, a in enumerate(arrays)]
        static = trace(build, shapes, row.train)
    except (OneFlowError, IndexError, ZeroDivisionError):
        return False  # arrays of that size are not for this row

    def with_counts(*blobs: Blob) -> Any:
        *given, size = blobs
        count: Blob | None = None
        made = []
        for i, blob in enumerate(given):
            if i in chosen:
                if axis:
                    blob = flow.transpose(blob, [axis, *(a for a in range(blob.ndim) if a != axis)])
                y, own = emit_many(resized, blob, size)
                count = own if count is None else count  # one count for all of them
                blob = with_valid_length(y, 0, count)
                if axis:
                    blob = flow.transpose(blob, [*range(1, axis + 1), 0, *range(axis + 1, blob.ndim)])
            made.append(blob)
        return build(*made)

    try:
        graph, results = trace(with_counts, [*((a.shape, a.dtype) for a in arrays), ((1,), np.int32)], row.train)
    except ShapeError as error:
        assert "depends on data" in str(error) or "depend on data" in str(error), error
        return False
    fed = [_poisoned(a, axis, n) if i in chosen else a for i, a in enumerate(arrays)]
    values, gradients = _evaluated(graph, results, [*fed, np.array([n], np.int32)])
    if any(node.op.random for node in graph.nodes):
        return True
    expected, wanted = _evaluated(*static, [_cut(a, axis, n) if i in chosen else a for i, a in enumerate(arrays)])
    for value, right in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6, atol=1e-9)
    for i, (gradient, right) in enumerate(zip(gradients, wanted, strict=False)):
        if right is not None and arrays[i].dtype.kind == "f":
            gradient = np.zeros(arrays[i].shape) if gradient is None else np.asarray(gradient)
            gradient = _cut(gradient, axis, n) if i in chosen else gradient
            np.testing.assert_allclose(gradient, right, rtol=1e-6, atol=1e-9, err_msg=f"gradient to input {i}")
    return True


def _choices(arrays: list[np.ndarray], axis: int) -> list[list[int]]:
    long = [i for i, a in enumerate(arrays) if a.ndim > axis and a.shape[axis] > 1]
    if not long:
        return []
    same = [i for i in long if arrays[i].shape[axis] == arrays[long[0]].shape[axis]]
    return [same] if same == [long[0]] else [same, [long[0]]]


THOROUGH = bool(os.environ.get("ONEFLOW_THOROUGH"))
SINGLE = ("abs", "log", "relu")  # rows that stand for all ops of one Blob, element by element


FULL_SIZE = [p for p in ROWS if "cast_to_static_shape" in p.id or p.id.startswith("masks-")]  # the result has the bound's shape


@cache
def _selected() -> list[Any]:
    """One row an op, and three for all that work element by element on one Blob."""
    if THOROUGH:
        return [p for p in ROWS if p not in FULL_SIZE]
    chosen: dict[str, Any] = {}
    for param in ROWS:
        if param in FULL_SIZE:
            continue
        row = param.values[0]
        ops = {node.op for node in trace(row.build, [(a.shape, a.dtype) for a in _arrays(row)], row.train)[0].nodes}
        ops = {op for op in ops if op is not OP_INPUT}
        if row.name not in SINGLE and all(op.elementwise and len(op.batch_inputs) == 1 for op in ops):
            continue
        if any(op.name not in chosen for op in ops):
            chosen.update({op.name: param for op in ops if op.name not in chosen})
    return list({id(param): param for param in chosen.values()}.values())


def _ways(row: Row, arrays: list[np.ndarray], axes: tuple[int, ...]) -> Iterator[tuple[int, list[int], int]]:
    """(axis, the inputs that are shorter on it, their size there)."""
    for axis in (0, 1) if THOROUGH else axes:
        for chosen in _choices(arrays, axis)[: 2 if THOROUGH else 1]:
            yield axis, chosen, 1 + zlib.crc32(row.name.encode()) % (arrays[chosen[0]].shape[axis] - 1)


# Which rows are selected is found out where they are used: tracing all of them takes too long for each process that looks for
# tests. A test is a family of rows therefore.
FAMILIES = sorted({param.id.split("-")[0] for param in ROWS})


def _each_of(family: str, test: Callable[[Row], None], selected: Callable[[Row], bool] = lambda row: True) -> None:
    for param in _selected():
        row = param.values[0]
        if param.id.startswith(f"{family}-") and selected(row):
            try:
                test(row)
            except BaseException as error:
                error.add_note(f"in row {param.id}")
                raise


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_depend_on_data(family: str) -> None:
    def holds(row: Row) -> None:
        arrays = _arrays(row)
        for axis, chosen, n in _ways(row, arrays, (0, 1) if family == "indexing" else (0,)):
            _compare(row, row.build, arrays, chosen, axis, n)

    _each_of(family, holds)


def _has_attributes(row: Row) -> bool:
    return any(n.attrs for n in trace(row.build, [(a.shape, a.dtype) for a in _arrays(row)], row.train)[0].nodes)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_calls_decide(family: str) -> None:
    """A graph of the largest shapes gives for smaller arrays what a graph of their shapes gives.

    Only attributes can have been made for the largest shapes, and only gradients that ops say themselves see attributes apart
    from values.
    """
    _each_of(family, _holds_for_calls, lambda row: THOROUGH or _has_attributes(row))


def _holds_for_calls(row: Row) -> None:
    arrays = _arrays(row)
    for axis, chosen, n in _ways(row, arrays, (0,)):
        smaller = [_cut(a, axis, n) if i in chosen else a for i, a in enumerate(arrays)]
        try:
            graph, results = trace(row.build, [(a.shape, a.dtype) for a in smaller], row.train)
        except (OneFlowError, IndexError, ZeroDivisionError):
            continue  # arrays of that size are not for this row

        def dynamic(*blobs: Blob, chosen: list[int] = chosen) -> Any:
            for i in chosen:
                blobs[i].is_dynamic = True
            return row.build(*blobs)

        bound, varying = trace(dynamic, [(a.shape, a.dtype) for a in arrays], row.train)
        if any(node.op.random or node.op is OP_VARIABLE for node in graph.nodes) or any(b.has_dynamic_size for b in varying):
            continue
        differentiated = THOROUGH or any(node.op.grad is not None for node in graph.nodes)
        wanted = _evaluated(graph, results, smaller, differentiated)
        found = _evaluated(bound, varying, smaller, differentiated)
        for value, right in zip([*found[0], *found[1]], [*wanted[0], *wanted[1]], strict=True):
            if right is not None:
                np.testing.assert_allclose(value, right, rtol=1e-9, atol=1e-12, err_msg=f"axis {axis}")
