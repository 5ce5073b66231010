"""The promises of a session when something around it goes wrong: closed pipes, forks, threads, interrupts, broken neighbours."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from textwrap import indent

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.runtime.process import process

F32 = np.float32
ONE = np.ones((4,), F32)

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
    return x + 1

x = np.ones((4,), np.float32)
"""


def run(program: str, shell: str = "", timeout: float = 120) -> subprocess.CompletedProcess:
    if shell:
        command = ["bash", "-c", f'{sys.executable} -c "$0" {shell}', PRELUDE + program]
    else:
        command = [sys.executable, "-c", PRELUDE + program]
    quiet = {**os.environ, "ONEFLOW_LOG": "warning"}  # no notices of what takes long on a busy machine
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=quiet)


def echo():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x + 1

    return job


# --- reporting


CALLBACK = """
def deliver(value):
    print("x" * 2000, flush=True)
for _ in range(200):
    job(x)(deliver)
flow.sync_default_session()
print("not reached")
"""
HANDLER = """
@flow.global_function()
def watched(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
    flow.watch(x, lambda value: print("x" * 2000, flush=True))
    return x
for _ in range(200):
    watched(x)
flow.sync_default_session()
"""
LISTENER = """
for _ in range(200):
    job(x).add_done_callback(lambda result: print("x" * 2000, flush=True))
flow.sync_default_session()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(CALLBACK, id="callback"),
        pytest.param(HANDLER, id="handler", marks=pytest.mark.thorough),
        pytest.param(LISTENER, id="listener", marks=pytest.mark.thorough),
    ],
)
def test_a_pipe_that_nobody_reads_ends_the_program_with_an_error(program):
    done = run(program, shell="2>&1 | head -n 1; exit ${PIPESTATUS[0]}")
    assert done.returncode not in (0, None) and len(done.stdout) == 2001


def test_errors_are_raised_where_standard_error_is_closed():
    done = run(
        """
os.close(2)
sys.stderr.close()
def bad(value):
    raise KeyError("mine")
try:
    for _ in range(100):
        job(x)(bad)
    flow.sync_default_session()
except flow.errors.CallbackError as error:
    print("told", type(error.__cause__).__name__)
for _ in range(100):
    try:
        job(x)(lambda value: None)
    except flow.errors.CallbackError:
        pass
print("works")
"""
    )
    assert "told KeyError" in done.stdout and "works" in done.stdout


def test_a_job_that_takes_long_to_build_is_built_where_standard_error_is_closed():
    done = run(
        """
