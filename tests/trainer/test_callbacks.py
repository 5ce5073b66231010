"""The callbacks that come with the library."""

from __future__ import annotations

import io
import logging
import math
import os
import shutil
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trainer_jobs as jobs
from trainer_jobs import Notes, quiet

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CallbackError, CheckpointError, CheckpointWarning, ModeError


def fit(callbacks, epochs=3, job=None, data=None, **options):
    trainer = quiet(max_epochs=epochs, callbacks=callbacks, seed=1, **options)
    trainer.fit(job or jobs.train_job(), jobs.data() if data is None else data, jobs.eval_job(), jobs.data(30, 1))
    return trainer


class Fake:
    """The part of a trainer that ``Monitor`` uses."""

    should_stop = False
    global_step = 0
    train_jobs = ()


def fed(callback, values, monitor="val_loss"):
    """Tells a callback values of what it monitors, one a validation; returns how many it took before it stopped."""
    callback.trainer = Fake()
    for step, value in enumerate(values):
        callback.on_validation_end(step, {monitor: value})
        if callback.trainer.should_stop:
            return step + 1
    return None


# --- EarlyStopping, TerminateOnNaN


@pytest.mark.parametrize(
    ("options", "values", "stops_after"),
    [
        ({"patience": 2}, [3, 2, 2.5, 2.4, 1], 4),
        ({"patience": 2}, [3, 2, 2.5, 1.9, 2, 2, 1], 6),
        ({"patience": 0}, [3, 3], 2),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.4, 2.2, 2.1], 5),
        ({"patience": 1, "mode": "max"}, [1, 2, 3, 2, 4], 4),
        ({"patience": 5, "stopping_threshold": 0.5}, [3, 1, 0.4], 3),
        ({"patience": 5}, [3, math.nan], 2),
        ({"patience": 2, "check_finite": False}, [3, math.nan, 2, math.nan, math.inf], 5),
        ({"patience": 2, "check_finite": False}, [math.nan, math.nan], 2),
        ({"patience": 3}, [3, 2, 1], None),
    ],
)
def test_early_stopping(options, values, stops_after):
    assert fed(flow.callbacks.EarlyStopping(**options), values) == stops_after


def test_early_stopping_ends_a_training_and_says_why(caplog):
    stopping = flow.callbacks.EarlyStopping("val_loss", patience=2, min_delta=100.0)
    with caplog.at_level(logging.INFO, "oneflow"):
        trainer = fit(stopping, epochs=20)
    assert len(trainer.history) == 3 and stopping.stopped_step == 17 and trainer.global_step == 18
    assert "2 looks without being better than" in caplog.text


def test_each_validation_is_looked_at_once(tmp_path):
    class Looks(flow.callbacks.EarlyStopping):
        def take_value(self, value, step):
            seen.append((step, value))
            super().take_value(value, step)

    seen, made = [], []
    notes = flow.callbacks.LambdaCallback(on_validation_end=lambda step, logs: made.append((step, logs["val_loss"])))
    saver = flow.callbacks.ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1, filename="{step}")
    trainer = fit([Looks("val_loss", patience=50), notes, saver], epochs=4, val_check_interval=5)  # epochs are of 6 steps
    assert seen == made and [step for step, _ in made] == [4, 9, 14, 19] and trainer.global_step == 24
    assert sorted(os.listdir(tmp_path)) == ["step=10", "step=15", "step=20", "step=5"]


def test_a_training_that_was_ended_early_stays_ended(tmp_path):
    def again(**options):
        stopping = flow.callbacks.EarlyStopping("val_loss", min_delta=100.0, **options)
        trainer = quiet(max_epochs=20, callbacks=[stopping, flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)], seed=1)
        return len(trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(30, 1), ckpt_path="last"))

    assert [again(patience=2), again(patience=2), again(patience=2)] == [3, 3, 3]
    assert again(patience=4) == 5  # goes on with another argument
    assert again(patience=4, stopping_threshold=100.0) == 5


