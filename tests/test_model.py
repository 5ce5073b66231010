"""flow.Model: training, validation, saving and loading by ``fit``."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import oneflow as flow
from oneflow.errors import ArgumentError

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
