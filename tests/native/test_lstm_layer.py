"""Sequences of steps of LSTMs by the native part: calls against XLA's lowering in float64, and jobs against PyTorch."""

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
from oneflow.compiler.lstm_cell_kernels import Gates
from oneflow.compiler.lstm_layer_kernels import Given, Layer, define, differentiable

pytestmark = pytest.mark.usefixtures("native_part")
CALL, GRADIENT, CELL = (
    'custom_call_target="' + _native.target(name) + '"' for name in ("lstm_layer", "lstm_layer_grad", "lstm_cell")
)
ORDERS = list(itertools.permutations(range(4)))


def gradients(function: Any, arrays: Any, cotangents: Any) -> list[np.ndarray]:
    made, pulled = result_and_gradients(function, arrays, tuple(cotangents))
    return list(map(np.asarray, (*made, *pulled)))


@settings(max_examples=examples(25), deadline=None)
@given(
    steps=st.integers(1, 3),
    rows=st.sampled_from([1, 2, 6, 7, 13, 32]),
    width=st.sampled_from([1, 15, 16, 17, 40, 64, 65, 130]),
    quarters=st.sampled_from(ORDERS),
    flags=st.tuples(*[st.booleans()] * 5),
    scale=st.sampled_from([0.01, 0.5, 3.0]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_results_and_gradients_are_those_of_xla(
    steps: int, rows: int, width: int, quarters: Any, flags: Any, scale: float, threads: int, seed: int, parallel: Any
) -> None:
    has_state, by_row, transposed, has_bias, is_reversed = flags
    layer = Layer(steps, rows, width, quarters, has_state, by_row, transposed, has_bias, is_reversed=is_reversed)
    random = np.random.default_rng(seed)
    shapes = [layer.all_steps(4 * width)[0], *[(4 * width,)] * has_bias, *[(rows, width)] * (2 * has_state)]
    arrays = [(random.standard_normal(shape) * scale).astype(np.float32) for shape in shapes]
    weights = (4 * width, width) if transposed else (width, 4 * width)
    arrays.append((random.standard_normal(weights) / width**0.5).astype(np.float32))
    cotangents = [random.standard_normal(shape).astype(np.float32) for shape in (layer.all_steps(width)[0], (rows, width))]
    with parallel(threads):
        made = list(map(np.asarray, jax.jit(differentiable(layer))(*arrays)))
        found = gradients(differentiable(layer), arrays, cotangents)
    attrs = {"gates": Gates(quarters), "has_state": has_state, "by_row": by_row, "transposed": transposed}
    attrs |= {"given": Given(shared=int(has_bias)), "is_reversed": is_reversed}

    def by_xla(gates: Any, *rest: Any) -> Any:
        bias, others = rest[:has_bias], rest[has_bias:]
        h, c = define(jnp.flip(gates, layer.axis) if is_reversed else gates, *others, *bias, **attrs)
        return jnp.flip(h, layer.axis) if is_reversed else h, c

    with jax.enable_x64(True):
        wide = [[jnp.asarray(a, jnp.float64) for a in each] for each in (arrays, cotangents)]
        expected = gradients(by_xla, *wide)
    for mine, theirs in zip(made, found, strict=False):  # what is kept for the gradient changes no result
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6 * max(1.0, float(np.abs(theirs).max())))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30, -1e30])
def test_values_that_are_not_ordinary(value: float) -> None:
    """They go through all later steps of their row, and through no other row."""
    layer = Layer(3, 8, 32, (0, 1, 2, 3), False, False, False)
    random = np.random.default_rng(0)
    gates, weights = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 8, 128), (32, 128)))
    gates[0, 5, 70] = value  # of g
    made = differentiable(layer)(gates, weights)
    flags = dict.fromkeys(("has_state", "by_row", "transposed", "is_reversed"), False)
    expected = define(gates, weights, gates=Gates(), given=Given(), **flags)
    for mine, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        assert np.isfinite(np.delete(np.asarray(mine), 5, -2)).all()


