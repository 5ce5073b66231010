"""A signal has a program finish its step, save, and leave; started again, it goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ModeError

TRAINING = """
import os, signal, sys, threading, time
import numpy as np
import oneflow as flow, oneflow.typing as tp

root, parts, kind, kill_at, number = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
several = flow.distributed.get_world_size() > 1
flow.manual_seed(3)
manager = flow.checkpoint.CheckpointManager(root, max_to_keep=2)
asynchronous = kind == "asynchronous"

@flow.global_function(type="train")
def train() -> tp.Callback[tp.Numpy] if asynchronous else tp.Numpy:
    records = flow.data.ofrecord_reader(parts, 4, 2, random_shuffle=True, shuffle_after_epoch=True)
    x = flow.data.OFRecordRawDecoder(records, "x", (6,), flow.float)
    h = flow.nn.dropout(flow.layers.dense(x, 8, activation=flow.math.tanh, name="a"), rate=0.3)
    loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(h, 1, name="b")))
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
    return loss

def loop(start):
    for step in range(start, 40):
        if step == kill_at and flow.distributed.get_rank() == int(several):
            os.kill(os.getpid(), number)
        show = lambda value, step=step: print(step, value.tobytes().hex(), flush=True)
        train()(show) if asynchronous else show(train())
        if kind == "thread" and 0 <= kill_at <= step:
            time.sleep(0.1)  # which lets the main thread, where handlers run, have its turn on a busy machine

with flow.checkpoint.save_on_preemption(manager):
    restored = manager.restore_or_init()
    start = 0 if restored is None else manager.step()
    if kind == "thread":
        thread = threading.Thread(target=loop, args=(start,))
        thread.start()
        thread.join()
    else:
        loop(start)
    flow.sync_default_session()
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> str:
    from oneflow.core.record import record_pb2 as pb

    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("records")
    features = [pb.Feature(float_list=pb.FloatList(value=rng.standard_normal(6))) for _ in range(60)]
    flow.data.write_parts(str(folder / "part"), [pb.OFRecord(feature={"x": f}) for f in features], parts=2)
    return str(folder / "part")


def run(tmp_path: Path, root: str, parts: str, kind: str, kill_at: int, *launch: str, number: int = signal.SIGTERM):
    (tmp_path / "script.py").write_text(TRAINING)
    command = [sys.executable, *launch, str(tmp_path / "script.py"), str(tmp_path / root), parts, kind, str(kill_at), str(number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, parts: str) -> dict[int, str]:
    """The losses of a run that nothing interrupts."""
    done = run(tmp_path_factory.mktemp("run"), "whole", parts, "synchronous", -1)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
    return losses(done)


def losses(done: subprocess.CompletedProcess[str]) -> dict[int, str]:
    rows = [line.split() for line in done.stdout.splitlines() if line != "done"]
    assert len({row[0] for row in rows}) == len(rows)
    return {int(step): loss for step, loss in rows}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("synchronous", "asynchronous")), "thread"]
)
def test_the_losses_are_those_of_an_uninterrupted_run(tmp_path: Path, parts: str, kind: str, whole: dict[int, str]) -> None:
    found: dict[int, str] = {}
    begins = 0
    assert list(whole) == list(range(40))
    for kill_at, number in ((7, signal.SIGTERM), (22, signal.SIGUSR1)):  # an epoch has 15 steps
        done = run(tmp_path, "part", parts, kind, kill_at, number=number)
        assert done.returncode == 75 and "done" not in done.stdout, done.stderr
        assert "preempted" in done.stderr
        part = losses(done)
        end = begins + len(part)
        assert list(part) == list(range(begins, end))
        # the step under way is finished, and no further one begins; a signal reaches other threads when the main one wakes up
        assert end == kill_at or (kind == "thread" and kill_at < end < 40)
        begins = end
        found |= part
    last = run(tmp_path, "part", parts, kind, -1)
    assert last.returncode == 0, last.stderr
    assert found | losses(last) == whole and list(losses(last))[0] == begins
    assert sorted(os.listdir(tmp_path / "part"))[-1] == f"snapshot_{begins:010}" and len(os.listdir(tmp_path / "part")) == 2


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_two_processes_leave_before_the_same_step(tmp_path: Path, parts: str) -> None:
    launch = "-m", "oneflow.launch", "--nproc", "2"
    whole = run(tmp_path, "whole", parts, "synchronous", -1, *launch)
    assert whole.returncode == 0, whole.stderr
    done = run(tmp_path, "part", parts, "synchronous", 5, *launch)
    assert done.returncode == 75, done.stderr
    found = losses(done)
    assert 4 in found and list(found) == list(range(len(found)))
    last = run(tmp_path, "part", parts, "synchronous", -1, *launch)
    assert last.returncode == 0, last.stderr
    assert found | losses(last) == losses(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.thorough)])