def test_a_training_that_is_not_resumed_begins_anew_for_callbacks_of_an_earlier_one(tmp_path):
    stopping = flow.callbacks.EarlyStopping("val_loss", patience=2, min_delta=100.0)
    plateau = flow.callbacks.ReduceLROnPlateau("val_loss", patience=50)
    saving = flow.callbacks.ModelCheckpoint(tmp_path, monitor="val_loss", save_last=True)
    trainer = quiet(max_epochs=20, callbacks=[stopping, plateau, saving])
    train, evaluate, rows = jobs.train_job(), jobs.eval_job(), jobs.data(30, 1)
    for _ in range(2):
        history = trainer.fit(train, jobs.data(), evaluate, rows)
        assert len(history) == 3 and stopping.wait_count == 2 and stopping.best_score == history["val_loss"][0]
        assert plateau.best_score == saving.best_model_score == min(history["val_loss"])
    assert len(quiet(max_epochs=20, callbacks=stopping).fit(train, jobs.data(), evaluate, rows)) == 3  # on another trainer
    once = quiet(max_epochs=1, callbacks=flow.callbacks.ModelCheckpoint(tmp_path / "once"))
    for _ in range(2):
        once.fit(train, jobs.data())
        assert names(tmp_path / "once") == ["epoch=0-step=6"]
        shutil.rmtree(tmp_path / "once")


def test_numbers_of_the_training_are_monitored_at_the_end_of_epochs():
    trainer = fit(flow.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0), epochs=20)
    assert len(trainer.history) == 2
    with pytest.raises(CallbackError, match="(?s)monitors 'val_los', which nothing has logged.*did you mean 'val_loss'"):
        fit(flow.callbacks.EarlyStopping("val_los", mode="min"))


def test_the_mode_is_told_by_the_name():
    for name, mode in (("val_loss", "min"), ("val_accuracy", "max"), ("top_5_accuracy", "max"), ("val_f1_score", "max"),
                       ("mean_squared_error", "min"), ("a/loss", "min"), ("val_auc", "max")):  # fmt: skip
        assert flow.callbacks.EarlyStopping(name).mode == mode, name
    with pytest.raises(ArgumentError, match="does not say whether small or large values are good"):
        flow.callbacks.EarlyStopping("val_score")
    assert flow.callbacks.EarlyStopping("val_score", mode="max").mode == "max"


def test_terminate_on_nan():
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        loss = flow.math.log(w) * flow.math.reduce_mean(flow.math.square(x))
        jobs.sgd(0.4, 0.0).minimize(loss)
        return loss

    ending, notes = flow.callbacks.TerminateOnNaN(), Notes()
    trainer = quiet(max_epochs=1000, callbacks=[ending, notes])
    for _ in range(2):
        notes.losses.clear()
        trainer.fit(train, (np.ones((60, 4), np.float32), np.zeros(60, np.int32)))
        first = next(i for i, loss in enumerate(notes.losses) if not math.isfinite(loss))
        assert ending.stopped_step == first and trainer.global_step <= first + 33


# --- ModelCheckpoint


def names(directory):
    return sorted(n for n in os.listdir(directory) if not n.startswith("."))


def test_the_newest_are_kept(tmp_path):
    fit(flow.callbacks.ModelCheckpoint(tmp_path), epochs=4)
    assert names(tmp_path) == ["epoch=3-step=24"]
    fit(flow.callbacks.ModelCheckpoint(tmp_path / "all", save_top_k=-1), epochs=3)
    assert names(tmp_path / "all") == ["epoch=0-step=6", "epoch=1-step=12", "epoch=2-step=18"]
    fit(flow.callbacks.ModelCheckpoint(tmp_path / "last", save_top_k=0, save_last=True), epochs=2)
    assert names(tmp_path / "last") == ["last"]
    fit(flow.callbacks.ModelCheckpoint(tmp_path / "second", save_top_k=-1, every_n_epochs=2), epochs=5)
    assert names(tmp_path / "second") == ["epoch=1-step=12", "epoch=3-step=24"]
    fit(flow.callbacks.ModelCheckpoint(tmp_path / "steps", save_top_k=2, every_n_steps=4), epochs=3)
    assert names(tmp_path / "steps") == ["epoch=1-step=12", "epoch=2-step=16"]


def every(batches):
    """The batches from an iterable without a length."""
    return lambda: iter(batches)


