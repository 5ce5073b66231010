"""Steps that a program unrolls are one loop, with the values and gradients of PyTorch; and which steps are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler import loops

ROWS, WIDTH, STEPS = 4, 6, 24

# --- recurrences, written once for the library and for PyTorch: x of each step, the state before, and the weights w(name, shape)


def plain(np_: Any, x: Any, h: Any, w: Any) -> Any:
    return np_.tanh(np_.matmul(x, w("x", (WIDTH, WIDTH))) + np_.matmul(h, w("h", (WIDTH, WIDTH))) + w("b", (WIDTH,)))


def gated(np_: Any, x: Any, h: Any, w: Any) -> Any:
    """A gated recurrent unit as cuDNN and PyTorch have it."""
    gate = lambda g: (np_.matmul(x, w(f"x{g}", (WIDTH, WIDTH))), np_.matmul(h, w(f"h{g}", (WIDTH, WIDTH))))  # noqa: E731
    r, z, (new, old) = np_.sigmoid(sum(gate("r"))), np_.sigmoid(sum(gate("z"))), gate("n")
    return (1 - z) * np_.tanh(new + r * old) + z * h


def gated_before(np_: Any, x: Any, h: Any, w: Any) -> Any:
    """A gated recurrent unit as it was published (Cho et al., 2014): the state is gated before it is multiplied."""
    r = np_.sigmoid(np_.matmul(x, w("xr", (WIDTH, WIDTH))) + np_.matmul(h, w("hr", (WIDTH, WIDTH))))
    z = np_.sigmoid(np_.matmul(x, w("xz", (WIDTH, WIDTH))) + np_.matmul(h, w("hz", (WIDTH, WIDTH))))
    new = np_.tanh(np_.matmul(x, w("xn", (WIDTH, WIDTH))) + np_.matmul(r * h, w("hn", (WIDTH, WIDTH))))
    return z * h + (1 - z) * new


def joined(np_: Any, x: Any, h: Any, w: Any) -> Any:
    both = np_.cat([x, h], 1)
    return np_.relu(np_.matmul(both, w("w", (2 * WIDTH, WIDTH)))) * 0.5 - np_.sum(h, 1) * 0.1


def average(np_: Any, x: Any, h: Any, w: Any) -> Any:
    rate = np_.sigmoid(w("rate", (WIDTH,)))
    return h * rate + x * (1 - rate)


CELLS = [plain, gated, gated_before, joined, average]


class Ours:
    matmul, sigmoid, tanh, relu = flow.matmul, flow.math.sigmoid, flow.math.tanh, flow.nn.relu
    cat = staticmethod(lambda xs, axis: flow.concat(xs, axis=axis))
    sum = staticmethod(lambda x, axis: flow.math.reduce_sum(x, [axis], keepdims=True))

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        return flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


class Theirs:
    matmul, sigmoid, tanh, relu, cat = torch.matmul, torch.sigmoid, torch.tanh, torch.relu, torch.cat
    sum = staticmethod(lambda x, axis: x.sum(axis, keepdim=True))
    cross_entropy = staticmethod(torch.nn.functional.cross_entropy)


def weights() -> Callable[[str, tuple[int, ...]], Any]:
    made: dict[str, Any] = {}

    def w(name: str, shape: tuple[int, ...]) -> Any:
        if name not in made:
            made[name] = flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.4))
        return made[name]

    return w


def loops_of(job: Any) -> str:
    return str(dict(job.executables[-1][1].plan.passes).get("loops", ""))


def cut(x: Any, step: int, axis: int) -> Any:
    begin, size = [None] * 3, [None] * 3
    begin[axis], size[axis] = step, 1
    return flow.squeeze(flow.slice(x, begin, size), [axis])


def check(
    cells: list[Callable[..., Any]],
    kind: str = "train",
    *,
    axis: int = 1,
    backwards: bool = False,
    results: str = "all",
    begins_with_zeros: bool = True,
) -> str:
    """Compares a network of recurrences over each other with PyTorch, and returns what became loops."""
    order = range(STEPS)[::-1] if backwards else range(STEPS)
    shape = (ROWS, STEPS, WIDTH) if axis else (STEPS, ROWS, WIDTH)

    def states(np_: Any, xs: list[Any], begin: Callable[[], Any], w: Any) -> list[Any]:
        for layer, cell in enumerate(cells):
            h, made = begin(), []
            for x in xs:
                h = cell(np_, x, x if h is None else h, lambda name, shape: w(f"{layer}-{name}", shape))  # noqa: B023
                made.append(h)
            xs = made
        return {"all": xs, "last": xs[-1:], "some": xs[1::3]}[results]

    @flow.global_function(kind)
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        zeros = flow.constant(0, flow.float32, (ROWS, WIDTH))
        made = states(Ours, [cut(x, t, axis) for t in order], lambda: zeros if begins_with_zeros else None, weights())
        y = flow.concat([flow.expand_dims(each, 1) for each in made], axis=1) if axis else flow.stack(made, 1)
        if kind == "train":
            loss = flow.math.reduce_sum(flow.math.square(y + 0.5))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return y

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    job.build()
    before = {name: v.numpy() for name, v in flow.get_all_variables().items() if not name.startswith("System")}
    found = job(x)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    zeros = torch.zeros(ROWS, WIDTH)
    made = states(
        Theirs, [torch.tensor(x).select(axis, t) for t in order], lambda: zeros if begins_with_zeros else None,
        lambda name, shape: tensors[name],
    )  # fmt: skip
    y = torch.stack(made, 1)
    np.testing.assert_allclose(found, y.detach().numpy(), rtol=1e-4, atol=1e-5)
    if kind == "train":
        (y + 0.5).square().sum().backward()
        for name, tensor in tensors.items():
            slope = before[name] - flow.get_all_variables()[name].numpy()
            largest = float(tensor.grad.abs().max())
            np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-3, atol=1e-4 * largest + 1e-6)
    return loops_of(job)


@pytest.mark.parametrize(("kind", "devices"), [("train", 1), ("predict", 1), ("train", 2)])
@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrence_is_one_loop(cell: Callable[..., Any], kind: str, devices: int) -> None:
    flow.config.cpu_device_num(devices)
    steps = STEPS - (cell is joined and kind == "train")  # no gradient flows to a sum of the zeros of the first step
    assert check([cell], kind).startswith(f"{steps} steps of")


@settings(max_examples=10, deadline=None)
@given(
    cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=3),
    kind=st.sampled_from(["train", "train", "predict"]),
    axis=st.sampled_from([0, 1]),
    backwards=st.booleans(),
    results=st.sampled_from(["all", "last", "some"]),
    begins_with_zeros=st.booleans(),
)
def test_recurrences_over_each_other(cells: list[Callable[..., Any]], kind: str, **how: Any) -> None:
    flow.clear_default_session()
    found = check(cells, kind, **how)
    assert found.count("loop") >= len(cells) - (how["results"] == "some")


@pytest.mark.parametrize(("cell", "devices"), [(gated, 1), (gated, 2), (None, 1), (None, 2)])
def test_losses_of_each_step_are_those_of_pytorch(cell: Callable[..., Any] | None, devices: int) -> None:
    """Behind a recurrence, and where no step reads another one's results; added up, with labels for each step."""
    classes = 5
    flow.config.cpu_device_num(devices)

    def losses(np_: Any, xs: list[Any], labels: list[Any], begin: Any, w: Any) -> Any:
        total, h = 0, begin
        for x, y in zip(xs, labels, strict=True):
            h = x if cell is None else cell(np_, x, h, w)
            logits = np_.matmul(np_.tanh(np_.matmul(h, w("u", (WIDTH, WIDTH)))), w("v", (WIDTH, classes))) + w("c", (classes,))
            total = total + np_.cross_entropy(logits, y) * 0.5
        return total

    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("cpu", f"0:0-{devices - 1}"))

    @flow.global_function("train", config)
    def job(
        x: tp.Numpy.Placeholder((ROWS, STEPS, WIDTH)), y: tp.Numpy.Placeholder((ROWS, STEPS), flow.int32)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        scale = flow.get_variable("scale", (1,), initializer=flow.ones_initializer())
        xs = [cut(x, t, 1) * scale for t in range(STEPS)]
        labels = [flow.reshape(flow.slice(y, [None, t], [None, 1]), (ROWS,)) for t in range(STEPS)]
        loss = losses(Ours, xs, labels, flow.constant(0, flow.float32, (ROWS, WIDTH)), weights())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss, xs[3]

    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, STEPS, WIDTH)).astype(np.float32)
    y = random.integers(0, classes, (ROWS, STEPS)).astype(np.int32)
    job.build()
    before = {name: v.numpy() for name, v in flow.get_all_variables().items() if not name.startswith("System")}
    found, third = job(x, y)
    assert loops_of(job).startswith(f"{STEPS - 1} steps"), loops_of(job)  # the first one adds a number
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    xs = [torch.tensor(x)[:, t] * tensors["scale"] for t in range(STEPS)]
    labels = [torch.tensor(y)[:, t].long() for t in range(STEPS)]
    loss = losses(Theirs, xs, labels, torch.zeros(ROWS, WIDTH), lambda name, shape: tensors[name])
    loss.backward()
    np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
    np.testing.assert_array_equal(third, x[:, 3])
    for name, tensor in tensors.items():
        slope = before[name] - flow.get_all_variables()[name].numpy()
        np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-3, atol=1e-4 * float(tensor.grad.abs().max()))


