"""Random small graphs on random placements, with random layouts: results and gradients are those of one device."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_jobs import begin, constant

import oneflow as flow
import oneflow.typing as tp

DEVICES, BATCH = 4, 6
PLACES = ["0:0", "0:1", "0:3", "0:0-1", "0:1-3", "0:0-3"]
LAYOUTS = [None, flow.distribute.broadcast(), flow.distribute.split(0), flow.distribute.split(1)]


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, str, Any, Any, int]]:
    """Layers: an op, where it runs, how its variable and its value lie, and which earlier value it reads besides the last."""
    return [
        (
            draw(st.sampled_from(["matmul", "scale", "add", "normalize", "softmax", "concat", "mean"])),
            draw(st.sampled_from(PLACES)),
            draw(st.sampled_from(LAYOUTS[1:3])),
            draw(st.sampled_from(LAYOUTS)),
            draw(st.integers(0, 9)),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


def layer(kind: str, i: int, x: Any, other: Any, variable_layout: Any) -> Any:
    start = flow.random_normal_initializer(stddev=0.4)
    width = x.shape[1]
    if kind == "matmul":
        return flow.math.tanh(
            flow.matmul(x, flow.get_variable(f"w{i}", (width, 5), initializer=start, distribute=variable_layout))
        )
    if kind == "scale":
        return flow.math.multiply(x, flow.get_variable(f"s{i}", (width,), initializer=start, distribute=variable_layout))
    if kind == "add":
        return x + flow.math.reduce_sum(other, axis=[1], keepdims=True)
    if kind == "normalize":
        return flow.layers.layer_norm(x, begin_norm_axis=1, begin_params_axis=1, name=f"n{i}")
    if kind == "softmax":
        return flow.nn.softmax(x)
    if kind == "concat":
        return flow.concat([x, other], axis=1)
    return x - flow.math.reduce_mean(x, axis=[0], keepdims=True)


def run(devices: int, layers: list[tuple[str, str, Any, Any, int]], micro_batches: int) -> tuple[Any, ...]:
    begin(devices)
    gradients: dict[str, np.ndarray] = {}

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((BATCH, 5))) -> tp.Numpy:
        h = flow.matmul(x, flow.get_variable("w", (5, 5), initializer=flow.random_normal_initializer(stddev=0.4)))
        if micro_batches > 1:
            h = flow.unpack(h, micro_batches)
        values = [h]
        for i, (kind, place, variable_layout, value_layout, earlier) in enumerate(layers):
            with flow.scope.placement("gpu", place if devices > 1 else "0:0"):
                y = layer(kind, i, values[-1], values[earlier % len(values)], variable_layout)
                if value_layout is not None:
                    y = flow.parallel_cast(y, distribute=value_layout, gradient_distribute=value_layout)
                values.append(y)
        loss = flow.math.reduce_mean(flow.math.square(values[-1]), axis=[1])
        if micro_batches == 1:
            flow.watch_diff(values[0], lambda g: gradients.update(h=g.numpy()))
        flow.optimizer.SGD(constant(0.5), momentum=0).minimize(loss)
        return loss

    loss = job(np.random.default_rng(0).standard_normal((BATCH, 5)).astype(np.float32))
    flow.sync_default_session()
    return loss, gradients, {name: v.numpy() for name, v in flow.get_all_variables().items()}


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.sampled_from([1, 1, 2]))
def test_a_random_graph_computes_the_same_anywhere(layers, micro_batches):
    expected = run(1, layers, micro_batches)
    found = run(DEVICES, layers, micro_batches)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-5)
    for name, value in expected[2].items():
        np.testing.assert_allclose(found[2][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
