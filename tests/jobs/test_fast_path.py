"""Calls that take a path of their own: of jobs that keep no state, and with the extension module of jobs that do."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import copy
import gc
import inspect
import itertools
import operator
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native
from oneflow.runtime.delivery import DeliveryThread
from oneflow.runtime.gate import StaleExecutableError
from oneflow.runtime.process import process
from oneflow.runtime.result import Delivery
from oneflow.runtime.waiting import INTERRUPTIBLE_FROM_SECONDS

ONE = np.ones((2, 3), np.float32)


@pytest.fixture(params=["extension", "python"], autouse=True)
def made_by(request, monkeypatch):
    """The calls are made by the native part's extension module, or without it."""
    extension = native.fast_path()
    if request.param == "extension" and extension is None:
        pytest.skip("the native part has no extension module here")
    found = extension if request.param == "extension" else None
    monkeypatch.setattr(native, "fast_path", lambda: found)
    monkeypatch.setattr(process.delivery, "_extension", found)
    return request.param


def test_who_makes_the_calls(made_by):
    job, *_ = one_of_one()
    job(ONE)
    job.submit(ONE).result()
    is_native = made_by == "extension"
    for call in (job._call, job._submit, job._built.delivery.convert):
        assert (type(call) is type(len)) == is_native  # not a function of Python


def one_of_one():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x * 2.0

    return job, lambda x: x * 2, 1


def one_of_two():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3)), y: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x - y

    return job, lambda x, y: x - y, 2


def two_of_one():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tuple[tp.Numpy, tp.Numpy]:
        return x + 1.0, flow.math.reduce_sum(x)

    return job, lambda x: (x + 1, x.sum(keepdims=True).reshape(1)), 1


def one_in_a_list():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> list[tp.Numpy]:
        return [x - 3.0]

    return job, lambda x: [x - 3], 1


@pytest.mark.parametrize("declare", [one_of_one, one_of_two, two_of_one, one_in_a_list])
def test_values(declare):
    job, expected, inputs = declare()
    rng = np.random.default_rng(0)
    waiting = []
    for _ in range(80):
        feeds = [rng.random((2, 3), np.float32) for _ in range(inputs)]
        want = expected(*(feed.copy() for feed in feeds))
        value, later = job(*feeds), job.submit(*feeds)
        for feed in feeds:
            feed[...] = -1000  # the call has its own
        assert type(value) is type(want)
        waiting.append((later, want))
        for got, exact in zip(np.atleast_1d(value) if isinstance(value, np.ndarray) else value, want, strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-6)
        if isinstance(value, np.ndarray):
            value[...] = 7  # so has the caller
    for later, want in waiting:
        for got, exact in zip(later.result(), want, strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-6)


# --- jobs that keep state


def training(asynchronous: bool = False, rows: int = 4):
    """A train job with labels, dropout and momentum, and a predict job that folds its batch normalization."""
    images, labels = tp.Numpy.Placeholder((rows, 5)), tp.Numpy.Placeholder((rows,), dtype=flow.int32)

    def logits(x, trains):
        h = flow.layers.dense(x, 8, kernel_initializer=flow.random_normal_initializer(), name="a")
        h = flow.layers.batch_normalization(h, axis=1, training=trains, name="n")
        h = flow.nn.dropout(h, rate=0.3) if trains else h
        return flow.layers.dense(h, 3, kernel_initializer=flow.random_normal_initializer(), name="b")

    @flow.global_function("train")
    def train(x: images, y: labels) -> tp.Callback[tp.Numpy] if asynchronous else tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits(x, True))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([5], [0.1, 0.05]), momentum=0.9).minimize(loss)
        return loss

    @flow.global_function("predict")
    def predict(x: images) -> tp.Numpy:
        return logits(x, False)

    flow.manual_seed(5)
    return train, predict


def batches(count: int, rows: int = 4):
    rng = np.random.default_rng(1)
    return [(rng.random((rows, 5), np.float32), rng.integers(0, 3, rows).astype(np.int32)) for _ in range(count)]


