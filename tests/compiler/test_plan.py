"""Planning: a list of passes from a graph to a plan, which write nothing back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler.plan import PASSES, Plan, on_one_place, plan
from oneflow.graph.graph import Graph
from oneflow.graph.node import Blob, Node


def convolutions() -> Any:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((20, 3, 8, 8)), y: tp.Numpy.Placeholder((20,), dtype=flow.int32)) -> tp.Numpy:
        start = flow.random_normal_initializer(stddev=0.1)
        x = flow.layers.conv2d(x, 4, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=start, name="c")
        x = flow.nn.dropout(flow.reshape(x, (20, -1)), 0.5)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(x, 5, name="d"))
        flow.watch_diff(x, lambda value: None)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    return job


def micro_batches() -> Any:
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        h = flow.layers.batch_normalization(flow.layers.dense(flow.unpack(x, 4), 4, name="d"), axis=1, name="n")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(h)
        return flow.pack(h, 4)

    return job


def on_host() -> Any:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 4, 4, 3))) -> tp.Numpy:
        flow.math.exp(x)  # nobody needs it
        buffers = flow.tensor_to_tensor_buffer(x, 3)
        return flow.math.relu(flow.tensor_buffer_to_tensor(buffers, flow.float, (4, 4, 3)))

    return job


def said(value: Any, names: dict[int, str]) -> Any:
    """A value of a plan in words that do not depend on which copies of nodes it has."""
    if isinstance(value, Node):
        return value.name, value.op.name, value.run, value.attrs, tuple(said(b, names) for b in value.inputs)
    if isinstance(value, Blob):
        return value.node.name, value.node.run, value.index, value.shape
    if isinstance(value, (tuple, list)):
        return [said(v, names) for v in value]
    if isinstance(value, (frozenset, set)):
        return sorted(str(said(v, names)) for v in value)
    if isinstance(value, dict):
        return [(said(k, names), said(v, names)) for k, v in value.items()]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, Graph):
        return [(f.name, said(getattr(value, f.name), names)) for f in fields(value)]
    return value


def fields_of(node: Node) -> list[Any]:
    return [getattr(node, f.name) for f in fields(Node)]


@pytest.mark.parametrize("declare", [convolutions, micro_batches, on_host])
def test_planning_twice_gives_the_same_and_changes_nothing(declare: Any) -> None:
    graph = declare().graph
    before = [fields_of(node) for node in graph.nodes]
    plans = [on_one_place(plan(graph, [graph.returns]), 1) for _ in range(2)]
    for node, values in zip(graph.nodes, before, strict=True):
        assert all(a is b for a, b in zip(fields_of(node), values, strict=True)), node
    for field in fields(Plan):
        first, second = (said(getattr(p, field.name), {}) for p in plans)
        assert first == second, field.name


def test_passes_say_what_they_changed() -> None:
    graph = on_host().graph
    made = plan(graph, [graph.returns])
    assert [record.name for record in made.passes] == [each.name for each in PASSES]
    changed = dict(made.passes)
    assert changed["needed nodes"] == "1 node left out"
    assert changed["host stage"] == "2 nodes moved to the host"
    assert changed["repeated parts"] == changed["mixed precision"] == ""

    graph = micro_batches().graph
    changed = dict(plan(graph, [graph.returns]).passes)
    assert changed["repeated parts"].endswith("unrolled, one copy per run")


@pytest.mark.cpu("what is arranged for one device is arranged for the native part")
def test_a_summary_lists_the_passes() -> None:
    job = convolutions()
    text = str(job.summary())
    assert "mixed precision: " in text and "gradient path: " in text
    job(np.zeros((20, 3, 8, 8), np.float32), np.zeros(20, np.int32))
    assert "one device: " in str(job.summary()), "what is arranged for the device is known when it has been compiled"
