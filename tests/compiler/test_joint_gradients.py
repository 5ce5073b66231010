"""Weights that several nodes share get their gradient at once: of the rows of all nodes, concatenated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler import arrangement

BATCH, WIDTH, STEPS = 3, 16, 4
RATE = flow.optimizer.PiecewiseConstantScheduler([], [1.0])


def recurrent(times: Callable[[Any, Any, int], Any], x: Any, w: Any, tanh: Any) -> Any:
    state = tanh(x)
    for step in range(STEPS):
        state = tanh(times(state, w, step) + x * 0.5)
    return state


FLOW_TIMES: dict[str, Any] = {
    "as they are": lambda h, w, step: flow.matmul(h, w),
    "transposed": lambda h, w, step: flow.matmul(h, w, transpose_b=True),
    "with a factor": lambda h, w, step: flow.matmul(h, w, alpha=0.5),
    "in two ways": lambda h, w, step: flow.matmul(h, w, transpose_b=step % 2 == 0),
    "of other values": lambda h, w, step: flow.matmul(h, w * 2.0 if step == 0 else w),
}
TORCH_TIMES: dict[str, Any] = {
    "as they are": lambda h, w, step: h @ w,
    "transposed": lambda h, w, step: h @ w.T,
    "with a factor": lambda h, w, step: 0.5 * (h @ w),
    "in two ways": lambda h, w, step: h @ (w.T if step % 2 == 0 else w),
    "of other values": lambda h, w, step: h @ (w * 2.0 if step == 0 else w),
}


def trained(way: str, config: Any = None, watched: list[Any] | None = None, mode: Any = None) -> Any:
    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((BATCH, WIDTH))) -> tp.Numpy:
        w = flow.get_variable("w", (WIDTH, WIDTH), initializer=flow.zeros_initializer())
        scaled = w * 1.0  # a gradient to what is no variable
        if watched is not None:
            flow.watch_diff(scaled, lambda value: watched.append(value.numpy()))
        with flow.experimental.scope.config(**(mode or {})):
            loss = recurrent(FLOW_TIMES[way], x, scaled, flow.math.tanh)
        flow.optimizer.SGD(RATE).minimize(loss)
        return loss

    return job


def values() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((BATCH, WIDTH)).astype(np.float32), random.standard_normal((WIDTH, WIDTH)).astype(
        np.float32
    ) / 4


def updated(job: Any) -> np.ndarray:
    x, w = values()
    flow.train.CheckPoint().init()
    flow.load_variables({"w": w})
    job(x)
    return w - flow.get_all_variables()["w"].numpy()


def expected(way: str) -> np.ndarray:
    x, w = (torch.tensor(value, requires_grad=True) for value in values())
    recurrent(TORCH_TIMES[way], x, w, torch.tanh).mean().backward()
    return w.grad.numpy()


def changed(job: Any) -> str:
    return dict(job.executables[-1][1].plan.passes)["joint gradients"]


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("way", FLOW_TIMES)
def test_gradient_of_shared_weights(way: str, devices: int) -> None:
    flow.config.cpu_device_num(devices)
    watched: list[Any] = []
    job = trained(way, watched=watched)
    np.testing.assert_allclose(updated(job), expected(way), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(watched[0] / (BATCH * WIDTH), expected(way), rtol=1e-4, atol=1e-6)
    count = {"in two ways": "4 nodes to 2", "of other values": "3 nodes to 1"}.get(way, "4 nodes to 1")
    assert changed(job) == f"those of {count} shared inputs, each computed once"


def test_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many products of the forward pass, and of the gradients to states, and one of the gradients to weights."""
    flow.config.enable_native_cpu(False)
    together = trained("transposed")
    gradient, products = updated(together), together.executables[-1][1].hlo().count(" dot(")
    flow.clear_default_session()
    flow.config.enable_native_cpu(False)
    monkeypatch.setattr(arrangement, "joint_gradients", lambda *_: {})
    apart = trained("transposed")
    np.testing.assert_allclose(gradient, updated(apart), rtol=1e-5, atol=1e-7)
    assert changed(apart) == ""
    assert apart.executables[-1][1].hlo().count(" dot(") == products + STEPS - 1