sys.stderr.close()
@flow.global_function()
def slow(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    time.sleep(2.3)
    return x + 1
print(slow(x))
"""
    )
    assert "[2. 2. 2. 2.]" in done.stdout


def test_an_error_whose_text_cannot_be_shown_does_not_stop_deliveries(capfd):
    class Odd(Exception):
        def __str__(self):
            raise ValueError("no text")

    def bad(value):
        raise Odd

    job, got = echo(), []
    job(ONE)(bad)
    job(ONE)(got.append)
    with pytest.raises(flow.errors.CallbackError, match="Odd"):
        flow.sync_default_session()
    assert len(got) == 1


# --- the gate


def collective_job(asynchronous: bool):
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((8, 16))) -> tp.Callback[tp.Numpy] if asynchronous else tp.Numpy:
        w = flow.get_variable("w", (16, 4), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.matmul(x, w))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.001]), momentum=0).minimize(loss)
        return loss

    return job


@pytest.mark.parametrize("asynchronous", [False, True])
def test_at_most_four_calls_with_collectives_are_computed_at_a_time(asynchronous, monkeypatch):
    flow.config.cpu_device_num(2)
    flow.config.gpu_device_num(2)
    job, most = collective_job(asynchronous), []
    gate = process.collectives
    note = gate.note

    def counting(results):
        note(results)
        unfinished = [r for r in gate.in_flight if not all(a.is_ready() for a in (*r[0], *r[2]))]
        most.append((len(gate.in_flight), len(unfinished)))

    monkeypatch.setattr(gate, "note", counting)
    x, delivered = np.ones((8, 16), F32), []
    job(x)

    def work():
        for _ in range(6):
            if asynchronous:
                job(x)(delivered.append)
            else:
                delivered.append(job(x))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    flow.sync_default_session()
    assert len(delivered) == 96 and max(n for n, _ in most) <= 4
    assert flow.get_all_variables()["System-Train-TrainStep-job"].numpy()[0] == 97
    assert len(gate.in_flight) <= 4


def test_the_window_holds_for_many_threads():
    job, lock = echo(), threading.Lock()
    job(ONE).get()
    flow.sync_default_session()
    most, released = 0, threading.Event()

    def slow(value):
        nonlocal most
        with lock:
            most = max(most, process.delivery.undelivered())
        time.sleep(0.001)

    def work():
        for _ in range(20):
            job(ONE)(slow)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    flow.sync_default_session()
    released.set()
    assert 1 <= most <= 33


def test_a_call_that_fails_to_dispatch_occupies_nothing():
    job = echo()
    job(ONE).get()
    for _ in range(100):
        with pytest.raises(flow.errors.FeedError):
            job(np.ones(3, F32))
    got = []
    for _ in range(64):
        job(ONE)(got.append)
    flow.sync_default_session()
    assert len(got) == 64


# --- one job's life and another's


def test_a_reader_lives_on_when_a_shared_variable_moves():
    flow.config.gpu_device_num(2)
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def draw() -> tp.Numpy:
        rnd = flow.random.coin_flip(4, seed=1)
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        return flow.cast(rnd, flow.float32) * 0.0 + w

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:1"):
            w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
            loss = w * x
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
        return loss

    np.testing.assert_array_equal(draw(), np.ones(4))
    train(ONE)
    np.testing.assert_array_equal(draw(), np.full(4, 0.875))


def test_a_variable_that_a_called_job_placed_can_be_trained_on_more_devices():
    flow.config.gpu_device_num(2)
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            return x * flow.get_variable("w", (2, 4), initializer=flow.ones_initializer())

    x = np.ones((2, 4), F32)
    np.testing.assert_array_equal(predict(x), x)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            loss = x * flow.get_variable("w", (2, 4), initializer=flow.ones_initializer())
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
            return loss

    train(x)
    np.testing.assert_allclose(predict(x), 1 - 0.5 / 8 * np.ones((2, 4)))


RULES = {
    "momentum": lambda rate: flow.optimizer.SGD(rate, momentum=0.9),
    "adam": flow.optimizer.Adam,
    "rmsprop": flow.optimizer.RMSProp,
    "lamb": flow.optimizer.LAMB,
}


def steps_of_a_shared_variable(rule, predict_on="0:0", train_on="0:0", calls_first="predict"):
    """The values of a variable that both jobs use, before the first and after each of three steps."""
    with flow.session(seed=1):
        x = np.arange(1, 13, dtype=F32).reshape(4, 3)

        def weight():
            return flow.get_variable("w", (4, 3), initializer=flow.random_normal_initializer())

        def declare_predict():
            @flow.global_function()
            def predict(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
                with flow.scope.placement("cpu", predict_on):
                    return x * weight()

            return predict

        def declare_train():
            @flow.global_function("train")
            def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
                with flow.scope.placement("cpu", train_on):
                    loss = flow.math.square(x * weight())
                    RULES[rule](flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
                    return loss

            return train

        if calls_first == "predict":
            predict = declare_predict()
            seen = [predict(x) / x]
            train = declare_train()
        else:
            train = declare_train()
            seen = [np.sqrt(train(x)) / x]
            predict = declare_predict()
        for _ in range(3):
            train(x)
            seen.append(predict(x) / x)
        places = {name: v.devices for name, v in flow.get_all_variables().items() if name.startswith("w")}
        assert len(places) > 1 and len({tuple(each) for each in places.values()}) == 1, places
        return np.abs(seen)


@pytest.mark.parametrize("calls_first", ["predict", "train"])
@pytest.mark.parametrize(("predict_on", "train_on"), [("0:0", "0:0-1"), ("0:0-1", "0:0"), ("0:0", "0:1")])
@pytest.mark.parametrize("rule", RULES)
def test_an_optimizers_slots_lie_where_its_variable_does(rule, predict_on, train_on, calls_first):
    flow.config.cpu_device_num(2)
    expected = steps_of_a_shared_variable(rule, calls_first=calls_first)
    found = steps_of_a_shared_variable(rule, predict_on, train_on, calls_first)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_slots_of_jobs_that_were_not_called_move_with_the_variable():
    flow.config.cpu_device_num(2)
    x = np.ones((4, 3), F32)

    def declare(name, rule, placement):
        def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
            with flow.scope.placement("cpu", placement):
                loss = x * flow.get_variable("w", (4, 3), initializer=flow.ones_initializer())
                RULES[rule](flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
                return loss

        train.__name__ = name
        return flow.global_function("train")(train)

    first, second = declare("first", "adam", "0:0"), declare("second", "momentum", "0:0-1")
    flow.load_variables({"w-m": np.zeros((4, 3), F32)})  # has a value already, its variable has none
    np.testing.assert_array_equal(first(x), x)
    second(x)
    third = declare("third", "lamb", "0:1")
    third(x)
    assert np.isfinite(first(x)).all()


def test_slots_of_one_number_lie_with_variables_that_are_distributed_over_devices():
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.optimizer_placement_optimization_mode("non_distributed")
    config.optimizer_placement_optimization_threshold(1)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            v, w = (flow.get_variable(name, (4, 3), initializer=flow.ones_initializer()) for name in "vw")
            loss = x * v * w
            flow.optimizer.LAMB(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss

    assert (train(np.ones((4, 3), F32)) > train(np.ones((4, 3), F32))).all()
    places = {name: v.devices for name, v in flow.get_all_variables().items()}
    assert places["v-beta1_t"] == places["v"] != places["w"] == places["w-m"], places


def test_a_job_with_a_reader_does_not_wait_for_another_ones_compilation(monkeypatch):
    @flow.global_function()
    def draw() -> tp.Numpy:
        return flow.cast(flow.random.coin_flip(4, seed=1), flow.float32)

    @flow.global_function()
    def other(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x + 1

    draw()
    from oneflow.runtime.executable import Executable

    compiling, go_on = threading.Event(), threading.Event()
    compile_only = Executable.compile_only

    def slow(self, feeds):
        compiling.set()
        assert go_on.wait(60)
        compile_only(self, feeds)

    monkeypatch.setattr(Executable, "compile_only", slow)
    thread = threading.Thread(target=other, args=(ONE,))
    thread.start()
    assert compiling.wait(60)
    for _ in range(3):
        draw()  # would wait for ever
    go_on.set()
    thread.join()


def test_sessions_are_cleared_while_other_threads_call():
    stop, errors = threading.Event(), []

    def work(i):
        while not stop.is_set():
            name = f"job_{i}"
            try:

                def body(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
                    w = flow.get_variable(f"w{i}", (4,), initializer=flow.ones_initializer())
                    loss = w * x
                    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5])).minimize(loss)
                    return loss

                body.__name__ = name
                job = flow.global_function("train")(body)
                for _ in range(200):
                    job(ONE)
            except flow.errors.ModeError:
                pass
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    try:
        for pause in (0.3, 0.02, 0.2, 0.05, 0.1) * 6:  # jobs are being built, compiled or called then
            time.sleep(pause)
            flow.clear_default_session()
    finally:
        stop.set()
        for t in threads:
            t.join()
    flow.clear_default_session()
    assert not errors, errors


def test_settings_change_while_other_threads_open_sessions_and_declare_jobs():
    stop, errors = threading.Event(), []

    def repeated(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                errors.append(error)

        return run

    def opens():
        with flow.session():
            pass

    def declares():
        def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
            return x

        kept.append(flow.global_function("predict")(job))

    kept = deque(maxlen=300)
    threads = [threading.Thread(target=repeated(work)) for work in (opens, opens, declares)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        end = time.monotonic() + 3
        while time.monotonic() < end and not errors:
            flow.config.find_nonfinite(True)  # all jobs of all sessions are compiled again
            flow.config.find_nonfinite(False)
    finally:
        stop.set()
        for t in threads:
            t.join()
        sys.setswitchinterval(interval)
        flow.config.find_nonfinite(False)
    assert not errors, errors


def test_redefining_a_job_with_other_sizes_begins_all_its_own_variables_anew(caplog):
    def declare(width):
        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            shared = flow.get_variable("shared", (3,), initializer=flow.ones_initializer())
            hidden = flow.layers.dense(x * shared, 5, kernel_initializer=flow.ones_initializer(), name="first")
            loss = flow.layers.dense(hidden, width, kernel_initializer=flow.ones_initializer(), name="second")
            flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.5])).minimize(loss)
            return loss

        return train

    @flow.global_function()
    def other(x: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
        return x * flow.get_variable("shared", (3,), initializer=flow.ones_initializer())

    x = np.ones((2, 3), F32)
    old = declare(4)
    first = old(x)
    old(x)
    other(np.ones(3, F32))
    trained = flow.get_all_variables()["shared"].numpy()
    new = declare(6)
    new.build()
    values = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
    np.testing.assert_array_equal(values["first-weight"], np.ones((5, 3)))
    assert values["second-weight"].shape == (6, 5) and values["System-Train-TrainStep-train"][0] == 0
    assert not values["first-weight-m"].any()
    np.testing.assert_array_equal(values["shared"], trained)  # another job uses it
    assert "job 'train' declares float32[6, 5]" in caplog.text and "first-weight" in caplog.text
    with pytest.raises(flow.errors.ModeError, match="redefined"):
        old(x)
    assert new(x).shape == (2, 6) and first.shape == (2, 4)


def test_jobs_that_share_a_variable_are_redefined_one_after_the_other():
    """No mixture of old and new is left: neither slots and steps of an old job, nor an old job that trains what nobody sees."""

    def declare(size):
        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder((size,))) -> tp.Numpy:
            loss = x * flow.get_variable("shared", (size,), initializer=flow.ones_initializer())
            flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
            return loss

        @flow.global_function()
        def evaluate(x: tp.Numpy.Placeholder((size,))) -> tp.Numpy:
            return x * flow.get_variable("shared", (size,), initializer=flow.ones_initializer())

        return train, evaluate

    def ones(size):
        return np.ones(size, F32)

    old = declare(4)
    for job in old:
        job(ones(4))
    new = declare(5)
    new[1](ones(5))
    values = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    assert values["shared"].shape == values["shared-momentum"].shape == (5,)
    assert not values["shared-momentum"].any() and values["System-Train-TrainStep-train"] == 0
    for job in old:
        with pytest.raises(flow.errors.ModeError, match="redefined"):
            job(ones(4))
    np.testing.assert_array_equal(new[0](ones(5)), ones(5))
    assert flow.get_all_variables()["System-Train-TrainStep-train"].numpy() == 1


def test_a_conflict_that_is_gone_is_forgotten():
    def declare(name, size):
        def body(x: tp.Numpy.Placeholder((size,))) -> tp.Numpy:
            return x * flow.get_variable("shared", (size,), initializer=flow.ones_initializer())

        body.__name__ = name
        return flow.global_function()(body)

    declare("first", 4)(np.ones(4, F32))
    second = declare("second", 5)
    with pytest.raises(flow.errors.VariableConflictError, match="declare the job over there anew"):
        second(np.ones(5, F32))
    declare("first", 5)(np.ones(5, F32))
    np.testing.assert_array_equal(second(np.ones(5, F32)), np.ones(5))


# --- futures and arrays


def test_results_are_futures_of_the_standard_library():
    job = echo()
    results = [job(ONE * i) for i in range(20)]
    assert isinstance(results[0], concurrent.futures.Future)
    done, not_done = concurrent.futures.wait(results, timeout=60)
    assert len(done) == 20 and not not_done
    results = [job(ONE * i) for i in range(20)]
    got = sorted(float(r.result()[0]) for r in concurrent.futures.as_completed(results, timeout=60))
    assert got == [i + 1.0 for i in range(20)]
    first = [job(ONE) for _ in range(5)]
    assert concurrent.futures.wait(first, 60, concurrent.futures.FIRST_COMPLETED).done

    async def main():
        wrapped = await asyncio.wrap_future(job(ONE))
        both = await asyncio.gather(job(ONE * 2), asyncio.wrap_future(job(ONE * 3)))
        return [float(v[0]) for v in (wrapped, *both)]

    assert asyncio.run(main()) == [2.0, 3.0, 4.0]


def test_a_failed_call_is_a_failed_future(capfd):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        flow.watch(x, lambda value: 1 / 0)
        return x

    result = job(ONE)
    done, _ = concurrent.futures.wait([result], timeout=60)
    assert done and isinstance(result.exception(), flow.errors.CallbackError)

    async def main():
        await asyncio.wrap_future(result)

    with pytest.raises(flow.errors.CallbackError):
        asyncio.run(main())


def test_waiting_for_the_first_exception_ends_with_it(capfd):
    go_on = threading.Event()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        def handler(value):
            if value[0] == 0:
                time.sleep(0.2)  # until somebody waits
                raise ValueError("first")
            go_on.wait(60)

        flow.watch(x, handler)
        return x

    results = [job(ONE * i) for i in range(3)]
    done, rest = concurrent.futures.wait(results, 30, concurrent.futures.FIRST_EXCEPTION)
    assert done == {results[0]} and len(rest) == 2, (done, rest)
    go_on.set()
    with pytest.raises(flow.errors.CallbackError):
        flow.sync_default_session()


def test_the_outcome_of_a_call_cannot_be_set():
    result = echo()(ONE)
    for method, args in (("set_result", (1,)), ("set_exception", (ValueError(),)), ("set_running_or_notify_cancel", ())):
        with pytest.raises(flow.errors.ResultError, match=f"{method} cannot be used on a call of job 'job'"):
            getattr(result, method)(*args)
    np.testing.assert_array_equal(result.result(), ONE + 1)


def test_shape_and_dtype_of_a_result_are_known_before_it_is_there():
    go_on = threading.Event()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        flow.watch(x, lambda value: go_on.wait(60))
        return flow.cast(x, flow.int64)

    result = job(np.ones((2, 3), F32))
    assert result.shape == (2, 3) and result.dtype == np.int64 and len(result) == 2 and result.ndim == 2 and result.size == 6
    assert not result.done() and bool(result)
    go_on.set()
    array = np.asarray(result)
    assert array.shape == result.shape and array.dtype == result.dtype
    assert np.array(result, copy=False).dtype == np.int64 and np.array(result, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.array(result, np.float64, copy=False)


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
@pytest.mark.parametrize("annotated", [True, False])
def test_the_shape_of_a_result_is_that_of_its_value(view, annotated):
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(getattr(flow.scope, f"{view}_view")())

    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Callback[tp.Numpy]:
        with flow.scope.placement("cpu", "0:0-1"):
            return flow.math.reduce_sum(x, axis=1) if view == "consistent" else flow.identity(x)

    if not annotated:
        del job.__annotations__["return"]
    result = flow.global_function("predict", config)(job)(np.ones((4, 3), F32))
    value = np.asarray(result)
    assert (result.shape, result.dtype) == (value.shape, value.dtype)


def test_the_shape_of_a_result_of_micro_batches_is_that_of_its_value():
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Callback[tp.Numpy]:
        loss = x * flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    result = job(np.ones((4, 3), F32))
    assert result.shape == np.asarray(result).shape


def test_results_that_are_not_one_array_have_no_shape():
    @flow.global_function()
    def two(x: tp.Numpy.Placeholder((4,))):
        return x, x + 1

    @flow.global_function()
    def pieces(x: tp.ListNumpy.Placeholder((4,))) -> tp.Callback[tp.ListNumpy]:
        return x

    @flow.global_function()
    def number(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return flow.math.reduce_sum(x)

    for result in (two(ONE), pieces([ONE])):
        assert not hasattr(result, "shape") and not hasattr(result, "dtype") and bool(result)
        with pytest.raises(flow.errors.ResultError, match="does not return one array of a fixed shape"):
            _ = result.shape
        with pytest.raises(TypeError):
            len(result)
    scalar = number(ONE)
    assert len(scalar) == 1 if scalar.shape else scalar.shape == ()
    assert np.shape(two(ONE)) == (2, 4)


def test_dtypes_are_dtypes_to_numpy():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())

    job(ONE)
    w = flow.get_all_variables()["w"]
    assert w.dtype == np.float32 and w.dtype == np.dtype("float32") and np.float32 == w.dtype and w.dtype != np.float64
    assert np.empty(3, w.dtype).dtype == np.float32 and np.asarray([1], flow.int8).dtype == np.int8
    for each in flow.dtypes():
        if each in (flow.record, flow.tensor_buffer):
            assert each != np.float32
            with pytest.raises(TypeError):
                np.dtype(each)
        else:
            assert np.dtype(each) == each == each.numpy_dtype and hash(each) == hash(each.numpy_dtype)


def test_results_and_handles_are_arrays_to_numpy():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        return x * flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())

    x = np.arange(6, dtype=F32).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(job(x)), x)
    assert np.asarray(job(x), np.float64).dtype == np.float64
    w = flow.get_all_variables()["w"]
    np.testing.assert_array_equal(np.asarray(w), np.ones((2, 3)))
    assert np.asarray(w, dtype=np.int32).dtype == np.int32 and np.array(w, copy=True).shape == (2, 3)
    assert len(w) == 2 and w.shape == (2, 3) and w.ndim == 2 and w.size == 6
    np.testing.assert_array_equal(w + x, 1 + x)


# --- other jobs' errors


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, RuntimeError])
def test_what_a_body_raises_is_raised_by_its_own_calls_alone(kind, tmp_path):
    error = kind("mine")  # made here: it keeps its frames, with their arrays
    weighted = named_weighted("first")

    @flow.global_function()
    def broken(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        raise error

    np.testing.assert_array_equal(weighted(ONE), ONE)
    with pytest.warns(flow.errors.JobWarning, match="job 'broken' cannot be built"):
        flow.checkpoint.save(tmp_path / "saved")
    flow.load_variables(flow.checkpoint.get(tmp_path / "saved"))
    flow.train.CheckPoint().load(tmp_path / "saved")
    for _ in range(2):
        with pytest.raises(type(error)) as found:
            broken(ONE)
        assert found.value is error
    assert f"failed to build: {type(error).__name__}" in repr(broken)
    np.testing.assert_array_equal(weighted(ONE), ONE)


def test_ctrl_c_in_a_body_is_not_kept():
    tries = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        tries.append(1)
        if len(tries) == 1:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt):
        job(ONE)
    np.testing.assert_array_equal(job(ONE), ONE)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["oneflow", "safetensors", "background"])
def test_a_save_is_complete_before_it_warns_of_another_job(form, tmp_path):
    if form == "safetensors":
        pytest.importorskip("safetensors", reason="needs the extra [export]")
    path = tmp_path / ("saved.safetensors" if form == "safetensors" else "saved")
    weighted = named_weighted("first")

    @flow.global_function()
    def broken(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        raise RuntimeError("mine")

    weighted(ONE)
    keywords = {"asynchronous": True} if form == "background" else {"format": form}
    with pytest.raises(flow.errors.JobWarning, match="job 'broken' cannot be built"):
        flow.checkpoint.save(path, **keywords)
    flow.load_variables({"w": np.zeros(4, F32)})
    flow.load_variables(path)
    np.testing.assert_array_equal(weighted(ONE), ONE)


@pytest.mark.filterwarnings("error")
def test_a_load_is_complete_before_it_warns_of_another_job(tmp_path):
    weighted = named_weighted("first")
    weighted(ONE)
    flow.checkpoint.save(tmp_path / "saved")
    flow.load_variables({"w": np.zeros(4, F32)})

    @flow.global_function()
    def broken(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        raise RuntimeError("mine")

    with pytest.raises(flow.errors.JobWarning, match="job 'broken' cannot be built"):
        flow.train.CheckPoint().load(tmp_path / "saved")
    np.testing.assert_array_equal(weighted(ONE), ONE)


def named_weighted(name):
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())

    job.__name__ = name
    return flow.global_function()(job)


def test_both_ways_of_loading_tell_of_names_that_no_variable_has(tmp_path):
    weighted = named_weighted("first")
    weighted(ONE)
    values = {"w": ONE * 2, "ww": ONE, "w-momentum": ONE, "System-Train-TrainStep-train": np.zeros(1, np.int64)}
    path = tmp_path / "saved"
    flow.checkpoint.save(path, values)
    for load in (flow.train.CheckPoint().load, flow.load_variables, lambda path: flow.load_variables(flow.checkpoint.get(path))):
        with pytest.warns(flow.errors.CheckpointWarning, match="given 1 name.*that no variable of the program has: 'ww'"):
            load(path)
        np.testing.assert_array_equal(weighted(ONE), ONE * 2)
    for load in (flow.train.CheckPoint().load, flow.load_variables):
        with pytest.raises(flow.errors.CheckpointError, match="'ww' is not a variable name"):
            load(path, strict=True)


def test_a_name_of_a_job_that_cannot_be_built_is_told_with_its_error():
    @flow.global_function()
    def broken(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        return flow.reshape(x * w, (3,))

    row = r"(?s)'w'.*\n  not built  job 'broken': ShapeError: [^\n]*reshape"
    with pytest.warns(flow.errors.CheckpointWarning, match=row):
        flow.load_variables({"w": ONE})
    with pytest.raises(flow.errors.CheckpointError, match=row):
        flow.load_variables({"w": ONE}, strict=True)


def test_state_of_a_training_checkpoint_is_not_unknown_to_a_job_that_predicts(tmp_path):
    named_weighted("first")(ONE)
    path = tmp_path / "saved"
    flow.checkpoint.save(path, {"w": ONE, "w-momentum": ONE, "System-Train-TrainStep-train": np.zeros(1, np.int64)})
    for load in (flow.train.CheckPoint().load, flow.load_variables):
        load(path, strict=True)


OPTIMIZERS = [
    *(flow.optimizer.SGD(0.1, momentum=0.9), flow.optimizer.RMSProp(0.1, centered=True), flow.optimizer.LARS(0.1)),
    *(flow.optimizer.Adam(0.1), flow.compatible.single_client.optimizer.Adam(0.1), flow.optimizer.LAMB(0.1)),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_state_of_training_in_a_dict_is_not_unknown_either(optimizer):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        loss = x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        optimizer.minimize(loss)
        return loss

    train(ONE)
    values = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
    assert len(values) > 2
    flow.clear_default_session()
    job = named_weighted("first")
    flow.load_variables(values, strict=True)
    job(ONE)
    values["w-mm"] = ONE
    with pytest.warns(flow.errors.CheckpointWarning, match="given 1 name.*that no variable of the program has: 'w-mm'"):
        flow.load_variables(values)
    del values["w"]
    with pytest.warns(flow.errors.CheckpointWarning, match=f"given {len(values)} name"):  # nothing is set: all are told
        flow.load_variables(values)


@pytest.mark.parametrize("kind", ["first", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("list", "watch"))])
def test_a_job_that_is_first_called_in_a_callback_while_the_window_is_full(kind):
    done = run(f"""
@flow.global_function()
def first(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
    return x * 3
@flow.global_function()
def list(x: tp.ListNumpy.Placeholder((9,))) -> tp.Callback[tp.ListNumpy]:
    return x
@flow.global_function()
def watch(x: tp.Numpy.Placeholder((4,))) -> None:
    flow.watch(x * 3, lambda value: print("found"))
give = {{
    "first": lambda: first(x)(lambda value: print("found")),
    "list": lambda: list([np.ones((given.pop(),), np.float32)])(lambda value: print("found")),
    "watch": lambda: watch(x),
}}[{kind!r}]
given = [8, 7, 6, 5, 4, 3, 2, 1]
for i in range(6):
    job(x)(lambda value: (time.sleep(0.05), give()))
flow.sync_default_session()
""")
    assert done.stdout.split() == ["found"] * 6 and done.returncode == 0, done.stdout + done.stderr


# --- the ends of processes


AT_EXIT = """
@flow.global_function()
def weighted(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
@flow.global_function()
def not_called_before(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * 3
def slow(value):
    time.sleep(0.05)
    print("called back", flush=True)
def with_a_thread(work):
    errors = []
    def run():
        try:
            work()
        except flow.errors.OneFlowError as error:
            errors.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise errors[0]
def last():
    try:
        {work}
    except flow.errors.OneFlowError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", "pass"),
        pytest.param("flow.get_all_variables()", "pass", marks=pytest.mark.thorough),
        ("pass", "job(x)(slow); weighted(x)"),
        pytest.param("job(x); weighted(x)", "pass", marks=pytest.mark.thorough),
        ("import jax; jax.numpy.ones(1)", "job(x)"),
    ],
)
def test_what_a_function_begins_at_exit_comes_to_its_end(before, after, tmp_path):
    done = run(f"""
import atexit
{AT_EXIT.format(work="work()")}
def work():
    for _ in range(6):
        job(x)(slow)
    flow.checkpoint.save({str(tmp_path / "saved")!r}, asynchronous=True)
    os.write(1, b"new: %s\\n" % str(not_called_before(x)).encode())  # in one piece, among those of the callbacks
{before}
atexit.register(last)
{after}
""")
    assert done.stdout.count("called back") == 6 + ("slow" in after) and done.returncode == 0, done.stdout + done.stderr
    assert "new: [3. 3. 3. 3.]" in done.stdout and (tmp_path / "saved" / "snapshot_done").exists(), done.stdout


def test_callbacks_run_before_what_they_use_is_put_away(tmp_path):
    done = run(f"""
import atexit
log = open({str(tmp_path / "log")!r}, "w")
atexit.register(log.close)
for _ in range(4):
    job(x)(lambda value: (time.sleep(0.02), log.write("x")))
""")
    assert (tmp_path / "log").read_text() == "xxxx" and done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("print(weighted(x), flush=True)", "[1. 1. 1. 1.]"),
        ("job(x)(slow)", "job 'job' was called by an exit function that runs after the library's own: no callback would run"),
        pytest.param("job(x * 2)", "no callback would run", marks=pytest.mark.thorough),
        ("not_called_before(x)", "for the first time by an exit function that runs after the library's own"),
        pytest.param(
            "with_a_thread(lambda: print(weighted(x)))",
            "job 'weighted' was called by an exit function that runs after the library's",
            marks=pytest.mark.thorough,
        ),
        ("flow.checkpoint.save('saved', asynchronous=True); print(os.listdir('saved'))", "snapshot_done"),
    ],
)
def test_an_exit_function_that_was_registered_before_the_import(work, told, tmp_path):
    registered = "import atexit\natexit.register(lambda: last())"
    program = f"{registered}\n{PRELUDE}\n{AT_EXIT.format(work=work)}\njob(x)(lambda value: None)\nweighted(x)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert told in done.stdout and done.returncode == 0, done.stdout + done.stderr


