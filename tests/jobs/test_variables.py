"""Variables: shared by name, kept between calls, reproducible."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

X = np.ones((2, 3), np.float32)


def declare(initializer=None, **kwargs):
    initializer = initializer or flow.random_normal_initializer(0.0, 0.5)

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (4, 3), initializer=initializer, **kwargs)
        loss = flow.math.reduce_sum(flow.matmul(x, w, transpose_b=True), axis=1)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5])).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def read(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.identity(flow.get_variable("w", (4, 3), initializer=initializer, **kwargs))

    return train, read


def test_train_and_predict_share_by_name():
    train, read = declare(flow.ones_initializer())
    loss = train(X)
    np.testing.assert_allclose(loss, [12, 12])
    np.testing.assert_allclose(read(X), np.full((4, 3), 0.5))  # gradient 1 a weight: the mean over two losses of x = 1
    train(X)
    np.testing.assert_allclose(read(X), np.full((4, 3), 0.5 - 0.5 - 0.45))  # momentum 0.9 is SGD's default
    names = sorted(flow.get_all_variables())
    assert names == ["System-Train-TrainStep-train", "w", "w-momentum"]
    assert flow.get_all_variables()["System-Train-TrainStep-train"].numpy().tolist() == [2]


def test_a_returned_variable_shows_its_value_before_the_update():
    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(w)
        return w

    np.testing.assert_array_equal(job(), [1, 1])
    np.testing.assert_array_equal(job(), [0.5, 0.5])


def test_same_name_in_one_job_is_the_same_blob():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        a = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        assert flow.get_variable("w", (3,), initializer=flow.zeros_initializer()) is a
        return x + a

    np.testing.assert_array_equal(job(X), X + 1)


def test_namespaces():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        with flow.scope.namespace("a"), flow.scope.namespace("b"):
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
            y = flow.math.relu(x, name="relu")
        assert (w.op_name, y.op_name) == ("a-b-w", "a-b-relu")
        assert flow.get_variable("a-b-w", (3,), initializer=flow.ones_initializer()) is w
        return y + w

    job(X)
    assert list(flow.get_all_variables()) == ["a-b-w"]


def test_manual_seed_reproduces_and_seeds_differ():
    def values(seed, **kwargs):
        flow.clear_default_session()
        if seed is not None:
            flow.manual_seed(seed)
        return declare(**kwargs)[1](X)

    a, b, c = values(1), values(1), values(2)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    np.testing.assert_array_equal(values(5, random_seed=9), values(6, random_seed=9))
    np.testing.assert_array_equal(values(5, random_seed=-9), values(6, random_seed=-9))
    assert not np.array_equal(values(5, random_seed=9), values(5, random_seed=-9))


def test_a_job_declared_later_finds_the_trained_variables():
    train, read = declare()
    train(X)
    before = read(X)

    @flow.global_function()
    def later(x: tp.Numpy.Placeholder((1, 3))) -> tp.Numpy:
        return flow.identity(flow.get_variable("w", (4, 3), initializer=flow.zeros_initializer()))

    np.testing.assert_array_equal(later(X[:1]), before)


def test_load_variables_and_all_variables():
    train, read = declare()
    new = np.arange(12, dtype=np.float32).reshape(4, 3)
    with pytest.warns(flow.errors.CheckpointWarning, match="no such"):
        flow.load_variables({"w": new, "no such": new})
    np.testing.assert_array_equal(read(X), new)
    handle = flow.get_all_variables()["w"]
    np.testing.assert_array_equal(handle.numpy(), new)
    train(X)
    assert not np.array_equal(handle.numpy(), new)
    with pytest.raises(flow.errors.OneFlowError, match="w"):
        flow.load_variables({"w": new[:2]})
    with pytest.raises(Exception, match="no such"):
        flow.load_variables({"no such": new}, ignore_mismatch=False)


def test_loaded_arrays_are_copied():
    train, read = declare()
    for offset in range(16):  # whatever the alignment
        memory = np.ones(12 + 16, np.float32)
        value = memory[offset : offset + 12].reshape(4, 3)
        flow.load_variables({"w": value})
        value[...] = 7
        assert (read(X) == 1).all()


def test_sixty_four_bits_do_not_leak():
    import jax.numpy as jnp

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((2, 3), dtype=flow.float64), i: tp.Numpy.Placeholder((2,), dtype=flow.int64)
    ) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w64", (3,), dtype=flow.float64, initializer=flow.ones_initializer())
        loss = x * w
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss, i + 1

    loss, i = job(X.astype(np.float64) / 3, np.array([2**40, 1]))
    assert loss.dtype == np.float64 and loss[0, 0] == 1 / 3 and i.tolist() == [2**40 + 1, 2]
    assert jnp.ones(3).dtype == np.float32 and jnp.arange(3).dtype == np.int32
    assert flow.get_all_variables()["w64"].numpy().dtype == np.float64


def test_watch_and_watch_diff():
    seen = {}

    def named(name):
        def handler(value: tp.Numpy):
            seen.setdefault(name, []).append(value)

        return handler

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        y = x * w
        loss = flow.math.reduce_sum(y * y, axis=1)
        flow.watch(w, named("w"))
        flow.watch(y, lambda local: seen.setdefault("local", []).append(local.numpy()))
        for name, blob in {"dy": y, "dw": w, "dx": x, "dloss": loss}.items():
            flow.watch_diff(blob, named(name))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    job(x)
    np.testing.assert_allclose(seen["w"][0], [1, 1, 1])
    np.testing.assert_allclose(seen["local"][0], x)
    np.testing.assert_allclose(seen["dy"][0], 2 * x)
    np.testing.assert_allclose(seen["dx"][0], 2 * x)
    np.testing.assert_allclose(seen["dw"][0], (2 * x * x).sum(0))  # raw: not divided by the two losses
    np.testing.assert_allclose(seen["dloss"][0], [1, 1])
    job(x)
    np.testing.assert_allclose(seen["w"][1], 1 - 0.1 * (2 * x * x).sum(0) / 2, rtol=1e-6)


def test_watch_prints(capfd):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        flow.watch(x, "the input:")
        return x

    job(np.array([42.0], np.float32))
    assert "the input:\n[42.]" in capfd.readouterr().out


def test_integers_on_the_gradient_path():
    seen = []

    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.constant_initializer(5.0))
        i = flow.cast(w, flow.int32)
        loss = i * 3

        def handler(value: tp.Numpy):
            seen.append(value)

        flow.watch_diff(i, handler)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    assert job().tolist() == [15, 15]
    assert seen[0].dtype == np.int32 and seen[0].tolist() == [3, 3]
    assert flow.get_all_variables()["w"].numpy().tolist() == [3.5, 3.5]


def test_an_explicit_seed_reproduces_whatever_the_session_draws():
    def masks():
        flow.clear_default_session()

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((64,))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
            w = flow.get_variable("w", (64,), initializer=flow.ones_initializer())
            given = flow.nn.dropout(x, rate=0.5, seed=7, name="given")
            own = flow.nn.dropout(x, rate=0.5)
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(w)
            return given, own

        x = np.ones((64,), np.float32)
        return job(x), job(x)

    (a1, b1), (a2, b2) = masks()
    (c1, d1), (c2, d2) = masks()
    np.testing.assert_array_equal(a1, c1)
    np.testing.assert_array_equal(a2, c2)
    assert not np.array_equal(a1, a2) and not np.array_equal(b1, b2)


@pytest.mark.parametrize("limit", [1 << 28, 900_000])  # bytes: all together, or two and two
def test_variables_have_the_same_first_values_alone_and_together(limit, monkeypatch):
    monkeypatch.setattr("oneflow.runtime.store._MOST_AT_ONCE", limit)

    def values(names):
        flow.clear_default_session()
        flow.manual_seed(3)

        @flow.global_function()
        def job() -> tp.Numpy:
            initializer = flow.truncated_normal(0.1)
            return flow.math.add_n([flow.get_variable(name, (300, 350), initializer=initializer) for name in names])

        total = job()
        found = {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
        np.testing.assert_allclose(total, sum(found.values()), rtol=0, atol=1e-6)
        return found

    together = values("abcd")  # 420 kB each: drawn on threads
    for name, value in together.items():
        np.testing.assert_array_equal(values([name])[name], value)


def test_a_first_value_that_does_not_fit_into_memory_is_told_with_the_variable(monkeypatch):
    initializer = flow.random_normal_initializer()

    def draw(*args):
        raise MemoryError("Unable to allocate 2.91 TiB")

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 400))) -> tp.Numpy:
        return flow.layers.dense(x, 8, kernel_initializer=initializer, name="huge")

    monkeypatch.setattr(type(initializer), "draw", draw)
    with pytest.raises(flow.errors.ExecutionError, match="the first value of variable 'huge-weight', float32") as caught:
        job(np.ones((2, 400), np.float32))
    assert "does not fit into memory" in str(caught.value) and 'name="huge"' in str(caught.value)
    assert caught.value.__context__ is None


class OfTheUser:
    def __init__(self, made):
        self.made = made

    def draw(self, shape, dtype, rng):
        return self.made()

    def __repr__(self):
        return "OfTheUser()"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: 1 / 0, r"could not be drawn by OfTheUser\(\): ZeroDivisionError: division by zero"),
        (lambda: warnings.warn("odd", RuntimeWarning, stacklevel=1), r"could not be drawn by OfTheUser\(\): RuntimeWarning: odd"),
        (lambda: np.zeros(3), r"has shape \(3,\) as OfTheUser\(\) draws it"),
    ],
)
@pytest.mark.parametrize("shape", [(2,), (300, 300)], ids=["small", "large"])
def test_a_first_value_that_cannot_be_drawn_is_told_with_the_users_line(made, told, shape):
    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("v", shape, initializer=OfTheUser(made))

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(flow.errors.OneFlowError, match=told) as caught:
            job()
    assert "your line" in str(caught.value) and "OfTheUser(made))" in str(caught.value)


def test_an_initializer_that_calls_a_job_for_the_first_time():
    @flow.global_function()
    def other() -> tp.Numpy:
        return flow.get_variable("other", (2,), initializer=flow.ones_initializer())

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("v", (2,), initializer=OfTheUser(other))

    with pytest.raises(flow.errors.ExecutionError, match="called for the first time by the initializer of variable 'v'"):
        job()
    other()
    np.testing.assert_array_equal(job(), [1, 1])


@pytest.mark.parametrize(
    ("initializer", "dtype"),
    [
        (flow.random_normal_initializer(0, 1e6), flow.float16),
        (flow.random_uniform_initializer(0, 1e300), flow.float32),
        (flow.truncated_normal_initializer(0, 1e39), flow.float32),
        (flow.random_normal_initializer(1e308, 1e308), flow.double),
    ],
)
@pytest.mark.parametrize("shape", [(20,), (300, 300)], ids=["small", "on a thread"])
def test_first_values_outside_the_dtypes_range(initializer, dtype, shape):
    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("v", shape, dtype, initializer)

    with pytest.raises(flow.errors.ExecutionError, match=r"first value of variable 'v'.* could not be drawn.*overflow"):
        job()


def test_a_handle_of_a_closed_session_says_so():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return x + flow.get_variable("v", (2,), initializer=flow.ones_initializer())

    job(np.ones(2, np.float32))
    handle = flow.get_all_variables()["v"]
    flow.clear_default_session()
    with pytest.raises(flow.errors.ModeError, match="variable 'v' has no value any more") as caught:
        handle.numpy()
    assert "your line" in str(caught.value) and "handle.numpy()" in str(caught.value)


@pytest.mark.parametrize("name", ["v", "v-momentum", "System-Train-TrainStep-job"])
@pytest.mark.parametrize("assign_first", [True, False])
def test_a_call_stores_one_value(name, assign_first):
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        v = flow.get_variable("v", (1,), initializer=flow.ones_initializer())
        dtype = flow.int64 if "Step" in name else flow.float32
        ref = v if name == "v" else flow.get_variable(name, (1,), dtype, flow.zeros_initializer(), trainable=False)
        if assign_first:
            flow.assign(ref, flow.zeros_like(ref))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(v * x)
        if not assign_first:
            flow.assign(ref, flow.zeros_like(ref))
        return x

    with pytest.raises(flow.errors.TrainError, match=r"(?s)one value would be lost.*test_variables\.py:\d+   flow\.assign"):
        job(np.ones(1, np.float32))


def test_a_trained_variable_of_the_name_of_an_optimizers_state():
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        a = flow.get_variable("a", (1,), initializer=flow.ones_initializer())
        b = flow.get_variable("a-momentum", (1,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(a * b * x)
        return x

    with pytest.raises(flow.errors.VariableConflictError, match="(?s)keeps the optimizer's state of 'a'.*your line"):
        job(np.ones(1, np.float32))
