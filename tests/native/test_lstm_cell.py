"""Steps of LSTMs by the native part: the call against XLA's lowering in float64, and jobs that use it against PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import examples, result_and_gradients

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.compiler.lstm_cell_kernels import Cell, Gates, define, differentiable

pytestmark = pytest.mark.usefixtures("native_part")
CALL, GRADIENT = ('custom_call_target="' + _native.target(name) + '"' for name in ("lstm_cell", "lstm_cell_grad"))
ORDERS = list(itertools.permutations(range(4)))


def drawn(rows: int, width: int, has_state: bool, scale: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Gates, and the state before if there is one; gradients to h and c."""
    random = np.random.default_rng(seed)
    sizes = [(rows, 4 * width)] + [(rows, width)] * has_state
    return (
        [(random.standard_normal(shape) * scale).astype(np.float32) for shape in sizes],
        [random.standard_normal((rows, width)).astype(np.float32) for _ in range(2)],
    )


def gradients(function: Any, arrays: Any, cotangents: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    made, pulled = result_and_gradients(function, arrays, tuple(cotangents))
    return list(map(np.asarray, made)), list(map(np.asarray, pulled))


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 32]),
    width=st.sampled_from([1, 15, 16, 17, 40, 256]),
    quarters=st.sampled_from(ORDERS),
    has_state=st.booleans(),
    scale=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 5.0, 40.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_results_and_gradients_are_those_of_xla(
    rows: int, width: int, quarters: Any, has_state: bool, scale: float, threads: int, seed: int, parallel: Any
) -> None:
    arrays, cotangents = drawn(rows, width, has_state, scale, seed)
    with parallel(threads):
        made, found = gradients(differentiable(Cell(rows, width, quarters, has_state)), arrays, cotangents)
    with jax.enable_x64(True):
        wide = [[jnp.asarray(a, jnp.float64) for a in each] for each in (arrays, cotangents)]
        expected, slopes = gradients(lambda *given: define(*given, gates=Gates(quarters)), *wide)
    for mine, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=3e-7 * scale)  # of terms of opposite signs
    for mine, theirs in zip(found, slopes, strict=True):  # 1 - y * y of a y close to 1 has few digits
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 88.0, -88.0, 1e30, -1e30, 3e-39, 0.0, -0.0])
@pytest.mark.parametrize("place", range(5))
def test_values_that_are_not_ordinary(place: int, value: float) -> None:
    """In each gate, and in the state."""
    arrays, cotangents = drawn(2, 20, True, 1.0, 0)
    if place < 4:
        arrays[0][1, 20 * place + 3] = value
    else:
        arrays[1][1, 3] = value
    made, found = gradients(differentiable(Cell(2, 20, (0, 1, 2, 3), True)), arrays, cotangents)
    expected, slopes = gradients(lambda *given: define(*given, gates=Gates()), arrays, cotangents)
    for mine, theirs in zip((*made, *found), (*expected, *slopes), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "spec, why",
    [
        ([2, 16, 0, 1, 2, 2, 1], "the same quarter"), ([2, 16, 0, 1, 2, 4, 1], "out of range"),
        ([0, 16, 0, 1, 2, 3, 1], "out of range"),
        ([2, 16, 0, 1, 2, 3], "too short"), ([2, 16, 0, 1, 2, 3, 1, 0], "too long"),
    ],
)  # fmt: skip
def test_specs_that_are_refused(native_part: Any, spec: list[int], why: str) -> None:
    for call in ("lstm_cell", "lstm_cell_grad"):
        assert why in native_part.describe(call, spec)


# --- jobs

BATCH, WIDTH, LENGTH = 4, 256, 3


def cell(lib: Any, gates: list[Any], state: Any, swapped: bool) -> tuple[Any, Any]:
    """One step, (h, c), as a program writes it; ``swapped``: with the factors and terms in another order."""
    i, f, g, o = gates
    new = lib.tanh(g) * lib.sigmoid(i) if swapped else lib.sigmoid(i) * lib.tanh(g)
    if state is not None:
        kept = state * lib.sigmoid(f) if swapped else lib.sigmoid(f) * state
        new = new + kept if swapped else kept + new
    return (lib.tanh(new) * lib.sigmoid(o) if swapped else lib.sigmoid(o) * lib.tanh(new)), new


def network(lib: Any, times: Any, x: Any, w: Any, order: tuple[int, ...], swapped: bool) -> Any:
    h = c = None
    outputs = []
    for t in range(LENGTH):
        gates = x[:, t] if h is None else x[:, t] + times(h, w)
        parts = [gates[:, q * WIDTH : (q + 1) * WIDTH] for q in order]
        h, c = cell(lib, parts, c, swapped)
        outputs += [h, c * 0.5]
    return sum(outputs[1:], outputs[0])