def run_of_training(asynchronous: bool):
    """All values of a training, and the variables at its end."""
    train, predict = training(asynchronous)
    found = []
    for i, (x, y) in enumerate(batches(40)):
        if asynchronous:
            train(x, y)(lambda loss: found.append(loss))
            x[...], y[...] = -1000, 0  # the call has its own
        else:
            found.append(train(x, y))
        if i % 10 == 3:
            flow.sync_default_session()
            found.append(predict(np.ones((4, 5), np.float32)))
    flow.sync_default_session()
    return found, {name: np.array(value) for name, value in flow.get_all_variables().items()}


@pytest.fixture(scope="module")
def trained():
    """What each way of calling gives, made without the extension module at first use."""
    return {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_training_is_the_same_bit_for_bit(trained, monkeypatch, asynchronous):
    if asynchronous not in trained:
        with monkeypatch.context() as patch:
            patch.setattr(native, "fast_path", lambda: None)
            patch.setattr(process.delivery, "_extension", None)
            trained[asynchronous] = run_of_training(asynchronous)
        flow.clear_default_session()
    (found, variables), (exact, expected) = run_of_training(asynchronous), trained[asynchronous]
    assert len(found) == len(exact) == 44 and variables.keys() == expected.keys()
    for got, want in zip(found, exact, strict=True):
        np.testing.assert_array_equal(got, want)
    for name, value in variables.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert variables["System-Train-TrainStep-train"] == 40


def test_who_makes_the_calls_of_jobs_with_state(made_by):
    train, predict = training()
    (x, y), *_ = batches(1)
    for _ in range(2):
        train(x, y), train.submit(x, y).result(), predict(x), predict.submit(x).result()
    is_native = made_by == "extension"
    for call in (train._call, train._submit, predict._call, predict._submit):
        assert (type(call) is type(len)) == is_native


def test_a_prediction_sees_what_calls_and_loads_have_changed(tmp_path):
    train, predict = training()
    given = batches(6)
    ones = np.ones((4, 5), np.float32)
    train(*given[0])
    flow.checkpoint.save(str(tmp_path / "first"))
    first = predict(ones)
    for x, y in given:
        before = predict(ones)
        train(x, y)
        assert np.abs(predict(ones) - before).max() > 0
        np.testing.assert_array_equal(predict.submit(ones).result(), predict(ones))
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "first")))
    np.testing.assert_array_equal(predict(ones), first)


def test_a_learning_rate_that_is_set_between_calls():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (2, 3), initializer=flow.zeros_initializer())
        loss = flow.math.reduce_sum(w * x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    want = 0.0
    for rate in (1.0, 0.5, 0.25, 2.0, 0.0):
        train.learning_rate = rate
        for _ in range(3):
            train(ONE)
            want -= rate
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), np.full((2, 3), want), rtol=1e-6)


def test_labels_and_losses_are_looked_at(caplog):
    train, _ = training()
    (x, y), *_ = batches(1)
    for _ in range(3):
        train(x, y)
    time.sleep(0.03)  # they are looked at so often
    train(x, np.array([0, 1, 2, 7], np.int32))
    assert any("1 of 4 labels (0 to 7) that call 3" in record.getMessage() for record in caplog.records)
    time.sleep(0.03)
    for _ in range(3):
        train(x * np.float32(np.inf), y)
        time.sleep(0.03)
    assert any("is not finite at call" in record.getMessage() for record in caplog.records)


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[float], None]]:
    """Gives a function: a KeyboardInterrupt is raised when that many seconds of CPU time have passed.

    None is raised in the garbage collector's callbacks (hypothesis has one), which would lose it. The timer of elapsed time is
    left to the test's own timeout.
    """

    def interrupt_after(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, seconds)

    before = signal.signal(signal.SIGPROF, signal.default_int_handler)
    gc.disable()
    try:
        yield interrupt_after
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.enable()
        signal.signal(signal.SIGPROF, before)


