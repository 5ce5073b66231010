"""flow.Model: training, validation, saving and loading by ``fit``."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

import oneflow as flow
from oneflow.errors import ArgumentError, CheckpointExistsError, CheckpointNotFoundError, FeedShapeError
from oneflow.trainer import trainer as trainer_module

X = np.array([[-1.0], [0.0], [1.0], [2.0]], np.float32)


class Line(flow.Model):
    """y = a x + b, learned from 3 x - 1."""

    def forward(self, x):
        return flow.layers.dense(x, 1, name="line")

    def training_step(self, batch, optimizer_idx=0):
        x, y = batch
        loss = flow.math.reduce_mean(flow.math.square(self(x) - y))
        return loss, x

    def validation_step(self, batch):
        return self(batch[0])

    def configure_optimizers(self):
        return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0)


class Points(flow.model.NumpyDataModule):
    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, step_idx=0, optimizer_idx=0):
        self.asked.append((step_idx, optimizer_idx))
        return X, 3 * X - 1


class Notes(flow.model.Callback):
    def __init__(self):
        self.losses, self.validated = [], []

    def on_training_step_end(self, outputs, step_idx=0, optimizer_idx=0):
        self.losses.append((step_idx, optimizer_idx, float(outputs[0].numpy()[0])))

    def on_validation_step_end(self, outputs, step_idx=0):
        self.validated.append((step_idx, outputs.numpy()))


def configured(kind, data):
    config = kind()
    config.config_execution(flow.ExecutionConfig())
    config.config_data(data)
    return config


def test_fit(tmp_path):
    training, validation = configured(flow.model.TrainingConfig, Points()), configured(flow.model.ValidationConfig, Points())
    validation.config_step_interval(20)
    files = flow.model.CheckpointConfig()
    files.config_save(str(tmp_path / "line"), step_interval=30)
    notes = Notes()
    Line(is_deprecated_function_style=True).fit(training, validation, files, notes, max_steps=60)
    assert [step for step, _, _ in notes.losses] == list(range(60)) and notes.losses[-1][2] < 1e-3 < notes.losses[0][2]
    assert training.data.asked == [(step, 0) for step in range(60)]
    assert [step for step, _ in notes.validated] == [19, 39, 59]
    np.testing.assert_allclose(notes.validated[-1][1], 3 * X - 1, atol=0.1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["line-29", "line-59"]
    names = {job.job_conf.job_name for job in flow.experimental.get_job_set().job}
    assert names == {"Line_Model_train_numpy_job_0", "Line_Model_eval_numpy_job"}

    again = flow.model.CheckpointConfig()
    again.config_load(str(tmp_path / "line-59"))
    more = Notes()
    Line().fit(training, checkpoint_config=again, callbacks=[more], max_steps=1)
    assert more.losses[0][2] < 1e-3


def saving(path, interval=1, load=None):
    files = flow.model.CheckpointConfig()
    files.config_save(str(path), step_interval=interval)
    if load is not None:
        files.config_load(str(load))
    return files


class Batches(Points):
    """Another batch for each step."""

    def forward(self, step_idx=0, optimizer_idx=0):
        super().forward(step_idx, optimizer_idx)
        x = np.random.default_rng(step_idx).standard_normal((4, 1)).astype(np.float32)
        return x, 3 * x - 1


def test_steps_are_numbered_on_from_the_checkpoint(tmp_path):
    whole, first, second = Notes(), Notes(), Notes()
    data = [configured(flow.model.TrainingConfig, Batches()) for _ in range(3)]
    flow.manual_seed(1)
    Line().fit(data[0], callbacks=whole, max_steps=10)
    flow.manual_seed(1)
    Line().fit(data[1], checkpoint_config=saving(tmp_path / "a", 2), callbacks=first, max_steps=6)
    Line().fit(data[2], checkpoint_config=saving(tmp_path / "a", 2, tmp_path / "a-5"), callbacks=second, max_steps=4)
    assert first.losses + second.losses == whole.losses
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-1", "a-3", "a-5", "a-7", "a-9"]
    assert data[2].data.asked == [(0, 0), *((step, 0) for step in range(6, 10))]  # the first tells shapes

    notes = Notes()
    with pytest.raises(CheckpointExistsError, match="a-3"):  # another training, and files that are there
        Line().fit(data[1], checkpoint_config=saving(tmp_path / "a", 4), callbacks=notes, max_steps=6)
    assert not notes.losses


def test_checkpoints_that_fit_did_not_make(tmp_path):
    training, notes = configured(flow.model.TrainingConfig, Points()), Notes()
    Line().fit(training, max_steps=3)
    flow.checkpoint.save(str(tmp_path / "by hand"))
    files = flow.model.CheckpointConfig()
    files.config_load(str(tmp_path / "by hand"))
    Line().fit(training, checkpoint_config=files, callbacks=notes, max_steps=2)
    assert [step for step, _, _ in notes.losses] == [3, 4]


def test_a_wrong_path_is_an_error_and_spares_the_session(tmp_path):
    Line().fit(configured(flow.model.TrainingConfig, Points()), max_steps=1)
    before = flow.get_all_variables().keys()
    files = saving(tmp_path / "a", load=tmp_path / "missing")
    with pytest.raises(CheckpointNotFoundError, match="missing"):
        Line().fit(configured(flow.model.TrainingConfig, Points()), checkpoint_config=files)
    assert before and flow.get_all_variables().keys() == before
    (tmp_path / "empty").mkdir()
    files.config_load(str(tmp_path / "empty"))
    with pytest.raises(CheckpointNotFoundError, match="empty"):
        Line().fit(configured(flow.model.TrainingConfig, Points()), checkpoint_config=files)


class Finite(Batches):
    def __len__(self):
        return 3


def test_validation_goes_over_all_of_its_data():
    training, validation = configured(flow.model.TrainingConfig, Points()), configured(flow.model.ValidationConfig, Finite())
    validation.config_step_interval(5)
    notes = Notes()
    Line().fit(training, validation, callbacks=notes, max_steps=10)
    assert [step for step, _ in notes.validated] == [4, 4, 4, 9, 9, 9]
    assert validation.data.asked == [(i, 0) for i in (0, 1, 2, 0, 1, 2)]
    assert not np.array_equal(notes.validated[0][1], notes.validated[1][1])


def test_a_validation_module_without_batches_is_refused():
    validation = configured(flow.model.ValidationConfig, type("Empty", (Finite,), {"__len__": lambda self: 0})())
    with pytest.raises(ArgumentError, match="the length of Empty is 0"):
        Line().fit(validation_config=validation)


def test_validation_alone(tmp_path):
    Line().fit(configured(flow.model.TrainingConfig, Points()), checkpoint_config=saving(tmp_path / "a", 40), max_steps=40)
    validation, files, notes = configured(flow.model.ValidationConfig, Finite()), flow.model.CheckpointConfig(), Notes()
    validation.config_step_interval(2)
    files.config_load(str(tmp_path / "a-39"))
    Line().fit(None, validation, files, notes, max_steps=5)
    assert [step for step, _ in notes.validated] == [1, 1, 1, 3, 3, 3] and not notes.losses
    x = Batches().forward(0)[0]
    np.testing.assert_allclose(notes.validated[0][1], 3 * x - 1, atol=0.1)


def test_data_are_made_while_the_device_computes():
    """A step's callback may wait for a later batch: nobody waits for results before asking for data."""
    asked = threading.Event()

    class Slow(Points):
        def forward(self, step_idx=0, optimizer_idx=0):
            if step_idx == 3:
                asked.set()
            return super().forward(step_idx, optimizer_idx)

    class Waits(flow.model.Callback):
        def on_training_step_end(self, outputs, step_idx=0, optimizer_idx=0):
            assert step_idx or asked.wait(30)

    Line().fit(configured(flow.model.TrainingConfig, Slow()), callbacks=Waits(), max_steps=5)


