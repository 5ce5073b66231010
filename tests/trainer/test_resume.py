"""A training that goes on from a checkpoint is bit for bit the one that was not interrupted."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trainer_jobs as jobs
from trainer_jobs import Notes, quiet

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint import atomic
from oneflow.errors import ArgumentError, CheckpointError, CheckpointNotFoundError, CheckpointWarning

KILLED = Path(__file__).with_name("killed.py")
STEPS = 60


class Lines:
    """The output of a training until it ends or is killed: losses by step, other lines."""

    def __init__(self, directory, kind, more, kill_at=None):
        command = [sys.executable, str(KILLED), str(directory), kind, *more]
        self.losses, self.others, self.was_killed = {}, [], False
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line[0].isdigit():
                    self._note(line)
                else:
                    self.others.append(line.replace(str(directory), ""))
                if kill_at is not None and len(self.losses) > kill_at and not self.was_killed:
                    process.kill()
                    self.was_killed = True
            errors = process.stderr.read()
        assert process.returncode == (-signal.SIGKILL if self.was_killed else 0), errors

    def _note(self, line):
        if line.endswith("\n"):  # a kill may cut a line
            step, loss = line.split()
            self.losses[int(step)] = loss


def kills(count, seed, directory, kind, *more):
    """Kills a training so many times, each a random number of steps behind where it went on; all it prints must be right."""
    whole = Lines(directory / "whole", kind, more)
    assert sorted(whole.losses) == list(range(STEPS))
    chance, killed, part = random.Random(seed), 0, None
    while killed < count:
        part = Lines(directory / "part", kind, more, kill_at=chance.randrange(1, 12))
        assert part.losses and part.losses.items() <= whole.losses.items()
        killed += part.was_killed
        if not part.was_killed:  # it had come to its end: once more from the beginning
            shutil.rmtree(directory / "part")
    part = Lines(directory / "part", kind, more)
    assert part.losses.items() <= whole.losses.items()
    assert part.others == whole.others  # the history, and the best checkpoint
    tables = [(directory / name / "logs" / "version_0" / "metrics.csv").read_text() for name in ("whole", "part")]
    assert tables[0] == tables[1]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_killed_at_random_steps(tmp_path):
    kills(3, 7, tmp_path, "arrays", "asynchronous")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "more"), [("arrays", []), ("arrays", ["asynchronous"]), ("torch", [])])
def test_killed_twenty_times(tmp_path, kind, more):
    if kind == "torch":
        pytest.importorskip("torch")
    kills(20, 1, tmp_path, kind, *more)


# --- in one process


def interrupted(directory, make, *, stop_at, epochs=3, every=None, **options):
    """Losses of a training that failed soon after saving step ``stop_at`` and went on in a new session, by step."""

    def stop(step, logs):
        if step == stop_at + 2:
            raise RuntimeError("enough")

    def train(callbacks):
        flow.clear_default_session()
        notes = Notes()
        saving = flow.callbacks.ModelCheckpoint(directory, save_last=True, every_n_steps=every)
        trainer = quiet(max_epochs=epochs, seed=4, callbacks=[notes, saving, *callbacks], **options)
        return trainer, notes, make()

    trainer, first, (job, data) = train([flow.callbacks.LambdaCallback(on_train_batch_end=stop)])
    with pytest.raises(flow.errors.CallbackError, match="enough"):
        trainer.fit(job, data)
    trainer, second, (job, data) = train([])
    history = trainer.fit(job, data, ckpt_path="last")
    return (
        {**dict(zip(first.steps, first.losses, strict=True)), **dict(zip(second.steps, second.losses, strict=True))},
        second,
        history,
    )


def uninterrupted(make, epochs=3, **options):
    flow.clear_default_session()
    notes = Notes()
    job, data = make()
    history = quiet(max_epochs=epochs, seed=4, callbacks=notes, **options).fit(job, data)
    return dict(zip(notes.steps, notes.losses, strict=True)), history


def stateful_torch():
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    import torch

    x, y = jobs.data()
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    torch.manual_seed(3)  # a loader without a generator draws its order from PyTorch's
    return torchdata.StatefulDataLoader(rows, batch_size=10, shuffle=True)


def grain_data():
    grain = pytest.importorskip("grain")
    x, y = jobs.data()

    class Rows:
        def __len__(self):
            return 60

        def __getitem__(self, i):
            return x[i], y[i]

    return grain.MapDataset.source(Rows()).shuffle(seed=1).batch(10).to_iter_dataset()


def shuffled_stream():
    datasets = pytest.importorskip("datasets")
    x, y = jobs.data()
    rows = datasets.Dataset.from_dict({"x": x, "labels": y})
    return rows.to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=20)


class Listed:
    """Batches in an order that depends on the epoch, without a position of their own."""

    def __init__(self):
        self.epoch = 0
        self.taken = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __iter__(self):
        x, y = jobs.data()
        order = np.random.default_rng(self.epoch).permutation(60)
        for i in range(0, 60, 10):
            self.taken += 1
            yield x[order[i : i + 10]], y[order[i : i + 10]]


SOURCES = {
    "whole arrays": jobs.data,
    "a loader": lambda: flow.data.ArrayLoader(jobs.data(), 10, shuffle=True, seed=9),
    "batches": lambda: [(x, y) for x, y in zip(*[a.reshape(6, 10, *a.shape[1:]) for a in jobs.data()], strict=True)],
    "arrays of batches": lambda: tuple(a.reshape(6, 10, *a.shape[1:]) for a in jobs.data()),
    "set_epoch": Listed,
    "a stateful DataLoader": stateful_torch,
    "Grain": grain_data,
    "a shuffled stream of datasets": shuffled_stream,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata, with the PyTorch of today
@pytest.mark.parametrize("stop_at", [2, 5, 9], ids=["within an epoch", "at its end", "within a later one"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_sources_go_on_where_they_were(tmp_path, source, stop_at):
    make = lambda: (jobs.train_job(dropout=True), source())  # noqa: E731
    whole, whole_history = uninterrupted(make)
    found, second, history = interrupted(tmp_path, make, stop_at=stop_at, every=stop_at + 1)
    assert second.steps[0] == stop_at + 1
    assert found == whole
    assert history.rows == whole_history.rows


@pytest.mark.parametrize("kind", ["a function", "batches", "a DataLoader"])
def test_other_data_than_before_skip_the_batches_already_seen(tmp_path, kind):
    x, y = jobs.data()
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 60, 10)]
    sources = {"a function": lambda: iter(batches), "batches": batches}
    if kind == "a DataLoader":
        torch = pytest.importorskip("torch")
        sources[kind] = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*map(torch.from_numpy, (x, y))), 10)
    whole, _ = uninterrupted(lambda: (jobs.train_job(), flow.data.ArrayLoader((x, y), 10)), epochs=2)
    flow.clear_default_session()
    trainer = quiet(max_steps=4, seed=4)
    trainer.fit(jobs.train_job(), flow.data.ArrayLoader((x, y), 10))
    trainer.save_checkpoint(tmp_path / "four")
    flow.clear_default_session()
    notes = Notes()
    quiet(max_epochs=2, seed=4, callbacks=notes).fit(jobs.train_job(), sources[kind], ckpt_path=tmp_path / "four")
    assert dict(zip(notes.steps, notes.losses, strict=True)) == {step: loss for step, loss in whole.items() if step >= 4}


def test_readers_go_on_where_they_were(tmp_path):
    from oneflow.core.record import record_pb2 as pb

    features = [pb.Feature(float_list=pb.FloatList(value=[i])) for i in range(40)]
    flow.data.write_parts(str(tmp_path / "part"), [pb.OFRecord(feature={"x": f}) for f in features], parts=2)

    def make():
        @flow.global_function(type="train")
        def train() -> tp.Numpy:
            records = flow.data.ofrecord_reader(str(tmp_path / "part"), 4, 2, random_shuffle=True, shuffle_after_epoch=True)
            x = flow.data.OFRecordRawDecoder(records, "x", (1,), flow.float)
            loss = flow.math.square(flow.layers.dense(x, 1, name="d", kernel_initializer=flow.ones_initializer()))
            jobs.sgd(1e-4).minimize(loss)
            return loss

        return train, None

    whole, _ = uninterrupted(make, limit_train_batches=10)
    found, _, _ = interrupted(tmp_path / "saved", make, stop_at=13, every=7, limit_train_batches=10)
    assert found == whole


def test_a_checkpoint_of_a_shorter_training_is_gone_on_with(tmp_path):
    def train(steps, path=None):
        flow.clear_default_session()
        notes = Notes()
        trainer = quiet(max_steps=steps, seed=4, callbacks=notes)
        trainer.fit(jobs.train_job(dropout=True), jobs.data(), ckpt_path=path)
        return trainer, notes

    _, whole = train(16)
    trainer, first = train(9)
    trainer.save_checkpoint(tmp_path / "nine")
    _, second = train(16, tmp_path / "nine")
    assert second.steps == list(range(9, 16)) and first.losses + second.losses == whole.losses
    done, nothing = train(9, tmp_path / "nine")
    assert nothing.steps == [] and done.history.rows[-1]["step"] == 8


def test_checkpoints_that_no_trainer_made(tmp_path):
    job, (x, y) = jobs.train_job(), jobs.data()
    for _ in range(8):
        job(x[:10], y[:10])
    flow.checkpoint.save(tmp_path / "plain")
    flow.clear_default_session()
    notes = Notes()
    trainer = quiet(max_epochs=3, callbacks=notes)
    trainer.fit(jobs.train_job(), (x, y), ckpt_path=tmp_path / "plain")
    assert notes.steps == list(range(8, 18)) and trainer.global_step == 18  # 8 steps are an epoch of 6 and 2 more


@pytest.mark.parametrize("monitor", [None, "val_loss"])
def test_a_finished_training_that_is_started_again_adds_nothing(tmp_path, monitor):
    def train():
        flow.clear_default_session()
        saving = flow.callbacks.ModelCheckpoint(tmp_path, monitor=monitor, save_last=True, every_n_steps=3)
        told = []
        notes = flow.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: told.append(epoch))
        logger = flow.loggers.CSVLogger(tmp_path, version=0)
        trainer = quiet(max_epochs=2, seed=1, callbacks=[notes, saving], logger=logger)
        rows = jobs.data(63)  # the last batch is short, which is known when it comes
        history = trainer.fit(jobs.train_job(), rows, jobs.eval_job(), jobs.data(30, 1), ckpt_path="last")
        return history.rows, told, (tmp_path / "logs" / "version_0" / "metrics.csv").read_text()

    rows, told, table = train()
    assert told == [0, 1]
    assert train() == (rows, [], table)
    assert train() == (rows, [], table)


@pytest.mark.parametrize("hook", ["on_epoch_end", "on_validation_end", "on_checkpoint"])
def test_hooks_that_may_save_keep_the_epoch(tmp_path, hook):
    def train(epochs, ckpt_path=None, **hooks):
        flow.clear_default_session()
        trainer = quiet(max_epochs=epochs, seed=1, callbacks=flow.callbacks.LambdaCallback(**hooks))
        made.append(trainer)
        return trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(30, 1), ckpt_path).rows

    made = []
    whole = train(3)
    train(2, **{hook: lambda number, logs: made[-1].save_checkpoint(tmp_path / "saved", overwrite=True)})
    assert train(3, tmp_path / "saved") == whole


def test_other_programs_read_checkpoints_of_a_trainer(tmp_path):
    trainer = quiet(max_epochs=1, callbacks=flow.callbacks.ModelCheckpoint(tmp_path))
    trainer.fit(jobs.train_job(), jobs.data())
    expected = jobs.eval_job()(*jobs.data(10))["loss"]
    flow.clear_default_session()
    evaluate = jobs.eval_job()
    flow.load_variables(flow.checkpoint.get(trainer.checkpoint_callback.best_model_path))
    np.testing.assert_array_equal(evaluate(*jobs.data(10))["loss"], expected)


def test_best_and_last_for_tests(tmp_path):
    saving = flow.callbacks.ModelCheckpoint(tmp_path, monitor="val_loss", save_last=True)
    trainer = quiet(max_epochs=4, seed=1, callbacks=saving)
    evaluate, data = jobs.eval_job(), jobs.data(30, 1)
    history = trainer.fit(jobs.train_job(), jobs.data(), evaluate, data)
    losses = history["val_loss"]
    assert trainer.test(evaluate, data, ckpt_path="best")["test_loss"] == min(losses) == saving.best_model_score
    assert trainer.test(evaluate, data, ckpt_path="last")["test_loss"] == losses[-1]
    assert len(trainer.predict(evaluate, data, ckpt_path=saving.best_model_path)["loss"]) == 30


def test_paths_that_lead_nowhere(tmp_path):
    trainer = quiet(max_epochs=1, callbacks=flow.callbacks.ModelCheckpoint(tmp_path, save_last=True))
    with pytest.raises(CheckpointNotFoundError):
        trainer.fit(jobs.train_job(), jobs.data(), ckpt_path=tmp_path / "nowhere")
    assert trainer.state == "idle"
    assert len(trainer.fit(jobs.train_job(), jobs.data(), ckpt_path="last")) == 1  # the first run of a program that says so
    with pytest.raises(ArgumentError, match="needs a callback that saves it"):
        quiet(max_epochs=1).fit(jobs.train_job(), jobs.data(), ckpt_path="last")
    with pytest.raises(ArgumentError, match="needs a ModelCheckpoint that has saved"):
        quiet().test(jobs.eval_job(), jobs.data(), ckpt_path="best")
    with pytest.raises(ArgumentError, match="needs a ModelCheckpoint that has saved"):
        quiet(max_epochs=1).fit(jobs.train_job(), jobs.data(), ckpt_path="best")
    with pytest.raises(ArgumentError, match="ckpt_path must be a path"):
        quiet(max_epochs=1).fit(jobs.train_job(), jobs.data(), ckpt_path=3)


def test_a_last_checkpoint_that_is_not_finished_is_passed_over_with_a_warning(tmp_path):
    def train(epochs):
        flow.clear_default_session()
        trainer = quiet(max_epochs=epochs, callbacks=flow.callbacks.ModelCheckpoint(tmp_path, save_last=True))
        return len(trainer.fit(jobs.train_job(), jobs.data(), ckpt_path="last"))

    (tmp_path / "last").mkdir()
    assert train(1) == 1  # nothing is there
    (tmp_path / "last" / "snapshot_done").unlink()
    with pytest.warns(CheckpointWarning, match="(?s)/last' is passed over: it is not a finished.*'snapshot_done'.*copy it again"):
        assert train(1) == 1
    assert train(2) == 2


def test_a_training_does_not_go_on_without_a_variable_that_was_saved(tmp_path):
    trainer = quiet(max_epochs=1)
    trainer.fit(jobs.train_job(), jobs.data())
    trainer.save_checkpoint(tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "hidden-weight")
    flow.clear_default_session()
    with pytest.raises(
        CheckpointError, match="(?s)/one' was saved with variables whose directories are gone: hidden-weight.*try"
    ):
        quiet(max_epochs=2).fit(jobs.train_job(), jobs.data(), ckpt_path=tmp_path / "one")
    with pytest.warns(CheckpointWarning, match="lacks 1 of the program's"):  # by hand it can be loaded all the same
        flow.load_variables(tmp_path / "one")


def test_state_of_a_callback_that_is_gone_is_told(tmp_path):
    class Counter(flow.callbacks.Callback):
        count = 0

        def on_epoch_end(self, epoch, logs):
            self.count += 1

        def state_dict(self):
            return {"count": self.count, "bytes": b"\x00\xff", "pair": (1, float("nan")), "keys": {1: np.arange(3)}}

        def load_state_dict(self, state):
            self.count = state["count"]
            self.state = state

    trainer = quiet(max_epochs=2, callbacks=Counter())
    trainer.fit(jobs.train_job(), jobs.data())
    trainer.save_checkpoint(tmp_path / "two")
    again = Counter()
    quiet(max_epochs=3, callbacks=again).fit(jobs.train_job(), jobs.data(), ckpt_path=tmp_path / "two")
    assert again.count == 3 and again.state["bytes"] == b"\x00\xff" and again.state["pair"][0] == 1
    assert np.isnan(again.state["pair"][1]) and again.state["keys"][1].tolist() == [0, 1, 2]
    with pytest.warns(CheckpointWarning, match="callbacks that this trainer lacks: Counter"):
        quiet(max_epochs=3).fit(jobs.train_job(), jobs.data(), ckpt_path=tmp_path / "two")


def test_arrays_of_bfloat16_in_the_state_of_a_callback_are_kept(tmp_path):
    import ml_dtypes
    import torch

    bits = np.array([[0x3F80, 0x0001, 0x8000], [0x7FC1, 0xFF80, 0x4049]], np.uint16)  # 1, subnormal, -0, a NaN, -inf, pi
    array = bits.view(ml_dtypes.bfloat16)

    class Keeps(flow.callbacks.Callback):
        def state_dict(self):
            tensor = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
            return {"array": array, "column": array[:, 1], "number": array[0, 0], "tensor": tensor}

        def load_state_dict(self, state):
            self.state = state

    trainer = quiet(max_epochs=1, callbacks=Keeps())
    trainer.fit(jobs.train_job(), jobs.data())
    trainer.save_checkpoint(tmp_path / "saved")
    again = Keeps()
    quiet(max_epochs=2, callbacks=again).fit(jobs.train_job(), jobs.data(), ckpt_path=tmp_path / "saved")
    for name, expected in {"array": bits, "column": bits[:, 1], "number": bits[0, 0]}.items():
        found = again.state[name]
        assert found.dtype == ml_dtypes.bfloat16 and found.shape == expected.shape
        np.testing.assert_array_equal(found.view(np.uint16), expected)
    tensor = again.state["tensor"]
    assert tensor.dtype == torch.bfloat16
    np.testing.assert_array_equal(tensor.view(torch.int16).numpy().view(np.uint16), bits)


def test_a_loader_that_was_changed_is_told(tmp_path):
    trainer = quiet(max_steps=3)
    trainer.fit(jobs.train_job(), flow.data.ArrayLoader(jobs.data(), 10, shuffle=True))
    trainer.save_checkpoint(tmp_path / "three")
    with pytest.raises(ArgumentError, match="another ArrayLoader .seed: 0, here 1"):
        quiet(max_steps=6).fit(
            jobs.train_job(), flow.data.ArrayLoader(jobs.data(), 10, shuffle=True, seed=1), ckpt_path=tmp_path / "three"
        )


# --- Ctrl-C

INTERRUPTED = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
import trainer_jobs as jobs, oneflow as flow
def told(step, logs):
    print("step", step, flush=True)
    if step == 20:
        os.kill(os.getpid(), signal.SIGINT)
callbacks = [flow.callbacks.LambdaCallback(on_train_batch_end=told)]
if SAVES:
    callbacks.append(flow.callbacks.ModelCheckpoint("saved", save_last=True))
trainer = flow.Trainer(max_epochs=1000, callbacks=callbacks, enable_progress_bar=False, seed=4,
                       logger=flow.loggers.CSVLogger("."))
try:
    trainer.fit(jobs.train_job(), jobs.data())
except KeyboardInterrupt:
    print("interrupted", trainer.interrupted, trainer.global_step)
    if SAVES:
        trainer.max_epochs = 100
        print(len(trainer.fit(jobs.train_job(), jobs.data(), ckpt_path="last")))
    raise
"""


