"""``job.plan()``: what a placement costs."""

from __future__ import annotations

import numpy as np
from placed_jobs import begin, constant

import oneflow as flow
import oneflow.typing as tp
from oneflow._reports.placement import collectives


def declare(first: str, second: str):
    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        start = flow.random_normal_initializer()
        with flow.scope.placement("gpu", first):
            h = flow.layers.dense(x, 32, kernel_initializer=start, name="first", model_distribute=flow.distribute.split(0))
        with flow.scope.placement("gpu", second):
            loss = flow.math.reduce_mean(flow.layers.dense(h, 4, kernel_initializer=start, name="second"), axis=[1])
        flow.optimizer.Adam(constant(0.1)).minimize(loss)
        return loss

    return step


def test_devices_share_each_micro_batch() -> None:
    flow.config.cpu_device_num(4)
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(4)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((32, 16))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            loss = flow.math.reduce_mean(flow.layers.dense(x, 64, kernel_initializer=flow.ones_initializer(), name="a"))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    products = [row.layout for row in train.plan().ops if row.name.startswith("a-matmul")]
    assert products == ["S(0)"] * 4


def test_plan_of_a_data_parallel_job_finds_the_gradients_reduction():
    begin(4)
    flow.config.enable_native_cpu(False)  # an update that adds up gradients by itself has no collective

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 32, name="d")), axis=[1])
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss

    plan = step.plan()
    ops = {row.name: row for row in plan.ops}
    assert ops["d-matmul"].layout == "S(0)" and ops["d-matmul"].bytes_per_device == 16 * 32 * 4 // 4
    reduced = [row for row in plan.collectives if row.kind == "all-reduce"]
    assert sum(row.bytes * row.count for row in reduced) >= (32 * 8 + 32) * 4
    assert {row.devices for row in reduced} == {4}
    assert plan.state_bytes == dict.fromkeys(["0:0", "0:1", "0:2", "0:3"], (32 * 8 + 32) * 4 + 8)
    assert plan.transfers == ()


def test_plan_of_stages_lists_transfers_and_draws():
    begin(4)
    step = declare("0:0-1", "0:2-3")
    plan = step.plan()
    assert [(r.name, r.source, r.target, r.backward) for r in plan.transfers] == [
        ("first-bias_add", "gpu 0:0-1", "gpu 0:2-3", False),
        ("first-bias_add", "gpu 0:2-3", "gpu 0:0-1", True),
    ]
    rows = {row.name: row for row in plan.variables}
    assert rows["first-weight"].layout == "S(0)" and rows["first-weight"].bytes_per_device == 32 * 8 * 4 // 2
    assert rows["first-weight-m"].bytes_per_device == rows["first-weight"].bytes_per_device
    assert rows["second-weight"].placement == "gpu 0:2-3"
    text = str(plan)
    for word in ("first-matmul", "S(1)", "transfers per call", "state per device", "working memory"):
        assert word in text
    drawing = plan.draw()
    assert "gpu 0:0-1" in drawing and "▼" in drawing
    boxes = [line for line in drawing.splitlines() if line[0] in "┌│└"]
    for top, below in zip(boxes, boxes[1:], strict=False):
        assert len(top) == len(below) or top[0] == "└"  # the sides of a box are straight
    shown = plan._repr_html_()
    for word in ("<td", "first-matmul", "transfers per call", "first-bias_add (gradient)", "sent per call"):
        assert word in shown
    assert step(np.ones((16, 8), np.float32)).shape == (16,)  # it goes on from the plan's executable


def test_a_model_larger_than_the_machine_is_planned_without_being_run():
    begin(8)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((8, 65536))) -> tp.Numpy:
        split = flow.distribute.split(0)
        w = flow.get_variable("w", (1 << 20, 65536), initializer=flow.random_normal_initializer(), distribute=split)
        loss = flow.math.reduce_mean(flow.matmul(x, w, transpose_b=True), axis=[1])
        flow.optimizer.SGD(constant(0.1), momentum=0.9).minimize(loss)
        return loss

    plan = step.plan()
    assert plan.state_bytes["0:0"] >= 2 * (1 << 36) * 4 // 8


def test_plan_of_one_device():
    begin(1)
    plan = declare("0:0", "0:0").plan()
    assert plan.collectives == () and plan.transfers == ()
    assert {row.layout for row in plan.variables} <= {"B", "S(0)"}
    assert "collectives per call: none" in str(plan)


def test_scalars_that_are_sent_have_bytes_too():
    (found,) = collectives("  %a = (f32[256]{0}, f32[]) all-reduce(%x, %y), replica_groups={{0,1}}", set())
    assert found[1:3] == (2, 1028)
