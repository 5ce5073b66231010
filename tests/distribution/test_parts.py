"""Checkpoints of several processes: each writes and reads its own parts, and any number of processes reads them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.checkpoint.__main__ import main as command

# Variables that are split along each axis, evenly and not, replicated, and scalars; how much each process wrote and held.
PROGRAM = """
import json, os, sys, tracemalloc
import numpy as np
import oneflow as flow, oneflow.typing as tp
from oneflow._base import threads

action, path, devices, asynchronous = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "asynchronous"
flow.config.cpu_device_num(devices)
rank = flow.distributed.get_rank()
threads._MOST = 1  # of the buffers of 4 MiB that verifying takes

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece, among those of other processes

SHAPES = {"rows": ((16, 6), 0), "uneven-rows": ((10, 3), 0), "columns": ((6, 16), 1), "uneven-columns": ((4, 7, 3), 1),
          "whole": ((5, 5), None), "one": ((1,), None), "few": ((2, 3), 0), "large": ((64, 60_000), 1), "tall": ((60_000, 64), 0)}

def value(name):
    shape, _ = SHAPES[name]
    return (np.arange(np.prod(shape)).reshape(shape) % 1_000_003 + sum(map(ord, name))).astype(np.float32)

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
    total = flow.math.reduce_sum(x)
    for name, (shape, axis) in SHAPES.items():
        split = {} if axis is None else {"distribute": flow.distribute.split(axis)}
        w = flow.get_variable(name, shape, initializer=flow.zeros_initializer(), **split)
        total = total + flow.math.reduce_mean(w)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(total)
    return total

x = np.ones(8, np.float32)
train(x)
if action == "save":
    flow.load_variables({name: value(name) for name in SHAPES})
    written = 0
    real = os.pwrite
    def pwrite(descriptor, data, offset):
        global written
        written += len(data)
        return real(descriptor, data, offset)
    os.pwrite = pwrite
    tracemalloc.start()
    pending = flow.checkpoint.save(path, asynchronous=asynchronous)
    if asynchronous:
        for _ in range(3):
            train(x)
        pending.wait()
    say(json.dumps([rank, written, tracemalloc.get_traced_memory()[1]]))
else:
    (flow.train.CheckPoint().load(path) if action == "load" else flow.load_variables(flow.checkpoint.get(path)))
    found = {name: flow.get_all_variables()[name].numpy() for name in SHAPES}
    assert all(np.array_equal(found[name], value(name)) for name in SHAPES), "wrong values"
    say("loss", train(x).tobytes().hex())
"""


def launched(count: int) -> tuple[str, ...]:
    return () if count == 1 else ("-m", "oneflow.launch", "--nproc", str(count), "--all-output")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("count", "devices", "how"),
    [
        (2, 2, "synchronous"),
        pytest.param(2, 2, "asynchronous", marks=pytest.mark.thorough),
        pytest.param(4, 1, "asynchronous", marks=pytest.mark.thorough),
    ],
)
def test_each_process_writes_its_parts_and_any_number_reads_them(
    program: Any, tmp_path: Path, count: int, devices: int, how: str
) -> None:
    target = tmp_path / "m"
    done = program(PROGRAM, *launched(count), arguments=("save", str(target), str(devices), how), timeout=170)
    assert done.returncode == 0, done.stderr
    rows = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [row[0] for row in rows] == list(range(count))
    large = 2 * 64 * 60_000 * 4
    for _, written, held in rows:
        assert large / count <= written <= large / count + 2000  # its parts of what is split
        assert held < 0.6 * large / 2  # no process has a whole variable
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == [] and command(["verify", str(target)]) == 0
    for action, number, each in (("load", 1, 2), ("get", 2 if count == 4 else 3, 1)):
        done = program(PROGRAM, *launched(number), arguments=(action, str(target), str(each), ""), timeout=170)
        assert done.returncode == 0 and "loss" in done.stdout, done.stderr


def test_damage_is_told_by_all_and_nothing_is_loaded(program: Any, tmp_path: Path) -> None:
    targets = {name: tmp_path / name for name in ("large", "tall")}  # one is scattered in its file, one is not
    done = program(PROGRAM, *launched(2), arguments=("save", str(targets["large"]), "2", "synchronous"))
    assert done.returncode == 0, done.stderr
    shutil.copytree(targets["large"], targets["tall"])
    for name, target in targets.items():
        with open(target / name / "out", "r+b") as file:
            file.seek(-5, os.SEEK_END)
            before = file.read(1)
            file.seek(-5, os.SEEK_END)
            file.write(bytes([before[0] ^ 16]))
    source = PROGRAM.replace(
        "    (flow.train.CheckPoint().load(path) if",
        """
    before = flow.get_all_variables()["one"].numpy()
    for damaged in path.split(":"):
        try:
            flow.train.CheckPoint().load(damaged)
        except flow.errors.CheckpointError as error:
            assert (flow.get_all_variables()["one"].numpy() == before).all()
            say("told", rank, str(error).splitlines()[0])
    sys.exit()
    (flow.train.CheckPoint().load(path) if""",
    )
    assert source != PROGRAM
    done = program(source, *launched(2), arguments=("load", ":".join(map(str, targets.values())), "2", ""))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("told")]
    for name in targets:
        lines = [line for line in told if f"variable '{name}'" in line and "not those that were saved" in line]
        assert {line.split()[1] for line in lines} == {"0", "1"}, told
    assert len(told) == 4, told


@pytest.mark.parametrize("how", [pytest.param("synchronous", marks=pytest.mark.thorough), "asynchronous"])
def test_an_error_of_one_is_raised_in_all(program: Any, tmp_path: Path, how: str) -> None:
    """The disk of one process refuses; the earlier checkpoint stays, and all can go on."""
    source = PROGRAM.replace(
        "    pending = flow.checkpoint.save(path, asynchronous=asynchronous)\n",
        """
    def full(descriptor, data, offset):
        if rank == 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)
    flow.checkpoint.save(path)
    os.pwrite = full
    for tried in range(2):
        try:
            if asynchronous:
                flow.checkpoint.save(path, overwrite=True, asynchronous=True)
                for _ in range(200):
                    train(x)
                flow.checkpoint.save(path, overwrite=True)
            else:
                flow.checkpoint.save(path, overwrite=True)
        except flow.errors.CheckpointError as error:
            say("told", rank, str(error).splitlines()[0])
    os.pwrite = pwrite
    pending = flow.checkpoint.save(path, overwrite=True, asynchronous=asynchronous)