def test_sizes_that_vary_below_those_that_are_declared() -> None:
    @flow.global_function("train")
    def job(a: tp.ListNumpy.Placeholder((2, 6, 64)), b: tp.ListNumpy.Placeholder((2, 6, 64))) -> tp.ListNumpy:
        w = flow.get_variable("w", (64, 64), initializer=flow.ones_initializer())
        loss = flow.math.reduce_sum(flow.matmul(a, w)) + flow.math.reduce_sum(flow.matmul(b, w))
        flow.optimizer.SGD(RATE, momentum=0).minimize(loss)
        return loss

    x = np.ones((2, 3, 64), np.float32)
    for a, b in ((x, x), (x, x[:, :2]), (x[:, :1], x)):
        before = flow.get_all_variables()["w"].numpy()
        job([a], [b])
        rows = 2 * (a.shape[1] + b.shape[1])
        np.testing.assert_allclose(before - flow.get_all_variables()["w"].numpy(), np.full((64, 64), rows), rtol=1e-6)
    assert changed(job) == "those of 2 nodes to 1 shared inputs, each computed once"


def test_on_several_devices_gradients_of_few_rows_are_computed_together_as_well() -> None:
    flow.config.cpu_device_num(3)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((6 * WIDTH, 2))) -> tp.Numpy:
        w = flow.get_variable("w", (2, 2), initializer=flow.ones_initializer())
        for _ in range(STEPS):
            x = flow.math.tanh(flow.matmul(x, w))
        flow.optimizer.SGD(RATE).minimize(x)
        return x

    x = np.random.default_rng(0).standard_normal((6 * WIDTH, 2)).astype(np.float32)
    job(x)
    w, y = torch.ones(2, 2, requires_grad=True), torch.tensor(x)
    for _ in range(STEPS):
        y = torch.tanh(y @ w)
    y.mean().backward()
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - w.grad.numpy(), rtol=1e-5)
    assert changed(job) == "those of 4 nodes to 1 shared inputs, each computed once"
    assert job.executables[-1][1].hlo().count(" all-reduce(") == 1


def test_mixed_precision() -> None:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    job = trained("transposed", config)
    np.testing.assert_allclose(updated(job), expected("transposed"), rtol=0.05, atol=2e-3)
    assert "4 nodes" in changed(job)


def test_parts_that_are_recomputed_stay_apart() -> None:
    job = trained("transposed", mode={"checkpointing": True})
    np.testing.assert_allclose(updated(job), expected("transposed"), rtol=1e-4, atol=1e-6)
    assert changed(job) == ""


def test_gradients_of_micro_batches_stay_apart() -> None:
    """Their parts of the batch are computed one after the other, so that not all activations are kept."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4 * BATCH, WIDTH))) -> tp.Numpy:
        w = flow.get_variable("w", (WIDTH, WIDTH), initializer=flow.ones_initializer())
        loss = flow.matmul(flow.unpack(x, 4), w)
        flow.optimizer.SGD(RATE).minimize(loss)
        return flow.pack(loss, 4)

    job(np.ones((4 * BATCH, WIDTH), np.float32))
    assert "joint gradients" not in dict(job.executables[-1][1].plan.passes)


def test_many_rows_stay_apart() -> None:
    """To concatenate them would cost more than to add up the gradients."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((WIDTH, WIDTH))) -> tp.Numpy:
        w = flow.get_variable("w", (WIDTH, WIDTH), initializer=flow.ones_initializer())
        loss = flow.matmul(flow.math.tanh(flow.matmul(x, w)), w)
        flow.optimizer.SGD(RATE).minimize(loss)
        return loss

    job(np.ones((WIDTH, WIDTH), np.float32))
    assert changed(job) == ""


def test_convolutions() -> None:
    x, w = np.random.default_rng(1).standard_normal((2, 8, 2, 2)).astype(np.float32), np.full((8, 8, 3, 3), 0.1, np.float32)
    w *= np.random.default_rng(2).standard_normal(w.shape).astype(np.float32)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        shared = flow.get_variable("w", w.shape, initializer=flow.zeros_initializer())
        for _ in range(3):
            x = flow.math.tanh(flow.nn.conv2d(x, shared, 1, "SAME"))
        flow.optimizer.SGD(RATE).minimize(x)
        return x

    flow.train.CheckPoint().init()
    flow.load_variables({"w": w})
    job(x)
    shared, y = torch.tensor(w, requires_grad=True), torch.tensor(x)
    for _ in range(3):
        y = torch.tanh(torch.nn.functional.conv2d(y, shared, padding=1))
    y.mean().backward()
    np.testing.assert_allclose(w - flow.get_all_variables()["w"].numpy(), shared.grad.numpy(), rtol=1e-3, atol=1e-5)
    assert "3 nodes to 1" in changed(job)


def test_profiles_count_it_for_the_last_node() -> None:
    job = trained("as they are")
    rows = {row.name: row for row in job.profile(values()[0], steps=3).rows}
    assert "w" not in rows
    last = rows[f"Matmul_{STEPS - 1}"]
    assert last.backward_ms > 0 and last.source and last.flops is None
    assert all(row.flops is None for row in rows.values() if row.op == "matmul")
