"""Trainer.fit: what is trained, what is told, and what is logged, against loops written by hand."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import trainer_jobs as jobs
from trainer_jobs import Notes, quiet

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CallbackError, FeedError, JobWarning, ModeError


def batches(x, y, size=jobs.BATCH):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize("returns", [tp.Numpy, tp.Callback[tp.Numpy]], ids=["synchronous", "callback"])
def test_the_losses_are_those_of_a_loop_by_hand(returns):
    x, y = jobs.data()
    flow.manual_seed(3)
    job = jobs.train_job()
    expected = [float(job(*batch).mean(dtype=np.float64)) for _ in range(3) for batch in batches(x, y)]
    variables = {n: v.numpy() for n, v in flow.get_all_variables().items()}

    flow.clear_default_session()
    notes = Notes()
    history = quiet(max_epochs=3, seed=3, callbacks=notes).fit(jobs.train_job(returns=returns), batches(x, y))
    assert notes.losses == expected and notes.steps == list(range(18)) and notes.threads == {"oneflow-delivery"}
    assert history["loss"] == [pytest.approx(np.mean(expected[i : i + 6])) for i in (0, 6, 12)]
    assert [(row["epoch"], row["step"]) for row in history.rows] == [(0, 5), (1, 11), (2, 17)]
    for name, value in flow.get_all_variables().items():
        np.testing.assert_array_equal(value.numpy(), variables[name])


def test_a_training_learns_and_validation_is_exact_whatever_the_batch_size():
    x, y = jobs.data(57)  # the last batch has 7 rows
    val_x, val_y = jobs.data(33, seed=1)
    train, evaluate = jobs.train_job(), jobs.eval_job(8)  # 33 = 4 * 8 + 1
    trainer = quiet(max_epochs=20, seed=1, metrics=flow.metrics.Accuracy())
    history = trainer.fit(train, (x, y), evaluate, (val_x, val_y))
    assert history["val_accuracy"][-1] > 0.8 > history["val_accuracy"][0]

    whole = jobs.eval_job(33)(val_x, val_y)
    assert history["val_loss"][-1] == pytest.approx(float(whole["loss"].mean()), rel=1e-6)
    assert history["val_accuracy"][-1] == np.mean(whole["logits"].argmax(1) == val_y)
    loss, accuracy = history["val_loss"][-1], history["val_accuracy"][-1]
    assert trainer.validate(evaluate, (val_x, val_y)) == {"val_loss": loss, "val_accuracy": accuracy}
    assert trainer.test(evaluate, (val_x, val_y)) == {"test_loss": loss, "test_accuracy": accuracy}


def test_hooks_are_called_in_order():
    class All(flow.callbacks.Callback):
        def __init__(self):
            self.told = []

        def __getattribute__(self, name):
            if name.startswith("on_"):
                return lambda *arguments: self.told.append((name, *[a for a in arguments if isinstance(a, int)]))
            return super().__getattribute__(name)

    for name in [n for n in vars(flow.callbacks.Callback) if n.startswith("on_")]:
        setattr(All, name, lambda *a: None)
    x, y = jobs.data(20)
    told = All()
    trainer = quiet(max_epochs=2, callbacks=told, log_every_n_steps=3)
    trainer.fit(jobs.train_job(), (x, y), jobs.eval_job(), (x[:10], y[:10]))
    validation = [
        ("on_test_begin",), ("on_test_batch_outputs", 0), ("on_test_batch_end", 0), ("on_test_end",),
    ]  # fmt: skip
    assert told.told == [
        ("on_train_begin",), ("on_epoch_begin", 0),
        ("on_train_batch_outputs", 0), ("on_train_batch_end", 0), ("on_train_batch_outputs", 1), ("on_train_batch_end", 1),
        *validation, ("on_validation_end", 1), ("on_epoch_end", 0), ("on_checkpoint", 1), ("on_epoch_begin", 1),
        ("on_train_batch_outputs", 2), ("on_train_batch_end", 2), ("on_log", 2), ("on_train_batch_outputs", 3),
        ("on_train_batch_end", 3), *validation, ("on_validation_end", 3), ("on_epoch_end", 1), ("on_checkpoint", 3),
        ("on_train_end",),
    ]  # fmt: skip


def test_logs_of_tuples_dictionaries_and_nestings():
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 2))):
        loss = flow.math.square(flow.layers.dense(x, 1, name="d", kernel_initializer=flow.ones_initializer()))
        jobs.sgd(0.0).minimize(loss)
        return {"loss": loss, "parts": (loss * 2.0, [loss * 3.0]), "size": flow.math.reduce_mean(x)}

    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    history = quiet(max_epochs=1, log_every_n_steps=1).fit(train, [x])
    mean = float(np.mean(np.square(x.sum(1))))
    (row,) = history.steps
    names = {"loss": mean, "parts/output_0": 2 * mean, "parts/output_1/output_0": 3 * mean, "size": float(x.mean())}
    assert row == pytest.approx({"epoch": 0, "step": 0, **names})
    tuple_row = quiet(max_epochs=1).fit(jobs.train_job(), jobs.data(10), jobs.pair_job(), jobs.data(10)).rows[-1]
    assert tuple_row["val_output_1"] == pytest.approx(tuple_row["val_loss"])


def test_a_job_that_returns_nothing():
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 2))) -> None:
        jobs.sgd(0.5).minimize(flow.layers.dense(x, 1, name="d"))

    trainer = quiet(max_epochs=2)
    assert trainer.fit(train, np.ones((8, 2), np.float32)).rows == [{"epoch": 0, "step": 1}, {"epoch": 1, "step": 3}]
    assert flow.get_all_variables()["d-bias"].numpy()[0] != 0


def test_a_job_that_reads_by_itself():
    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        jobs.sgd(1.0, 0.0).minimize(w)
        return w

    history = quiet(max_epochs=2, limit_train_batches=3).fit(train)
    assert history["loss"] == [0.0, -3.0]
    assert quiet(max_steps=2).fit(train)["loss"] == [-5.5]
    with pytest.raises(ArgumentError, match="how long an epoch is"):
        quiet(max_epochs=2).fit(train)


def test_several_jobs_take_turns():
    def player(name, sign):
        def train(x: tp.Numpy.Placeholder((2, 1))) -> tp.Numpy:
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            jobs.sgd(0.5, 0.0).minimize(w * sign)
            return w + 0.0 * flow.math.reduce_mean(x)

        train.__annotations__ = {"x": tp.Numpy.Placeholder((2, 1)), "return": tp.Numpy}
        train.__name__ = name
        return flow.global_function(type="train")(train)

    notes = []
    told = flow.callbacks.LambdaCallback(
        on_train_batch_outputs=lambda step, outputs: notes.append([float(o[0]) for o in outputs]),
    )
    history = quiet(max_epochs=1, callbacks=told).fit([player("down", 1.0), player("up", -2.0)], np.ones((6, 1), np.float32))
    assert notes == [[1.0, 0.5], [1.5, 1.0], [2.0, 1.5]]
    assert history.rows == [{"epoch": 0, "step": 2, "down_loss": 1.5, "up_loss": 1.0}]


# --- validation in time


@pytest.mark.parametrize(
    ("interval", "steps"),
    [(1.0, [5, 11]), (0.5, [2, 5, 8, 11]), (0.4, [1, 3, 5, 7, 9, 11]), (4, [3, 7, 11]), (5, [4, 9]), (100, [])],
)
def test_when_it_validates(interval, steps):
    seen = []
    told = flow.callbacks.LambdaCallback(on_validation_end=lambda step, logs: seen.append((step, logs["val_loss"])))
    trainer = quiet(max_epochs=2, callbacks=told, val_check_interval=interval)
    history = trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(20, seed=1))
    assert [step for step, _ in seen] == steps
    rows = {row["step"]: row for row in history.rows}
    assert sorted({*rows} | {5, 11}) == sorted({*steps, 5, 11}) and all(rows[s]["val_loss"] == v for s, v in seen)
    assert len(history.rows) == len(rows)


def test_steps_and_limits():
    x, y = jobs.data()
    notes = Notes()
    trainer = quiet(max_steps=8, callbacks=notes)
    history = trainer.fit(jobs.train_job(), (x, y), jobs.eval_job(), (x, y))
    assert notes.steps == list(range(8)) and trainer.global_step == 8 and trainer.current_epoch == 1
    assert [(row["epoch"], row["step"]) for row in history.rows] == [(0, 5), (1, 7)] and "val_loss" in history.rows[-1]
    notes = Notes()
    quiet(max_epochs=2, limit_train_batches=0.5, callbacks=notes).fit(jobs.train_job(), (x, y))
    assert len(notes.steps) == 6
    notes = Notes()
    quiet(max_epochs=3, max_steps=100, limit_train_batches=2, callbacks=notes).fit(jobs.train_job(), (x, y))
    assert len(notes.steps) == 6
    assert quiet(limit_test_batches=1).test(jobs.eval_job(), (x, y)) == quiet().test(jobs.eval_job(), (x[:10], y[:10]))


def test_a_callback_stops_the_training():
    stopped = Notes()

    def stop(epoch, logs):
        stopped.trainer.should_stop = epoch == 1

    trainer = quiet(max_epochs=10, callbacks=[stopped, flow.callbacks.LambdaCallback(on_epoch_end=stop)])
    assert len(trainer.fit(jobs.train_job(), jobs.data())) == 2 and trainer.global_step == 12
    assert stopped.steps == list(range(12))


@pytest.mark.parametrize("ends", ["max_steps", "should_stop"])
def test_a_training_that_ends_in_the_midst_of_an_epoch_ends_the_epoch(ends, tmp_path):
    notes = Notes()
    last = flow.callbacks.ModelCheckpoint(str(tmp_path), save_last=True)

    class Stop(flow.callbacks.Callback):
        def on_train_batch_end(self, step, logs):
            self.trainer.should_stop = ends == "should_stop" and step >= 7

    trainer = quiet(max_epochs=3, max_steps=9 if ends == "max_steps" else -1, callbacks=[notes, last, Stop()])
    data = ((time.sleep(0.02), batch)[1] for batch in batches(*jobs.data()) * 3)  # so that few steps are ahead of the callback
    history = trainer.fit(jobs.train_job(), data, jobs.eval_job(), jobs.data())
    assert history.rows[-1]["step"] == trainer.global_step - 1 and "val_loss" in history.rows[-1]
    assert 8 <= trainer.global_step < 18 and (tmp_path / "last").is_dir()


def test_two_jobs_of_one_name_are_not_trained_together():
    with pytest.raises(ArgumentError, match=r"(?s)two of the jobs to train are called 'train'.*different names"):
        quiet(max_epochs=1).fit([jobs.train_job(), weighted_job()], jobs.data())


@pytest.mark.parametrize("stage", ["fit", "validate", "predict"])
def test_weights_of_a_batch_are_not_ignored(stage):
    x, labels = jobs.data(25)
    padded = flow.data.ArrayLoader({"x": x, "labels": labels}, jobs.BATCH, last="pad")
    job = jobs.train_job() if stage == "fit" else jobs.eval_job()
    with pytest.raises(FeedError, match=r"(?s)has no parameter 'sample_weight', and the rows of a batch have weights.*try"):
        getattr(quiet(max_epochs=1), stage)(job, padded)


# --- short batches


def test_a_short_batch_is_left_out_of_a_training_and_said_once(caplog):
    notes = Notes()
    with caplog.at_level(logging.WARNING, "oneflow"):
        quiet(max_epochs=2, callbacks=notes).fit(jobs.train_job(), jobs.data(25))
    assert len(notes.steps) == 4 and caplog.text.count("a short batch of the training data is left out") == 1


def weighted_job():
    @flow.global_function(type="train")
    def train(
        x: tp.Numpy.Placeholder((10, 4)),
        labels: tp.Numpy.Placeholder((10,), dtype=flow.int32),
        sample_weight: tp.Numpy.Placeholder((10,)),
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, jobs.network(x))
        weighted = loss * sample_weight
        jobs.sgd(0.0).minimize(flow.math.reduce_sum(weighted) / flow.math.reduce_sum(sample_weight))
        return loss

    return train


def test_a_loss_that_is_not_finite_is_told_once_with_its_step(caplog):
    x, y = jobs.data(60)
    x[25] = np.nan  # in the third batch; the variables are NaN from there on
    batches_ = batches(x, y)
    with caplog.at_level(logging.WARNING, "oneflow"):
        quiet(max_epochs=2).fit(jobs.train_job(), batches_)
    told = [r.getMessage() for r in caplog.records if "the loss is" in r.getMessage()]
    assert [text.splitlines()[0] for text in told] == ["oneflow: the loss is nan at step 2, for the first time"]


@pytest.mark.parametrize("every", [1, 3, 50])
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_batch_outputs", "on_log", None])
def test_steps_that_are_counted_together_make_the_numbers_of_those_that_are_not(every, hook):
    told, rows = [], []
    callback = [] if hook is None else [flow.callbacks.LambdaCallback(**{hook: lambda step, logs: told.append(step)})]

    class Rows(flow.loggers.Logger):
        def log_metrics(self, metrics, step):
            rows.append((step, dict(metrics)))

    trainer = quiet(max_epochs=20, seed=1, callbacks=callback, logger=Rows(), log_every_n_steps=every)
    history = trainer.fit(jobs.train_job(), jobs.data())
    steps = list(range(every - 1, 120, every))
    assert told == {None: [], "on_log": steps}.get(hook, list(range(120)))
    assert [row["step"] for row in history.steps] == steps
    assert [(step, row["loss"]) for step, row in rows if "loss" in row] == [(row["step"], row["loss"]) for row in history.steps]
    assert [row["epoch"] for row in history.steps] == [step // 6 for step in steps]
    flow.clear_default_session()
    each = Notes()
    exact = quiet(max_epochs=20, seed=1, callbacks=each).fit(jobs.train_job(), jobs.data())
    assert exact.rows == history.rows
    assert [row["loss"] for row in history.steps] == [each.losses[step] for step in steps]


def test_weights_of_rows_let_a_training_use_all_of_them():
    x, y = jobs.data(25)
    fed = []
    told = flow.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: fed.append(step))
    history = quiet(max_epochs=1, seed=1, callbacks=told).fit(
        weighted_job(), [(x[:10], y[:10]), (x[10:20], y[10:20]), (x[20:], y[20:])]
    )
    assert fed == [0, 1, 2]
    exact = jobs.eval_job(25)(x, y)["loss"]
    assert history["loss"][0] == pytest.approx(float(exact.mean()), rel=1e-6)

    loader = flow.data.ArrayLoader({"x": x, "labels": y}, 10, last="pad")
    assert quiet(max_epochs=1).fit(weighted_job(), loader)["loss"][0] == pytest.approx(float(exact.mean()), rel=1e-6)
    own = np.linspace(0.1, 2, 25).astype(np.float32)
    history = quiet(max_epochs=1).fit(weighted_job(), flow.data.ArrayLoader({"x": x, "labels": y, "sample_weight": own}, 10))
    assert history["loss"][0] == pytest.approx(float(exact @ own / own.sum()), rel=1e-6)


def test_a_batch_without_weight_does_not_count(caplog):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 1)), sample_weight: tp.Numpy.Placeholder((2,))) -> tuple[tp.Numpy, tp.Numpy]:
        loss = flow.math.reduce_sum(x * flow.get_variable("w", (1,), initializer=flow.ones_initializer()), axis=[1])
        jobs.sgd(0.0).minimize(loss * sample_weight)
        return loss, flow.math.reduce_sum(loss * sample_weight) / flow.math.reduce_sum(sample_weight)

    weights = [np.array(w, np.float32) for w in ([1, 1], [0, 0], [1, 0])]
    data = [(np.array([[i], [i + 1]], np.float32), w) for i, w in enumerate(weights)]
    notes = Notes()
    stopping = flow.callbacks.EarlyStopping("loss", patience=2)
    history = quiet(max_epochs=2, callbacks=[notes, stopping]).fit(train, data)
    assert notes.losses == [0.5, 0.0, 2.0] * 2
    assert history["loss"] == history["output_1"] == [1.0, 1.0] and "the loss is" not in caplog.text
    assert np.isnan(quiet(max_epochs=1).fit(train, data[1:2])["loss"][0])


def test_logs_weight_results_of_rows_and_show_others_as_they_are():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 1)), sample_weight: tp.Numpy.Placeholder((4,))) -> dict[str, tp.Numpy]:
        losses = flow.math.reduce_sum(x * flow.get_variable("w", (1,), initializer=flow.ones_initializer()), axis=[1])
        minimized = flow.math.reduce_mean(losses * sample_weight)
        jobs.sgd(0.0).minimize(minimized)
        return {"loss": losses, "minimized": minimized}

    x, weights = np.arange(4, dtype=np.float32), np.array([0.25, 0.5, 1, 2], np.float32)
    (row,) = quiet(max_epochs=1).fit(train, [(x[:, None], weights)]).rows
    assert row["loss"] == pytest.approx(x @ weights / weights.sum()) and row["minimized"] == pytest.approx(x @ weights / 4)


def test_a_metric_that_raises_is_named_where_rows_have_weights():
    def bad(losses):
        raise ArithmeticError("bad")

    with pytest.raises(CallbackError, match="^Function.update raised ArithmeticError"):
        quiet(max_epochs=1, metrics=flow.metrics.Function(bad, ["loss"])).fit(weighted_job(), jobs.data())


@pytest.mark.parametrize(("devices", "steps"), [(1, 5), (2, 1), (2, 5)])
def test_results_in_pieces_of_devices_and_of_micro_batches_have_rows(devices, steps):
    flow.config.cpu_device_num(devices)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    config.train.num_gradient_accumulation_steps(steps)

    def body(x):
        return {"loss": flow.math.reduce_sum(x * x, axis=[1]), "scores": x * 1.0, "mean": flow.math.reduce_mean(x)}

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((20, 3)), sample_weight: tp.Numpy.Placeholder((20,))) -> dict[str, tp.Numpy]:
        found = body(x)
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        jobs.sgd(0.0).minimize(found["loss"] * sample_weight * w)
        return found

    @flow.global_function("predict", config)
    def evaluate(x: tp.Numpy.Placeholder((20, 3)), labels: tp.Numpy.Placeholder((20,), flow.int32)) -> dict[str, tp.Numpy]:
        return body(x)

    x = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    each, labels = np.square(x).sum(1), x.argmax(1).astype(np.int32)
    metrics = {"error": flow.metrics.MeanSquaredError("loss", "loss"), "accuracy": flow.metrics.Accuracy("scores")}
    trainer = quiet(max_epochs=1, seed=1, metrics=metrics)
    (row,) = trainer.fit(train, [(x[:20],), (x[20:40],), (x[40:],)], evaluate, (x[:40], labels[:40])).rows
    assert row["loss"] == pytest.approx(each.mean()) and row["val_loss"] == pytest.approx(each[:40].mean())
    assert row["error"] == 0 and row["val_accuracy"] == 1
    found = quiet().predict(evaluate, (x, labels))
    np.testing.assert_array_equal(found["scores"], x)
    np.testing.assert_allclose(found["loss"], each, rtol=1e-6)
    assert found["mean"].shape == (3, devices)


def test_a_value_for_a_whole_padded_batch_warns():
    job = jobs.pair_job()
    with pytest.warns(JobWarning, match="'output_1' as one value.*a batch of 5 rows was padded") as warned:
        quiet().test(job, jobs.data(25))
    assert [(warning.filename, warning.lineno) for warning in warned] == [(job.source.file, job.source.line)]


def test_a_short_last_batch_that_is_left_out_does_not_leave_out_the_validation():
    made = []
    notes = flow.callbacks.LambdaCallback(on_validation_end=lambda step, logs: made.append(step))
    trainer = quiet(max_epochs=2, seed=1, val_check_interval=0.5, callbacks=notes)
    history = trainer.fit(jobs.train_job(), jobs.data(35), jobs.eval_job(), jobs.data(30, 1))  # 3 steps and 5 rows an epoch
    assert made == [1, 2, 4, 5]
    assert history.rows[-1]["val_loss"] == pytest.approx(trainer.validate(jobs.eval_job(), jobs.data(30, 1))["val_loss"])


@pytest.mark.parametrize(
    "weights, text",
    [
        (np.ones((10, 1), np.float32), r"got        float32 of shape \(10, 1\)"),
        (np.ones(3, np.float32), r"got        float32 of shape \(3,\)"),
        (np.array(["a"] * 10), r"got        <U1 of shape \(10,\)"),
    ],
)
def test_weights_that_are_no_number_for_each_row(weights, text):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((10, 4)), sample_weight: tp.Numpy.Placeholder((10,))) -> tp.Numpy:
        loss = flow.math.reduce_mean(jobs.network(x), axis=[1]) * sample_weight
        jobs.sgd().minimize(loss)
        return loss

    rule = "(?s)input 'sample_weight' of job 'train' must be a number for each row"
    with pytest.raises(FeedError, match=f"{rule}.*{text}.*your line.*shape .10,"):
        quiet(max_epochs=1).fit(train, [(jobs.data(10)[0], weights)])


def test_weights_of_rows_are_one_array():
    @flow.global_function("train")
    def train(x: tp.ListNumpy.Placeholder((4, 2)), sample_weight: tp.ListNumpy.Placeholder((4,))) -> tp.ListNumpy:
        loss = flow.math.reduce_sum(x * flow.get_variable("w", (1,), initializer=flow.ones_initializer()), axis=[1])
        jobs.sgd().minimize(loss * sample_weight)
        return loss

    text = "(?s)'sample_weight' of job 'train' must be one array, and is declared as tp.ListNumpy.*with tp.Numpy.Placeholder"
    with pytest.raises(ArgumentError, match=text):
        quiet(max_epochs=1).fit(train, [(np.ones((4, 2), np.float32), np.ones(4, np.float32))])


# --- prediction


def test_predict_joins_rows():
    x, y = jobs.data(33)
    evaluate = jobs.eval_job()
    found = quiet().predict(evaluate, (x, y))
    whole = jobs.eval_job(33)(x, y)
    assert found["logits"].shape == (33, 3) and found["loss"].shape == (33,)
    np.testing.assert_allclose(found["logits"], whole["logits"], rtol=1e-5, atol=1e-6)

    @flow.global_function()
    def scores(x: tp.Numpy.Placeholder((10, 4))) -> tp.Numpy:
        return jobs.network(x)

    np.testing.assert_array_equal(quiet().predict(scores, batches(x, y)), found["logits"])
    assert quiet(limit_predict_batches=2).predict(scores, x).shape == (20, 3)
    losses, means = quiet().predict(jobs.pair_job(), (x[:30], y[:30]))
    assert losses.shape == (30,) and means.shape == (3, 1)


@pytest.mark.filterwarnings("ignore::oneflow.errors.JobWarning")  # of values for a whole batch
def test_what_holds_no_row_of_a_batch_is_not_taken_for_rows():
    @flow.experimental.register_op("doubled_rows", attrs={"keepdims": True})
    def doubled(x, *, keepdims):
        return x + x

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 4)), labels: tp.Numpy.Placeholder((4,), flow.int32)) -> dict[str, tp.Numpy]:
        w = flow.get_variable("w", (4, 4), initializer=flow.ones_initializer())
        return {
            "flat": flow.math.relu(flow.reshape(x, (16,))), "back": flow.transpose(flow.transpose(x, [1, 0]), [1, 0]),
            "product": flow.matmul(flow.reshape(x, (4, 4)), w), "hot": flow.one_hot(labels, 4, dtype=flow.float32),
            "centered": x - flow.math.reduce_mean(x, axis=[0]), "gathered": flow.gather(w, labels),
            "noise": flow.random.normal((4, 2)), "own": doubled(x),
            "variable": w * 2.0, "share": flow.math.reduce_mean(flow.one_hot(labels, 4, dtype=flow.float32), axis=[0]) * w,
            "largest": flow.math.reduce_max(x, axis=[0]), "variance": flow.nn.moments(x, [0])[1],
            "turned": flow.transpose(x, [1, 0]), "squares": flow.matmul(x, x, transpose_a=True),
            "times": flow.matmul(w, x), "similar": flow.matmul(x, x, transpose_b=True),
        }  # fmt: skip

    x, labels = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32), np.arange(10, dtype=np.int32) % 4
    found = quiet().predict(job, (x, labels))
    shapes = {name: array.shape for name, array in found.items()}
    rows = dict.fromkeys(["back", "product", "hot", "centered", "gathered", "own"], (10, 4))
    whole = {"variable": (3, 4, 4), "share": (3, 4, 4), "largest": (3, 4), "variance": (3, 4)}
    rows["similar"] = (10, 4)
    whole |= dict.fromkeys(["turned", "squares", "times"], (3, 4, 4))
    assert shapes == {"flat": (40,), "noise": (10, 2), **rows, **whole}
    np.testing.assert_array_equal(found["largest"], [x[i : i + 4].max(0) for i in (0, 4, 8)])
    assert quiet().validate(job, (x, labels))["val_variable"] == 2


# --- mistakes


def test_errors_name_the_batch():
    x, y = jobs.data()
    with pytest.raises(FeedError, match="must be float32") as caught:
        quiet(max_epochs=1).fit(jobs.train_job(), [(x[:10], y[:10]), (x[:10].astype(complex), y[:10])])
    assert "in batch 1 of epoch 0 of the training data" in caught.value.__notes__
    with pytest.raises(FeedError, match=r"must have shape .10, 4., got .10, 3.") as caught:
        quiet().validate(jobs.eval_job(), [(x[:10], y[:10]), (x[:10, :3], y[:10])])
    assert "in batch 1 of the data" in caught.value.__notes__
    assert quiet(max_epochs=1).fit(jobs.train_job(), (x, y))  # the session works


def test_errors_of_the_data_pass_through():
    def broken():
        yield jobs.data(10)
        raise OSError("the disk is gone")

    closed = []
    told = flow.callbacks.LambdaCallback(on_exception=lambda error: closed.append(str(error)))
    with pytest.raises(OSError, match="the disk is gone"):
        quiet(max_epochs=1, callbacks=told).fit(jobs.train_job(), broken)
    assert closed == ["the disk is gone"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: flow.Trainer().fit(jobs.train_job(), jobs.data()), "nothing says when the training ends"),
        (lambda: flow.Trainer(max_epochs=1).fit(len, jobs.data()), "train_job must be a job function"),
        (lambda: flow.Trainer(max_epochs=1).fit([], jobs.data()), "an empty list"),
        (lambda: flow.Trainer(max_epochs=1).fit(jobs.eval_job(), jobs.data()), "must be a train job, and 'evaluate'"),
        (lambda: flow.Trainer(max_epochs=1).fit(jobs.train_job(), [], jobs.train_job(name="b"), []), "must be a predict"),
        (lambda: flow.Trainer(max_epochs=1).fit(jobs.train_job(), jobs.data(), val_data=[1]), "and no val_job"),
        (lambda: flow.Trainer(max_epochs=1).fit(jobs.train_job()), "takes x, labels, and no training data"),
        (lambda: flow.Trainer(max_epochs=1).fit(jobs.train_job(), []), "gave no batch"),
        (lambda: flow.Trainer(max_epochs=1).fit(jobs.train_job(), jobs.data(5)), "gave no batch.*1 were shorter"),
        (lambda: flow.Trainer(max_epochs=1, val_check_interval=0.5).fit(jobs.train_job(), lambda: iter([])), "have no length"),
        (lambda: flow.Trainer(max_epochs=1, limit_train_batches=0.5).fit(jobs.train_job(), lambda: iter([])), "have no length"),
        (lambda: flow.Trainer().test(jobs.eval_job(), []), "gave no batch"),
        (lambda: flow.Trainer().predict(jobs.eval_job(), []), "the data to predict gave no batch"),
        (lambda: flow.Trainer(max_epochs=1.5), "max_epochs must be an int"),
        (lambda: flow.Trainer(max_steps=-2), "max_steps must be an int"),
        (lambda: flow.Trainer(log_every_n_steps=0), "log_every_n_steps"),
        (lambda: flow.Trainer(val_check_interval=0), "val_check_interval"),
        (lambda: flow.Trainer(val_check_interval=1.5), "val_check_interval"),
        (lambda: flow.Trainer(limit_val_batches=2.5), "limit_val_batches"),
        (lambda: flow.Trainer(callbacks=[3]), "callbacks must be"),
        (lambda: flow.Trainer(logger="csv"), "logger must be"),
        (lambda: flow.Trainer(metrics=[len]), "metrics must be"),
        (lambda: flow.Trainer(metrics=[flow.metrics.Accuracy(), flow.metrics.Accuracy()]), "same name"),
        (lambda: flow.Trainer(profiler="advanced"), "profiler must be"),
        (lambda: flow.Trainer(seed=-1), "seed must be"),
        (lambda: flow.Trainer(max_epochs=1, metrics=flow.metrics.Accuracy("scores")).fit(
            jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data()), "no job has these"),
    ],
)  # fmt: skip
def test_mistakes(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


@pytest.mark.parametrize("method", ["fit", "test"])
def test_data_without_a_batch_are_told_where_they_were_given(method):
    job = jobs.train_job() if method == "fit" else jobs.eval_job()
    with pytest.raises(ArgumentError, match=r"gave no batch(?s:.*)test_fit\.py:\d+ +getattr\("):
        getattr(flow.Trainer(max_epochs=1, enable_progress_bar=False), method)(job, [])


def test_calls_at_the_wrong_place():
    trainer = quiet(max_epochs=1)
    trainer.callbacks.append(flow.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: trainer.test(jobs.eval_job(), [])))
    with pytest.raises(CallbackError, match="Trainer.test was called while the trainer is training"):
        trainer.fit(jobs.train_job(), jobs.data())

    other = quiet(max_epochs=1)
    trainer = quiet(
        max_epochs=1, callbacks=flow.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: other.fit(jobs.train_job(), []))
    )
    with pytest.raises(CallbackError, match="in a callback, on the delivery thread") as caught:
        trainer.fit(jobs.train_job(), jobs.data())
    assert isinstance(caught.value.__cause__, ModeError)


def test_the_simple_profiler_prints_a_table(capsys):
    quiet(max_epochs=1, profiler="simple").fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data())
    table = capsys.readouterr().out
    assert "next(batch)" in table and "submitting the step" in table and "validation" in table and "in all" in table


def test_no_validation_with_a_limit_of_0_batches():
    history = quiet(max_epochs=2, limit_val_batches=0).fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(30, 1))
    assert [sorted(row) for row in history.rows] == [["epoch", "loss", "step"]] * 2
    with pytest.raises(ArgumentError, match="limit_train_batches=0 leaves nothing"):
        quiet(max_epochs=2, limit_train_batches=0).fit(jobs.train_job(name="other"), jobs.data())


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (flow.metrics.Accuracy(name="loss"), "metric 'loss' has the name of a result of job 'evaluate'"),
        (flow.metrics.Perplexity("logits", "labels"), "metric 'labels' has the name of an input of job 'evaluate'"),
    ],
)
def test_a_metric_with_the_name_of_a_result_or_an_input_is_refused(metric, text):
    with pytest.raises(ArgumentError, match=text):
        quiet(max_epochs=1, metrics=metric).fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(30, 1))


@pytest.mark.parametrize("taken", ["epoch", "step"])
def test_names_of_columns_of_the_history_are_refused(taken):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((10, 4))) -> dict[str, tp.Numpy]:
        loss = flow.math.reduce_mean(jobs.network(x), axis=[1])
        jobs.sgd().minimize(loss)
        return {"loss": loss, taken: flow.math.reduce_sum(x)}

    rule = f"'{taken}' of job 'train' has the name of a column of the history"
    with pytest.raises(ArgumentError, match=f"(?s)result {rule}.*your line.*try .*'?train_{taken}"):
        quiet(max_epochs=1).fit(train, jobs.data(10)[0])
    with pytest.raises(ArgumentError, match=f"metric {rule}"):
        metrics = {taken: flow.metrics.MeanSquaredError("loss", "loss")}
        quiet(max_epochs=1, metrics=metrics).fit(jobs.train_job(), jobs.data(10))

    @flow.global_function()
    def evaluate(x: tp.Numpy.Placeholder((10, 4))) -> dict[str, tp.Numpy]:
        return {taken: flow.math.reduce_mean(x)}

    assert list(quiet().validate(evaluate, jobs.data(10)[0])) == [f"val_{taken}"]


def test_a_training_result_with_the_name_of_one_of_the_validation_is_refused():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((10, 4))) -> dict[str, tp.Numpy]:
        loss = flow.math.reduce_mean(jobs.network(x), axis=[1])
        jobs.sgd().minimize(loss)
        return {"loss": loss, "val_loss": flow.math.reduce_sum(x)}

    rule = "(?s)result 'val_loss' of job 'train' has the name of a number of job 'evaluate', which validates.*your line"
    with pytest.raises(ArgumentError, match=rule):
        quiet(max_epochs=1).fit(train, jobs.data(10)[0], jobs.eval_job(), jobs.data(10))
    assert "val_loss" in quiet(max_epochs=1).fit(train, jobs.data(10)[0]).rows[0]


def test_a_metric_that_a_test_does_not_compute_is_told(recwarn):
    trainer = quiet(
        max_epochs=1, metrics=[flow.metrics.Accuracy("scores", "labels"), flow.metrics.Accuracy("logits", "labels", name="hits")]
    )
    assert sorted(trainer.test(jobs.eval_job(), jobs.data(20))) == ["test_hits", "test_loss"]
    (told,) = recwarn
    assert told.category is flow.errors.JobWarning and told.filename == __file__
    rule = "metric 'accuracy' is not computed: job 'evaluate' has labels, logits, loss, x, and it takes 'scores' and 'labels'"
    assert str(told.message) == rule


def test_a_metric_that_a_training_does_not_compute_is_told():
    trainer = quiet(max_epochs=1, metrics=flow.metrics.Accuracy())
    with pytest.warns(
        flow.errors.JobWarning, match="metric 'accuracy' is not computed: job 'train' has labels, loss, x"
    ) as caught:
        trainer.fit(jobs.train_job(), jobs.data(20))
    assert caught[0].filename == __file__


def test_arguments_as_others_have_them_are_told_what_to_give():
    x, labels = jobs.data(20)
    with pytest.raises(ArgumentError, match=r"(?s)val_job must be a job function.*fit\(job, \(x, y\)\)"):
        quiet(max_epochs=1).fit(jobs.train_job(), x, labels)
    with pytest.raises(ArgumentError, match=r"(?s)metrics must be of flow.metrics, got 'accuracy'.*Accuracy\(\)"):
        quiet(max_epochs=1, metrics="accuracy")


def test_a_metric_of_the_training_is_not_missed_in_a_test(recwarn):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> dict[str, tp.Numpy]:
        scores = jobs.network(x)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        jobs.sgd().minimize(loss)
        return {"loss": loss, "scores": scores}

    trainer = quiet(max_epochs=1, metrics=flow.metrics.Accuracy("scores", "labels"))
    assert "accuracy" in trainer.fit(train, jobs.data(20)).rows[0]
    trainer.test(jobs.eval_job(), jobs.data(20))
    assert not recwarn.list


def test_an_argument_that_does_not_exist_is_told_as_the_trainers() -> None:
    with pytest.raises(TypeError, match=r"Trainer\.__init__\(\) got an unexpected keyword argument 'epochs'"):
        flow.Trainer(epochs=3)  # type: ignore[call-arg]


def test_the_history_has_a_validation_once():
    told = []
    hook = flow.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: told.append(logs["val_loss"]))
    trainer = quiet(max_epochs=1, callbacks=hook, val_check_interval=4)
    history = trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(20, seed=1))  # 6 steps
    assert [row["step"] for row in history.rows] == [3, 5] and len(history["val_loss"]) == 1
    assert told == history["val_loss"]  # hooks see the latest one


def test_steps_before_an_error_of_the_data_are_told_first():
    def data():
        for i in range(30):
            if i == 20:
                raise ValueError("no more")
            yield jobs.data(10, seed=i)

    seen = []
    notes = flow.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: seen.append(step), on_exception=lambda error: seen.append("error")
    )
    with pytest.raises(ValueError, match="no more"):
        quiet(max_epochs=1, callbacks=notes).fit(jobs.train_job(), data)
    assert seen == [*range(20), "error"]