@pytest.mark.parametrize(
    ("sized", "epochs", "limit", "steps"),
    [
        (True, 2, None, [3, 6, 9, 12]), (True, None, 9, [3, 6, 9]),
        (False, 2, None, [3, 6, 6, 9, 12, 12]), (False, None, 9, [3, 6, 6, 9]),
    ],
)  # fmt: skip
def test_each_step_is_saved_once_and_the_end_of_an_epoch_that_nobody_foresaw(tmp_path, monkeypatch, sized, epochs, limit, steps):
    x, y = jobs.data()
    batches = [(x[i : i + jobs.BATCH], y[i : i + jobs.BATCH]) for i in range(0, 60, jobs.BATCH)]
    saving = flow.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, every_n_steps=3)
    trainer = quiet(max_epochs=epochs, max_steps=limit, callbacks=saving)
    saved, save = [], trainer.save_checkpoint
    monkeypatch.setattr(
        trainer, "save_checkpoint", lambda path, **options: (saved.append(trainer.global_step), save(path, **options))
    )
    trainer.fit(jobs.train_job(), batches if sized else every(batches))
    assert saved == steps
    whole = trainer.history.rows
    flow.clear_default_session()
    again = quiet(max_epochs=2, callbacks=flow.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, every_n_steps=3))
    again.fit(jobs.train_job(), batches if sized else every(batches), ckpt_path=str(tmp_path / "epoch=0-step=6"))
    assert again.global_step == 12 and again.history.rows[0] == whole[0]


def scored(callback, values, directory):
    """Has a ModelCheckpoint meet values without a training; saving writes an empty directory."""
    saved = []

    class Saving(Fake):
        default_root_dir = str(directory)
        current_epoch = batch_in_epoch = 0

        def save_checkpoint(self, path, overwrite, asynchronous, remove=()):
            os.makedirs(path, exist_ok=True)
            saved.append(os.path.basename(path))
            for old in remove:
                os.rmdir(old)

    callback.trainer = Saving()
    for step, value in enumerate(values):
        callback.trainer.global_step = step + 1
        callback.on_validation_end(step, {"val_loss": value})
        callback.on_checkpoint(step, {"val_loss": value})
    return saved


@pytest.mark.parametrize(
    ("k", "values", "kept", "best"),
    [
        (1, [3, 2, 4, 1, 5], [1], 1), (2, [3, 2, 4, 1, 5], [1, 2], 1), (3, [3, 2, 4, 1, 5], [1, 2, 3], 1),
        (1, [math.nan, 3, math.nan], [3], 3), (2, [math.nan, 3, math.nan], [3, "nan"], 3), (-1, [2, 1, 3], [1, 2, 3], 1),
        (1, [2, 2], [2], 2), (2, [1, 2, 3], [1, 2], 1),
    ],
)  # fmt: skip
def test_the_best_are_kept(tmp_path, k, values, kept, best):
    saving = flow.callbacks.ModelCheckpoint(tmp_path, "{val_loss:.0f}", monitor="val_loss", save_top_k=k)
    scored(saving, values, tmp_path)
    assert names(tmp_path) == [f"val_loss={v}" for v in kept]
    assert saving.best_model_score == best and saving.best_model_path == str(tmp_path / f"val_loss={best}")


def test_names_of_checkpoints(tmp_path):
    saving = flow.callbacks.ModelCheckpoint(tmp_path, "run-{epoch:02d}-{val_accuracy:.1f}", monitor="val_accuracy")
    trainer = fit(saving, epochs=1, metrics=flow.metrics.Accuracy())
    assert names(tmp_path) == [f"run-epoch=00-val_accuracy={trainer.history['val_accuracy'][0]:.1f}"]
    with pytest.raises(CallbackError, match="(?s)asks for 'val_acc', which nothing has logged.*val_accuracy"):
        fit(flow.callbacks.ModelCheckpoint(tmp_path, "{val_acc}"), metrics=flow.metrics.Accuracy())