def test_watch_handlers_of_jobs_that_handlers_and_callbacks_call_run_before_the_end(tmp_path):
    done = run(f"""
import atexit
log = open({str(tmp_path / "log")!r}, "w")
atexit.register(log.close)
def handler(value):
    time.sleep(0.02)
    log.write("x")
    if log.tell() < 10:
        watched(x)
@flow.global_function()
def watched(x: tp.Numpy.Placeholder((4,))) -> None:
    flow.watch(x * 2, handler)
job(x)(lambda value: watched(x))
""")
    assert (tmp_path / "log").read_text() == "x" * 10 and done.returncode == 0, done.stderr


def test_work_of_an_exit_function_that_imports_the_package(tmp_path):
    work = f"""
@flow.global_function()
def weighted(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
print(weighted(x))
flow.checkpoint.save({str(tmp_path / "saved")!r}, asynchronous=True)
job(x)
"""
    program = f"import atexit, threading\ndef last():\n{indent(PRELUDE + work, '    ')}\natexit.register(last)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "no callback would run" in done.stderr and (tmp_path / "saved" / "snapshot_done").exists(), done.stderr


def test_a_trainer_that_is_first_used_at_exit():
    done = run("""
import atexit
def last():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        loss = x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss
    flow.Trainer(max_epochs=1).fit(train, flow.data.ArrayLoader(np.ones(8, np.float32), 4))
    print("fitted")
atexit.register(last)
""")
    assert "fitted" in done.stdout and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("end", "status"), [("pass", 120), ("sys.exit(3)", 3)])
