"""Saving in the background: the state of one step, whole or not there, with errors that reach the program."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint import atomic
from oneflow.errors import ArgumentError, CheckpointError, CheckpointExistsError

ROWS = np.random.default_rng(0).standard_normal((64, 8, 32)).astype(np.float32)


def train_job(width: int = 64):
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((8, 32))) -> tp.Callback[tp.Numpy]:
        initializer = flow.xavier_uniform_initializer()  # zeros would stay zeros
        h = flow.layers.dense(x, width, activation=flow.math.tanh, kernel_initializer=initializer, name="a")
        y = flow.layers.dense(flow.nn.dropout(h, rate=0.3), 4, kernel_initializer=initializer, name="b")
        loss = flow.math.reduce_mean(flow.math.square(y))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    return train


def values() -> dict[str, bytes]:
    return {name: handle.numpy().tobytes() for name, handle in flow.get_all_variables().items()}


def saved(path: Path) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in flow.checkpoint.get(path).items()}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Saves wait for it before they flush their first file."""
    opened, flush = threading.Event(), atomic._flush

    def waiting(path: str) -> None:
        assert opened.wait(30)
        flush(path)

    monkeypatch.setattr(atomic, "_flush", waiting)
    yield opened
    opened.set()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk that fails; ``undo`` mends it."""

    def failing(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(atomic, "_flush", failing)
    return monkeypatch


def test_what_is_saved_is_the_state_of_one_step(tmp_path: Path, gate: threading.Event) -> None:
    flow.manual_seed(1)
    train, before, pending = train_job(), [], []
    gate.set()
    for step in range(40):
        train(ROWS[step])
        if step % 8 == 3:
            before.append(values())
            pending.append(flow.checkpoint.save(tmp_path / str(step), asynchronous=True))
    flow.sync_default_session()
    for number, (state, each) in enumerate(zip(before, pending, strict=True)):
        each.wait()
        assert saved(tmp_path / str(8 * number + 3)) == state


def test_a_slow_disk_holds_no_step_up_and_changes_nothing(tmp_path: Path, gate: threading.Event) -> None:
    """The variables are donated again and again while the file is not even written."""
    flow.manual_seed(1)
    train = train_job()
    losses = []
    train(ROWS[0])
    state = values()
    pending = flow.checkpoint.save(tmp_path / "m", asynchronous=True)
    for step in range(1, 30):
        train(ROWS[step])(lambda value: losses.append(value.tobytes()))
    flow.sync_default_session()
    assert len(losses) == 29 and not pending.done() and not (tmp_path / "m").exists()
    assert "being written" in repr(pending) and pending.path == str(tmp_path / "m")
    gate.set()
    pending.wait(30)
    assert saved(tmp_path / "m") == state and "saved" in repr(pending)
    again = []
    flow.load_variables(flow.checkpoint.get(tmp_path / "m"))
    for step in range(1, 30):
        train(ROWS[step])(lambda value: again.append(value.tobytes()))
    flow.sync_default_session()
    assert again == losses


def test_a_second_save_waits_for_the_first(tmp_path: Path, gate: threading.Event) -> None:
    train = train_job()
    train(ROWS[0])
    first = flow.checkpoint.save(tmp_path / "one", asynchronous=True)
    done = []

    def second() -> None:
        done.append(flow.checkpoint.save(tmp_path / "two", asynchronous=True))

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and not done
    gate.set()
    thread.join(30)
    assert first.done()
    done[0].wait()
    assert saved(tmp_path / "one") == saved(tmp_path / "two")


@pytest.mark.parametrize("reads", ["get", "load", "another save", "manager"])
def test_who_reads_waits(tmp_path: Path, gate: threading.Event, reads: str) -> None:
    train_job()(ROWS[0])
    pending = flow.checkpoint.save(tmp_path / "m", asynchronous=True)
    threading.Timer(0.2, gate.set).start()
    if reads == "get":
        assert flow.checkpoint.get(tmp_path / "m")
    elif reads == "load":
        flow.train.CheckPoint().load(tmp_path / "m")
    elif reads == "another save":
        flow.checkpoint.save(tmp_path / "n")
    else:
        flow.checkpoint.CheckpointManager(tmp_path, prefix="").restore("m")
    assert pending.done()


def test_arrays_may_be_changed_at_once(tmp_path: Path, gate: threading.Event) -> None:
    array = np.arange(1000.0)
    pending = flow.checkpoint.save(tmp_path / "m", {"a": array}, asynchronous=True)
    array[:] = 0
    gate.set()
    pending.wait()
    np.testing.assert_array_equal(np.asarray(flow.checkpoint.get(tmp_path / "m")["a"]), np.arange(1000.0))


def test_callbacks_may_save_in_the_background(tmp_path: Path) -> None:
    train = train_job()
    for step in range(6):
        train(ROWS[step])(lambda value, step=step: flow.checkpoint.save(tmp_path / str(step), asynchronous=True))
    flow.sync_default_session()
    flow.checkpoint.get(tmp_path / "0")  # waits for the last
    assert sorted(os.listdir(tmp_path)) == list("012345")


# --- errors


def test_a_taken_path_is_told_at_once(tmp_path: Path) -> None:
    train_job()(ROWS[0])
    (tmp_path / "m").touch()
    with pytest.raises(CheckpointExistsError):
        flow.checkpoint.save(tmp_path / "m", asynchronous=True)
    flow.sync_default_session()


@pytest.mark.parametrize("when", ["call", "submit", "sync", "save", "load", "wait", "result", "exception"])
def test_an_error_is_raised_once(tmp_path: Path, broken: pytest.MonkeyPatch, when: str) -> None:
    train = train_job()
    train(ROWS[0])
    flow.sync_default_session()
    before = values()
    pending = flow.checkpoint.save(tmp_path / "m", asynchronous=True)
    while not pending.done():
        time.sleep(0.001)
    broken.undo()
    assert pending.failed and "failed" in repr(pending)
    actions = {
        "call": lambda: train(ROWS[1]), "submit": lambda: train.submit(ROWS[1]), "sync": flow.sync_default_session,
        "save": lambda: flow.checkpoint.save(tmp_path / "n"), "load": lambda: flow.train.CheckPoint().load(tmp_path / "m"),
        "wait": pending.wait, "result": pending.result, "exception": lambda: (_ for _ in ()).throw(pending.exception()),
    }  # fmt: skip
    with pytest.raises(CheckpointError, match="cannot save to .*Input/output error; nothing was changed"):
        actions[when]()
    flow.sync_default_session()
    assert values() == before and os.listdir(tmp_path) == []  # the call has not run
    flow.checkpoint.save(tmp_path / "m", asynchronous=True).wait()
    assert saved(tmp_path / "m") == before


def test_metadata(tmp_path: Path) -> None:
    flow.checkpoint.save(tmp_path / "m", {"a": np.zeros(1)}, metadata={"epoch": 3, "names": ["x", None]})
    from oneflow.checkpoint.format import Checkpoint

    assert Checkpoint(tmp_path / "m").extra() == {"format": 1, "metadata": {"epoch": 3, "names": ["x", None]}}
    for wrong in (3, {"a": np.zeros(1)}, {"a": float("nan")}):
        with pytest.raises(ArgumentError, match="metadata cannot be saved"):
            flow.checkpoint.save(tmp_path / "n", {"a": np.zeros(1)}, metadata=wrong)


# --- the end of the program

PROGRAM = """
import os, signal, sys, threading
import numpy as np
import oneflow as flow, oneflow.typing as tp
from oneflow.checkpoint import atomic