def test_an_earlier_run_in_the_same_directory_is_replaced(tmp_path):
    for _ in range(2):
        flow.clear_default_session()
        fit(flow.callbacks.ModelCheckpoint(tmp_path, save_last=True), epochs=2)
        assert names(tmp_path) == ["epoch=1-step=12", "last"]


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ({}, {"monitor": "val_loss"}, True),
        ({}, {"save_top_k": -1}, True),
        ({"filename": "a{epoch}"}, {"filename": "a{epoch:02d}"}, True),
        ({"filename": "{epoch}"}, {"filename": "{epoch}0"}, True),
        ({"filename": "last", "save_top_k": 3}, {"save_last": True, "save_top_k": 0}, True),
        ({"filename": "best"}, {"filename": "best"}, True),
        ({"filename": "model", "save_top_k": -1}, {"filename": "model", "save_top_k": -1}, True),
        ({"save_top_k": -1}, {"save_top_k": -1, "every_n_steps": 3}, False),
        ({"save_top_k": 0, "save_last": True}, {"monitor": "val_loss", "save_last": True}, False),
        ({}, {"filename": "best"}, False),
        ({}, {"filename": "best-{epoch}-{step}"}, False),
        ({}, {"filename": "{epoch}-{val_loss}"}, False),
        ({}, {"filename": "{epoch}"}, False),
        ({"filename": "{epoch}-a"}, {"filename": "{epoch}-b"}, False),
        ({"filename": "{epoch}"}, {"filename": "{epoch}-best"}, False),
    ],
)
def test_two_that_save_under_the_same_names_are_refused(tmp_path, one, other, clash):
    pair = [
        flow.callbacks.ModelCheckpoint(tmp_path / ".." / tmp_path.name, **one),
        flow.callbacks.ModelCheckpoint(tmp_path, **other),
    ]
    for savers in (pair, pair[::-1]):
        if not clash:
            quiet(callbacks=savers)
            continue
        with pytest.raises(ArgumentError, match="(?s)under the same names.*first.*second.*its own dirpath") as raised:
            quiet(callbacks=savers)
        assert all(f"monitor={c.monitor!r}, filename={c.filename!r}" in str(raised.value) for c in savers)
    apart = [flow.callbacks.ModelCheckpoint(**one), flow.callbacks.ModelCheckpoint(tmp_path / "a", **other)]
    trainer = quiet(callbacks=[*apart, apart[0]], default_root_dir=tmp_path, max_epochs=1)
    if clash:
        trainer.callbacks.append(flow.callbacks.ModelCheckpoint(tmp_path / "checkpoints", **other))
        trainer.callbacks[-1].trainer = trainer
        with pytest.raises(ArgumentError, match="under the same names"):
            trainer.fit(jobs.train_job(), jobs.data())


def test_the_default_directory(tmp_path):
    trainer = fit(flow.callbacks.ModelCheckpoint(save_last=True), epochs=1, default_root_dir=tmp_path)
    assert names(tmp_path / "checkpoints") == ["epoch=0-step=6", "last"]
    assert trainer.checkpoint_callback.last_model_path == str(tmp_path / "checkpoints" / "last")


def test_saving_in_the_background_saves_the_same(tmp_path):
    for asynchronous in (False, True):
        flow.clear_default_session()
        saving = flow.callbacks.ModelCheckpoint(
            tmp_path / str(asynchronous), save_top_k=-1, every_n_steps=3, asynchronous=asynchronous
        )
        fit(saving, epochs=2)
    assert names(tmp_path / "True") == names(tmp_path / "False") and len(names(tmp_path / "True")) == 4
    for name in names(tmp_path / "True"):
        one, other = (flow.checkpoint.get(tmp_path / which / name) for which in ("True", "False"))
        assert {n: v.numpy().tobytes() for n, v in one.items()} == {n: v.numpy().tobytes() for n, v in other.items()}
    assert not [t for t in threading.enumerate() if t.name == "oneflow-save"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_disk_that_refuses(tmp_path, asynchronous):
    (tmp_path / "file").write_text("in the way")
    saving = flow.callbacks.ModelCheckpoint(tmp_path / "file" / "below", asynchronous=asynchronous)
    with pytest.raises((CallbackError, CheckpointError), match="(?s)cannot save to|Not a directory") as caught:
        fit(saving, epochs=1)
    assert asynchronous or "ModelCheckpoint.on_checkpoint raised" in str(caught.value)


def test_checkpoints_are_saved_at_rest_only(tmp_path):
    def save(step, logs):
        trainer.save_checkpoint(tmp_path / "now")

    trainer = quiet(max_epochs=1, callbacks=flow.callbacks.LambdaCallback(on_train_batch_end=save))
    with pytest.raises(CallbackError, match="later steps are under way") as caught:
        trainer.fit(jobs.train_job(), jobs.data())
    assert isinstance(caught.value.__cause__, ModeError)


def test_a_step_that_a_callback_waits_for_shows_its_variables():
    """Training does not go on before the hook has read them."""
    expected = []
    job, (x, y) = jobs.train_job(), jobs.data()
    flow.manual_seed(1)
    for i in range(6):
        job(x[10 * i : 10 * i + 10], y[10 * i : 10 * i + 10])
        expected.append(flow.get_all_variables()["out-bias"].numpy())
    flow.clear_default_session()

    class Reader(flow.callbacks.Callback):
        def __init__(self):
            self.found = {}

        def waits_after(self, step):
            return step in (1, 4)

        def on_checkpoint(self, step, logs):
            self.found[step] = flow.get_all_variables()["out-bias"].numpy()

    reader = Reader()
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 60, 10)]
    quiet(max_epochs=1, seed=1, callbacks=reader).fit(jobs.train_job(), batches)
    assert sorted(reader.found) == [1, 4, 5]
    for step, found in reader.found.items():
        np.testing.assert_array_equal(found, expected[step])