def test_a_failed_callback_whose_error_is_raised_in_an_exit_function(end, status):
    done = run(f"""
import atexit
atexit.register(lambda: job(x))
job(x)(lambda value: 1 / 0)
{end}
""")
    assert done.returncode == status and "a callback of job 'job' failed" in done.stderr, done.stderr


def test_daemon_threads_that_submit_calls_for_ever_do_not_keep_the_program():
    done = run("""
def callback(value):
    time.sleep(0.003)
def forever():
    while True:
        job(x)(callback)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
job(x)(lambda value: (job(x)(lambda value: print("its own", flush=True)), print("mine", flush=True)))
sys.exit(3)
""")
    assert done.stdout.split("\n") == ["mine", "its own", ""] and done.returncode == 3, done.stdout + done.stderr


def test_a_forked_child_gets_an_error_and_leaves_with_its_own_status():
    done = run("""
for _ in range(3):
    job(x)(lambda value: None)
pid = os.fork()
if pid == 0:
    for use in (lambda: job(x), flow.get_all_variables, lambda: flow.checkpoint.save("/nowhere")):
        try:
            use()
        except flow.errors.ForkError as error:
            print("told:", str(error).splitlines()[0][:40], "  your line  " in str(error), flush=True)
    sys.exit(7)
deadline = time.time() + 20
while time.time() < deadline:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        print("child left with", os.waitstatus_to_exitcode(status))
        break
    time.sleep(0.01)
else:
    os.kill(pid, 9)
job(x)(lambda value: print("parent works"))
""")
    assert done.stdout.count("told: this process was forked from one that ha True") == 3, done.stdout + done.stderr
    assert "child left with 7" in done.stdout and "parent works" in done.stdout and done.returncode == 0