how, root = sys.argv[1:3]
signal.signal(signal.SIGINT, signal.default_int_handler)
flush = atomic._flush
def slow(path):
    import time
    time.sleep(0.02)
    if how == "fails":
        raise OSError(5, "Input/output error")
    flush(path)
atomic._flush = slow

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
    loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 3, name="d")))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss

train(np.ones((4, 2), np.float32))
flow.checkpoint.save(os.path.join(root, "m"), asynchronous=True)
print("begun", flush=True)
if how == "exits":
    sys.exit(3)
if how == "raises":
    raise ValueError("an error of the program's own")
if how == "interrupted":
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(5)
"""


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [pytest.param("ends", 0, "", marks=pytest.mark.thorough), ("exits", 3, ""),
     pytest.param("raises", 1, "an error of the program's own", marks=pytest.mark.thorough),
     ("interrupted", -signal.SIGINT, "a checkpoint is being written"), ("fails", 120, "Input/output error")],
)  # fmt: skip
def test_the_end_of_the_program_waits(tmp_path: Path, how: str, status: int, told: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "begun\n") and told in done.stderr, done.stderr
    assert os.listdir(tmp_path) == ([] if how == "fails" else ["m"])
    if how != "fails":
        assert set(flow.checkpoint.get(tmp_path / "m")) > {"d-weight", "d-bias"}


def test_threads_save_beside_each_other(tmp_path: Path) -> None:
    errors, counts = [], [0, 0]

    def save(number: int) -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                flow.checkpoint.save(tmp_path / str(number), {"w": ROWS[0]}, overwrite=True, asynchronous=number == 0)
                counts[number] += 1
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flow.sync_default_session()
    assert not errors and min(counts) > 1, errors[:3]


def test_a_save_whose_thread_cannot_be_started_does_not_prevent_the_next(tmp_path: Path, monkeypatch) -> None:
    flow.checkpoint.save(tmp_path / "first", {"w": ROWS[0]}, asynchronous=True).wait()

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            flow.checkpoint.save(tmp_path / "m", {"w": ROWS[0]}, asynchronous=True)
    flow.checkpoint.save(tmp_path / "m", {"w": ROWS[0]}, asynchronous=True).wait()
    assert sorted(os.listdir(tmp_path)) == ["first", "m"]


# Values large enough for their digests to be computed on further threads, and saves that begin when the main thread has ended.
LATE = """
import atexit, sys, threading
import numpy as np
import oneflow as flow

