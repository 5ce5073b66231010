"""``--restarts``: processes that are killed begin again where their last checkpoint was, and lose nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COUNTING = """
import os, sys
restart = int(os.environ["ONEFLOW_RESTART_COUNT"])
if os.environ["RANK"] == "0":
    print(restart, flush=True)
"""


def test_processes_start_again_until_they_end_well(program: Any) -> None:
    launch = ("-m", "oneflow.launch", "--nproc", "2", "--restarts", "3")
    done = program(COUNTING + 'sys.exit(0 if restart == 2 else 5 if os.environ["RANK"] == "1" else 0)', *launch)
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n"), done.stderr
    assert "starting all processes again (restart 2 of 3)" in done.stderr
    done = program(COUNTING + "sys.exit(5 + restart)", *launch)
    assert (done.returncode, done.stdout) == (8, "0\n1\n2\n3\n"), done.stderr
    done = program(COUNTING + "sys.exit(5 + restart)", *launch[:4])
    assert (done.returncode, done.stdout) == (5, "0\n"), done.stderr


def test_a_launcher_that_is_told_to_end_starts_nothing_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COUNTING + "import time\ntime.sleep(60)")
    command = [sys.executable, "-m", "oneflow.launch", "--restarts", "3", "script.py"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert launcher.stdout is not None and launcher.stdout.readline() == "0\n"
    launcher.send_signal(signal.SIGTERM)
    assert (launcher.communicate(timeout=30)[0], launcher.returncode) == ("", 143)


TRAINING = """
import os, signal, sys
import numpy as np
import oneflow as flow, oneflow.typing as tp

root, kills = sys.argv[1], int(sys.argv[2])
restart, rank = int(os.environ["ONEFLOW_RESTART_COUNT"]), flow.distributed.get_rank()
flow.manual_seed(3)

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((8, 6)), y: tp.Numpy.Placeholder((8,), flow.int32)) -> tp.Numpy:
    h = flow.nn.dropout(flow.layers.dense(x, 16, activation=flow.math.tanh, name="a"), rate=0.3)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(h, 4, name="b"))
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
    return loss

saved = sorted(os.listdir(root))  # each is named by the step that comes next
if saved:
    flow.load_variables(flow.checkpoint.get(os.path.join(root, saved[-1])))
for step in range(int(saved[-1]) if saved else 0, 12):
    if restart < kills and step == 2 * restart + 1 and rank == restart % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    rng = np.random.default_rng(step)
    x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 4, 8).astype(np.int32)
    print(step, train(x, y).tobytes().hex(), flush=True)
    if step % 2 == 0:
        flow.checkpoint.save(os.path.join(root, f"{step + 1:03}"))
"""


@pytest.mark.parametrize("killed", [1, *(pytest.param(count, marks=pytest.mark.thorough) for count in (2, 5))])
def test_kills_change_no_loss(program: Any, tmp_path: Path, killed: int) -> None:
    """One of two processes is killed, now this one, now that one; each time all go on from the last checkpoint."""
    losses = []
    for kills in (0, killed):
        (tmp_path / str(kills)).mkdir()
        launch = ("-m", "oneflow.launch", "--nproc", "2", "--restarts", "5")
        done = program(TRAINING, *launch, arguments=(str(tmp_path / str(kills)), str(kills)), timeout=170)
        assert done.returncode == 0, done.stderr
        # of two that end within a moment, the launcher may see the survivor first
        assert done.stderr.count("starting all processes again") == kills, done.stderr
        assert bool(kills) == ("was ended by SIGKILL" in done.stderr)
        losses.append(set(done.stdout.splitlines()))  # a step that was done again has the same loss, or makes two lines
    assert losses[0] == losses[1] and len(losses[0]) == 12
