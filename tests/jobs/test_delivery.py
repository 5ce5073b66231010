"""Asynchronous results: what docs/architecture.md, "Protocol", promises."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.runtime.process import process

ONE = np.ones((4,), np.float32)


def counting_job():
    """A train job whose loss is w at the time of the call: 1, 0, -1, ... so that results tell the order of steps."""

    @flow.global_function(type="train")
    def count(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
        w = flow.get_variable("w", (1,), initializer=flow.constant_initializer(1.0))
        loss = w * x
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    return count


def test_callbacks_run_in_call_order_once_and_off_the_callers_thread():
    job, got, threads = counting_job(), [], set()

    def callback(value):
        got.append(float(value[0]))
        threads.add(threading.current_thread())

    x = np.ones((1,), np.float32)
    for _ in range(200):
        job(x)(callback)
    flow.sync_default_session()
    assert got == [1.0 - i for i in range(200)]
    assert len(threads) == 1 and threading.current_thread() not in threads


def test_arrays_may_change_right_after_an_asynchronous_call():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((300, 300))) -> tp.Callback[tp.Numpy]:
        return flow.math.reduce_sum(flow.matmul(x, x))

    got, x = [], np.empty((300, 300), np.float32)
    for i in range(20):
        x[...] = i
        job(x)(lambda v: got.append(float(v[0])))
        x[...] = -1000
    flow.sync_default_session()
    np.testing.assert_allclose(got, [300.0**3 * i * i for i in range(20)], rtol=1e-5)


def test_window_is_bounded_and_the_caller_waits():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    delivered, most = [], 0

    def slow(value):
        time.sleep(0.005)
        delivered.append(1)

    for i in range(60):
        job(ONE)(slow)
        most = max(most, i + 1 - len(delivered))
    assert most <= 33
    flow.sync_default_session()
    assert len(delivered) == 60


def test_a_result_without_callback_blocks_nobody_and_late_registration_works():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    got = []
    early = job(ONE)
    for i in range(100):
        job(ONE * i)(lambda v, i=i: got.append(i))
    flow.sync_default_session()
    assert got == list(range(100))
    early(lambda v: got.append("early"))
    flow.sync_default_session()
    assert got[-1] == "early"


@pytest.mark.parametrize("calls", [3, 40])
def test_callbacks_that_are_registered_when_all_calls_are_made_run_in_call_order(calls):
    """Some turns are over by then, and others' calls are being delivered meanwhile."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((150, 150))) -> tp.Callback[tp.Numpy]:
        return flow.math.reduce_sum(flow.matmul(x, x))

    for _ in range(20):
        order: list[int] = []
        results = [job(np.ones((150, 150), np.float32)) for _ in range(calls)]
        for i, result in enumerate(results):
            result(lambda _, i=i, order=order: order.append(i))
        flow.sync_default_session()
        assert order == list(range(calls))