def test_an_interrupted_training_has_made_whole_steps():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        v, w = (flow.get_variable(name, (2, 3), initializer=flow.zeros_initializer()) for name in "vw")
        loss = flow.math.reduce_sum(v * x) + flow.math.reduce_sum(w * x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    with interrupts() as interrupt_after:
        for how in (train, train.submit):
            how(ONE)
            for pause in (0.005, 0.011, 0.02, 0.037) * 3:
                with pytest.raises(KeyboardInterrupt):
                    interrupt_after(pause)
                    while True:
                        how(ONE)
                found = {name: value.numpy() for name, value in flow.get_all_variables().items()}
                steps = found["System-Train-TrainStep-train"][0]
                for name in "vw":
                    np.testing.assert_array_equal(found[name], np.full((2, 3), -steps))
    train(ONE)
    assert flow.get_all_variables()["v"].numpy()[0, 0] == -(steps + 1)


def test_threads_that_train_and_predict():
    train, predict = training()
    given = batches(50)
    train(*given[0])
    predict(given[0][0])
    wrong, begun = [], flow.get_all_variables()["System-Train-TrainStep-train"].numpy()[0]

    def work(number):
        try:
            for i, (x, y) in enumerate(given):
                value = [train, train.submit, predict, predict.submit][(i + number) % 4](*(x, y)[: 2 - (i + number) % 4 // 2])
                value = value if isinstance(value, np.ndarray) else value.result()
                if not np.isfinite(value).all():
                    wrong.append(value)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert flow.get_all_variables()["System-Train-TrainStep-train"].numpy()[0] - begun == 100


def test_calls_of_jobs_with_state_keep_no_references():
    train, predict = training()
    (x, y), *_ = batches(1)
    wrong = np.ones((3, 3), np.float32)

    def work(times):
        for _ in range(times):
            train(x, y)
            train.submit(x, y)
            predict(x)
            predict.submit(x)
            with pytest.raises(flow.errors.FeedShapeError):
                train(wrong, y)
        flow.sync_default_session()

    work(40)
    gc.collect()
    cells = train.executables[-1][1].launcher._written
    kept = [x, y, None, (), process.delivery, train._built.delivery, process.lock, *cells]
    before = [sys.getrefcount(each) for each in kept]
    work(300)
    after = [sys.getrefcount(each) for each in kept]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True)), list(zip(before, after, strict=True))
    assert all(sys.getrefcount(cell.value) <= 3 for cell in cells)


def test_a_closed_session_and_a_redefined_job():
    train, _ = training()
    (x, y), *_ = batches(1)
    for _ in range(3):
        train(x, y)
    flow.clear_default_session()
    with pytest.raises(flow.errors.ModeError, match="cannot be called any more"):
        train(x, y)
    with pytest.raises(flow.errors.ModeError, match="cannot be called any more"):
        train.submit(x, y)
    again, _ = training()
    assert np.isfinite(again(x, y)).all()


# --- what they are made of


def test_both_make_the_same_result():
    job, *_ = one_of_one()
    job.submit(ONE).result()
    made = job.submit(ONE)
    types = {"thread": int, "delivery": Delivery, "_results": tuple, "sequence": int, "passed": bool, "is_touched": bool}
    assert {name: type(getattr(made, name)) for name in types} == types
    assert made.thread == threading.get_ident() and not made.is_touched and not made.has_callbacks
    assert not vars(made).keys() - types.keys()


@pytest.mark.parametrize("rows", [40, 1000])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_each_call_has_arguments_of_its_own(order, rows):
    """Copies of arguments are used again, but by no call while an earlier one, or its result, may still read them."""

    @flow.global_function()
    def same(x: tp.Numpy.Placeholder((rows, 30))) -> tp.Numpy:
        return flow.identity(x)  # JAX's result is the argument's own memory, where that is aligned

    @flow.global_function()
    def slow(x: tp.Numpy.Placeholder((rows, 30))) -> tp.Numpy:
        y = x
        for _ in range(30):
            y = flow.matmul(y, flow.matmul(x, x, transpose_a=True))
            y = y / flow.math.reduce_mean(flow.math.abs(y))
        return flow.concat([x, y], axis=0)

    rng = np.random.default_rng(0)
    for job in (same, slow):
        memory = np.empty((2 * rows, 60), np.float32)
        x = {"C": memory[:rows, :30].copy(), "F": np.asfortranarray(memory[:rows, :30]), "strided": memory[::2, ::2]}[order]
        later, expected = [], []
        for _ in range(120):
            x[...] = rng.random((rows, 30), np.float32)
            expected.append(x.copy())
            later.append(job.submit(x))
            x[...] = -1
        for future, want in zip(later, expected, strict=True):
            np.testing.assert_array_equal(future.result()[:rows], want)


def test_the_arrays_of_a_call_are_its_own_whoever_asks_for_them():
    job, *_ = one_of_one()
    job.submit(ONE).result()
    later = [job.submit(i * ONE) for i in range(5)]
    made = later[1]._results
    assert made is later[1]._results and made[1:] == ((), ())
    np.testing.assert_array_equal(made[0][0], 2 * ONE)
    later[2]._results = ((), (), ())
    assert later[2]._results == ((), (), ())
    for i, one in enumerate(later):
        if i != 2:
            np.testing.assert_array_equal(one.result(), 2 * i * ONE)
    flow.sync_default_session()
    assert all(one.passed for one in later)


def test_interrupts_are_heard_in_loops_without_python_code():
    job, *_ = one_of_one()
    job(ONE)
    left = itertools.repeat(ONE, 20000)
    with interrupts() as interrupt_after, pytest.raises(KeyboardInterrupt):
        interrupt_after(0.02)
        collections.deque(map(job, left), maxlen=0)
    assert operator.length_hint(left) > 0


def test_what_calls_read_of_delivery():
    deliveries = process.delivery
    job, *_ = one_of_one()
    job.submit(ONE).result()
    flow.sync_default_session()
    before = deliveries._last_delivered
    for _ in range(100):
        job.submit(ONE)
    assert deliveries.undelivered() <= deliveries._window + 1  # one may be about to be taken off a full queue
    flow.sync_default_session()
    assert deliveries._last_begun == deliveries._last_delivered == before + 100
    extension = native.fast_path()
    if extension is not None:
        assert isinstance(deliveries, extension.Deliveries) and isinstance(job, extension.Prepared)
        with pytest.raises(TypeError):
            deliveries.attention = "yes"


def test_errors_of_prepared_calls():
    job, *_ = one_of_one()
    job(ONE)
    made, again = job._call, []

    def failing(error):
        def call(args):
            raise error

        return call

    for error in (ValueError("wrong"), KeyboardInterrupt()):
        job._call = failing(error)
        with pytest.raises(type(error)) as caught:
            job(ONE)
        assert caught.value is error and error.__context__ is None
        assert [frame.name for frame in caught.traceback][-1] == "call"
    job._call = failing(StaleExecutableError())
    again.append(job(ONE))  # is prepared anew
    job._call = made
    again += [job(ONE), job(x=ONE), job(*[ONE], **{})]
    for value in again:
        np.testing.assert_array_equal(value, 2 * ONE)
    with pytest.raises(flow.errors.FeedError, match="there is no input 'y'"):
        job(y=ONE)


def test_errors_are_not_kept():
    job, *_ = one_of_one()
    job(ONE)
    wrong = np.ones((3, 3), np.float32)
    kept = []
    for _ in range(20):
        with pytest.raises(flow.errors.FeedShapeError) as caught:
            job(wrong)
        kept.append(weakref.ref(caught.value))
        del caught
    gc.collect()
    assert not any(ref() for ref in kept)


def test_a_job_is_a_callable_as_any():
    job, *_ = one_of_one()
    job(ONE)

    class Counted(type(job)):
        calls = 0

        def __call__(self, *args):
            type(self).calls += 1
            return super().__call__(*args)

    counted = copy.copy(job)
    counted.__class__ = Counted
    for each in (job, job.__call__, copy.copy(job), counted):
        assert callable(each)
        np.testing.assert_array_equal(each(ONE), 2 * ONE)
    assert Counted.calls == 1
    assert list(inspect.signature(job).parameters) == ["x"] and repr(job).startswith("<predict job job(x: ")
    assert not inspect.iscoroutinefunction(job) and job.__wrapped__(1.0) == 2.0


def test_results_are_freed_with_their_job():
    job, *_ = one_of_one()
    futures = [job.submit(ONE) for _ in range(40)]
    flow.sync_default_session()
    kept = [weakref.ref(future) for future in futures]
    futures[0].cycle = futures  # of a future and itself
    del futures
    gc.collect()
    assert not any(ref() for ref in kept)


@pytest.mark.parametrize("count", [16, 17])
def test_many_arguments(count):
    names = [f"x{i}" for i in range(count)]

    def body(*args):
        return sum(args[1:], args[0])

    scope = {"body": body, "tp": tp}
    declared = ", ".join(f"{name}: tp.Numpy.Placeholder((2, 3))" for name in names)
    exec(f"def job({declared}) -> tp.Numpy: return body({', '.join(names)})", scope)
    job = flow.global_function()(scope["job"])
    feeds = [np.full((2, 3), i, np.float32) for i in range(count)]
    for _ in range(3):
        np.testing.assert_array_equal(job(*feeds), sum(feeds))
        np.testing.assert_array_equal(job.submit(*feeds).result(), sum(feeds))


def test_a_long_result():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 1))) -> tp.Numpy:
        return flow.math.add(x, flow.constant(1.0, flow.float, (1, 50_000)))

    x = np.array([[1], [2]], np.float32)
    for value in (job(x), job(x), job.submit(x).result()):
        assert value.flags.writeable
        np.testing.assert_array_equal(value, np.broadcast_to(x + 1, (2, 50_000)))