def test_a_forked_child_of_a_training_leaves_with_its_own_status():
    done = run("""
@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    loss = x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
    flow.optimizer.SGD(0.1).minimize(loss)
    return loss
train(x)
pid = os.fork()
if pid == 0:
    sys.exit(7)
print("child left with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
train(x)
""")
    assert "child left with 7" in done.stdout and done.returncode == 0, done.stdout + done.stderr


JAX_RUNS = ["flow.load_variables({'w': x})", "weighted.plan()", "__import__('jax').numpy.ones(3)"]


@pytest.mark.parametrize(
    ("use", "child"),
    [
        pytest.param(*each, marks=[pytest.mark.thorough] * (i not in (1, 2)))
        for i, each in enumerate(itertools.product(JAX_RUNS, ["weighted(x)", "pass"]))
    ],
)
def test_a_fork_before_the_first_call_where_jax_runs_already(use, child):
    done = run(f"""
@flow.global_function()
def weighted(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
{use}
pid = os.fork()
if pid == 0:
    try:
        {child}
    except flow.errors.ForkError as error:
        print("told", flush=True)
    sys.exit(7)
deadline = time.time() + 20
while time.time() < deadline:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        print("child left with", os.waitstatus_to_exitcode(status))
        break
    time.sleep(0.01)
else:
    os.kill(pid, 9)
print(weighted(x))
""")
    assert ("told" in done.stdout) == (child != "pass"), done.stdout + done.stderr
    assert "child left with 7" in done.stdout and "[1. 1. 1. 1.]" in done.stdout and done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "use",
    [
        "flow.manual_seed(1)",
        "flow.get_all_variables()",
        *(pytest.param(use, marks=pytest.mark.thorough) for use in ("pass", "with flow.session(seed=1): pass", "job.summary()")),
    ],
)
def test_a_fork_before_the_first_call_is_free(use):
    done = run(f"""
{use}
pid = os.fork()
if pid == 0:
    print(job(x).get()[0], flush=True)
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), job(x).get()[0])
""")
    assert done.stdout.split() == ["2.0", "5", "2.0"], done.stderr