def test_layers_inside_of_a_step_are_one_loop() -> None:
    """The steps of both layers in turns; the second one reads what the first has just computed."""
    w = np.random.default_rng(1).standard_normal((4, WIDTH, WIDTH)).astype(np.float32) * 0.4
    x = np.random.default_rng(2).standard_normal((STEPS, ROWS, WIDTH)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((STEPS, ROWS, WIDTH))) -> tp.Numpy:
        v = [flow.get_variable(f"w{i}", (WIDTH, WIDTH), initializer=flow.zeros_initializer()) for i in range(4)]
        a = b = flow.constant(0, flow.float32, (ROWS, WIDTH))
        for t in range(STEPS):
            a = flow.math.tanh(flow.matmul(cut(x, t, 0), v[0]) + flow.matmul(a, v[1]))
            b = flow.math.tanh(flow.matmul(a, v[2]) + flow.matmul(b, v[3]))
        return b

    flow.load_variables({f"w{i}": value for i, value in enumerate(w)})
    found = job(x)
    a = b = np.zeros((ROWS, WIDTH), np.float32)
    for t in range(STEPS):
        a = np.tanh(x[t] @ w[0] + a @ w[1])
        b = np.tanh(a @ w[2] + b @ w[3])
    np.testing.assert_allclose(found, b, rtol=1e-4, atol=1e-5)
    assert loops_of(job).count("loop") == 1