how, root = sys.argv[1:3]
values = {name: np.arange(3_000_000, dtype=np.float32) for name in "ab"}

def save(**options):
    flow.checkpoint.save(root + "/m", values, **options)

if how == "background":
    save(asynchronous=True)
elif how == "at exit":
    atexit.register(save)
else:
    def work():
        threading.main_thread().join()
        save()
    threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("how", ["background", "at exit", "other thread"])
def test_large_values_are_saved_although_the_program_is_at_its_end(tmp_path: Path, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", LATE, how, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, os.listdir(tmp_path)) == (0, ["m"]), done.stderr
    found = flow.checkpoint.get(tmp_path / "m")  # its digests fit
    assert all(np.array_equal(found[name].numpy(), np.arange(3_000_000, dtype=np.float32)) for name in "ab")


SAVES_FOR_EVER = """
import itertools, sys
import numpy as np
import oneflow as flow, oneflow.typing as tp

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 64))) -> tp.Numpy:
    loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 512, name="d")))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
    return loss

before = None
for i in itertools.count(1):
    train(np.ones((4, 64), np.float32))
    pending = flow.checkpoint.save(f"{sys.argv[1]}/{i}", asynchronous=True)
    if before is not None:
        before.wait()
        print(i - 1, flush=True)
    before = pending
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(5)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with subprocess.Popen([sys.executable, "-c", SAVES_FOR_EVER, str(folder)], stdout=subprocess.PIPE, text=True) as saver:
            assert saver.stdout is not None
            confirmed = [int(saver.stdout.readline())]
            time.sleep(chance.uniform(0, 0.3))
            saver.send_signal(signal.SIGKILL)
            confirmed += map(int, saver.stdout.read().split())
        flow.checkpoint.save(folder / "next", {"a": np.zeros(1)})  # cleans up
        names = sorted(os.listdir(folder))
        assert {str(i) for i in confirmed} <= {*names} and len(names) <= len(confirmed) + 3, names
        for name in names[:-1]:
            found = flow.checkpoint.get(folder / name)
            assert found["System-Train-TrainStep-train"].numpy().tolist() == [int(name)]
            assert found["d-weight"].numpy().size == 64 * 512  # verified against its digests


def test_at_most_one_copy_more_is_held(tmp_path: Path, gate: threading.Event) -> None:
    import jax

    def held() -> int:
        return sum(array.nbytes for array in jax.live_arrays())

    train = train_job(width=20_000)
    train(ROWS[0])
    flow.sync_default_session()
    gc.collect()
    state, others = sum(len(value) for value in values().values()), held()
    assert 4e6 < state <= others
    tracemalloc.start()
    try:
        pending = flow.checkpoint.save(tmp_path / "m", asynchronous=True)
        for step in range(1, 6):
            train(ROWS[step])
        flow.sync_default_session()
        assert held() <= others + 1.01 * state + 1e4
        gate.set()
        pending.wait()
        assert tracemalloc.get_traced_memory()[1] < 0.1 * state + 1e6  # NumPy's memory: a CPU's arrays are not copied again
    finally:
        tracemalloc.stop()
    del pending
    flow.checkpoint.get(tmp_path / "m")  # waits for the end of the thread, too
    assert held() <= others + 1e4  # nothing is kept