@pytest.mark.parametrize("saves", [True, False])
def test_ctrl_c_ends_after_the_step(tmp_path, saves):
    program = INTERRUPTED.replace("SAVES", str(saves))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert "KeyboardInterrupt" in done.stderr and "Traceback (most recent call last)" in done.stderr
    steps = [int(line.split()[1]) for line in lines if line.startswith("step")]
    (told,) = [line for line in lines if line.startswith("interrupted after")]
    last = steps[steps.index(20) :].index(steps[-1]) if not saves else None
    assert steps[:21] == list(range(21)) and (last is None or last < 40)
    table = (tmp_path / "logs" / "version_0" / "metrics.csv").read_text()
    if saves:
        assert "saved/last" in told and 'ckpt_path="last"' in told
        step = int(told.split("step ")[1].split(";")[0])
        assert f"interrupted True {step + 1}" in lines and "100" in lines
        assert steps == list(range(600))
    else:
        assert "nothing was saved" in told and table.startswith("step,")


def test_a_training_in_a_session_of_its_own_saves_that_sessions_variables(tmp_path):
    with flow.session(seed=1):
        saver = flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)
        quiet(max_epochs=1, callbacks=saver).fit(jobs.train_job(), jobs.data())
        want = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
    found = flow.checkpoint.get(str(tmp_path / "last"))
    assert set(found) == set(want) and "out-weight" in want
    np.testing.assert_array_equal(found["out-weight"].numpy(), want["out-weight"])


