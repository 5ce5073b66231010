"""Run by ``pytest`` in the project's directory. The data is random: the tests need no download and take seconds."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import oneflow as flow
from train import Config, declare, fit, read_config


@pytest.fixture(autouse=True)
def _empty_session():
    flow.clear_default_session()


@pytest.fixture
def config(tmp_path):
    return Config(batch_size=20, hidden=16, learning_rate=0.01, epochs=8, directory=str(tmp_path / "runs"))


def digits(rows, seed):
    """Images whose brightest row of pixels tells the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, rows).astype(np.int32)
    images = rng.uniform(0, 0.1, (rows, 1, 28, 28)).astype(np.float32)
    images[np.arange(rows), 0, labels * 2] = 1
    return images, labels


def test_the_config_file_sets_what_the_program_knows():
    assert isinstance(read_config(str(Path(__file__).parent.parent / "config.toml")), Config)


def test_training_learns_and_can_be_continued(config):
    history = fit(config, digits(200, seed=0), digits(100, seed=1))
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_accuracy"][-1] > 0.9
    flow.clear_default_session()
    again = fit(Config(**{**vars(config), "epochs": 9}), digits(200, seed=0), digits(100, seed=1), resume=True)
    assert len(again["loss"]) == 9


def test_evaluation_sees_what_was_saved(config):
    images, labels = digits(config.batch_size, seed=2)
    train, evaluate = declare(config)
    train(images, labels)
    before = evaluate(images, labels)["logits"]
    path = f"{config.directory}/by_hand"
    flow.checkpoint.save(path)

    flow.clear_default_session()
    _, evaluate = declare(config)
    flow.load_variables(flow.checkpoint.get(path))
    np.testing.assert_array_equal(evaluate(images, labels)["logits"], before)