@pytest.mark.parametrize("has_plugin", [False, True])
def test_an_empty_folder_of_plugins_is_no_accelerator(tmp_path, has_plugin):
    """pip leaves it behind; JAX need not be started to find out that there is no GPU."""
    folder = tmp_path / "jax_plugins" / "another"
    (folder if has_plugin else folder.parent).mkdir(parents=True)
    if has_plugin:
        (folder / "__init__.py").write_text("def initialize(): pass", encoding="utf-8")
    done = run(f"""
sys.path.append({str(tmp_path)!r})
flow.get_all_variables()
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
""")
    assert done.stdout.split() == [str(has_plugin)], done.stderr


MOMENTS = {"importing JAX": 0.05, "compiling": 0.3, "running": 0.7}
CALLS = {
    "jobs": "now(x); job(x)(lambda value: None)",
    "results that are freed": "[later(x) for _ in range(8)][-1].get()",
    "JAX itself": "job(x); import jax; jax.numpy.ones(8) + 1",
}


def test_the_end_comes_while_the_first_call_starts_a_thread():
    done = run("""
import atexit
atexit.register(print, "hooks ran")
begun, start = threading.Event(), threading.Thread.start
def slowly(thread):
    if thread.name == "oneflow-delivery":
        begun.set()
        time.sleep(3)
    start(thread)
threading.Thread.start = slowly
@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x + 1
threading.Thread(target=job, args=(x,), daemon=True).start()
begun.wait()
raise SystemExit(3)
""")
    assert done.returncode == 3 and "hooks ran" in done.stdout, (done.returncode, done.stderr)
    assert "before it is started" not in done.stderr


@pytest.mark.parametrize(
    ("calls", "seconds"),
    [
        pytest.param(calls, seconds, id=f"{what}-{moment}", marks=[] if (i + j) % 3 == 2 else pytest.mark.thorough)
        for i, (what, calls) in enumerate(CALLS.items())
        for j, (moment, seconds) in enumerate(MOMENTS.items())
    ],
)
def test_daemon_threads_that_are_in_cpp_code_do_not_abort_the_end(calls: str, seconds: float):
    done = run(f"""
import atexit
atexit.register(print, "hooks ran")
@flow.global_function()
def now(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x + 1
@flow.global_function()
def later(x: tp.Numpy.Placeholder((4,))):
    return x + 1
def forever():
    while True:
        {calls}
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep({seconds})
raise SystemExit(3)
""")
    assert done.returncode == 3 and "hooks ran" in done.stdout, (done.returncode, done.stderr)