@pytest.mark.parametrize("how", ["call", "submit"])
def test_what_looks_for_nans_may_be_set_and_unset_between_calls(how):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.math.log(x)

    def call(x):
        return job(x) if how == "call" else job.submit(x).result()

    for _ in range(3):
        np.testing.assert_array_equal(call(ONE), 0 * ONE)
    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(flow.errors.ExecutionError, match="debug_nans"):
            call(-ONE)
        assert np.isnan(call(-ONE)).all()  # nobody asked
        with jax.debug_infs(True), pytest.raises(flow.errors.ExecutionError, match="debug_infs"):
            call(0 * ONE)
        assert np.isinf(call(0 * ONE)).all()


def test_another_threads_setting_does_not_concern_a_call():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.math.log(x)

    def other():
        with jax.debug_nans(True):
            inside.set()
            assert done.wait(60)

    inside, done = threading.Event(), threading.Event()
    job(ONE)
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    try:
        assert np.isnan(job(-ONE)).all() and np.isnan(job.submit(-ONE).result()).all()
    finally:
        done.set()
        thread.join()


def test_wrong_arguments_are_told_as_ever():
    job, *_ = one_of_one()
    for call in (job, job.submit):
        call(ONE)
        with pytest.raises(flow.errors.FeedShapeError, match=r"must have shape \(2, 3\), got \(3, 2\)"):
            call(ONE.T)
        with pytest.raises(flow.errors.FeedDtypeError, match="must be float32"):
            call(ONE.astype(np.complex64))
        with pytest.raises(flow.errors.FeedError, match="takes 1 argument, 2 were given"):
            call(ONE, ONE)
    np.testing.assert_array_equal(job(ONE.astype(np.float64)), 2 * ONE)
    np.testing.assert_array_equal(job(np.asfortranarray(ONE)), 2 * ONE)
    np.testing.assert_array_equal(job(ONE.astype(">f4")), 2 * ONE)


