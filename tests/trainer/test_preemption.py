"""A signal ends a training after its step, saved, with a status of its own; the next one goes on bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import trainer_jobs as jobs
from trainer_jobs import Notes, quiet

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ModeError


class Signals(flow.callbacks.Callback):
    """Sends a signal behind the submission of a step."""

    def __init__(self, at: int, number: int = signal.SIGTERM):
        self.at, self.number = at, number

    def waits_after(self, step: int) -> bool:
        if step == self.at:
            signal.raise_signal(self.number)
        return False


def trained(directory: Path, *before: flow.callbacks.Callback, **options):
    """Losses by step, whether the program would have ended, and the trainer."""
    flow.clear_default_session()
    notes, saving = Notes(), flow.callbacks.ModelCheckpoint(directory, save_last=True, save_top_k=0)
    leaving = flow.callbacks.Preemption(**options)
    trainer = quiet(max_epochs=3, seed=4, callbacks=[notes, *before, saving, leaving])
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    status = None
    try:
        trainer.fit(jobs.train_job(dropout=True), jobs.data(), jobs.eval_job(), jobs.data(20, 1), ckpt_path="last")
    except SystemExit as left:
        status = left.code
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == handlers
    return dict(zip(notes.steps, notes.losses, strict=True)), status, trainer


def test_the_losses_are_those_of_an_uninterrupted_training(tmp_path, capsys):
    whole, status, trainer = trained(tmp_path / "whole")
    assert status is None and list(whole) == list(range(18)) and not trainer.interrupted
    found: dict[int, float] = {}
    for at, number in ((3, signal.SIGTERM), (5, signal.SIGUSR1), (12, signal.SIGTERM)):  # an epoch has 6 steps
        part, status, trainer = trained(tmp_path / "part", Signals(at, number))
        assert status == 75 and list(part) == list(range(len(found), at + 1)) and trainer.interrupted
        assert "preempted: the checkpoint is saved" in capsys.readouterr().err
        found |= part
    rest, status, last = trained(tmp_path / "part")
    assert status is None and found | rest == whole
    again, _, all_at_once = trained(tmp_path / "whole")  # nothing is left to do
    assert again == {} and last.history.rows == all_at_once.history.rows


def test_a_signal_after_the_last_step(tmp_path):
    class AtTheEnd(flow.callbacks.Callback):
        def on_train_end(self, logs):
            os.kill(os.getpid(), signal.SIGUSR2)

    part, status, _ = trained(tmp_path, AtTheEnd(), signals=[signal.SIGUSR2], exit_status=9)
    assert status == 9 and len(part) == 18
    assert trained(tmp_path)[:2] == ({}, None)


def test_an_error_comes_before_a_signal(tmp_path):
    class Fails(flow.callbacks.Callback):
        def on_train_batch_end(self, step, logs):
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("enough")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(flow.errors.CallbackError, match="enough"):
        trained(tmp_path, Fails())
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_while_the_job_is_built_ends_the_training_after_its_first_step(tmp_path):
    @flow.global_function("train")
    def train_job(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        signal.raise_signal(signal.SIGTERM)
        weights = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(x * weights)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    saving = flow.callbacks.ModelCheckpoint(tmp_path, save_last=True, save_top_k=0)
    trainer = quiet(max_epochs=1, callbacks=[saving, flow.callbacks.Preemption()])
    with pytest.raises(SystemExit) as left:
        trainer.fit(train_job, (np.ones((40, 2), np.float32),), ckpt_path="last")
    assert left.value.code == 75 and trainer.global_step == 1 and (tmp_path / "last").exists()


def test_what_it_needs(tmp_path):
    with pytest.raises(ArgumentError, match="needs a callback that saves the last checkpoint"):
        quiet(max_steps=1, callbacks=flow.callbacks.Preemption()).fit(jobs.train_job(), jobs.data())
    for wrong in ({"signals": []}, {"signals": [signal.SIGKILL]}, {"signals": 3}, {"exit_status": 0}, {"exit_status": 256}):
        with pytest.raises(ArgumentError):
            flow.callbacks.Preemption(**wrong)
    found: list[BaseException] = []

    def elsewhere():
        try:
            trained(tmp_path)
        except ModeError as error:
            found.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0])


SCRIPT = """
import os, signal, sys
import trainer_jobs as jobs
import oneflow as flow

class Signals(flow.callbacks.Callback):
    def waits_after(self, step):
        if step == int(sys.argv[2]) and flow.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    def on_train_batch_end(self, step, logs):
        print(step, logs["loss"].hex(), flush=True)

saving = flow.callbacks.ModelCheckpoint(sys.argv[1], save_last=True, save_top_k=0)
callbacks = [Signals(), saving, flow.callbacks.Preemption()]
trainer = flow.Trainer(max_epochs=8, callbacks=callbacks, enable_progress_bar=False, seed=1)
trainer.fit(jobs.train_job(dropout=True), jobs.data(), ckpt_path="last")
"""


@pytest.mark.thorough  # that of checkpoint/test_preemption.py is not
@pytest.mark.timeout(600)
def test_two_processes_leave_after_the_same_step(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}

    def run(folder: str, at: int) -> tuple[dict[int, str], int]:
        command = [sys.executable, "-m", "oneflow.launch", "--nproc", "2", str(tmp_path / "script.py"), str(tmp_path / folder)]
        done = subprocess.run([*command, str(at)], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode in (0, 75), done.stderr
        return {int(row.split()[0]): row.split()[1] for row in done.stdout.splitlines()}, done.returncode

    whole, status = run("whole", -1)
    assert status == 0 and list(whole) == list(range(48))
    first, status = run("part", 3)
    assert status == 75 and 4 <= len(first) < 48
    rest, status = run("part", -1)
    assert status == 0 and first | rest == whole and list(rest) == list(range(len(first), 48))