def test_errors_of_callbacks_and_of_data():
    class Fails(flow.model.Callback):
        def on_training_step_end(self, outputs, step_idx=0, optimizer_idx=0):
            if step_idx == 2:
                raise KeyError("lost")

    training = configured(flow.model.TrainingConfig, Points())
    with pytest.raises(KeyError, match="lost") as caught:
        Line().fit(training, callbacks=Fails(), max_steps=5)
    assert "Fails.on_training_step_end after step 2" in caught.value.__notes__[0]

    class Shrinks(Points):
        def forward(self, step_idx=0, optimizer_idx=0):
            x, y = super().forward(step_idx, optimizer_idx)
            return (x, y) if step_idx < 2 else (x[:2], y[:2])

    with pytest.raises(FeedShapeError, match=r"Shrinks.forward\(2\): array 0 is \(2, 1\), and the job takes \(4, 1\)"):
        Line().fit(configured(flow.model.TrainingConfig, Shrinks()), max_steps=5)

    class RunsOut(Points):
        def __init__(self):  # does not call the other one
            self.pairs = iter([(X, 3 * X - 1)] * 2)

        def forward(self, step_idx=0, optimizer_idx=0):
            return next(self.pairs)

    with pytest.raises(ArgumentError, match=r"(?s)RunsOut.forward\(2\) has no batch: StopIteration.*try .*max_steps"):
        Line().fit(configured(flow.model.TrainingConfig, RunsOut()), max_steps=5)

    class Bare(Line):
        def __init__(self):
            pass

        def forward(self, x):
            return x

    assert Bare()(3) == 3 and "called 0 times" in repr(Bare())
    with pytest.raises(ArgumentError, match="must return optimizers"):
        type("Bad", (Line,), {"configure_optimizers": lambda self: 3})().fit(training)