class CtrlC(flow.callbacks.Callback):
    def __init__(self, at):
        self.at = at

    def on_train_batch_end(self, step, logs):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("interval", [0.5, 3, 1.0])
def test_a_validation_that_ctrl_c_cuts_off_is_made_up_for(tmp_path, interval):
    def fit(directory, at):
        saver = flow.callbacks.ModelCheckpoint(tmp_path / directory, save_last=True, every_n_steps=100)
        with flow.session(seed=1):
            trainer = quiet(max_epochs=3, seed=1, val_check_interval=interval, callbacks=[CtrlC(at), saver])
            history = trainer.fit(jobs.train_job(), jobs.data(60), jobs.eval_job(), jobs.data(30, 1), ckpt_path="last")
            return history.rows, flow.get_all_variables()["out-weight"].numpy()

    rows, weights = fit("whole", None)
    for at in (5, 8, 11):
        with pytest.raises(KeyboardInterrupt):
            fit(f"part{at}", at)
        again, others = fit(f"part{at}", None)
        assert again == rows, at
        np.testing.assert_array_equal(others, weights)


def test_a_resumed_training_validates_no_more_than_a_whole_one(tmp_path):
    def steps(directory, *epochs):
        made = []
        notes = flow.callbacks.LambdaCallback(on_validation_end=lambda step, logs: made.append(step))
        for count in epochs:
            saver = flow.callbacks.ModelCheckpoint(tmp_path / directory, save_last=True)
            trainer = quiet(max_epochs=count, seed=1, val_check_interval=0.4, callbacks=[notes, saver])
            trainer.fit(jobs.train_job(), jobs.data(50), jobs.eval_job(), jobs.data(30, 1), ckpt_path="last")
        return made

    assert steps("part", 1, 2) == steps("whole", 2) == [1, 3, 6, 8]  # of 5 steps an epoch