def test_what_a_loop_cannot_compute_is_computed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers and indices are drawn and looked up before the loop, losses of labels are computed behind it."""
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", "")  # both jobs have the same name and plan

    def trained() -> tuple[Any, str]:
        flow.clear_default_session()
        flow.manual_seed(5)

        @flow.global_function("train")
        def job(words: tp.Numpy.Placeholder((ROWS, STEPS), dtype=flow.int32)) -> tp.Numpy:
            w, h, losses = weights(), flow.constant(0, flow.float32, (ROWS, WIDTH)), []
            table = w("table", (9, WIDTH))
            for t in range(STEPS):
                word = flow.squeeze(flow.slice(words, [None, t], [None, 1]), [1])
                h = plain(Ours, flow.nn.dropout(flow.gather(table, word), 0.5), h, w)
                logits = flow.matmul(h, w("out", (WIDTH, 9)))
                losses.append(flow.nn.sparse_softmax_cross_entropy_with_logits(word, logits))
            loss = flow.math.reduce_mean(flow.stack(losses, 0))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
            return loss

        words = np.random.default_rng(0).integers(0, 9, (ROWS, STEPS)).astype(np.int32)
        return [job(words) for _ in range(5)], loops_of(job)

    rolled, found = trained()
    monkeypatch.setattr(loops, "MIN_STEPS", 10**6)
    unrolled, none = trained()
    assert found.startswith(f"{STEPS} steps of") and none == ""
    np.testing.assert_allclose(rolled, unrolled, rtol=1e-5)
    assert rolled[-1] < rolled[0]


def test_an_op_of_a_program_gets_each_step_by_itself() -> None:
    """It may call Python code, whose result XLA knows the shape of."""
    shapes = []

    def on_host(x: np.ndarray) -> np.ndarray:
        shapes.append(x.shape)
        return np.sin(x)

    @flow.experimental.register_op("sine_on_host")
    def sine(x: Any) -> Any:
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((ROWS, STEPS, WIDTH))) -> tp.Numpy:
        w = weights()("w", (WIDTH, WIDTH))
        return flow.stack([sine(flow.matmul(cut(x, t, 1), w)) for t in range(STEPS)], 1)

    x = np.random.default_rng(0).standard_normal((ROWS, STEPS, WIDTH)).astype(np.float32)
    found = job(x)
    np.testing.assert_allclose(found, np.sin(x @ flow.get_all_variables()["w"].numpy()), rtol=1e-5, atol=1e-6)
    assert shapes == [(ROWS, WIDTH)] * STEPS
    assert loops_of(job).startswith(f"{STEPS} steps")


def test_masks_of_steps() -> None:
    """Sequences of several lengths: a state stays what it was behind the end of its sequence."""
    x = np.random.default_rng(0).standard_normal((ROWS, STEPS, WIDTH)).astype(np.float32)
    lengths = np.array([3, STEPS, 1, 9], np.int32)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder(x.shape), lengths: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32)) -> tp.Numpy:
        w, h = weights(), flow.constant(0, flow.float32, (ROWS, WIDTH))
        for t in range(STEPS):
            is_on = flow.reshape(flow.math.greater(lengths, flow.constant_like(lengths, t)), (ROWS, 1))
            h = flow.where(is_on, plain(Ours, cut(x, t, 1), h, w), h)
        loss = flow.math.reduce_sum(flow.math.square(h))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return h

    job.build()
    before = {name: v.numpy() for name, v in flow.get_all_variables().items() if not name.startswith("System")}
    found = job(x, lengths)
    assert loops_of(job)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    h = torch.zeros(ROWS, WIDTH)
    for t in range(STEPS):
        new = plain(Theirs, torch.tensor(x[:, t]), h, lambda name, shape: tensors[name])
        h = torch.where(torch.tensor(lengths > t)[:, None], new, h)
    h.square().sum().backward()
    np.testing.assert_allclose(found, h.detach().numpy(), rtol=1e-4, atol=1e-5)
    for name, tensor in tensors.items():
        slope = before[name] - flow.get_all_variables()[name].numpy()
        np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_the_same_blocks_in_two_shapes() -> None:
    """A row of the sequence, and the same as a column: either fits a square state."""
    x = np.random.default_rng(0).standard_normal((STEPS, ROWS)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((STEPS, ROWS))) -> tp.Numpy:
        rows = [flow.slice(x, [t, None], [1, None]) for t in range(STEPS)]
        columns = [flow.reshape(row, (ROWS, 1)) for row in rows]
        h, w = flow.constant(0, flow.float32, (ROWS, ROWS)), weights()("w", (ROWS, ROWS))
        for row, column in zip(rows, columns, strict=True):
            h = flow.math.tanh(flow.matmul(h, w) + column) * flow.math.sigmoid(h * 0.5 + row) + flow.math.sin(h)
        return h

    found = job(x)
    assert loops_of(job)
    h, w = np.zeros((ROWS, ROWS)), flow.get_all_variables()["w"].numpy().astype(np.float64)
    for each in x.astype(np.float64):
        h = np.tanh(h @ w + each[:, None]) / (1 + np.exp(-(h * 0.5 + each))) + np.sin(h)
    np.testing.assert_allclose(found, h, rtol=1e-3, atol=1e-3)


def test_what_no_loss_reads_has_no_gradient() -> None:
    """The derivative of a square root is infinite at 0, where the first product is; the loss reads the last root alone."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((STEPS, ROWS, WIDTH))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        w, h, norms = weights(), flow.constant(0, flow.float32, (ROWS, WIDTH)), []
        for t in range(STEPS):
            product = flow.matmul(h, w("w", (WIDTH, WIDTH)))
            norms.append(flow.math.sqrt(flow.math.square(product)))
            h = flow.math.tanh(flow.matmul(cut(x, t, 0), w("u", (WIDTH, WIDTH))) + product * 0.5 + 0.1 * h)
        loss = flow.math.reduce_mean(norms[-1])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss, flow.stack(norms, axis=0)

    x = np.random.default_rng(0).standard_normal((STEPS, ROWS, WIDTH)).astype(np.float32)
    losses = [float(job(x)[0].item()) for _ in range(3)]
    assert loops_of(job)
    assert losses[2] < losses[1] < losses[0]