def test_an_exit_that_was_imported_before_the_package_is_not_seen():
    program = f"from sys import exit\n{PRELUDE}\njob(x)(lambda value: 1 / 0)\ntime.sleep(0.1)\nexit(3)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 120 and "a callback of job 'job' failed" in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("raise SystemExit(main())", 120),  # nothing tells an exit hook of this one
        pytest.param("sys.exit(main())", 4, marks=pytest.mark.thorough),
        pytest.param("sys.exit('words')", 1, marks=pytest.mark.thorough),
        pytest.param("sys.exit()", 120, marks=pytest.mark.thorough),
        pytest.param("pass", 120, marks=pytest.mark.thorough),
        ("1 / 0", 1),
        pytest.param("exec('try:\\n    sys.exit(3)\\nexcept SystemExit: pass')", 120, marks=pytest.mark.thorough),
    ],
)
def test_the_exit_status_after_a_failed_callback(end, status):
    done = run(f"""
def bad(value):
    raise RuntimeError("mine")
job(x)(bad)
time.sleep(0.1)
def main():
    return 4
{end}
""")
    assert done.returncode == status and "mine" in done.stderr, done.stderr


def test_an_exit_in_a_callback_is_shown_as_python_calls_it():
    done = run("""
import copy, pickle
job(x)(lambda value: sys.exit(4))
time.sleep(0.1)
try:
    sys.exit(5)
except SystemExit as error:
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is SystemExit and other.code == 5
""")
    assert done.returncode == 120 and "\nSystemExit: 4\n" in done.stderr, done.stderr


# --- interrupts


def test_an_interrupt_is_not_lost_in_the_garbage_collector():
    """Which calls a function of JAX: where the signal is pending, that would be the first code of Python's that runs."""
    done = run("""
import _thread, collections, gc
job(x)
try:
    collections.deque(map(next, (iter(_thread.interrupt_main, 0), iter(gc.collect, -1))), maxlen=0)  # in C
except KeyboardInterrupt:
    print("interrupted", job(x).shape == x.shape)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted True\n", "")


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.2])
def test_a_first_call_can_be_interrupted_while_jax_is_imported(delay):
    done = run(f"""
import signal
seen = []
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.signal(signal.SIGVTALRM, lambda *_: seen.append("jax.numpy" in sys.modules))
assert "jax" not in sys.modules
try:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)  # with a handler of the program's own: at once
    signal.setitimer(signal.ITIMER_REAL, {delay})
    job(x)
    time.sleep({delay})
except KeyboardInterrupt:
    print("interrupted", job(x).shape == x.shape, seen, signal.getsignal(signal.SIGALRM) is signal.default_int_handler)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted True [False] True\n", "")


@pytest.mark.parametrize("dialect", ["builtin", "mhlo"])
def test_a_first_call_can_be_interrupted_while_jax_registers_a_dialect(dialect):
    """JAX imports some at its first lowering, and can register each but once."""
    done = run(f"""
os.environ["ONEFLOW_CACHE_DIR"] = ""  # a program that is kept is not lowered
import jax
from jaxlib.mlir.dialects import _ods_common
registering = _ods_common._cext.register_dialect

def interrupted(dialect):
    made = registering(dialect)
    if dialect.DIALECT_NAMESPACE == {dialect!r}:
        os.kill(os.getpid(), signal.SIGINT)
        print("registered", made.DIALECT_NAMESPACE)
    return made

_ods_common._cext.register_dialect = interrupted
try:
    job(x)
    time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted")
job(x)(lambda y: print(y.sum()))
flow.sync_default_session()
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"registered {dialect}\ninterrupted\n8.0\n", "")


@pytest.mark.parametrize("kind", [pytest.param("predict", marks=pytest.mark.thorough), "train"])
def test_a_program_may_end_while_a_call_that_was_interrupted_is_computed(kind):
    done = run(f"""
import signal
@flow.global_function({kind!r})
def long(x: tp.Numpy.Placeholder((32, 8, 96, 96))) -> tp.Numpy:
    for i in range({15 if kind == "train" else 120}):
        x = flow.layers.conv2d(x, 8, 3, padding="SAME", name=f"c{{i}}")
    loss = flow.math.reduce_mean(x)
    if {kind!r} == "train":
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    return loss
x = np.ones((32, 8, 96, 96), np.float32)
long(x)
began = time.monotonic()
long(x)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, (time.monotonic() - began) / 5)
try:
    long(x)
except KeyboardInterrupt:
    print("interrupted")
""")
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), (done.returncode, done.stderr)


def test_an_interrupted_load_is_done_or_not_begun(tmp_path):
    done = run(
        f"""
import signal
@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((2, 64))) -> tp.Numpy:
    loss = 0.0
    for i in range(6):
        x = flow.nn.dropout(x, 0.5)
        loss = loss + flow.layers.dense(x, 64, name=f"d{{i}}")
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
    return loss
feed = np.ones((2, 64), np.float32)
paths, states = [], []
def state():
    values = {{k: v.numpy() for k, v in flow.get_all_variables().items()}}
    from oneflow.runtime.session import default_session
    return values, default_session().random_state()["calls"]["train"]
for i in range(2):
    train(feed)
    paths.append(r"{tmp_path}/" + str(i))
    flow.checkpoint.save(paths[-1])
    states.append(state())
checkpoints = [flow.checkpoint.get(p) for p in paths]
checkpoints = [type(c)({{k: v for k, v in c.items()}}, c.random_state, c.path) for c in checkpoints]
stop, loads, mixed, interrupts = False, 0, 0, 0
main = threading.main_thread().ident
def storm():
    rng = np.random.default_rng(0)
    while not loads:  # before, nobody catches an interrupt
        time.sleep(0.01)
    while not stop:
        time.sleep(0.004 + 0.01 * rng.random())
        signal.pthread_kill(main, signal.SIGINT)
threading.Thread(target=storm, daemon=True).start()
finish = time.time() + 6
while True:
    try:
        while time.time() < finish:
            try:
                i = loads % 2
                loads += 1
                if loads % 3:
                    flow.load_variables(checkpoints[i])
                else:
                    flow.train.CheckPoint().load(paths[i])
            except KeyboardInterrupt:
                interrupts += 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:
        pass
    # after each interrupt that came between the lines, too
stop = True
print("first", loads, interrupts)
""",
    )
    assert done.returncode == 0 and int(done.stdout.split()[2]) > 50, done.stdout + done.stderr


def test_interrupts_never_leave_a_mixture_of_two_checkpoints(tmp_path):
    done = run(
        f"""
