"""The trainer says once that a training waits for its data."""

from __future__ import annotations

import time

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.trainer import input_watch

X = np.ones((4, 4), np.float32)


def train_job():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 4))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.layers.dense(x, 2, name="dense"))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    return train


class Slow:
    """Batches that take a hundred times longer than steps."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 30

    def __iter__(self):
        for _ in range(30):
            time.sleep(self.seconds)
            yield (X,)


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(input_watch, "_SECONDS", 0.3)
    found = []
    monkeypatch.setattr(input_watch, "notice", found.append)
    return found


def test_it_is_said_once(told, tmp_path):
    job = train_job()
    flow.Trainer(max_epochs=3, default_root_dir=tmp_path, logger=False, enable_progress_bar=False).fit(job, Slow(0.03))
    (text,) = told
    assert "input-bound: the device waited" in text and "'train'" in text
    assert not job.is_measured


def test_a_training_that_waits_for_nothing_says_nothing(told, tmp_path, monkeypatch):
    monkeypatch.setattr(input_watch, "_SECONDS", 1e9)
    job = train_job()
    flow.Trainer(max_epochs=1, default_root_dir=tmp_path, logger=False, enable_progress_bar=False).fit(job, Slow(0))
    assert told == [] and not job.is_measured


def test_who_measures_by_himself_goes_on(told, tmp_path):
    job = train_job()
    with job.throughput() as measured:
        flow.Trainer(max_epochs=1, default_root_dir=tmp_path, logger=False, enable_progress_bar=False).fit(job, Slow(0.001))
    assert measured().steps == 30 and told == []