# --- learning rates


def scheduled_job():
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, jobs.network(x))
        flow.optimizer.SGD(flow.optimizer.ExponentialScheduler(0.5, 4, 0.5), momentum=0).minimize(loss)
        return loss

    return train


def variable_job(name="rate"):
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
        rate = flow.get_variable(name, (1,), initializer=flow.constant_initializer(0.5), trainable=False)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, jobs.network(x))
        flow.optimizer.SGD(flow.optimizer.CustomScheduler(rate.logical_blob_name), momentum=0).minimize(loss)
        return loss

    return train


def test_learning_rates_are_logged():
    trainer = fit(flow.callbacks.LearningRateMonitor(), job=scheduled_job(), log_every_n_steps=2, epochs=1)
    assert [row["lr"] for row in trainer.history.steps] == pytest.approx([0.5 * 0.5 ** (step / 4) for step in (1, 3, 5)])
    trainer = fit(flow.callbacks.LearningRateMonitor(), job=variable_job(), log_every_n_steps=3, epochs=1)
    assert [row["lr"] for row in trainer.history.steps] == [0.5, 0.5]


def test_a_plateau_lowers_the_rate():
    lowering = flow.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=100.0, cooldown=1, min_lr=0.2)
    trainer = fit([lowering, flow.callbacks.LearningRateMonitor()], job=variable_job(), log_every_n_steps=6, epochs=8)
    rates = [row["lr"] for row in trainer.history.steps]
    # values: best, 1, 2 -> lowered, not counted, 1, 2 -> lowered to min_lr, ...
    assert rates == pytest.approx([0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2]), rates
    with pytest.raises(CallbackError, match="cannot change the learning rate of job 'train'"):
        fit(flow.callbacks.ReduceLROnPlateau(), job=scheduled_job())


@pytest.mark.parametrize("options", [{}, {"cooldown": 1}, {"cooldown": 2}, {"min_lr": 0.2}, {"min_lr": 2.0}, {"patience": 0}])
def test_a_plateau_is_that_of_pytorch(options):
    given = {"factor": 0.5, "patience": 1, "min_delta": 1e-4, **options}
    job = constant_job(0.8)
    rates = []
    seen = flow.callbacks.LambdaCallback(on_validation_end=lambda step, logs: rates.append(round(job.learning_rate, 6)))
    trainer = fit([flow.callbacks.ReduceLROnPlateau("val_loss", **{**given, "min_delta": 100.0}), seen], job=job, epochs=12)
    values = trainer.history["val_loss"]
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.8)
    plateau = {k: v for k, v in given.items() if k != "min_delta"}
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, threshold=100.0, threshold_mode="abs", **plateau)
    want = []
    for value in values:
        other.step(value)
        want.append(round(optimizer.param_groups[0]["lr"], 6))
    assert rates == want and len(want) == 12


def test_rates_of_a_schedule_are_those_of_the_jobs_own_steps():
    job = scheduled_job()
    for first in (0, 6):
        trainer = quiet(max_epochs=1, log_every_n_steps=1, callbacks=flow.callbacks.LearningRateMonitor())
        trainer.fit(job, jobs.data())
        want = [0.5 * 0.5 ** (step / 4) for step in range(first, first + 6)]
        assert [row["lr"] for row in trainer.history.steps] == pytest.approx(want)


def constant_job(rate=0.5):
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, jobs.network(x))
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return train