@pytest.mark.parametrize("made", [{}, None, (), 3])
def test_a_training_step_without_a_loss_is_told(made):
    class Bad(Line):
        def training_step(self, batch, optimizer_idx=0):
            super().training_step(batch)
            return made

    with pytest.raises(ArgumentError, match=r"(?s)^Bad.training_step must return the loss, .*your line .*def training_step"):
        Bad().fit(configured(flow.model.TrainingConfig, Points()))


@pytest.mark.parametrize(
    ("interval", "told"),
    [(1, "config_load('{0}-{1}')"), (1000, "config_save saves every 1000 steps"), (None, "config_save(dirpath)")],
)
def test_after_ctrl_c_it_says_how_to_go_on(tmp_path, monkeypatch, interval, told):
    notes = Notes()

    class Interrupted(trainer_module.Interrupt):
        came = property(lambda self: len(notes.losses) > 2, lambda self, value: None)

    monkeypatch.setattr(trainer_module, "Interrupt", Interrupted)
    files = None if interval is None else saving(tmp_path / "model", interval)
    training = configured(flow.model.TrainingConfig, Batches())
    with pytest.raises(KeyboardInterrupt) as caught:
        Line().fit(training, None, files, notes, max_steps=100_000)
    last = notes.losses[-1][0]
    assert told.format(tmp_path / "model", last) in str(caught.value)
    assert f"after step {last}" in str(caught.value) and "ModelCheckpoint" not in str(caught.value)


class Inside(flow.model.DataModule):
    def forward(self, step_idx=0, optimizer_idx=0):
        x = flow.constant(2.0, flow.float32, (4, 1))
        return x, x * 3.0


class TwoOptimizers(Line):
    def configure_optimizers(self):
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        return [flow.optimizer.SGD(rate, momentum=0), flow.optimizer.Adam(rate)]


