"""``kill -9`` during a save: the target is absent or whole, and the checkpoint before it is untouched."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from oneflow.checkpoint.format import Checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")

NAMES = ("conv-weight", "System-Train-TrainStep-job")

# Saves 0, 1, 2, ... for ever; every value in a checkpoint is its number.
SAVES_FOR_EVER = """
import itertools, sys
import numpy as np
from oneflow.checkpoint.atomic import write
for i in itertools.count():
    arrays = {"conv-weight": np.full((64, 1024), i, np.float32), "System-Train-TrainStep-job": np.array([i])}
    write(f"{sys.argv[1]}/{i}", arrays, {})
    print(i, flush=True)
"""

# Counts the system calls of one save, then forks one child for each: the n-th kills itself in front of its n-th call.
DIES_AT_EACH_STEP = """
import json, os, signal, sys
import numpy as np
from oneflow.checkpoint.atomic import write
folder, target_exists = sys.argv[1], sys.argv[2] == "empty"
WATCHED = ("open", "mkdir", "rename", "fsync", "chmod", "close")
real = {name: getattr(os, name) for name in WATCHED}
count, deadline = 0, None

def watched(name):
    def call(*args, **kwargs):
        global count
        count += 1
        if count == deadline:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **kwargs)
    return call

def save(target):
    for name in WATCHED:
        setattr(os, name, watched(name))
    write(target, {"conv-weight": np.full((4, 8), 7, np.float32), "System-Train-TrainStep-job": np.array([7])}, {})

def child(target, die_at):
    global deadline
    if target_exists:
        os.mkdir(target)
    pid = os.fork()
    if pid == 0:
        deadline = die_at
        try:
            save(target)
        finally:
            os.write(result, str(count).encode())
            os._exit(0)
    return os.waitpid(pid, 0)[1]

reader, result = os.pipe()
child(f"{folder}/whole", None)
steps = int(os.read(reader, 20))
for n in range(1, steps + 1):
    assert os.WIFSIGNALED(child(f"{folder}/{n}", n))
print(json.dumps(steps))
"""


def check(path: Path, number: int | None = None) -> bool:
    """Whether a checkpoint is there; where one is, it must be whole."""
    if not path.exists() or not os.listdir(path):
        return False
    stored = Checkpoint(path)
    assert set(stored) == set(NAMES) and (path / "snapshot_done").exists() and stored.extra() == {"format": 1}
    values = {float(x) for name in NAMES for x in np.unique(stored[name].numpy())}
    assert len(values) == 1 and (number is None or values == {float(number)})
    return True


@pytest.mark.parametrize("target", ["absent", "empty"])
def test_killed_in_front_of_every_system_call(tmp_path: Path, target: str) -> None:
    arguments = [sys.executable, "-c", DIES_AT_EACH_STEP, str(tmp_path), target]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    assert steps > 20
    assert check(tmp_path / "whole", 7)
    there = [check(tmp_path / str(n), 7) for n in range(1, steps + 1)]
    assert there == sorted(there) and not there[0] and there[-1]  # from one step on it is there, and before it is not
    if target == "empty":
        assert all((tmp_path / str(n)).is_dir() for n in range(1, steps + 1))


def test_killed_at_random_moments(tmp_path: Path) -> None:
    rng = random.Random(0)
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with subprocess.Popen([sys.executable, "-c", SAVES_FOR_EVER, str(folder)], stdout=subprocess.PIPE, text=True) as saver:
            assert saver.stdout is not None
            saver.stdout.readline()  # the first one is complete
            time.sleep(rng.uniform(0, 0.05))
            saver.send_signal(signal.SIGKILL)
            reported = [0, *map(int, saver.stdout.read().split())]
        for i in range(reported[-1] + 1):
            assert check(folder / str(i), i)
        visible = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
        assert visible - set(map(str, range(reported[-1] + 1))) <= {str(reported[-1] + 1)}
        check(folder / str(reported[-1] + 1), reported[-1] + 1)