def test_the_handler_of_ctrl_c_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    quiet(max_epochs=1).fit(jobs.train_job(), jobs.data())
    assert signal.getsignal(signal.SIGINT) is before


# --- errors in callbacks


def test_an_error_in_a_callback_is_told_by_name_and_leaves_the_last_checkpoint(tmp_path):
    class Plotter(flow.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            if epoch == 1:
                raise KeyError("colour")

    notes = Notes()
    saving = flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    trainer = quiet(max_epochs=5, callbacks=[notes, Plotter(), saving])
    with pytest.raises(flow.errors.CallbackError, match="Plotter.on_epoch_end raised KeyError at step 11: 'colour'") as caught:
        trainer.fit(jobs.train_job(), jobs.data())
    assert isinstance(caught.value.__cause__, KeyError) and "last checkpoint is" in str(caught.value)
    assert notes.steps == list(range(12))
    flow.clear_default_session()
    again = Notes()
    quiet(max_epochs=2, callbacks=[again, flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)]).fit(
        jobs.train_job(), jobs.data(), ckpt_path="last"
    )
    assert again.steps == list(range(6, 12))
    flow.sync_default_session()  # nothing is left over


def test_an_error_in_a_hook_of_a_step_stops_soon():
    seen = []

    def at(step, logs):
        seen.append(step)
        if step == 3:
            raise ValueError("three")

    trainer = quiet(max_epochs=100, callbacks=flow.callbacks.LambdaCallback(on_train_batch_end=at))
    with pytest.raises(flow.errors.CallbackError, match="LambdaCallback.on_train_batch_end raised ValueError"):
        trainer.fit(jobs.train_job(), jobs.data())
    assert seen == [0, 1, 2, 3] and trainer.global_step < 100