def test_sync_waits_for_calls_of_callbacks():
    """Each callback makes the next call, which is not yet submitted when the wait begins."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Callback[tp.Numpy]:
        return x + 1.0

    seen = []

    def again(value):
        time.sleep(0.05)
        seen.append(value[0])
        if len(seen) < 5:
            job(value)(again)

    job(np.zeros(2, np.float32))(again)
    flow.sync_default_session()
    assert seen == [1, 2, 3, 4, 5]


def test_calls_of_callbacks_without_end_hold_up_nothing_but_sync():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Callback[tp.Numpy]:
        return x + flow.get_variable("w", (2,), initializer=flow.ones_initializer())

    goes_on = True

    def again(value):
        if goes_on:
            time.sleep(0.001)
            job(value)(again)

    job(np.zeros(2, np.float32))(again)
    assert list(flow.get_all_variables()) == ["w"]
    with flow.session():
        pass
    goes_on = False
    flow.sync_default_session()


def test_callbacks_may_call_jobs_read_variables_and_save(tmp_path):
    count = counting_job()

    @flow.global_function()
    def double(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        return x * 2

    @flow.global_function()
    def double_later(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
        return x * 2

    seen = []

    def callback(value):
        seen.append(float(double(value)[0]))
        seen.append(sorted(flow.get_all_variables())[0])
        flow.checkpoint.save(str(tmp_path / f"in_callback_{len(seen)}"))
        double_later(value)(lambda v: seen.append("nested"))
        flow.sync_default_session()  # a no-op here

    for _ in range(3):
        count(np.ones((1,), np.float32))(callback)
    flow.sync_default_session()
    flow.sync_default_session()
    assert seen.count("nested") == 3 and seen[0] == 2.0 and len(list(tmp_path.iterdir())) == 3


def test_a_callback_that_is_an_async_function_is_an_error(capfd):
    async def never(value):
        raise AssertionError

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    job(ONE)(never)
    with pytest.raises(flow.errors.CallbackError, match="is an async function, which nothing awaits"):
        flow.sync_default_session()
    assert "await job.submit(...)" in capfd.readouterr().err


def test_a_callback_that_does_not_take_one_argument_is_named_with_its_line():
    def takes_none():
        raise AssertionError

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    for register in (lambda: job(ONE)(takes_none), lambda: job.submit(ONE).add_done_callback(takes_none)):
        register()
        text = r"(?s)'job' must take one argument: .*takes_none\(\) takes 0.*test_delivery.py:\d+   def takes_none\(\):"
        with pytest.raises(flow.errors.CallbackError, match=text):
            flow.sync_default_session()

    def fails(value):
        takes_none(value)

    job(ONE)(fails)
    with pytest.raises(flow.errors.CallbackError, match="raised TypeError"):
        flow.sync_default_session()


def test_failing_callback_surfaces_once_and_later_ones_run(capfd):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    got = []

    def bad(value):
        raise KeyError("mine")

    job(ONE)(bad)
    job(ONE)(got.append)
    with pytest.raises(flow.errors.CallbackError, match="mine") as caught:
        flow.sync_default_session()
    assert isinstance(caught.value.__cause__, KeyError) and len(got) == 1
    assert re.search(r'raised at  \S*test_delivery\.py:\d+   raise KeyError\("mine"\)', str(caught.value))
    assert "KeyError: 'mine'" in capfd.readouterr().err
    flow.sync_default_session()

    job(ONE)(bad)
    time.sleep(0.2)
    with pytest.raises(flow.errors.CallbackError):
        job(ONE)
    job(ONE)(got.append)
    flow.sync_default_session()
    assert len(got) == 2


def test_an_error_without_a_text_is_told_by_its_type():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    def bad(value):
        raise RuntimeError

    job(ONE)(bad)
    with pytest.raises(flow.errors.CallbackError, match="of job 'job' raised RuntimeError\n"):
        flow.sync_default_session()


def test_jobs_may_be_called_from_several_threads():
    job, got = counting_job(), []
    x = np.ones((1,), np.float32)
    job(x)(got.append)

    def work():
        for _ in range(50):
            job(x)(got.append)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    flow.sync_default_session()
    assert [float(g[0]) for g in got] == [1.0 - i for i in range(201)]


def test_synchronous_and_asynchronous_runs_are_identical():
    def run(asynchronous):
        flow.clear_default_session()
        flow.manual_seed(3)
        annotation = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy

        def body(x: tp.Numpy.Placeholder((8, 16))):
            h = flow.nn.dropout(flow.layers.dense(x, 16, kernel_initializer=flow.truncated_normal(0.3)), rate=0.5)
            loss = flow.math.reduce_sum(h * h, axis=1)
            flow.optimizer.Adam(flow.optimizer.CosineScheduler(0.01, 50)).minimize(loss)
            return loss

        body.__annotations__["return"] = annotation
        job, out = flow.global_function(type="train")(body), []
        rng = np.random.default_rng(0)
        for _ in range(10):
            x = rng.standard_normal((8, 16)).astype(np.float32)
            if asynchronous:
                job(x)(out.append)
            else:
                out.append(job(x))
        flow.sync_default_session()
        return out

    a, b = run(True), run(False)
    assert all((x == y).all() for x, y in zip(a, b, strict=True)) and not (a[0] == a[1]).all()


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


def run(program: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=120, **kwargs)


def test_exit_waits_for_callbacks():
    done = run("""
def slow(v):
    time.sleep(0.05)
    print("delivered", flush=True)
for _ in range(5):
    job(x)(slow)
""")
    assert done.returncode == 0 and done.stdout.count("delivered") == 5, done.stderr


def test_failing_callback_makes_the_exit_status_nonzero(tmp_path):
    done = run(
        """
log = open("log.txt", "w")
log.write("kept")
def bad(v):
    raise RuntimeError("mine")