from oneflow.runtime.session import default_session
@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((2, 64))) -> tp.Numpy:
    loss = 0.0
    for i in range(6):
        x = flow.nn.dropout(x, 0.5)
        loss = loss + flow.layers.dense(x, 64, name=f"d{{i}}")
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
    return loss
feed = np.ones((2, 64), np.float32)
def state():
    values = {{k: v.numpy() for k, v in flow.get_all_variables().items()}}
    return values, default_session().random_state()["calls"]["train"]
paths, states = [], []
for i in range(2):
    train(feed)
    paths.append(r"{tmp_path}/" + str(i))
    flow.checkpoint.save(paths[-1])
    states.append(state())
rng, bad, cut = np.random.default_rng(0), 0, 0
for n in range(120):
    timer = threading.Timer(0.012 * rng.random(), lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        if n % 2:
            flow.load_variables(flow.checkpoint.get(paths[n // 2 % 2]))
        else:
            flow.train.CheckPoint().load(paths[n // 2 % 2])
        timer.join()
        time.sleep(0.001)
    except KeyboardInterrupt:
        cut += 1
    values, calls = state()
    which = [calls == c and all((values[k] == v[k]).all() for k in v) for v, c in states]
    bad += not any(which)
print("bad", bad, "cut", cut)
"""
    )
    assert done.returncode == 0 and "bad 0" in done.stdout, done.stdout + done.stderr
    assert int(done.stdout.split()[3]) > 30


# --- wrong programs


def test_an_optimizer_of_a_variable_that_the_loss_does_not_reach_is_refused():
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        flow.get_variable("far", (4,), initializer=flow.ones_initializer())
        loss = w * x
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5])).minimize(loss)
        return loss

    job(ONE)  # all variables: those that are reached are trained

    @flow.global_function("train")
    def only_far(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        flow.get_variable("far", (4,), initializer=flow.ones_initializer())
        loss = w * x
        flow.optimizer.CombinedOptimizer(
            [
                flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), variables=["far"]),
            ]
        ).minimize(loss)
        return loss

    with pytest.raises(flow.errors.TrainError, match="(?s)'far'.*test_reliability.py"):
        only_far(ONE)


def test_an_empty_list_of_variables_is_refused():
    @flow.global_function("train")
    def nothing(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        loss = flow.get_variable("w", (4,), initializer=flow.ones_initializer()) * x
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), variables=lambda: []).minimize(loss)
        return loss

    with pytest.raises(flow.errors.TrainError, match="(?s)its list of variables is empty.*test_reliability.py"):
        nothing(ONE)


@pytest.mark.parametrize("placement", ["0:0", "0:0-1"])
def test_jax_debug_nans_may_be_set_and_unset_at_any_time(placement: str):
    done = run(f"""
import jax
flow.config.cpu_device_num(2)
@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    with flow.scope.placement("cpu", "{placement}"):
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        loss = flow.math.log(w * x)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss
one = np.ones(4, np.float32)
value = lambda: flow.get_all_variables()["w"].numpy()
train(one)
before = value()
for _ in range(2):
    with jax.debug_nans(True):
        try:
            train(-one)
        except flow.errors.ExecutionError as error:
            assert "debug_nans" in str(error), error
        else:
            raise AssertionError("not told")
assert np.array_equal(value(), before)
train(one)
assert not np.array_equal(value(), before)
assert np.isnan(train(-one)).all()  # nobody asked
""")
    assert done.returncode == 0, done.stderr


def test_what_jax_debug_nans_finds_is_told_and_leaves_the_state():
    done = run("""
import jax
jax.config.update("jax_debug_nans", True)
@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
    loss = flow.math.log(w * x)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    return loss
one = np.ones(4, np.float32)
for bad in (-one, one, -one, one):
    try:
        print("loss", train(bad))
    except flow.errors.ExecutionError as error:
        print("told:", " / ".join(str(error).splitlines()))
print(flow.get_all_variables()["w"].numpy())
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("told:") == 2 and done.stdout.count("loss") >= 2 and "nan" in done.stdout.lower(), done.stdout
    assert "deleted" not in done.stdout and "smaller shapes" not in done.stdout


def test_no_call_waits_for_another_job_that_is_being_traced():
    tracing, go_on = threading.Event(), threading.Event()

    @flow.global_function()
    def plain(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x + 1

    @flow.global_function()
    def varying(x: tp.ListNumpy.Placeholder((8,))) -> tp.ListNumpy:
        return x + 1

    plain(ONE), varying([ONE])

    @flow.global_function()
    def slow(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        tracing.set()
        go_on.wait(60)
        return x + 2

    thread = threading.Thread(target=slow, args=(ONE,))
    thread.start()
    assert tracing.wait(60)
    try:  # each of these would wait for ever
        np.testing.assert_array_equal(plain(ONE), ONE + 1)
        np.testing.assert_array_equal(plain(x=ONE), ONE + 1)
        np.testing.assert_array_equal(varying([ONE])[0], ONE + 1)
        np.testing.assert_array_equal(varying([ONE[:3]])[0], ONE[:3] + 1)
    finally:
        go_on.set()
        thread.join()


def test_sync_returns_while_another_thread_goes_on_submitting():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return flow.get_variable("w", (4,), initializer=flow.ones_initializer()) + x

    job(ONE).get()
    stop = threading.Event()

    def submit():
        while not stop.is_set():
            job(ONE)(lambda value: time.sleep(0.001))  # delivering takes longer than submitting: it never comes to an end

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        for _ in range(10):
            flow.sync_default_session()
            flow.get_all_variables()
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join()


def test_programs_that_fusion_emitters_of_xla_fail_for() -> None:
    """In jaxlib 0.10, those with gradients of zeros behind many activations."""
    start = np.linspace(0.5, 1.5, 3, dtype=np.float32)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        scale = flow.get_variable("scale", (3,), initializer=flow.zeros_initializer())
        y = z = x * scale
        for _ in range(20):
            z = flow.nn.relu(z) * 0.5 + y * 0.1
        loss = flow.math.reduce_mean(flow.math.square(y)) + flow.math.reduce_mean(z) * 0.0
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
        return loss

    flow.load_variables({"scale": start})
    loss = train(np.ones((8, 3), np.float32))
    np.testing.assert_allclose(loss, np.square(start).mean(), rtol=1e-6)
    np.testing.assert_allclose(flow.get_all_variables()["scale"].numpy(), start * (1 - 0.5 * 2 / 3), rtol=1e-6)
