"""``job.submit``: every job can be called without waiting, whatever its return annotation says."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import FeedShapeError, ModeError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def counter(returns=tp.Numpy, watched=None):
    """A train job that adds the mean of x to a variable, and returns the variable as it was."""

    def train(x: tp.Numpy.Placeholder((2, 3))) -> returns:
        w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
        if watched is not None:
            flow.watch(w, watched)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(flow.math.negative(w) * flow.math.reduce_mean(x))
        return None if returns is None else w

    train.__annotations__ = {"x": tp.Numpy.Placeholder((2, 3)), "return": returns}
    return flow.global_function("train")(train)


@pytest.mark.parametrize("returns", [tp.Numpy, tp.Callback[tp.Numpy]], ids=["synchronous", "callback"])
def test_results_come_in_order_on_one_thread(returns):
    job, seen, threads = counter(returns), [], set()

    def keep(value):
        seen.append(float(value[0]))
        threads.add(threading.current_thread().name)

    for _ in range(50):
        job.submit(X).async_get(keep)
    flow.sync_default_session()
    assert seen == [2.5 * i for i in range(50)]
    assert threads == {"oneflow-delivery"}


def test_submitted_and_ordinary_calls_are_steps_of_one_sequence():
    job = counter()
    futures = [job.submit(X), job.submit(x=X)]
    assert all(isinstance(future, Future) for future in futures)
    assert job(X)[0] == 5.0
    assert [future.result(timeout=60)[0] for future in futures] == [0.0, 2.5]
    assert isinstance(job(X), np.ndarray)


def test_a_job_that_returns_nothing_gives_a_result():
    job = counter(None)
    assert job(X) is None
    assert job.submit(X).result() is None
    assert flow.get_all_variables()["w"].numpy()[0] == 5.0


def test_watch_handlers_run_before_the_callback():
    order = []
    job = counter(watched=lambda value: order.append("watch"))
    job.submit(X).async_get(lambda value: order.append("callback"))
    flow.sync_default_session()
    assert order == ["watch", "callback"]


def test_arrays_may_be_changed_after_submitting():
    job, x = counter(), X.copy()
    for _ in range(20):
        job.submit(x)
        x += 1
    total = sum(2.5 + i for i in range(20))
    assert job(x)[0] == pytest.approx(total)


def test_inputs_of_varying_size():
    @flow.global_function()
    def total(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        return flow.math.reduce_sum(x, axis=[1])

    values = [total.submit([np.ones((rows, 3), np.float32)]) for rows in (1, 4, 2)]
    assert [value.result()[0].shape for value in values] == [(1,), (4,), (2,)]


def test_after_another_job_moved_a_variable_and_after_the_session_was_closed():
    job = counter()
    job.submit(X).result()
    job.invalidate()
    assert job.submit(X).result()[0] == 2.5
    flow.clear_default_session()
    with pytest.raises(ModeError, match="closed"):
        job.submit(X)


def test_what_is_wrong_raises_at_the_call():
    job = counter()
    with pytest.raises(FeedShapeError, match="must have shape"):
        job.submit(X[:1])

    @flow.global_function()
    def inside(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        job.submit(X)
        return x

    with pytest.raises(ModeError, match="called inside the body"):
        inside(X)
    assert job.submit(X).result()[0] == 0.0


@pytest.mark.parametrize("how", ["array", "Blob", "submit"])
def test_a_job_that_has_been_called_cannot_be_called_in_a_body_either(how: str) -> None:
    ones = np.ones((2, 3), np.float32)

    @flow.global_function(type="train")
    def inner(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = x * flow.get_variable("w", (3,), initializer=flow.zeros_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    inner(ones)
    inner.submit(ones).result()
    weights = flow.get_all_variables()["w"].numpy()

    @flow.global_function()
    def outer(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        if how == "submit":
            return x + float(inner.submit(ones).result()[0, 0])
        return x + inner(x if how == "Blob" else ones)

    with pytest.raises(ModeError, match="'inner' was called inside the body of job 'outer'"):
        outer(ones)
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), weights)
    np.testing.assert_allclose(inner(ones)[0], weights, rtol=1e-6)  # where it may be called it goes on