def values() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x, w = random.standard_normal((BATCH, LENGTH, 4 * WIDTH)), random.standard_normal((WIDTH, 4 * WIDTH)) / 16
    return x.astype(np.float32), w.astype(np.float32)


def job_of(kind: str, order: tuple[int, ...] = (0, 1, 2, 3), swapped: bool = False, config: Any = None, watch: Any = None) -> Any:
    @flow.global_function(kind, config)
    def job(x: tp.Numpy.Placeholder((BATCH, LENGTH, 4 * WIDTH))) -> tp.Numpy:
        w = flow.get_variable("w", (WIDTH, 4 * WIDTH), initializer=flow.zeros_initializer())
        y = network(flow.math, flow.matmul, x, w, order, swapped)
        if kind == "train":
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [100.0])).minimize(y)
        return y

    x, w = values()
    flow.train.CheckPoint().init()
    flow.load_variables({"w": w})
    return job(x), (w - flow.get_all_variables()["w"].numpy()) / 100, job


def changed(job: Any) -> str:
    return dict(job.executables[-1][1].plan.passes)["LSTM"]


@pytest.mark.parametrize("order, swapped", [((0, 1, 2, 3), False), ((2, 0, 3, 1), True)])
def test_training_is_that_of_pytorch(order: tuple[int, ...], swapped: bool) -> None:
    y, gradient, job = job_of("train", order, swapped)
    x, w = (torch.tensor(value, requires_grad=True) for value in values())
    expected = network(torch, torch.matmul, x, w, order, swapped)
    expected.mean().backward()
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, w.grad.numpy(), rtol=1e-3, atol=1e-7)
    assert changed(job) == f"{LENGTH} steps computed by one call each"
    hlo = job.executables[-1][1].hlo()
    assert hlo.count(CALL) == LENGTH
    assert hlo.count(GRADIENT) == LENGTH - 1  # no variable has a part in the first step's gates
    assert "an LSTM's step in one call" in str(job.summary())


def test_predictions_are_those_of_xla() -> None:
    y, _, job = job_of("predict")
    assert job.executables[-1][1].hlo().count(CALL) == LENGTH
    flow.clear_default_session()
    flow.config.enable_native_cpu(False)
    expected, _, other = job_of("predict")
    assert "LSTM" not in dict(other.executables[-1][1].plan.passes)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_mixed_precision() -> None:
    """Where a step computes in 16 bits XLA computes it; without bfloat16 in the native part only products do."""
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    _, gradient, job = job_of("train", config=config)
    x, w = (torch.tensor(value, requires_grad=True) for value in values())
    network(torch, torch.matmul, x, w, (0, 1, 2, 3), False).mean().backward()
    np.testing.assert_allclose(gradient, w.grad.numpy(), rtol=0.1, atol=2e-5)
    plan = job.executables[-1][1].plan
    narrow = any(node.op.lstm == "logistic" for node in plan.arrangement.precision)
    assert bool(changed(job)) != narrow


def one_step(gates_of: Any, width: int = WIDTH) -> str:
    """The pass's record for one step, written by ``gates_of(gates, state)``, which returns h."""

    @flow.global_function("predict")
    def job(gates: tp.Numpy.Placeholder((BATCH, 4 * width)), state: tp.Numpy.Placeholder((BATCH, width))) -> tp.Numpy:
        return gates_of(flow.math, [gates[:, q * width : (q + 1) * width] for q in range(4)], state)

    arrays = [np.ones(shape, np.float32) for shape in ((BATCH, 4 * width), (BATCH, width))]
    made = job(*arrays)
    parts = [torch.tensor(part) for part in np.split(arrays[0], 4, 1)]
    np.testing.assert_allclose(made, gates_of(torch, parts, torch.tensor(arrays[1])).numpy(), rtol=1e-5)
    return changed(job)


def test_what_is_a_step() -> None:
    assert one_step(lambda lib, gates, state: cell(lib, gates, state, False)[0]) == "1 step computed by one call each"