job(x)(bad)
print("printed last")
""",
        cwd=tmp_path,
    )
    assert done.returncode not in (0, None) and "mine" in done.stderr and "printed last" in done.stdout
    assert (tmp_path / "log.txt").read_text() == "kept"  # the interpreter's own end is not skipped


def test_ctrl_c_leaves_promptly():
    done = run("""
def slow(v):
    time.sleep(5)
for _ in range(3):
    job(x)(slow)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.time()
try:
    time.sleep(30)
finally:
    print("waited", time.time() - start, flush=True)
""")
    assert done.returncode not in (0, None) and "KeyboardInterrupt" in done.stderr
    assert float(done.stdout.split()[1]) < 3


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
def test_leaving_never_aborts(seed):
    """However the program ends: with work in flight, handles dropped, or Ctrl-C between any two lines."""
    done = run(f"""
big = np.ones((300, 300), np.float32)
@flow.global_function()
def heavy(x: tp.Numpy.Placeholder((300, 300))) -> tp.Callback[tp.Numpy]:
    for _ in range(20):
        x = flow.matmul(x, x) * 1e-3
    return x
heavy(big)
if {seed} % 2:
    threading.Timer(0.05 + {seed} * 0.013, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
for _ in range(60):
    heavy(big)(lambda v: None) if {seed} > 1 else heavy(big)
print("ok")
""")
    assert done.returncode in ((0,) if seed % 2 == 0 else (0, -2, 130, 1)), (done.returncode, done.stderr)


def test_catching_ctrl_c_leaves_a_session_that_works():
    done = run("""
job(x)(lambda v: None)
flow.sync_default_session()
for i in range(60):
    timer = threading.Timer(0.002 + i * 0.00037, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            job(x)(lambda v: None)
    except KeyboardInterrupt:
        flow.sync_default_session()
print("works")
""")
    assert "works" in done.stdout, done.stderr


def test_exit_waits_for_what_callbacks_submit():
    done = run("""
def again(v, left=3):
    time.sleep(0.05)
    print("left", left, flush=True)
    if left:
        job(x)(lambda v: again(v, left - 1))
job(x)(again)
""")
    assert done.stdout.count("left") == 4 and done.returncode == 0, done.stderr


def test_a_late_callback_that_runs_is_waited_for():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x

    done = []
    handle = job(ONE)
    flow.sync_default_session()
    handle(lambda v: (time.sleep(0.3), done.append(1)))
    time.sleep(0.05)
    flow.sync_default_session()
    assert done == [1]


def test_a_step_that_fails_on_the_device_leaves_the_variables():
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        w = flow.get_variable("w", (1, 1), initializer=flow.ones_initializer())
        huge = flow.broadcast_like(w, flow.zeros((1 << 19, 1 << 20)))
        loss = flow.math.reduce_sum(flow.math.sin(flow.matmul(huge, huge, transpose_b=True)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    with pytest.raises(flow.errors.OneFlowError, match="job 'job'"):
        job(np.ones(1, np.float32))
    assert flow.get_all_variables()["w"].numpy().tolist() == [[1.0]]


def test_interrupts_lose_no_step():
    """However calls are interrupted, the number of steps counted and the variable agree."""
    done = run("""
@flow.global_function(type="train")
def count(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
    w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(w * x)
    return w
one = np.ones((1,), np.float32)
count(one)
stop = is_calling = False
def storm():
    time.sleep(0.05)
    while not stop:
        time.sleep(0.0007)
        if is_calling:
            os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=storm, daemon=True)
interrupts = 0
finish = time.time() + 30  # a busy machine needs long for as many
thread.start()
while True:
    try:  # interrupts also come between the lines of this test
        while interrupts < 300 and time.time() < finish:
            try:
                is_calling = True
                while interrupts < 300 and time.time() < finish:
                    count(one)
            except KeyboardInterrupt:
                is_calling = False
                interrupts += 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:
        pass
stop = True
v = flow.get_all_variables()
w, step = v["w"].numpy()[0], v["System-Train-TrainStep-count"].numpy()[0]
assert -w == step, (w, step)
assert interrupts >= 30, interrupts
print("agree", step, interrupts)
""")
    assert "agree" in done.stdout, done.stderr


def test_callers_that_deliver_tiny_calls_leave_callbacks_in_order_on_their_thread(monkeypatch):
    """Where calls are tiny, callers deliver those that nothing is to be run for. All that is promised stays true."""
    monkeypatch.setattr("oneflow.runtime.delivery._TINY_SECONDS", 1.0)  # on any machine
    seen: list[flow.Blob] = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x + 1

    @flow.global_function()
    def watched(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        y = x + 1
        flow.watch(y, lambda value: seen.append(float(value.numpy()[0])))
        return y

    job(ONE).get()
    watched(ONE).get()
    seen.clear()
    called: dict[int, list[float]] = {0: [], 1: [], 2: []}
    threads, wrong, listened = set(), [], []

    def caller(number):
        rng, kept = np.random.default_rng(number), []
        for i in range(600):
            x = np.full((4,), i, np.float32)
            kind = rng.choice(6, p=[0.8, 0.04, 0.04, 0.04, 0.04, 0.04])
            handle = (watched if kind == 4 else job)(x)
            if kind == 1:
                handle(lambda value: (called[number].append(float(value[0])), threads.add(threading.current_thread())))
            elif kind == 2:
                handle.add_done_callback(lambda h: listened.append(h.result()[0]))
            elif kind == 3 and handle.result()[0] != i + 1:
                wrong.append(i)
            kept.append((i, kind, handle))
        flow.sync_default_session()
        wrong.extend(i for i, _, handle in kept if not handle.done() or handle.result()[0] != i + 1)
        expected[number] = [float(i + 1) for i, kind, _ in kept if kind == 1]
        others.extend(kind for _, kind, _ in kept)

    expected: dict[int, list[float]] = {}
    others: list[int] = []
    callers = [threading.Thread(target=caller, args=(number,)) for number in called]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    flow.sync_default_session()
    assert not wrong
    assert called == expected  # each once, in the order of a thread's calls
    assert len(threads) == 1 and not threads & set(callers)
    assert len(listened) == others.count(2) and len(seen) == others.count(4)


def test_an_error_of_a_tiny_call_is_reported_as_that_of_any_other(monkeypatch):
    monkeypatch.setattr("oneflow.runtime.delivery._TINY_SECONDS", 1.0)
    told = io.StringIO()  # capfd loses what is written while it is being read
    monkeypatch.setattr("sys.stderr", told)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x + 1

    for _ in range(100):
        job(ONE)
    job(ONE)(lambda value: 1 / 0)
    with pytest.raises(flow.errors.CallbackError, match="division by zero"):
        for _ in range(5000):
            job(ONE)
    assert job(ONE).result().tolist() == [2, 2, 2, 2]
    deadline = time.monotonic() + 30
    while "ZeroDivisionError" not in told.getvalue():  # the thread that delivers may still be writing
        assert time.monotonic() < deadline, told.getvalue()
        time.sleep(0.01)


@pytest.mark.parametrize("size", [3, 1 << 19])
def test_an_interrupt_while_a_call_waits_for_room_shows_nothing_else(monkeypatch, size):
    """Large arguments take another path, where an exception says that there is no room."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((size,))) -> tp.Callback[tp.Numpy]:
        return x * flow.get_variable("v", (1,), initializer=flow.ones_initializer())

    def interrupted(*window):
        raise KeyboardInterrupt

    x, go_on = np.ones(size, np.float32), threading.Event()
    job(x)(lambda value: go_on.wait(60))
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:
            patch.setattr(process.delivery, "wait_for_room", interrupted)
            for _ in range(100):
                job(x)
        assert caught.value.__context__ is None
    finally:
        go_on.set()
    flow.sync_default_session()


def failing_handlers(seen):
    def fails(value):
        raise ValueError("mine")

    def body(x):
        flow.watch(x, lambda value: seen.append("first"))
        flow.watch(x + 1, fails)
        flow.watch(x + 2, lambda value: seen.append("last"))
        return x * 2

    return body


def test_a_handler_that_raises_keeps_nothing_else_of_its_call_from_running(capfd):
    seen = []
    body = failing_handlers(seen)

    @flow.global_function()
    def late(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return body(x)

    late(ONE)(lambda value: seen.append(float(value[0])))
    with pytest.raises(flow.errors.CallbackError, match="mine"):
        flow.sync_default_session()
    assert seen == ["first", "last", 2.0]
    assert capfd.readouterr().err.count("ValueError: mine") == 1


def test_a_synchronous_call_raises_the_error_of_its_handler_when_all_have_run(capfd):
    seen = []
    body = failing_handlers(seen)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return body(x)

    for _ in range(2):
        with pytest.raises(flow.errors.CallbackError, match="mine"):
            job(ONE)
    assert seen == ["first", "last"] * 2
