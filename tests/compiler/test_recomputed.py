"""Values that XLA would compute in many loops: recurrences whose programs grow with their length, and random programs.

Each step of the recurrences has a number of its own, so that they are not compiled as one loop (``test_loops.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler import recomputed

ROWS, WIDTH = 4, 32
NUMBERS = [1 + step / 64 for step in range(32)]  # one for each step
STORED = " call("

# --- recurrences, written once for the library and for PyTorch: x of each step, and the weights, give the states


def average(np_: Any, xs: list[Any], w: list[Any]) -> list[Any]:
    rate, s, states = np_.sigmoid(w[0]), xs[0], []
    for x, number in zip(xs, NUMBERS, strict=False):
        s = s * rate + x * (1 - rate) * number
        states.append(s)
    return states


def gated(np_: Any, xs: list[Any], w: list[Any]) -> list[Any]:
    """A gated recurrent unit."""
    h, states = xs[0], []
    for x, number in zip(xs, NUMBERS, strict=False):
        z, n = np_.sigmoid(x + np_.matmul(h, w[1])), np_.tanh(np_.matmul(x, w[2]) * number + np_.matmul(h, w[3]))
        h = (1 - z) * n + z * h
        states.append(h)
    return states


def independent(np_: Any, xs: list[Any], w: list[Any]) -> list[Any]:
    h, states = xs[0], []
    for x, number in zip(xs, NUMBERS, strict=False):
        h = np_.relu(np_.matmul(x, w[1]) + h * w[0] * number)
        states.append(h)
    return states


def balanced(np_: Any, xs: list[Any], w: list[Any]) -> list[Any]:
    """Rows and columns divided by their sums, in turns."""
    p = np_.sigmoid(np_.matmul(xs[0], w[1]))
    for _, number in zip(xs, NUMBERS, strict=False):
        p = p * number / np_.sum(p, 1)
        p = p / np_.sum(p, 0)
    return [p]


class Ours:
    matmul, sigmoid, tanh, relu = flow.matmul, flow.math.sigmoid, flow.math.tanh, flow.nn.relu

    @staticmethod
    def sum(x: Any, axis: int) -> Any:
        return flow.math.reduce_sum(x, [axis], keepdims=True)


class Theirs:
    matmul, sigmoid, tanh, relu = torch.matmul, torch.sigmoid, torch.tanh, torch.relu

    @staticmethod
    def sum(x: Any, axis: int) -> Any:
        return x.sum(axis, keepdim=True)


SHAPES = [(WIDTH,), *[(WIDTH, WIDTH)] * 3]
NAMES = [f"w{i}" for i in range(len(SHAPES))]


def weights() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [(0.2 * random.standard_normal(shape)).astype(np.float32) for shape in SHAPES]


def sequence(length: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, length, WIDTH)).astype(np.float32)


def job_of(cell: Callable[..., list[Any]], length: int, kind: str) -> Any:
    @flow.global_function(kind)
    def job(x: tp.Numpy.Placeholder((ROWS, length, WIDTH))) -> tp.Numpy:
        xs = [flow.squeeze(flow.slice(x, [None, t, None], [None, 1, None]), [1]) for t in range(length)]
        w = [flow.get_variable(n, s, initializer=flow.zeros_initializer()) for n, s in zip(NAMES, SHAPES, strict=True)]
        states = flow.stack(cell(Ours, xs, w), 1)
        if kind == "train":
            loss = flow.math.reduce_sum(flow.math.square(states))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return states

    flow.load_variables(dict(zip(NAMES, weights(), strict=True)), ignore_mismatch=True)
    return job


@pytest.mark.filterwarnings("ignore::oneflow.errors.JobWarning")  # of variables that a recurrence does not read
@pytest.mark.parametrize(("kind", "devices"), [("train", 1), ("predict", 1), ("train", 2)])
@pytest.mark.parametrize("cell", [average, gated, independent, balanced])
def test_programs_of_recurrences_grow_with_their_length(cell: Callable[..., list[Any]], kind: str, devices: int) -> None:
    x, lengths = sequence(32), []
    for length in (16, 32):
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        job = job_of(cell, length, kind)
        found = job(x[:, :length])
        lengths.append(len(job.executables[-1][1].hlo()))
    assert lengths[1] < 2.4 * lengths[0]
    xs, w = [torch.tensor(x[:, t]) for t in range(32)], [torch.tensor(a, requires_grad=True) for a in weights()]
    states = torch.stack(cell(Theirs, xs, w), 1)
    np.testing.assert_allclose(found, states.detach().numpy(), rtol=1e-4, atol=1e-5)
    if kind == "train":
        states.square().sum().backward()
        for name, theirs, start in zip(NAMES, w, weights(), strict=True):
            if theirs.grad is not None:
                slope = start - flow.get_all_variables()[name].numpy()
                np.testing.assert_allclose(slope, theirs.grad.numpy(), rtol=1e-3, atol=1e-4 * float(theirs.grad.abs().max()))


def test_densely_connected_layers_read_what_is_joined_from_memory() -> None:
    """All that the layers before made, joined once: the loop of each reader would have branches for the pieces."""
    layers, start = 8, flow.random_normal_initializer(stddev=0.1)

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
        for i in range(layers):
            scale = flow.get_variable(f"scale{i}", (x.shape[1],), initializer=start)
            y = flow.matmul(flow.nn.relu(x * scale), flow.get_variable(f"w{i}", (x.shape[1], 8), initializer=start))
            x = flow.concat([x, y], 1)
        return x

    x = sequence(1)[:, 0]
    found = job(x)
    assert job.executables[-1][1].hlo().count(STORED) == layers - 1  # what is joined last is joined with nothing more
    w = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    y = x
    for i in range(layers):
        y = np.concatenate([y, np.maximum(y * w[f"scale{i}"], 0) @ w[f"w{i}"]], 1)
    np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)


def test_micro_batches_and_watches() -> None:
    """In a job of several compiled functions, and in one that calls Python."""
    x, seen, found = sequence(24), [], []
    for is_repeated in (False, True):
        flow.clear_default_session()

        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((ROWS, 24, WIDTH))) -> tp.Numpy:
            x = flow.unpack(x, 2) if is_repeated else x  # noqa: B023
            xs = [flow.squeeze(flow.slice(x, [None, t, None], [None, 1, None]), [1]) for t in range(24)]
            rate = flow.get_variable("rate", (WIDTH,), initializer=flow.constant_initializer(0.3))
            states = average(Ours, xs, [rate])
            if not is_repeated:  # noqa: B023
                flow.watch(states[9], lambda state: seen.append(state.numpy()))
            loss = flow.math.reduce_mean(flow.math.square(flow.stack(states, 1)))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
            return flow.pack(flow.stack(states, 1), 2) if is_repeated else flow.stack(states, 1)  # noqa: B023

        states = job(x)
        found.append([states, flow.get_all_variables()["rate"].numpy()])
        assert any(STORED in executable.hlo() for _, executable in job.executables)
    np.testing.assert_allclose(seen[0], found[0][0][:, 9], rtol=1e-6)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_float64_and_the_mirrored_view() -> None:
    x = sequence(24).astype(np.float64)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    flow.config.cpu_device_num(2)

    @flow.global_function("train", config)
    def job(x: tp.ListNumpy.Placeholder((ROWS // 2, 24, WIDTH), dtype=flow.double)) -> tp.ListNumpy:
        rate = flow.get_variable("rate", (WIDTH,), dtype=flow.double, initializer=flow.constant_initializer(0.3))
        states = average(Ours, [flow.squeeze(flow.slice(x, [None, t, None], [None, 1, None]), [1]) for t in range(24)], [rate])
        loss = flow.math.reduce_mean(flow.math.square(flow.stack(states, 1)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return flow.stack(states, 1)

    states = np.concatenate(job([x[:2], x[2:]]))
    assert STORED in job.executables[-1][1].hlo()
    rate = torch.full((WIDTH,), 0.3, dtype=torch.float64, requires_grad=True)
    theirs = torch.stack(average(Theirs, [torch.tensor(x[:, t]) for t in range(24)], [rate]), 1)
    (theirs.square().mean() * 2).backward()  # the sum of the gradients of both devices' means
    np.testing.assert_allclose(states, theirs.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(flow.get_all_variables()["rate"].numpy(), 0.3 - rate.grad.numpy(), rtol=1e-9)


@pytest.mark.parametrize("rows", [4, 3])
def test_uneven_pieces_of_a_batch_stay_on_their_devices(rows: int) -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((rows, 20, WIDTH))) -> tp.Numpy:
        rate = flow.get_variable("rate", (WIDTH,), initializer=flow.constant_initializer(0.3))
        states = average(Ours, [flow.squeeze(flow.slice(x, [None, t, None], [None, 1, None]), [1]) for t in range(20)], [rate])
        return flow.stack(states, 1)

    x = np.random.default_rng(0).standard_normal((rows, 20, WIDTH)).astype(np.float32)
    expected = torch.stack(average(Theirs, list(torch.tensor(x).unbind(1)), [torch.full((WIDTH,), 0.3)]), 1)
    np.testing.assert_allclose(job(x), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert (STORED in job.executables[-1][1].hlo()) == (rows % 2 == 0)


def test_long_loops_are_cut() -> None:
    """XLA would compile one loop of all these steps for minutes."""
    steps, start = 700, np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)

    @flow.global_function("train")
    def job() -> tp.Numpy:
        y = z = flow.get_variable("y", (8, 3), initializer=flow.zeros_initializer())
        for step in range(steps):
            z = flow.nn.relu(z) * (0.5 + step / 7000) + y * 0.1
        loss = flow.math.reduce_sum(flow.math.square(z))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return z

    flow.load_variables({"y": start})
    found = job()
    assert job.executables[-1][1].hlo().count(STORED) > 3
    theirs = torch.tensor(start, requires_grad=True)
    z = theirs
    for step in range(steps):
        z = torch.relu(z) * (0.5 + step / 7000) + theirs * 0.1
    z.square().sum().backward()
    np.testing.assert_allclose(found, z.detach().numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(start - flow.get_all_variables()["y"].numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_ordinary_layers_are_left_alone() -> None:
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        for i in range(6):
            x = x + flow.layers.dense(
                flow.math.gelu(flow.nn.layer_norm(x)), 128, kernel_initializer=flow.glorot_uniform_initializer(), name=f"d{i}"
            )
        loss = flow.math.reduce_mean(flow.math.square(x))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [1e-3])).minimize(loss)
        return loss

    job(np.ones((64, 128), np.float32))
    assert STORED not in job.executables[-1][1].hlo()


# --- the pass by itself

UNARY = [
    jnp.tanh,
    jnp.negative,
    lambda a: a[:, ::-1],
    lambda a: jnp.concatenate([a[:, 3:], a[:, :3]], 1),
    jax.nn.relu,
    jax.nn.silu,
]
BINARY = [jnp.add, jnp.multiply, jnp.maximum, lambda a, b: a - b.sum(1, keepdims=True), lambda a, b: jnp.where(a > b, a, b)]


@settings(deadline=None, max_examples=30)
@given(
    draws=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=40),
    results=st.lists(st.integers(0, 99), min_size=1, max_size=4),
)
def test_random_programs(draws: list[tuple[int, int, int]], results: list[int]) -> None:
    def program(*arrays: Any) -> list[Any]:
        values = list(arrays)
        for which, a, b in draws:
            one, other = values[a % len(values)], values[b % len(values)]
            values.append(UNARY[which](one) if which < len(UNARY) else BINARY[which - len(UNARY)](one, other))
        return [values[i % len(values)] for i in results]

    arrays = [np.random.default_rng(i).standard_normal((4, 8)).astype(np.float32) / 4 for i in range(2)]
    plan = _Plan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recomputed, "_LOOPS", 0)
        patch.setattr(recomputed, "_WORK", 1)
        closed = jax.make_jaxpr(program)(*arrays)
        changed = recomputed.stored_values(closed, plan)
    if changed is not None:
        with jax.enable_checks(True):
            found = jax.jit(jax.extend.core.jaxpr_as_fun(changed))(*arrays)
        assert len(changed.eqns) > len(closed.eqns)
        for one, expected in zip(found, program(*arrays), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


class _Plan:
    """What the pass asks of a plan."""

    platform, compute = "cpu", ()