def test_an_error_in_a_logger_and_in_a_metric():
    class Broken(flow.loggers.Logger):
        ended = ""

        def log_metrics(self, metrics, step):
            raise OSError("no space")

        def finalize(self, status):
            self.ended = status

    logger = Broken()
    with pytest.raises(flow.errors.CallbackError, match="Broken.log_metrics raised OSError"):
        quiet(max_epochs=1, logger=logger).fit(jobs.train_job(), jobs.data())
    assert logger.ended == "failed"

    def bad(logits, labels):
        raise ArithmeticError("bad")

    with pytest.raises(flow.errors.CallbackError, match="Function.update raised ArithmeticError"):
        quiet(metrics=flow.metrics.Function(bad)).test(jobs.eval_job(), jobs.data())


def test_an_interrupted_replacement_of_a_checkpoint_is_found(tmp_path):
    saving = flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    quiet(max_epochs=1, callbacks=saving).fit(jobs.train_job(), jobs.data())
    done = subprocess.run([sys.executable, "-c", KILLED_BETWEEN_TWO_STEPS, str(tmp_path / "last")], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "last").exists()
    trainer = quiet(max_epochs=2, callbacks=flow.callbacks.ModelCheckpoint(tmp_path, save_last=True))
    assert len(trainer.fit(jobs.train_job(), jobs.data(), ckpt_path="last")) == 2
    assert json.loads((tmp_path / "last" / "oneflow-jax.json").read_text())["trainer"]["version"] == 1