""",
    )
    target = tmp_path / how
    done = program(source, *launched(2), arguments=("save", str(target), "2", how))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("told")]
    assert len(told) == 4 and all("cannot save to" in line and "No space left on device; nothing" in line for line in told), told
    assert sorted(os.listdir(tmp_path)) == sorted({how, "program.py"}) and command(["verify", str(target)]) == 0


SAVES_FOR_EVER = """
import itertools, os, sys
import numpy as np
import oneflow as flow, oneflow.typing as tp

flow.config.cpu_device_num(1)

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 64))) -> tp.Numpy:
    w = flow.get_variable("w", (64, 4096), initializer=flow.ones_initializer(), distribute=flow.distribute.split(1))
    loss = flow.math.reduce_mean(flow.matmul(x, w))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
    return loss

root, asynchronous = sys.argv[1], sys.argv[2] == "asynchronous"
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece, among those of other processes

say("pid", flow.distributed.get_rank(), os.getpid())
before = None
for i in itertools.count(1):
    train(np.ones((4, 64), np.float32))
    pending = flow.checkpoint.save(f"{root}/{i}", asynchronous=asynchronous)
    if not asynchronous:
        say("saved", i)
    elif before is not None:
        before.wait()
        say("saved", i - 1)
    before = pending
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["synchronous", "asynchronous"])
def test_one_of_two_is_killed_at_random_moments(tmp_path: Path, how: str) -> None:
    (tmp_path / "script.py").write_text(SAVES_FOR_EVER)
    chance = random.Random(how)
    for attempt in range(2):  # now the one, now the other
        folder = tmp_path / str(attempt)
        folder.mkdir()
        arguments = [sys.executable, *launched(2), str(tmp_path / "script.py"), str(folder), how]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
            assert launcher.stdout is not None
            pids: dict[int, int] = {}
            while True:
                word, *numbers = launcher.stdout.readline().split()
                if word == "saved":
                    break
                pids[int(numbers[0])] = int(numbers[1])
            time.sleep(chance.uniform(0, 0.3))
            os.kill(pids[attempt % 2], signal.SIGKILL)
            rest = launcher.stdout.read().split()
        confirmed = [1, *(int(number) for number in rest if number.isdecimal())]
        flow.checkpoint.save(folder / "next", {"a": np.zeros(1)})  # cleans up
        names = sorted(set(os.listdir(folder)) - {"next"})
        assert {str(i) for i in confirmed} <= {*names} and len(names) <= max(confirmed) + 2, names
        for name in names:
            found = flow.checkpoint.get(folder / name)
            assert found["System-Train-TrainStep-train"].numpy().tolist() == [int(name)]
            assert len(set(found["w"].numpy().reshape(-1).tolist())) == 1  # of one step, verified against its digests


FAILS_IN_THE_BACKGROUND = """
import errno, os, sys
import numpy as np
import oneflow as flow, oneflow.typing as tp
from oneflow.checkpoint import atomic
from oneflow.errors import CheckpointError

rank = flow.distributed.get_rank()

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
    w = flow.get_variable("w", (8,), initializer=flow.zeros_initializer())
    loss = flow.math.reduce_sum(x * w)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
    return loss

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def failing(path):
    raise OSError(errno.EIO, "Input/output error")

x, flush = np.ones(8, np.float32), atomic._flush
train(x)
for where in ("call", "sync"):
    if rank == 0:
        atomic._flush = failing
    pending = flow.checkpoint.save(f"{sys.argv[1]}/{where}", asynchronous=True)
    if where == "sync":
        while not pending.done():
            pass
    for i in range(1_000_000):
        try:
            train(x) if where == "call" else flow.sync_default_session()
        except CheckpointError as error:
            say(where, i, str(error).splitlines()[0].removeprefix("process 0: "))
            break
    atomic._flush = flush
    losses = [train(x).item() for _ in range(2)]
    flow.checkpoint.save(f"{sys.argv[1]}/{where}")
say("end", losses)
"""


def test_an_error_in_the_background_is_raised_by_the_same_call_of_all_and_by_sync(program: Any, tmp_path: Path) -> None:
    done = program(FAILS_IN_THE_BACKGROUND, *launched(2), arguments=(str(tmp_path),), timeout=170)
    assert done.returncode == 0, done.stderr
    told = sorted(done.stdout.splitlines())
    assert told[0::2] == told[1::2] and len(told) == 6, told  # both processes say the same, the number of the call included
    assert [line.split()[0] for line in told[0::2]] == ["call", "end", "sync"]
    assert told[0].endswith("Input/output error; nothing was changed") and told[4].startswith("sync 0 ")
    assert sorted(name for name in os.listdir(tmp_path) if name != "program.py") == ["call", "sync"]
