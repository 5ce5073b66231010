"""Details that the tables cannot express: names, batch axes, sizes that vary, variables, help()."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import pytest
from table import floats, forward, ints, trace

import oneflow as flow
from oneflow._base.dist import parse_placement
from oneflow.errors import ArgumentError, DtypeError, DuplicateNameError, ShapeError
from oneflow.graph.graph import Graph, tracing
from oneflow.graph.node import INVALID_AXIS, Scope
from oneflow.ops.array import system_assign
from oneflow.ops.slicing import logical_slice_assign

X = floats(2, 3).astype(np.float32)


@pytest.fixture
def graph():
    """The graph of a job whose body is running."""
    made = Graph("j", train=True, scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(made):
        yield made


def variable(name: str = "v", shape: tuple[int, ...] = (2, 3)) -> flow.get_variable:
    return flow.get_variable(name, shape, initializer=flow.ones_initializer())


# --- names


def test_unnamed_ops_are_numbered_by_kind() -> None:
    graph, _ = trace(lambda x: (x * 2, x * 3, flow.math.reduce_sum(x), flow.math.relu(x)), [(X.shape, X.dtype)])
    assert [n.name for n in graph.nodes[1:]] == ["ScalarMul_0", "ScalarMul_1", "ReduceSum_0", "Relu_0"]


def test_given_names_are_kept_and_unique() -> None:
    graph, (y,) = trace(lambda x: flow.math.exp(x, name="e"), [(X.shape, X.dtype)])
    assert y.logical_blob_name == "e/out_0"
    with pytest.raises(DuplicateNameError):
        trace(lambda x: flow.math.exp(x, name="e") + flow.math.log(x, name="e"), [(X.shape, X.dtype)])


def test_errors_name_the_op() -> None:
    with pytest.raises(ShapeError, match=r"concat 'merge' in job 'table'"):
        trace(lambda x: flow.concat([x, flow.ones([3, 4])], 0, name="merge"), [(X.shape, X.dtype)])


def test_zeros_and_ones_are_named_as_oneflow_does(graph: Graph) -> None:
    assert flow.ones([1], name="a").op_name == "aconstant"


# --- the batch axis


@pytest.mark.parametrize(
    ("build", "axis"),
    [
        (lambda x: flow.transpose(x, [1, 2, 0]), 2),
        (lambda x: flow.transpose(x, [1, 2, 0], batch_axis_non_change=True), 0),
        (lambda x: flow.expand_dims(x, 0), 1),
        (lambda x: flow.squeeze(flow.expand_dims(x, 0), [0]), 0),
        (lambda x: flow.math.reduce_sum(x, 0), INVALID_AXIS),
        (lambda x: flow.math.reduce_sum(x), INVALID_AXIS),
        (lambda x: flow.math.reduce_sum(x, 1), 0),
        (lambda x: flow.math.argmax(flow.transpose(x, [1, 0, 2]), 0), 0),
        (lambda x: x[0], INVALID_AXIS),
        (lambda x: x[None], 1),
        (lambda x: flow.transpose(x, [1, 0, 2])[0], 0),
        (lambda x: x + 1, 0),
    ],
)
def test_batch_axis(build, axis: int) -> None:
    _, (y,) = trace(build, [((2, 3, 4), np.float32)])
    assert y.batch_axis == axis


# --- sizes that vary


def test_definitions_follow_smaller_arrays() -> None:
    """A graph of the bound (4, 3) is evaluated with 2 rows, as a call with a shorter batch does."""

    def build(x):
        x.is_dynamic = True
        return (
            flow.reshape(x, [x.shape[0], -1, 1]), flow.reshape(x, [-1, 3]), flow.reshape(x, [12]), flow.flatten(x),
            flow.math.reduce_mean(x), x[-1], x[1:], flow.slice(x, [1, 0], [2, -1]), flow.elem_cnt(x), flow.zeros_like(x),
            flow.math.reduce_sum(x, 1),
        )  # fmt: skip

    graph, blobs = trace(build, [((4, 3), np.float32)])
    values: dict = {}
    with jax.enable_x64(True):
        for node in graph.nodes:
            made = [X] if not node.inputs else [node.op.define(*[values[b.node.name] for b in node.inputs], **node.attrs)]
            values[node.name] = np.asarray(made[0])
    found = [values[b.node.name] for b in blobs]
    expected = [
        X[..., None], X, X.reshape(-1), X.reshape(-1), np.array([X.mean()]), X[-1], X[1:], X[1:], np.array([6]), X * 0, X.sum(1),
    ]  # fmt: skip
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-6)
    assert [b.is_dynamic for b in blobs] == [True, True, True, True, False, True, True, True, False, True, True]


# --- variables


def test_assign(graph: Graph) -> None:
    v = variable()
    assert flow.assign(v, v + 1) is None
    assert graph.assigns["v"].node.op.name == "scalar_add"
    assert system_assign(v, v * 2) is v
    assert graph.assigns["v"].node.op.name == "scalar_mul"


def test_assign_refuses_another_shape_or_dtype(graph: Graph) -> None:
    with pytest.raises(ShapeError, match="inputs must have equal shapes"):
        flow.assign(variable(), flow.ones([2]))
    with pytest.raises(DtypeError, match="the variable holds float32, not int32"):
        flow.assign(variable(), flow.ones([2, 3], flow.int32))


def test_regions_of_a_variable_are_written_one_after_the_other(graph: Graph) -> None:
    v = variable()
    node = logical_slice_assign(v, flow.zeros([1, 3]), [(0, 1, 1)])
    logical_slice_assign(v, flow.constant(7, flow.float32, [2, 1]), [(None, None, None), (2, 3, 1)])
    assert node.op.name == "slice_update"
    with jax.enable_x64(True):
        result = forward(graph, [])[graph.assigns["v"].node.name, 0]
    np.testing.assert_array_equal(result, [[0, 0, 7], [1, 1, 7]])


def test_parallel_cast_keeps_the_request(graph: Graph) -> None:
    split = flow.distribute.split(1)
    assert flow.parallel_cast(variable(), distribute=split).distribute is split
    y = flow.parallel_cast(variable(), gradient_distribute=split)
    assert y.node.attrs["gradient_distribute"] is split
    with pytest.raises(ArgumentError):
        flow.parallel_cast(variable(), distribute="split(0)")


# --- numbers


def test_number_kinds_beside_a_blob() -> None:
    def build(x):
        return x + True, x + np.bool_(True), x + np.float16(1), x + np.int8(1), x + np.array(1), 1 + x

    graph, blobs = trace(build, [(X.shape, X.dtype)])
    with jax.enable_x64(True):
        values = forward(graph, [X])
    for b in blobs:
        np.testing.assert_allclose(values[b.node.name, 0], X + 1)


def test_equal_integers_and_floats_share_one_evaluation_but_not_one_meaning() -> None:
    """1 == 1.0 == True, so caches by attributes must not mix them up."""
    for x, number, expected in ((ints(3), 1.0, "int32"), (X, 1, "float32"), (X, True, "float32"), (ints(3), True, "int32")):
        _, (y,) = trace(lambda b, n=number: b * n, [(x.shape, x.dtype)])
        assert y.dtype.name == expected


# --- documentation


@pytest.mark.parametrize("function", [flow.math.exp, flow.math.relu, flow.identity, flow.amp_white_identity])
def test_made_functions_have_signatures_and_help(function) -> None:
    assert list(inspect.signature(function).parameters) == ["x", "name"]
    assert "Args:" in inspect.getdoc(function) and ">>> y = flow." in inspect.getdoc(function)
    assert function.__name__ == function.__qualname__ != "function"