KILLED_BETWEEN_TWO_STEPS = """
import os, signal, sys
import numpy as np
from oneflow.checkpoint import hidden
from oneflow.checkpoint.atomic import Save
from oneflow.checkpoint.values import whole_values
hidden._exchange = lambda one, other: False
rename = os.rename
def killed(source, target):
    if target == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
os.rename = killed
Save(sys.argv[1], overwrite=True).write(whole_values({"a": np.zeros(3)}), dict)
"""


def test_an_error_of_saving_in_the_background_ends_the_training(tmp_path, monkeypatch):
    flush = atomic._flush

    def failing(path):
        if "epoch=0-step=6" in path:
            raise OSError(errno.EIO, "Input/output error")
        flush(path)

    monkeypatch.setattr(atomic, "_flush", failing)
    saving = flow.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, every_n_steps=3, asynchronous=True)
    trainer = quiet(max_epochs=200, callbacks=saving)
    with pytest.raises(flow.errors.CheckpointError, match="epoch=0-step=6.*Input/output error") as caught:
        trainer.fit(jobs.train_job(), jobs.data())
    assert not any("in batch" in note for note in getattr(caught.value, "__notes__", ()))
    flow.sync_default_session()  # nothing is left over
    assert trainer.global_step < 1200 and (tmp_path / "epoch=0-step=3" / "snapshot_done").exists()
    assert not (tmp_path / "epoch=0-step=6").exists()