def test_errors_of_callbacks_are_raised_by_the_next_call(capfd):
    job, *_ = one_of_one()
    for call in (job, lambda x: job.submit(x).result()):
        call(ONE)
        job.submit(ONE).async_get(lambda value: 1 / 0)
        with pytest.raises(flow.errors.CallbackError, match="ZeroDivisionError"):
            flow.sync_default_session()
            call(ONE)
        np.testing.assert_array_equal(call(ONE), 2 * ONE)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_call_that_may_have_been_long_has_the_next_one_timed():
    job, *_ = one_of_one()
    for _ in range(3):
        job(ONE)
    delivery = job._built.delivery
    assert delivery.seconds < INTERRUPTIBLE_FROM_SECONDS
    time.sleep(1.1 * INTERRUPTIBLE_FROM_SECONDS)
    job(ONE)
    assert delivery.seconds >= INTERRUPTIBLE_FROM_SECONDS  # the next one can be interrupted while it is waited for
    job(ONE)
    assert delivery.seconds < INTERRUPTIBLE_FROM_SECONDS


def test_a_dtype_that_is_equal_and_another_object():
    job, *_ = one_of_one()
    job(ONE)
    for other in (pickle.loads(pickle.dumps(3 * ONE)), (3 * ONE).view(np.dtype("f4", metadata={"of": "the test"}))):
        np.testing.assert_array_equal(job(other), 6 * ONE)
        np.testing.assert_array_equal(job.submit(other).result(), 6 * ONE)