@pytest.mark.parametrize(
    "spec, why",
    [
        ([2, 2, 16, 0, 1, 2, 2, 0, 0, 0, 0, 0], "the same quarter"), ([0, 2, 16, 0, 1, 2, 3, 0, 0, 0, 0, 0], "out of range"),
        ([2, 2, 16, 0, 1, 2, 3, 0, 0, 0, 0, 2], "out of range"), ([2, 2, 16, 0, 1, 2, 3, 0, 0, 0, 0], "too short"),
        ([2, 2, 16, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0], "too long"),
    ],
)  # fmt: skip
def test_specs_that_are_refused(native_part: Any, spec: list[int], why: str) -> None:
    for call in ("lstm_layer", "lstm_layer_grad"):
        assert why in native_part.describe(call, spec)


# --- jobs

BATCH, WIDTH, LENGTH = 8, 128, 5


def step(lib: Any, gates: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = (gates[:, q * WIDTH : (q + 1) * WIDTH] for q in range(4))
    new = lib.sigmoid(i) * lib.tanh(g)
    c = new if c is None else lib.sigmoid(f) * c + new
    return lib.sigmoid(o) * lib.tanh(c), c


def over_rows(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """The steps of x (rows, steps, ...), without a state from before."""
    h = c = None
    hidden = []
    for t in range(LENGTH):
        h, c = step(lib, x[:, t] if h is None else x[:, t] + lib.matmul(h, w), c)
        hidden.append(h)
    return hidden, c


def from_a_state(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """With one, with weights that are transposed, and steps first."""
    h = c = state
    x, w, hidden = lib.transpose(x, 0, 1), lib.transpose(w, 0, 1), []
    for t in range(LENGTH):
        h, c = step(lib, lib.times_transposed(h, w) + x[t], c)
        hidden.append(h)
    return hidden, c


def backwards(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """From the last step to the first, with what each one gets computed between the steps."""
    h = c = state
    hidden = []
    for t in reversed(range(LENGTH)):
        h, c = step(lib, lib.tanh(x[:, t]) + lib.matmul(h, w), c)
        hidden.append(lib.tanh(h))
    return hidden, c


def both_ways(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """Two sequences over one array; what both make of a step is read together."""
    found = []
    for order in (range(LENGTH), reversed(range(LENGTH))):
        h, c, hidden = state, state, {}
        for t in order:
            h, c = step(lib, x[:, t] + lib.matmul(h, w), c)
            hidden[t] = h
        found.append(hidden)
    return [lib.concat([found[0][t], found[1][t] * 0.5]) for t in range(LENGTH)], lib.concat([c, state])


def backwards_steps_first(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """Only h of some steps is read."""
    h = c = state
    x, hidden = lib.transpose(x, 0, 1), []
    for t in reversed(range(LENGTH)):
        h, c = step(lib, lib.matmul(h, w) + x[t], c)
        hidden.append(h)
    return hidden[1:4:2], c


def read_between(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """c of step 2 is read: two sequences, the second of which begins with a state."""
    h = c = None
    hidden = []
    for t in range(LENGTH):
        h, c = step(lib, x[:, t] if h is None else x[:, t] + lib.matmul(h, w), c)
        hidden.append(h)
        if t == 2:
            hidden.append(c * 0.5)
    return hidden, c


def fed_back(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """What a step gets depends on the step before: no sequence."""
    h = c = state
    hidden = []
    for t in range(LENGTH):
        h, c = step(lib, (x[:, t] + lib.concat([h, h, h, h])) + lib.matmul(h, w), c)
        hidden.append(h)
    return hidden, c


def other_weights(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
    """Each step has weights of its own: no sequence."""
    h = c = state
    hidden = []
    for t in range(LENGTH):
        h, c = step(lib, x[:, t] + lib.matmul(h, w * (1.0 + t)), c)
        hidden.append(h)
    return hidden, c


class Ours:
    sigmoid, tanh, matmul = (staticmethod(f) for f in (flow.math.sigmoid, flow.math.tanh, flow.matmul))

    @staticmethod
    def transpose(x: Any, a: int, b: int) -> Any:
        return flow.transpose(x, (1, 0, 2)[: len(x.shape)])

    @staticmethod
    def times_transposed(h: Any, w: Any) -> Any:
        return flow.matmul(h, w, transpose_b=True)

    @staticmethod
    def concat(parts: Any) -> Any:
        return flow.concat(parts, 1)

    @staticmethod
    def bias_add(x: Any, b: Any) -> Any:
        return flow.nn.bias_add(x, b)

    reshape = staticmethod(flow.reshape)

    @staticmethod
    def zeros() -> Any:
        return flow.constant(0.0, flow.float32, (BATCH, WIDTH))


class Theirs:
    sigmoid, tanh, matmul, transpose = (staticmethod(f) for f in (torch.sigmoid, torch.tanh, torch.matmul, torch.transpose))

    @staticmethod
    def times_transposed(h: Any, w: Any) -> Any:
        return h @ w.T

    @staticmethod
    def concat(parts: Any) -> Any:
        return torch.cat(parts, 1)

    @staticmethod
    def bias_add(x: Any, b: Any) -> Any:
        return x + b

    reshape = staticmethod(torch.reshape)

    @staticmethod
    def zeros() -> Any:
        return torch.zeros(BATCH, WIDTH)


def values() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    x, state, w = (random.standard_normal(s) for s in ((BATCH, LENGTH, 4 * WIDTH), (BATCH, WIDTH), (WIDTH, 4 * WIDTH)))
    return x.astype(np.float32), state.astype(np.float32), (w / 12).astype(np.float32)


def trained(network: Any, values: tuple[np.ndarray, ...]) -> tuple[list[np.ndarray], Any]:
    """The loss and gradients to what the network gets: variables with these values."""
    names = [f"v{i}" for i in range(len(values))]

    @flow.global_function("train")
    def job() -> tp.Numpy:
        x, *others = (
            flow.get_variable(name, value.shape, initializer=flow.zeros_initializer())
            for name, value in zip(names, values, strict=True)
        )
        hidden, c = network(Ours, x * 1.0, *others)
        loss = flow.math.reduce_sum(sum(((k + 1.0) * h for k, h in enumerate(hidden)), c * 0.3))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(loss)
        return loss

    flow.train.CheckPoint().init()
    flow.load_variables(dict(zip(names, values, strict=True)))
    loss = job()
    now = flow.get_all_variables()
    found = [np.asarray(loss)]
    found += [value - now[name].numpy() for name, value in zip(names, values, strict=True)]
    return found, job


def assert_like_pytorch(network: Any, values: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    tensors = [torch.tensor(value, requires_grad=True) for value in values]
    hidden, c = network(Theirs, *tensors)
    loss = sum(((k + 1.0) * h for k, h in enumerate(hidden)), c * 0.3).sum()
    loss.backward()
    np.testing.assert_allclose(found[0].item(), loss.item(), rtol=1e-5, atol=1e-3)
    for mine, value in zip(found[1:], tensors, strict=True):
        if value.grad is None:
            np.testing.assert_array_equal(mine, 0.0)
        else:
            expected = value.grad.numpy()
            np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=2e-5 * float(np.abs(expected).max()) + 1e-6)


def assert_calls(job: Any, record: str, calls: int, by_cells: bool = True) -> None:
    executable = job.executables[-1][1]
    changed = dict(executable.plan.passes)["LSTM"]
    assert changed.startswith(record) if record else "sequence" not in changed
    hlo = executable.hlo()
    assert (hlo.count(CALL), hlo.count(GRADIENT)) == (calls, calls)
    assert (CELL in hlo) == (calls == 0 and by_cells)
    assert ("all steps of an LSTM in one call" in str(job.summary())) == (calls > 0)


@pytest.mark.parametrize(
    "network, record, calls",
    [
        (over_rows, "1 sequence of steps computed by one call each", 1),
        (from_a_state, "1 sequence of steps computed by one call each", 1),
        (backwards, "1 sequence of steps computed by one call each", 1),
        (both_ways, "2 sequences of steps computed by one call each", 2),
        (backwards_steps_first, "1 sequence of steps computed by one call each", 1),
        (read_between, "2 sequences of steps computed by one call each", 2),
        (fed_back, "", 0),
        (other_weights, "", 0),
    ],
)
def test_training_is_that_of_pytorch(network: Any, record: str, calls: int) -> None:
    found, job = trained(network, values())
    assert_like_pytorch(network, values(), found)
    assert_calls(job, record, calls)


@pytest.mark.parametrize("network, calls", [(from_a_state, 1), (other_weights, 0)])
@pytest.mark.parametrize("batch, width", [(1, 8), (2, 20), (8, 64)])
def test_sequences_of_small_steps_take_one_call(
    network: Any, calls: int, batch: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single ones of their sizes are XLA's."""
    monkeypatch.setitem(globals(), "BATCH", batch)
    monkeypatch.setitem(globals(), "WIDTH", width)
    found, job = trained(network, values())
    assert_like_pytorch(network, values(), found)
    assert_calls(job, "1 sequence of steps computed by one call each" if calls else "", calls, by_cells=False)


# --- what programs write of the gates

INPUT = 48


def over(lib: Any, inputs: Any, state: Any, gates: Any) -> tuple[list[Any], Any]:
    h = c = state
    hidden = []
    for t, x in enumerate(inputs):
        h, c = step(lib, gates(t, x, h), c)
        hidden.append(h)
    return hidden, c


def steps_of(x: Any) -> list[Any]:
    return [x[:, t] for t in range(LENGTH)]


def bias_last(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    return over(lib, steps_of(x), state, lambda t, x, h: lib.matmul(x, w) + lib.matmul(h, u) + b)


def without_a_state(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    def gates(t: int, x: Any, h: Any) -> Any:
        return lib.bias_add(lib.matmul(x, w), b) if h is None else lib.matmul(h, u) + lib.bias_add(lib.matmul(x, w), b)

    return over(lib, steps_of(x), None, gates)


def bias_of_the_sum(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    inputs = [lib.tanh(each) for each in steps_of(x)]
    return over(lib, inputs, lib.zeros(), lambda t, x, h: lib.bias_add(lib.matmul(h, u) + lib.matmul(x, w), b))


def joined(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    return over(lib, steps_of(x), lib.zeros(), lambda t, x, h: lib.bias_add(lib.matmul(lib.concat([x, h]), joint), b))


def joined_behind(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    weights = lib.transpose(joint, 0, 1)
    return over(lib, steps_of(x), state, lambda t, x, h: b + lib.times_transposed(lib.concat([h, x]), weights))


def backwards_joined(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """With something else for each step, and what all steps share twice."""
    rows = lib.matmul(state, u)
    inputs = list(reversed(steps_of(x)))

    def gates(t: int, x: Any, h: Any) -> Any:
        return lib.matmul(lib.concat([x, h]), joint) + b * (t + 1.0) + rows + b

    return over(lib, inputs, state, gates)


def backwards_over(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """What the steps get is multiplied, from the last one to the first."""
    return over(lib, steps_of(x)[::-1], state, lambda t, x, h: lib.bias_add(lib.matmul(h, u) + lib.matmul(x, w), b))


def two_layers(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """Side by side; what the second gets is as wide as h, and comes first."""
    below = above = (state, state)
    hidden = []
    for each in steps_of(x):
        below = step(lib, lib.matmul(each, w) + lib.matmul(below[0], u) + b, below[1])
        above = step(lib, lib.matmul(below[0], u * 0.5) + lib.matmul(above[0], u) + b, above[1])
        hidden.append(above[0])
    return hidden, above[1]


def watched_inputs(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """What a step multiplies is read elsewhere as well."""
    inputs = [each * 2.0 for each in steps_of(x)]
    hidden, c = over(lib, inputs, state, lambda t, x, h: lib.matmul(x, w) + lib.matmul(h, u))
    return [*hidden, lib.matmul(inputs[1], w)[:, :WIDTH]], c


def several_products(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """Two products of what a step gets, and weights that change."""

    def gates(t: int, x: Any, h: Any) -> Any:
        return lib.matmul(x, w) + (lib.matmul(x * 0.5, w * (1.0 + t)) + lib.matmul(h, u))

    return over(lib, steps_of(x), state, gates)


def a_bias_for_each_step(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """Nothing has a row for each sample but the product of h: no sequence."""
    biases = lib.reshape(joint[:LENGTH], (LENGTH, 1, 4 * WIDTH))
    return over(lib, steps_of(x), state, lambda t, x, h: lib.matmul(h, u) + biases[t, 0])


def joined_and_a_product(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """What a step gets is multiplied in both."""
    return over(lib, steps_of(x), state, lambda t, x, h: lib.matmul(lib.concat([x, h]), joint) + lib.matmul(lib.tanh(x), w))


def fed_through_h(lib: Any, x: Any, state: Any, w: Any, u: Any, joint: Any, b: Any) -> tuple[list[Any], Any]:
    """What a step gets depends on h of the step before: no sequence."""
    return over(lib, steps_of(x), state, lambda t, x, h: lib.matmul(lib.concat([x * h[:, :INPUT], h]), joint) + b)


def spelled_values() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2)
    shapes = [(INPUT, 4 * WIDTH), (WIDTH, 4 * WIDTH), (INPUT + WIDTH, 4 * WIDTH), (4 * WIDTH,)]
    weights = [(random.standard_normal(shape) / 12).astype(np.float32) for shape in shapes]
    x, state = (random.standard_normal(shape).astype(np.float32) for shape in ((BATCH, LENGTH, INPUT), (BATCH, WIDTH)))
    return x, state, *weights


@pytest.mark.parametrize(
    "network, calls",
    [
        (bias_last, 1), (without_a_state, 1), (bias_of_the_sum, 1), (joined, 1), (joined_behind, 1), (backwards_joined, 1),
        (backwards_over, 1),
        (two_layers, 2), (watched_inputs, 1), (several_products, 1), (joined_and_a_product, 1),
        (a_bias_for_each_step, 0), (fed_through_h, 0),
    ],
)  # fmt: skip
def test_spellings_of_the_gates(network: Any, calls: int) -> None:
    found, job = trained(network, spelled_values())
    assert_like_pytorch(network, spelled_values(), found)
    assert_calls(job, f"{calls} sequence" if calls else "", calls)


def test_the_gradient_of_what_a_step_gets_is_watched() -> None:
    seen: list[np.ndarray] = []

    def watched(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
        h = c = state
        for t in range(LENGTH):
            given = x[:, t]
            if t == 2:
                if lib is Ours:
                    flow.watch_diff(given, lambda found: seen.append(found.numpy()))
                else:
                    given.retain_grad()
                    seen.append(given)
            h, c = step(lib, given + lib.matmul(h, w), c)
        return [h], c

    trained(watched, values())
    hidden, c = watched(Theirs, *(torch.tensor(value, requires_grad=True) for value in values()))
    (hidden[0] + c * 0.3).sum().backward()
    mine, theirs = seen
    np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-3, atol=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("watches", [False, True])
def test_states_are_read_of_one_array_but_those_that_are_watched(
    backwards: bool, watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each step computes of its state is computed at once (``compiler/loops.py``)."""
    monkeypatch.setitem(globals(), "LENGTH", 24)
    seen: list[Any] = []

    def read_by_each(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
        h, c, read = state, state, []
        for t in reversed(range(LENGTH)) if backwards else range(LENGTH):
            h, c = step(lib, x[:, t] + lib.matmul(h, w), c)
            if watches and t == 12 and lib is Ours:
                flow.watch_diff(h, lambda found: seen.append(found.numpy()))
            elif watches and t == 12:
                h.retain_grad()
                seen.append(h)
            read.append(lib.tanh(lib.matmul(lib.matmul(h, w), lib.transpose(w, 0, 1))))
        return read, c

    found, job = trained(read_by_each, values())
    assert_like_pytorch(read_by_each, values(), found)
    passes = dict(job.executables[-1][1].plan.passes)
    assert "one call" in passes["LSTM"] and "one loop" in passes["loops"]
    if watches:
        mine, theirs = seen
        np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_what_runs_on_slices_of_the_batch_stays_there() -> None:
    """The first sum is computed with a convolution that is not native, slice by slice."""
    random = np.random.default_rng(1)
    image, kernel = random.standard_normal((16, 3, 12, 12)), random.standard_normal((4, 3, 3, 3))
    x, state, w = (
        random.standard_normal(s).astype(np.float32) for s in ((16, LENGTH, 4 * WIDTH), (16, WIDTH), (WIDTH, 4 * WIDTH))
    )

    @flow.global_function("predict")
    def job(image: tp.Numpy.Placeholder(image.shape, flow.float64), x: tp.Numpy.Placeholder(x.shape),
            state: tp.Numpy.Placeholder(state.shape), w: tp.Numpy.Placeholder(w.shape),
            kernel: tp.Numpy.Placeholder(kernel.shape, flow.float64)) -> tp.Numpy:  # fmt: skip
        convolved = flow.nn.conv2d(image, kernel, 1, "SAME")
        hidden, c = backwards(Ours, x, state, w)
        return flow.math.reduce_sum(flow.concat(hidden, 1)) + flow.cast(flow.math.reduce_sum(convolved), flow.float32)

    hidden, _ = backwards(Theirs, *(torch.tensor(value) for value in (x, state, w / 12)))
    convolved = torch.nn.functional.conv2d(torch.tensor(image), torch.tensor(kernel), padding=1)
    expected = torch.cat(hidden, 1).sum().item() + convolved.sum().item()
    np.testing.assert_allclose(job(image, x, state, w / 12, kernel), expected, rtol=1e-4, atol=1e-2)


# --- gates that are an array each


def over_apart(lib: Any, inputs: Any, state: Any, gates: Any) -> tuple[list[Any], Any]:
    """``gates(t, x, h, number of the gate)``, in the order f, o, g, i; f is read with 1 added."""
    h = c = state
    hidden = []
    for t, x in enumerate(inputs):
        f, o, g, i = (gates(t, x, h, k) for k in range(4))
        c = lib.sigmoid(f + 1.0) * c + lib.sigmoid(i) * lib.tanh(g)
        h = lib.sigmoid(o) * lib.tanh(c)
        hidden.append(h)
    return hidden, c


def gate_by_gate(lib: Any, x: Any, state: Any, *weights: Any) -> tuple[list[Any], Any]:
    w, u, _, b = (weights[k : k + 4] for k in range(0, 16, 4))
    return over_apart(lib, steps_of(x), state, lambda t, x, h, k: lib.matmul(x, w[k]) + lib.bias_add(lib.matmul(h, u[k]), b[k]))


def joined_gate_by_gate(lib: Any, x: Any, state: Any, *weights: Any) -> tuple[list[Any], Any]:
    """Each gate joins h and what the step gets anew, and is multiplied by transposed weights."""
    _, _, joint, b = (weights[k : k + 4] for k in range(0, 16, 4))
    transposed = [lib.transpose(each, 0, 1) for each in joint]

    def gates(t: int, x: Any, h: Any, k: int) -> Any:
        return lib.bias_add(lib.times_transposed(lib.concat([x, h]), transposed[k]), b[k])

    return over_apart(lib, steps_of(x), lib.zeros(), gates)


def sums_gate_by_gate(lib: Any, x: Any, state: Any, *weights: Any) -> tuple[list[Any], Any]:
    """No product of what a step gets alone; terms in another order in each gate."""
    w, u, _, b = (weights[k : k + 4] for k in range(0, 16, 4))
    above = [lib.matmul(x[:, 0], each) for each in w]

    def gates(t: int, x: Any, h: Any, k: int) -> Any:
        terms = [lib.matmul(h, u[k]), above[k] * (t + 1.0), b[k]]
        first, second, third = terms[k % 3 :] + terms[: k % 3]
        return first + second + third if k % 3 else first + (second + third)

    return over_apart(lib, steps_of(x), state, gates)


def a_column_for_all_units(lib: Any, x: Any, state: Any, *weights: Any) -> tuple[list[Any], Any]:
    """One term of each gate has one column: no sequence."""
    w, u, _, _ = (weights[k : k + 4] for k in range(0, 16, 4))
    return over_apart(lib, steps_of(x), state, lambda t, x, h, k: lib.matmul(x, w[k]) + lib.matmul(h, u[k]) + x[:, :1])


def unlike_gates(lib: Any, x: Any, state: Any, *weights: Any) -> tuple[list[Any], Any]:
    """One gate has a term more: no sequence."""
    w, u, _, b = (weights[k : k + 4] for k in range(0, 16, 4))

    def gates(t: int, x: Any, h: Any, k: int) -> Any:
        made = lib.matmul(x, w[k]) + lib.matmul(h, u[k])
        return made + b[k] if k == 2 else made

    return over_apart(lib, steps_of(x), state, gates)


def with_peepholes(lib: Any, x: Any, state: Any, *weights: Any) -> tuple[list[Any], Any]:
    """o depends on c: no step, either."""
    w, u, _, b = (weights[k : k + 4] for k in range(0, 16, 4))
    h = c = state
    hidden = []
    for each in steps_of(x):
        i, f, g = (lib.matmul(each, w[k]) + lib.matmul(h, u[k]) for k in range(3))
        c = lib.sigmoid(f) * c + lib.sigmoid(i) * lib.tanh(g)
        h = lib.sigmoid(lib.matmul(each, w[3]) + lib.matmul(h, u[3]) + c * b[3]) * lib.tanh(c)
        hidden.append(h)
    return hidden, c


def values_apart() -> tuple[np.ndarray, ...]:
    x, state, *weights = spelled_values()
    return x, state, *(part for each in weights for part in np.split(each, 4, -1))


@pytest.mark.parametrize(
    "network, calls",
    [
        (gate_by_gate, 1),
        (joined_gate_by_gate, 1),
        (sums_gate_by_gate, 1),
        (a_column_for_all_units, 0),
        (unlike_gates, 0),
        (with_peepholes, 0),
    ],
)
def test_gates_with_weights_of_their_own(network: Any, calls: int) -> None:
    found, job = trained(network, values_apart())
    assert_like_pytorch(network, values_apart(), found)
    assert_calls(job, f"{calls} sequence" if calls else "", calls, by_cells=False)


def test_a_number_added_to_a_gate_of_one_array() -> None:
    def network(lib: Any, x: Any, state: Any, w: Any) -> tuple[list[Any], Any]:
        h = c = state
        hidden = []
        for t in range(LENGTH):
            gates = x[:, t] + lib.matmul(h, w)
            i, f, g, o = (gates[:, q * WIDTH : (q + 1) * WIDTH] for q in range(4))
            c = lib.sigmoid(f + 1.0) * c + lib.sigmoid(i) * lib.tanh(g)
            h = lib.sigmoid(o + -0.5) * lib.tanh(c)
            hidden.append(h)
        return hidden, c

    found, job = trained(network, values())
    assert_like_pytorch(network, values(), found)
    assert_calls(job, "1 sequence", 1)


@pytest.mark.parametrize("network, given", [(gate_by_gate, values_apart), (bias_last, spelled_values), (joined, spelled_values)])
def test_predictions_take_one_call(network: Any, given: Any) -> None:
    arrays = given()
    names = [f"v{i}" for i in range(len(arrays))]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(arrays[0].shape)) -> tuple[tp.Numpy, tp.Numpy]:
        others = [flow.get_variable(n, a.shape, initializer=flow.zeros_initializer()) for n, a in zip(names, arrays, strict=True)]
        hidden, c = network(Ours, x, *others[1:])
        return hidden[-1], flow.matmul(c, c, transpose_b=True)

    flow.load_variables(dict(zip(names[1:], arrays[1:], strict=True)), ignore_mismatch=True)
    with torch.no_grad():
        hidden, c = network(Theirs, *map(torch.tensor, arrays))
    for _ in range(2):
        h, square = job(arrays[0])
        np.testing.assert_allclose(h, hidden[-1].numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(square, (c @ c.T).numpy(), rtol=1e-4, atol=1e-3)
    assert job.executables[-1][1].hlo().count(CALL) == 1