@pytest.mark.parametrize(
    "other",
    [
        lambda lib, gates, state: lib.sigmoid(gates[3]) * lib.tanh(lib.sigmoid(gates[0]) * lib.tanh(gates[0])),
        lambda lib, gates, state: cell(lib, gates, state, False)[0] + lib.sigmoid(gates[0]),  # a gate that is read twice
        lambda lib, gates, state: lib.tanh(gates[3]) * lib.tanh(cell(lib, gates, state, False)[1]),
        lambda lib, gates, state: lib.sigmoid(gates[3]) * lib.sigmoid(cell(lib, gates, state, False)[1]),
        lambda lib, gates, state: lib.sigmoid(gates[3]) * lib.tanh(lib.sigmoid(gates[0]) * lib.sigmoid(gates[2])),
        lambda lib, gates, state: cell(lib, [*gates[:3], gates[3] * 2.0], state, False)[0],
    ],
)
def test_what_is_no_step(other: Any) -> None:
    assert one_step(other) == ""


def test_small_steps_are_left_to_xla() -> None:
    assert one_step(lambda lib, gates, state: cell(lib, gates, state, False)[0], width=16) == ""


def same_without(body: Any, gates: tuple[int, ...], state: tuple[int, ...], kind: str = "train") -> str:
    """The pass's record for a job whose results and new variables are the same without the native part.

    ``body(gates, state)`` returns what is minimized, and a tuple of results.
    """
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in (gates, state)]
    found, records = [], []
    for enabled in (True, False):
        flow.clear_default_session()
        flow.config.enable_native_cpu(enabled)
        flow.manual_seed(7)

        @flow.global_function(kind)
        def job(gates: tp.Numpy.Placeholder(gates), state: tp.Numpy.Placeholder(state)) -> tp.Bundle[tp.Numpy]:
            loss, results = body(gates, state)
            if kind == "train":
                flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(loss)
            return results

        found.append([*job(*arrays), *(v.numpy() for _, v in sorted(flow.get_all_variables().items()))])
        records.append(dict(job.executables[-1][1].plan.passes).get("LSTM", ""))
    for mine, theirs in zip(*found, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    assert records[1] == ""
    return records[0]


def steps_of(gates: Any, state: Any, count: int = 1, norm: bool = False) -> list[tuple[Any, Any]]:
    """(h, c) of each step, by a recurrent variable; h of the step before may be stopped on its way."""
    w = flow.get_variable("w", (WIDTH, 4 * WIDTH), initializer=flow.random_normal_initializer(stddev=0.06))
    made, h = [], state
    for _ in range(count):
        x = gates + flow.matmul(h, w)
        x = flow.layers.batch_normalization(x, axis=1, name="norm") if norm else x
        h, state = cell(flow.math, [x[:, q * WIDTH : (q + 1) * WIDTH] for q in range(4)], state, False)
        made.append((h, state))
        h = flow.stop_gradient(h)
    return made


def mean(x: Any) -> Any:
    return flow.math.reduce_mean(x)


GATES, STATE = (BATCH, 4 * WIDTH), (BATCH, WIDTH)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("which", [0, 1])
def test_a_loss_of_one_of_the_results_alone(which: int, count: int) -> None:
    def body(gates: Any, state: Any) -> Any:
        made = steps_of(gates, state, count)
        return mean(made[-1][which]), tuple(x for step in made for x in step)

    assert same_without(body, GATES, STATE) == f"{count} step{'s' * (count > 1)} computed by one call each"


def test_batch_normalization_of_the_gates() -> None:
    def body(gates: Any, state: Any) -> Any:
        h, c = steps_of(gates, state, norm=True)[0]
        return mean(h * c), (h, c)

    assert same_without(body, GATES, STATE) == "1 step computed by one call each"


@pytest.mark.parametrize("gates, state", [((1, 4 * WIDTH), (BATCH, WIDTH)), ((BATCH, 4 * WIDTH), (2, BATCH, WIDTH))])
def test_gates_that_are_broadcast_are_no_step(gates: tuple[int, ...], state: tuple[int, ...]) -> None:
    def body(gates: Any, state: Any) -> Any:
        return None, cell(flow.math, [gates[:, q * WIDTH : (q + 1) * WIDTH] for q in range(4)], state, False)

    assert same_without(body, gates, state, kind="predict") == ""


def test_columns_that_become_rows_are_no_step() -> None:
    def body(gates: Any, state: Any) -> Any:
        return None, cell(flow.math, [gates[None, :, q] for q in range(4)], state, False)

    assert same_without(body, (4 * WIDTH, 4), (1, 4 * WIDTH), kind="predict") == ""


def test_a_gate_that_the_host_reads_too_is_no_step() -> None:
    def body(gates: Any, state: Any) -> Any:
        parts = [gates[:, q * WIDTH : (q + 1) * WIDTH] for q in range(4)]
        read = flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(parts[1], 1), flow.float32, (WIDTH,))
        return None, (*cell(flow.math, parts, state, False), read)

    assert same_without(body, GATES, STATE, kind="predict") == ""