def test_a_plateau_lowers_a_constant_rate_and_a_run_that_goes_on_keeps_it(tmp_path):
    def run(epochs, rate=0.5):
        flow.clear_default_session()
        lowering = flow.callbacks.ReduceLROnPlateau(factor=0.5, patience=0, min_delta=100.0)
        saving = flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)
        told = [lowering, flow.callbacks.LearningRateMonitor(), saving]
        trainer = quiet(max_epochs=epochs, callbacks=told, seed=1, log_every_n_steps=6)
        trainer.fit(constant_job(rate), jobs.data(), jobs.eval_job(), jobs.data(20, 1), ckpt_path="last")
        return [row["lr"] for row in trainer.history.steps]

    assert run(3) == [0.5, 0.5, 0.25]
    assert run(5) == [0.125, 0.0625]
    assert run(6, rate=0.25) == [0.25]  # the program's rate was changed: it holds


# --- progress


def test_the_progress_bar_leaves_a_line_for_each_epoch(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())  # imported by others: this is no notebook
    drawn = io.StringIO()
    bar = flow.callbacks.TQDMProgressBar(file=drawn)
    trainer = flow.Trainer(max_epochs=2, callbacks=bar, seed=1)
    trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(30, 1))
    lines = [part.rpartition("\r")[2] for part in drawn.getvalue().split("\n") if part.strip()]
    assert len(lines) == 2 and all("6/6" in line for line in lines), drawn.getvalue()
    assert lines[1].startswith("Epoch 2/2: 100%") and f"val_loss={trainer.history['val_loss'][1]:.4g}" in lines[1]
    assert len(drawn.getvalue()) < 1000  # where nobody watches, a line is drawn when it is finished
    trainer.test(jobs.eval_job(), jobs.data(30, 1))
    assert "Testing: 100%" in drawn.getvalue() and "test_loss=" in drawn.getvalue()
    trainer.predict(jobs.eval_job(), jobs.data(30, 1))
    assert "Predicting: 100%" in drawn.getvalue()


def test_the_progress_bar_ends_at_100_percent_where_a_short_batch_is_left_out():
    drawn = io.StringIO()
    flow.Trainer(max_epochs=1, callbacks=flow.callbacks.TQDMProgressBar(file=drawn)).fit(jobs.train_job(), jobs.data(65))
    assert "Epoch 1/1: 100%" in drawn.getvalue() and "6/6" in drawn.getvalue()


@pytest.mark.parametrize(
    "error", [BrokenPipeError("nobody reads"), ValueError("I/O operation on closed file")], ids=["pipe", "closed"]
)
def test_a_training_goes_on_where_its_progress_cannot_be_shown(error):
    class Broken(io.StringIO):
        def write(self, text):
            raise type(error)(*error.args)  # a new one: its traceback keeps the results of steps

    trainer = flow.Trainer(max_epochs=2, callbacks=flow.callbacks.TQDMProgressBar(file=Broken(), refresh_seconds=1e-9))
    trainer.fit(jobs.train_job(), jobs.data())
    assert trainer.global_step == 12


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_bar_on_a_terminal():
    drawn = Terminal()
    bar = flow.callbacks.TQDMProgressBar(file=drawn, refresh_seconds=1e-9)
    flow.Trainer(max_steps=9, callbacks=bar).fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(30, 1))
    text = drawn.getvalue()
    assert "3/6" in text and "Validating" in text and "Epoch 2:" in text and "loss=" in text


def test_the_progress_bar_can_be_left_out(capsys):
    quiet(max_epochs=1).fit(jobs.train_job(), jobs.data())
    assert capsys.readouterr().err == ""
    flow.Trainer(max_epochs=1).fit(jobs.train_job(), jobs.data())
    assert "Epoch 1/1: 100%" in capsys.readouterr().err


# --- names that are not hooks