@pytest.mark.parametrize("shape", [(1,), (1, 2, 3, 4, 5), (200, 200)])
@pytest.mark.parametrize("dtype", [flow.float32, flow.float64, flow.int64, flow.int8, flow.uint8, flow.bfloat16], ids=str)
def test_shapes_and_dtypes(shape, dtype):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(shape, dtype=dtype)) -> tp.Numpy:
        return flow.identity(x)

    given = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype.numpy_dtype)
    for value in [*(job(given) for _ in range(3)), *(job.submit(given).result() for _ in range(3))]:
        assert type(value) is np.ndarray and value.dtype == given.dtype and value.flags.writeable
        np.testing.assert_array_equal(value, given)


def test_calls_keep_no_references():
    job, *_ = one_of_one()
    x, wrong = ONE.copy(), np.ones((3, 3), np.float32)

    def work(times):
        for _ in range(times):
            job(x)
            job.submit(x)
            with pytest.raises(flow.errors.FeedShapeError):
                job(wrong)
            with pytest.raises(flow.errors.FeedShapeError):
                job.submit(wrong)
        flow.sync_default_session()

    work(40)
    gc.collect()  # what other tests left
    kept = [x, wrong, x.dtype, type(x), None, (), process.delivery, job._built.delivery, process.lock]
    before = [sys.getrefcount(each) for each in kept]
    work(400)
    after = [sys.getrefcount(each) for each in kept]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True)), list(zip(before, after, strict=True))


def test_results_that_are_used_in_all_ways_while_others_pass():
    job, *_ = one_of_one()
    rng, called, futures = random.Random(0), collections.Counter(), []
    for i in range(1500):
        future = job.submit(i * ONE)
        futures.append(future)
        use = rng.randrange(12)
        if use == 0:
            future.async_get(lambda value, i=i: called.update([("callback", i, value[0, 0])]))
        elif use == 1:
            future.add_done_callback(lambda done, i=i: called.update([("listener", i, done.result()[0, 0])]))
        elif use == 2:
            assert future.result()[0, 0] == 2 * i
        elif use == 3:
            assert concurrent.futures.wait([future], 60).done == {future}
        elif use == 4 and i > 40:
            assert futures[i - 40].result()[0, 0] == 2 * (i - 40)
        elif use == 5 and i > 40:
            futures[i - 40].add_done_callback(lambda done, i=i: called.update([("late", i, done.result()[0, 0])]))
    flow.sync_default_session()
    assert {n for _, _, n in called} <= {2.0 * i for i in range(1500)} and set(called.values()) == {1}
    rng = random.Random(0)
    uses = [rng.randrange(12) for _ in range(1500)]
    for name, use, earlier in (("callback", 0, 0), ("listener", 1, 0), ("late", 5, 40)):
        want = {i: 2.0 * (i - earlier) for i, u in enumerate(uses) if u == use and (not earlier or i > 40)}
        assert {i: value for kind, i, value in called if kind == name} == want
    assert all(f.done() and f.passed for f in futures)
    used = [f for f in futures if f._value is not type(f)._value]
    assert used and all(f._results == ((), (), ()) for f in used)  # the device's arrays are released