def test_data_made_in_the_job_and_several_optimizers():
    notes = Notes()
    TwoOptimizers().fit(configured(flow.model.TrainingConfig, Inside()), callbacks=notes, max_steps=3)
    assert [(step, i) for step, i, _ in notes.losses] == [(s, i) for s in range(3) for i in range(2)]
    assert "TwoOptimizers_Model_train_job_1" in {job.job_conf.job_name for job in flow.experimental.get_job_set().job}


class OneBuffer(Points):
    """Fills the same array for every batch."""

    buffer = np.zeros(2, np.float32)

    def forward(self, step_idx=0, optimizer_idx=0):
        self.buffer[:] = 10 * step_idx + optimizer_idx
        return (self.buffer,)


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_module_may_fill_the_same_array_for_every_batch(optimizers):
    class Returns(flow.Model):
        def training_step(self, batch, optimizer_idx=0):
            return batch[0] * flow.get_variable("w", (1,), initializer=flow.ones_initializer()), batch[0]

        def validation_step(self, batch):
            return batch[0] * 1.0

        def configure_optimizers(self):
            return [flow.optimizer.SGD(0.0) for _ in range(optimizers)]

    notes, validation = Notes(), configured(flow.model.ValidationConfig, OneBuffer())
    validation.config_step_interval(1)
    Returns().fit(configured(flow.model.TrainingConfig, OneBuffer()), validation, callbacks=notes, max_steps=3)
    assert notes.losses == [(step, i, 10 * step + i) for step in range(3) for i in range(optimizers)]


def test_what_is_missing_is_left_out(caplog):
    with caplog.at_level(logging.WARNING, "oneflow"):
        flow.Model().fit(configured(flow.model.TrainingConfig, Points()))
        Line().fit(flow.model.TrainingConfig())
        Line().fit()
    text = caplog.text
    assert "training_step, configure_optimizers is not overridden" in text and "it has no data" in text
    assert text.count("there is nothing to do") == 3
    assert Line().method_overrided("training_step") and not flow.Model().method_overrided("training_step")
    assert not flow.model.CheckpointConfig().check_valid()
    nowhere = flow.model.CheckpointConfig()
    nowhere.config_load("/no/such/directory")
    assert not nowhere.check_valid()


def test_a_fit_that_has_nothing_to_do_leaves_the_session():
    @flow.global_function()
    def job(x: flow.typing.Numpy.Placeholder((2,))):
        return x * flow.get_variable("w", (1,), initializer=flow.ones_initializer())

    flow.Model().fit(configured(flow.model.TrainingConfig, Points()))
    Line().fit(validation_config=flow.model.ValidationConfig())
    assert list(flow.get_all_variables()) == ["w"]
    np.testing.assert_array_equal(job(np.ones(2, np.float32)).get().numpy(), np.ones(2))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: flow.model.TrainingConfig().config_data(3), "must be a flow.model.DataModule"),
        (lambda: flow.model.TrainingConfig().config_execution(), "must be a flow.ExecutionConfig"),
        (lambda: flow.model.ValidationConfig().config_step_interval(0), "step_interval must be an int > 0"),
        (lambda: flow.model.CheckpointConfig().config_save(None), "dirpath must be a path"),
        (lambda: Line().fit(3), "needs a flow.model.TrainingConfig"),
        (lambda: Line().fit(callbacks=3), "must be flow.model.Callback objects"),
        (lambda: Line().fit(max_steps=-1), "max_steps must be an int >= 0"),
        (lambda: Points().infer_oneflow_data_placeholder([X]), "must return a tuple of ndarrays"),
    ],
)
def test_mistakes(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()
    made, told = flow.Model(), flow.model.Callback()
    for method in (made.forward, made.training_step, made.validation_step, made.configure_optimizers):
        with pytest.raises(NotImplementedError):
            method()
    assert told.on_training_step_end(None) is None and told.on_validation_step_end(None) is None
    with pytest.raises(NotImplementedError):
        flow.model.DataModule().forward()
    assert flow.model.DataModule().infer_oneflow_data_placeholder() == []