def test_hooks_of_other_libraries_and_misspelt_ones_are_told():
    for name, hint in (("on_batch_end", "call it on_train_batch_end"), ("on_train_batch_begin", "submitted ahead"),
                       ("on_epoch_ends", "call it on_epoch_end"), ("on_train_epoch_end", "call it on_epoch_end"),
                       ("on_epoch_start", "call it on_epoch_begin"), ("on_epoch_finish", "call it on_epoch_end"),
                       ("on_validation_begin", "call it on_test_begin"), ("on_val_end", "call it on_validation_end"),
                       ("on_train_start", "call it on_train_begin"), ("on_fit_end", "call it on_train_end"),
                       ("on_train_batch_start", "submitted ahead")):  # fmt: skip
        made = type("Mine", (flow.callbacks.Callback,), {name: lambda self, *a: None})()
        with pytest.raises(ArgumentError, match=f"(?s)Mine.{name} is not a hook.*{hint}"):
            flow.Trainer(callbacks=made)
    flow.Trainer(callbacks=type("Mine", (flow.callbacks.Callback,), {"on_my_own": lambda self: None})())
    with pytest.raises(ArgumentError, match="did you mean on_epoch_end"):
        flow.callbacks.LambdaCallback(on_epoch_ended=print)
    with pytest.raises(ArgumentError, match="must be a function"):
        flow.callbacks.LambdaCallback(on_epoch_end=3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: flow.callbacks.EarlyStopping(""), "monitor must be"),
        (lambda: flow.callbacks.EarlyStopping(patience=-1), "patience must be"),
        (lambda: flow.callbacks.EarlyStopping(min_delta=-1), "min_delta must be"),
        (lambda: flow.callbacks.EarlyStopping(mode="best"), "mode must be"),
        (lambda: flow.callbacks.ModelCheckpoint(save_top_k=-2), "save_top_k must be"),
        (lambda: flow.callbacks.ModelCheckpoint(every_n_steps=0), "every_n_steps must be"),
        (lambda: flow.callbacks.ModelCheckpoint(every_n_steps=1, every_n_epochs=1), "not both"),
        (lambda: flow.callbacks.ModelCheckpoint(filename="a/b"), "filename must be"),
        (lambda: flow.callbacks.ReduceLROnPlateau(factor=1.0), "factor must be"),
        (lambda: flow.callbacks.ReduceLROnPlateau(cooldown=-1), "cooldown must be"),
        (lambda: flow.callbacks.TQDMProgressBar(refresh_seconds=0), "refresh_seconds must be"),
    ],
)
def test_mistakes(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


def test_the_error_of_a_hook_names_its_own_step_and_that_of_a_metric_no_line_of_the_library():
    class Picky(flow.callbacks.Callback):
        def on_train_batch_end(self, step, logs):
            if step == 3:
                raise ValueError("three")

    with pytest.raises(CallbackError, match=r"^Picky.on_train_batch_end raised ValueError at step 3: three") as raised:
        fit(Picky())
    line = Picky.on_train_batch_end.__code__.co_firstlineno + 2
    assert f'raised at  tests/trainer/test_callbacks.py:{line}   raise ValueError("three")\n' in str(raised.value)
    metric = flow.metrics.Function(lambda logits, labels: 1.0)
    with pytest.raises(CallbackError, match=r"the function gave shape \(\)") as caught:
        fit([], metrics=metric)
    assert "your line" not in str(caught.value) and "per_row=False" in str(caught.value)


# --- what nothing logs, and what cannot be saved


@pytest.mark.parametrize("kind", [flow.callbacks.EarlyStopping, flow.callbacks.ReduceLROnPlateau])
def test_a_monitored_number_of_a_validation_that_never_comes_is_an_error(kind):
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.layers.dense(x, 3, name="out"))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    for options, arguments in ({}, ()), ({"limit_val_batches": 0}, (jobs.eval_job(), jobs.data(30, 1))):
        with pytest.raises(CallbackError, match="monitors 'val_loss', which nothing has logged"):
            quiet(max_epochs=2, callbacks=kind("val_loss"), **options).fit(train, jobs.data(), *arguments)


def test_an_array_cannot_be_monitored():
    with pytest.raises(CallbackError, match=r"'val_confusion_matrix', which is an array of shape \(3, 3\)"):
        fit(flow.callbacks.EarlyStopping("val_confusion_matrix", mode="min"), metrics=flow.metrics.ConfusionMatrix(3))


@pytest.mark.parametrize("filename", ["..", ".", "a/b", "{epoch:zz}", "{val_loss:d}"])
def test_names_of_checkpoints_are_checked_when_they_are_given(filename):
    with pytest.raises(ArgumentError, match="filename"):
        flow.callbacks.ModelCheckpoint(filename=filename)


def test_the_way_on_after_an_error_is_a_checkpoint_that_exists(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CallbackError) as caught:
        fit(flow.callbacks.ModelCheckpoint(tmp_path / "file"))
    assert "last checkpoint" not in str(caught.value)

    class Fails(flow.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs):
            if epoch == 1:
                raise KeyError("mine")

    with pytest.raises(CallbackError, match="its last checkpoint is '.*epoch=0-step=6'"):
        fit([Fails(), flow.callbacks.ModelCheckpoint(tmp_path)])