@pytest.mark.parametrize("how", [concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_EXCEPTION, "as_completed"])
def test_a_call_passes_while_wait_is_counting(how, monkeypatch):
    """``concurrent.futures`` relies on the states of futures not changing while it holds their conditions."""
    job, *_ = one_of_one()
    begun, go = threading.Event(), threading.Event()
    job.submit(ONE).add_done_callback(lambda _: (begun.set(), go.wait(100)))
    assert begun.wait(100)
    future = job.submit(2 * ONE)
    install = concurrent.futures._base._create_and_install_waiters

    def passes_first(futures, return_when):
        go.set()
        while not future.passed:
            time.sleep(0.001)
        return install(futures, return_when)

    monkeypatch.setattr(concurrent.futures._base, "_create_and_install_waiters", passes_first)
    if how == "as_completed":
        assert list(concurrent.futures.as_completed([future], 60)) == [future]
    else:
        assert concurrent.futures.wait([future], 60, how).done == {future}
    assert not future._waiters


def test_threads_that_call_and_submit():
    job, *_ = one_of_one()
    job(ONE)
    wrong, before = [], len(process.calls)  # threads of other tests may be inside a call

    def work(number):
        for i in range(300):
            value = number * 1000 + i
            got = job(value * ONE) if i % 3 else job.submit(value * ONE).result()
            if not (got == 2 * value).all():
                wrong.append((value, got))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(process.calls) == before


@pytest.mark.parametrize("how", ["job(x)", "job.submit(x)"])
def test_the_program_ends_while_daemon_threads_go_on_calling(how):
    text = f"""
import threading, time
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
    return x * 2.0

x = np.ones((2, 3), np.float32)
job(x)

def work():
    while True:
        {how}

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("end")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    told = [line for line in done.stderr.splitlines() if not line.startswith("oneflow: ")]  # that it builds for seconds
    assert (done.returncode, done.stdout, told) == (0, "end\n", [])


@pytest.mark.parametrize("which", [0, 1])
def test_a_call_that_gets_its_callback_while_a_caller_delivers_it_is_counted_once(which):
    thread = DeliveryThread()  # not started: the test delivers
    thread._extension = process.delivery._extension
    counted, seen = [], []

    def finished(*found):
        if not counted:
            calls[which].async_get(seen.append)
        counted.extend(map(id, found))

    delivery = Delivery("job", thread, lambda results: 7, (), finished, gives_handles=False)
    results = [((jax.numpy.ones(2).block_until_ready(),), (), ()) for _ in range(3)]
    calls = [thread.submit(delivery, each) for each in results]
    thread._deliver_here()
    assert thread.undelivered() == 3 - which and not seen
    assert thread._step()
    assert thread.is_drained() and seen == [7]
    assert counted == list(map(id, results))


def test_a_call_that_a_callback_of_an_earlier_one_waits_for_is_counted_once():
    thread, counted, handled, got = DeliveryThread(), [], [], []

    class Handler:
        def deliver(self, array):
            handled.append(float(array[0]))

    delivery = Delivery("job", thread, lambda results: 7, (Handler(),), lambda *r: counted.extend(map(id, r)), gives_handles=True)
    results = [((jax.numpy.ones(2).block_until_ready(),), (jax.numpy.full(1, i),), ()) for i in range(2)]
    calls = [thread.submit(delivery, each) for each in results]
    calls[0].async_get(lambda _: got.append(calls[1].get()))
    delivering = threading.Thread(target=lambda: (thread.moved_on(threading.get_ident()), thread._step()))
    thread.thread = delivering
    delivering.start()
    delivering.join()
    assert thread.is_drained() and handled == [0.0, 1.0] and len(got) == 1
    assert counted == list(map(id, results))