def test_a_watched_state_is_that_of_its_step() -> None:
    seen: list[Any] = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((STEPS, ROWS, WIDTH))) -> tp.Numpy:
        w, h = weights(), flow.constant(0, flow.float32, (ROWS, WIDTH))
        for t in range(STEPS):
            h = average(Ours, cut(x, t, 0), h, w)
            if t == 4:
                flow.watch(h, lambda state: seen.append(state.numpy()))
        return h

    x = np.random.default_rng(0).standard_normal((STEPS, ROWS, WIDTH)).astype(np.float32)
    last = job(x)
    rate = 1 / (1 + np.exp(-flow.get_all_variables()["rate"].numpy()))
    h, states = np.zeros((ROWS, WIDTH), np.float32), []
    for each in x:
        h = h * rate + each * (1 - rate)
        states.append(h)
    assert loops_of(job)
    np.testing.assert_allclose(seen[0], states[4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, states[-1], rtol=1e-5, atol=1e-6)


def test_what_looks_at_each_step_sees_each_step() -> None:
    """The first value that is not finite, and a profile."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((STEPS, ROWS, WIDTH))) -> tp.Numpy:
        w, h = weights()("w", (WIDTH, WIDTH)), flow.constant(0, flow.float32, (ROWS, WIDTH))
        for t in range(STEPS):
            h = flow.math.tanh(flow.matmul(h, w)) + flow.math.log(cut(x, t, 0))
        loss = flow.math.reduce_mean(h)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    x = np.ones((STEPS, ROWS, WIDTH), np.float32)
    job(x)
    assert loops_of(job)
    assert job.find_nonfinite(x) is None
    assert f"in a loop of {STEPS} steps" in str(job.profile(x, steps=2))
    x[5, 2, 1] = 0
    found = job.find_nonfinite(x)
    assert (found.phase, found.name) == ("forward", "Log_5")


def deep(x: Any, w: Any) -> Any:
    for layer in range(20):
        x = flow.math.tanh(flow.nn.bias_add(flow.matmul(x, w(f"w{layer}", (WIDTH, WIDTH))), w(f"b{layer}", (WIDTH,))))
        x = flow.nn.relu(x) + 0.1
    return x


def three_steps_back(x: Any, w: Any) -> Any:
    states = [x, x * 0.5, x * 0.25]
    for _ in range(20):
        states.append(flow.math.tanh(flow.matmul(states[-1], w("w", (WIDTH, WIDTH))) + states[-3]) * 0.9)
    return states[-1]


def by_numbers(x: Any, w: Any) -> Any:
    for step in range(20):
        x = flow.math.tanh(flow.matmul(x, w("w", (WIDTH, WIDTH))) * (1 + step)) + x * 0.1
    return x


def with_dropout(x: Any, w: Any) -> Any:
    for _ in range(20):
        x = flow.nn.dropout(flow.math.tanh(flow.matmul(x, w("w", (WIDTH, WIDTH)))), 0.5) + x * 0.1
    return x


def sum_of_losses(x: Any, w: Any) -> Any:
    total = flow.math.reduce_sum(x)
    for _ in range(100):
        total = total + flow.math.reduce_sum(x * w("w", (WIDTH,)))
    return total


@pytest.mark.parametrize("body", [sum_of_losses, deep, three_steps_back, by_numbers, with_dropout])
def test_steps_that_are_no_loop(body: Callable[..., Any]) -> None:
    """A sum of numbers; layers with weights of their own; a state of three steps before; numbers that differ; random ones."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(body(x, weights())))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    assert np.isfinite(job(np.ones((ROWS, WIDTH), np.float32)))
    assert loops_of(job) == ""