@pytest.mark.parametrize("root", [None, "run"])
@pytest.mark.parametrize("dirpath", ["ck/", None])
def test_a_program_that_changes_its_directory_keeps_one_place_for_checkpoints(tmp_path, monkeypatch, dirpath, root):
    monkeypatch.chdir(tmp_path)

    class Moves(flow.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            (tmp_path / str(epoch)).mkdir()
            os.chdir(tmp_path / str(epoch))

    train, data = jobs.train_job(), jobs.data()
    saving = flow.callbacks.ModelCheckpoint(dirpath, save_last=True)
    quiet(max_epochs=2, callbacks=[Moves(), saving], default_root_dir=root).fit(train, data)
    assert not any(list((tmp_path / epoch).iterdir()) for epoch in "01")
    kept = sorted(Path(saving.best_model_path).parent.iterdir())
    assert [path.name for path in kept] == ["epoch=1-step=12", "last"] and tmp_path in kept[0].parents

    os.chdir(tmp_path)  # the run is moved, and goes on in a new process
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    os.chdir(moved)
    saving = flow.callbacks.ModelCheckpoint(dirpath, save_last=True)
    trainer = quiet(max_epochs=3, callbacks=saving, default_root_dir=root)
    trainer.fit(train, data, ckpt_path="last")
    assert trainer.global_step == 18
    assert [path.name for path in sorted(Path(saving.best_model_path).parent.iterdir())] == ["epoch=2-step=18", "last"]
    os.chdir("/")
    moved.rename(tmp_path)