def test_the_launcher_passes_the_signal_on_and_returns_the_status(tmp_path: Path, parts: str, number: int) -> None:
    (tmp_path / "script.py").write_text(TRAINING.replace("range(start, 40)", "range(start, 10**9)"))
    command = [sys.executable, "-m", "oneflow.launch", "--nproc", "2", "--restarts", "2", str(tmp_path / "script.py")]
    arguments = [str(tmp_path / "root"), parts, "synchronous", "-1", "0"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline()
        time.sleep(0.2)
        launcher.send_signal(number)
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75 and "starting all processes again" not in errors, errors
    assert len(os.listdir(tmp_path / "root")) == 1


# --- in this process


@pytest.fixture
def job():
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 1, name="d")))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return flow.layers.dense(x, 1, name="d")

    train.predict = predict
    return train


X = np.ones((4, 2), np.float32)


def test_a_path_is_replaced_and_the_handlers_are_put_back(tmp_path: Path, job) -> None:
    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):
        with flow.checkpoint.save_on_preemption(tmp_path / "m", exit_status=9) as preemption:
            job(X)
            assert not preemption.requested
            signal.raise_signal(signal.SIGTERM)
            assert preemption.requested
            job.predict(X)  # only train jobs end the program
            with pytest.raises(SystemExit) as left:
                job(X)
            assert left.value.code == 9
        assert signal.getsignal(signal.SIGTERM) is before
    assert flow.checkpoint.get(tmp_path / "m")["System-Train-TrainStep-train"].numpy().tolist() == [2]
    job(X)


def test_a_function_saves_what_the_program_needs(tmp_path: Path, job) -> None:
    def save():
        flow.checkpoint.save(tmp_path / "m", metadata={"row": 3}, asynchronous=True)

    with flow.checkpoint.save_on_preemption(save, [signal.SIGUSR2], automatic=False) as preemption:
        signal.raise_signal(signal.SIGUSR2)
        job(X)
        job(X)
        with pytest.raises(SystemExit) as left:
            preemption.check()
    assert left.value.code == 75 and (tmp_path / "m" / "snapshot_done").exists()


def test_a_save_that_fails_raises_and_is_tried_again(tmp_path: Path, job) -> None:
    (tmp_path / "file").touch()
    with flow.checkpoint.save_on_preemption(tmp_path / "file"):
        job(X)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(flow.errors.CheckpointExistsError):
            job(X)
        (tmp_path / "file").unlink()
        with pytest.raises(SystemExit):
            job(X)


def test_a_manager_named_by_time_stays_so(tmp_path: Path, job) -> None:
    manager = flow.checkpoint.CheckpointManager(tmp_path)
    job(X)
    first = manager.save()
    with flow.checkpoint.save_on_preemption(manager):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            job(X)
    assert len(manager.all()) == 2 and manager.all()[0] == first and manager.step() is None


def test_the_step_is_known_without_automatic_checks(tmp_path: Path, job) -> None:
    manager = flow.checkpoint.CheckpointManager(tmp_path)
    with flow.checkpoint.save_on_preemption(manager, automatic=False) as preemption:
        job(X), job.predict(X), job(X)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            preemption.check()
    assert manager.all() == ["snapshot_0000000002"] and manager.step() == 2


@pytest.mark.parametrize(
    "wrong",
    [{"target": 3}, {"target": ""}, {"signals": []}, {"signals": [signal.SIGKILL]}, {"signals": 15}, {"signals": ["x"]},
     {"exit_status": 0}, {"exit_status": 256}],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, wrong) -> None:
    with pytest.raises(ArgumentError):
        flow.checkpoint.save_on_preemption(**{"target": tmp_path / "m", **wrong})


def test_only_one_at_a_time_and_on_the_main_thread(tmp_path: Path) -> None:
    import threading

    with flow.checkpoint.save_on_preemption(tmp_path / "m"):
        with pytest.raises(ModeError, match="already in force"):
            flow.checkpoint.save_on_preemption(tmp_path / "m")
    found = []

    def elsewhere():
        try:
            flow.checkpoint.save_on_preemption(tmp_path / "m")
        except ModeError as error:
            found.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0])


def test_a_forked_child_still_ends_by_the_signal(tmp_path: Path) -> None:
    program = f"""
import os, signal
import oneflow as flow
flow.checkpoint.save_on_preemption({str(tmp_path / "m")!r})
child = os.fork()
if child == 0:
    signal.pause()
    os._exit(3)
import time; time.sleep(0.3)
os.kill(child, signal.SIGTERM)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{int(signal.SIGTERM)}\n", done.stderr


@pytest.mark.parametrize("automatic", [True, False])
def test_one_that_the_program_checks_is_in_force_too(tmp_path: Path, automatic: bool) -> None:
    with flow.checkpoint.save_on_preemption(tmp_path / "m", automatic=automatic):
        with pytest.raises(ModeError, match="already in force"):
            flow.checkpoint.save_on_preemption(tmp_path / "m", automatic=False)
    with flow.checkpoint.save_on_preemption(tmp_path / "m", automatic=False):
        pass
