"""Copies of nodes: what a pass does not change is kept, whatever fields there are."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base.dist import split
from oneflow.compiler import batch_slices, channels_last
from oneflow.compiler.plan import Plan, plan
from oneflow.compiler.replicas import per_device
from oneflow.graph.node import Blob, Node, ValidLength


def unusual_node() -> Node:
    """A node none of whose fields, nor its outputs', has its default value."""
    found: list[Node] = []

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        y = flow.math.relu(flow.unpack(x, 2))
        found.append(y.node)
        return flow.pack(y, 2)

    assert job.graph.nodes
    (node,) = found
    node.run = (1,)
    for blob in node.outputs:
        blob.distribute = split(1)
        blob.is_dynamic = blob.is_tensor_list = True
        blob.valid_length = ValidLength(0, blob)
        blob._suffix = "unusual"
    return node


def test_a_copy_keeps_every_field():
    node = unusual_node()
    unset = {f.name for f in fields(Node) if not getattr(node, f.name)}
    assert unset <= {"attrs"}, "a new field of Node: give it a value here that is not its default"
    twin = node.copy()
    for field in fields(Node):
        if field.name != "outputs":
            assert getattr(twin, field.name) == getattr(node, field.name), field.name
    for blob, old in zip(twin.outputs, node.outputs, strict=True):
        assert blob.node is twin
        for name in set(Blob.__slots__) - {"node", "valid_length"}:
            assert getattr(blob, name) is getattr(old, name), name
        assert blob.valid_length.axis == 0 and blob.valid_length.count is blob, (
            "a true size that the node itself computes is the copy's"
        )


def test_a_copy_changes_what_it_is_told_to():
    node = unusual_node()
    blob = node.inputs[0]
    twin = node.copy(lambda b: b.copy(dtype=flow.int8), name="other", run=())
    assert (twin.name, twin.run, twin.op) == ("other", (), node.op)
    assert twin.inputs[0].dtype is flow.int8 and twin.inputs[0].node is blob.node
    assert node.name != "other" and node.inputs[0] is blob
    with pytest.raises(TypeError, match="no_such_field"):
        node.copy(no_such_field=1)
    with pytest.raises(TypeError, match="no_such_field"):
        blob.copy(no_such_field=1)


def plan_of(job: Any) -> Plan:
    return plan(job.graph, [job.graph.returns])


def assert_kept(copy: Node, node: Node, changed: set[str], of_outputs: set[str]) -> None:
    """All fields but those named are the same."""
    for field in fields(Node):
        if field.name not in changed | {"outputs"}:
            assert getattr(copy, field.name) == getattr(node, field.name), field.name
    for blob, old in zip(copy.outputs, node.outputs, strict=True):
        for name in set(Blob.__slots__) - of_outputs - {"node", "valid_length"}:
            assert getattr(blob, name) is getattr(old, name) or getattr(blob, name) == getattr(old, name), name
        assert (blob.valid_length is None) == (old.valid_length is None)


def test_runs_of_a_repeated_part_keep_what_is_known_of_its_nodes():
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        piece = flow.unpack(x, 2)
        rows = flow.argwhere(piece)
        return flow.pack(flow.cast_to_static_shape(flow.cast(rows, flow.float32) * 2.0), 2)

    planned = plan_of(job)
    seen = 0
    for node, copies in planned.expansion.copies.items():
        for copy in copies:
            assert_kept(copy, node, {"inputs", "attrs", "repetition", "run"}, set())
            for blob, old in zip(copy.outputs, node.outputs, strict=True):
                if old.valid_length is not None:
                    seen += 1
                    assert blob.valid_length.count.node.run == copy.run, "the true size of a run is that run's"
    assert seen >= 2


def test_copies_for_devices_keep_what_is_known_of_the_mirrored_node():
    flow.config.cpu_device_num(2)

    @flow.global_function(type="predict")
    def job(x: tp.ListNumpy.Placeholder((8, 3))) -> tp.ListNumpy:
        rows = flow.argwhere(x)
        return flow.cast(rows, flow.float32) * 2.0

    planned = per_device(plan_of(job))
    dynamic = 0
    for node, copies in planned.devices.items():
        for i, copy in enumerate(copies):
            assert_kept(copy, node, {"inputs", "scope", "run"}, set())
            assert copy.scope == replace(node.scope, placement=copy.scope.placement, view="consistent")
            assert copy.scope.placement.devices == (node.scope.placement.devices[i],)
            dynamic += any(b.is_dynamic for b in copy.outputs)
    assert dynamic


def test_channels_last_moves_what_names_an_axis():
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((20, 3, 8, 9))) -> tp.Numpy:
        start = flow.ones_initializer()
        y = flow.math.relu(flow.layers.conv2d(x, 4, 3, padding="SAME", kernel_initializer=start, name="c"))
        y.set_distribute(split(1))
        return y

    planned = plan_of(job)
    relu = next(node for node in planned.compute if node.op.name == "relu")
    relu.outputs[0].valid_length = ValidLength(2, relu.outputs[0])
    copy = channels_last.with_channels_last(relu, relu.inputs, relu.attrs)
    assert_kept(copy, relu, set(), {"shape", "distribute"})
    blob = copy.outputs[0]
    assert blob.shape == (20, 8, 9, 4) and blob.distribute == split(3) and blob.batch_axis == 0 and blob.valid_length.axis == 1
    (region,) = [
        r
        for r in batch_slices.schedule(planned.compute, set(), planned.roots, (), "cpu")[0]
        if isinstance(r, batch_slices.Region)
    ]
    for node in region.nodes:
        original = next(n for n in planned.compute if n.name == node.name)
        assert_kept(node, original, {"inputs", "attrs"}, {"shape", "distribute"})
    x = np.random.default_rng(0).standard_normal((20, 3, 8, 9)).astype(np.float32)
    assert job(x).shape == (20, 4, 8, 9)