def test_reprs_tell_the_arguments_that_were_given() -> None:
    class Mine(flow.callbacks.Callback):
        def __init__(self, period: int, *names: str, log_all: bool = False, **more: Any):
            self.period, self._log_all = period, log_all

    assert repr(Mine(3, "a", log_all=True, b=1)) == "Mine(period=3, log_all=True)"
    assert repr(flow.callbacks.EarlyStopping("error", patience=5)) == "EarlyStopping(monitor='error', patience=5, mode='min')"
    assert repr(flow.loggers.TensorBoardLogger("runs")) == "TensorBoardLogger(save_dir='runs')"
    assert repr(flow.data.Normalize([1, 2], 3)) == "Normalize(mean=[1.0, 2.0], std=[3.0])"
    assert repr(flow.Trainer(max_epochs=1)) == "<Trainer: idle, epoch 0, 0 steps done>"


# --- of several jobs, and of rates that nobody can set


def two_jobs():
    def player(name, sign):
        def train(x: tp.Numpy.Placeholder((2, 1))) -> tp.Numpy:
            w = flow.get_variable(f"w-{name}", (1,), initializer=flow.ones_initializer())
            loss = flow.math.log(w) * sign + 0.0 * flow.math.reduce_mean(x)
            jobs.sgd(0.6, 0.0).minimize(loss)
            return loss

        train.__annotations__ = {"x": tp.Numpy.Placeholder((2, 1)), "return": tp.Numpy}
        train.__name__ = name
        return flow.global_function(type="train")(train)

    return [player("up", -1.0), player("down", 1.0)]


def test_a_nan_of_the_second_of_two_jobs_ends_the_training():
    ending = flow.callbacks.TerminateOnNaN()
    trainer = quiet(max_epochs=1000, callbacks=ending)
    trainer.fit(two_jobs(), np.ones((60, 1), np.float32))
    assert 0 < ending.stopped_step < trainer.global_step < 200


@pytest.mark.parametrize("monitor", ["los", "val_loss"])
def test_a_number_that_no_step_has_cannot_be_looked_at(monitor):
    with pytest.raises(CallbackError, match=f"(?s)TerminateOnNaN looks at '{monitor}'.*logged     loss"):
        fit(flow.callbacks.TerminateOnNaN(monitor), epochs=1)


def mixed_rates_job():
    """Two optimizers: the rate of the first is computed in the job, that of the second is constant."""

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, jobs.network(x))
        computed = flow.math.reduce_mean(flow.math.square(x)) * flow.constant(0.01, flow.float32, (1,))
        first = flow.optimizer.SGD(
            flow.optimizer.CustomScheduler(computed.logical_blob_name), variables=["hidden-weight", "hidden-bias"]
        )
        flow.optimizer.CombinedOptimizer([first, flow.optimizer.SGD(0.5, variables=["out-weight", "out-bias"])]).minimize(loss)
        return loss

    return train


def test_a_rate_that_the_job_computes_stands_in_nobodys_way(tmp_path):
    job = mixed_rates_job()
    lowering = flow.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100.0)
    saving = flow.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    trainer = quiet(max_epochs=3, log_every_n_steps=1, callbacks=[lowering, flow.callbacks.LearningRateMonitor(), saving])
    trainer.fit(job, jobs.data())
    assert "lr-0" not in trainer.history.steps[0] and trainer.history.steps[0]["lr-1"] == 0.5
    assert job.constant_learning_rates == (None, 0.125)
    job.learning_rate = [None, 0.5]
    resumed = quiet(max_epochs=4, callbacks=flow.callbacks.ModelCheckpoint(tmp_path, save_last=True))
    with pytest.warns(CheckpointWarning, match="ReduceLROnPlateau"):
        resumed.fit(job, jobs.data(), ckpt_path="last")
    assert job.constant_learning_rates == (None, 0.125)


def test_a_worse_checkpoint_does_not_replace_a_better_one_of_its_name(tmp_path):
    values = iter([2.0, 1.0, 3.0, 1.5])
    told = flow.callbacks.LambdaCallback(on_validation_end=lambda step, logs: logs.update(quality=next(values)))
    saver = flow.callbacks.ModelCheckpoint(tmp_path, filename="best", monitor="quality", mode="min")
    fit([told, saver], epochs=4)
    assert saver.best_model_score == 1.0
    steps = flow.checkpoint.get(tmp_path / "best")["System-Train-TrainStep-train"].numpy()
    assert steps.item() == 12  # of the second epoch
