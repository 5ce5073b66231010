"""``CheckpointManager``: the last checkpoints, the best one, and what was noted with each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint import CheckpointManager
from oneflow.errors import ArgumentError, CheckpointError, CheckpointExistsError, CheckpointNotFoundError


@pytest.fixture
def train():
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        w = flow.get_variable("w", (2, 1), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.matmul(x, w))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    return lambda: train(np.ones((4, 2), np.float32))


def w() -> float:
    return float(flow.get_all_variables()["w"].numpy()[0, 0])


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_the_last_and_the_best_are_kept(tmp_path: Path, train, asynchronous: bool) -> None:
    manager = CheckpointManager(tmp_path / "run", max_to_keep=2, monitor="loss", asynchronous=asynchronous)
    for step, loss in enumerate([3.0, np.ones((1, 1)), np.float32(2.0), 4, float("nan"), 5.0]):
        train()
        manager.save(step, {"loss": loss, "other": 1}, {"epoch": step})
    manager.wait()
    assert manager.all() == [f"snapshot_{n:010}" for n in (1, 4, 5)]
    assert manager.best() == "snapshot_0000000001" and manager.latest() == "snapshot_0000000005"
    assert manager.metadata() == {"epoch": 5} and manager.metadata(manager.best()) == {"epoch": 1}
    assert manager.metrics("snapshot_0000000004") == {"loss": None, "other": 1} and manager.step() == 5
    again = CheckpointManager(tmp_path / "run", max_to_keep=1, monitor="loss", mode="max")
    assert again.best() == "snapshot_0000000005"
    assert "3 checkpoints" in repr(again)
    again.save(6, {"loss": 0.0})
    assert again.all() == ["snapshot_0000000005", "snapshot_0000000006"]
    assert sorted(os.listdir(tmp_path / "run")) == again.all()  # nothing hidden is left


def test_of_equals_the_newest_is_best_and_without_numbers_none_is(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path, monitor="accuracy", mode="max")
    manager.save(1, {"loss": 1.0})
    assert manager.best() is None
    manager.save(2, {"accuracy": 0.5})
    manager.save(3, {"accuracy": 0.5})
    assert manager.best() == manager.latest()
    with pytest.raises(ArgumentError, match="monitors no metric"):
        CheckpointManager(tmp_path).best()


def test_restore_or_init(tmp_path: Path, train, asynchronous: bool) -> None:
    manager = CheckpointManager(tmp_path, asynchronous=asynchronous)
    assert manager.restore_or_init() is None and manager.all() == [] and w() == 1.0
    found = {}
    for step in range(3):
        train()
        found[step] = w()
        manager.save(step)
    train()
    assert manager.restore_or_init() == "snapshot_0000000002" and w() == found[2]
    assert manager.restore("snapshot_0000000000") == "snapshot_0000000000" and w() == found[0]
    assert manager.restore() == manager.latest() and w() == found[2]


def test_overwrite(tmp_path: Path, train, asynchronous: bool) -> None:
    manager = CheckpointManager(tmp_path, asynchronous=asynchronous)
    manager.save(7, metadata={"try": 1})
    train()
    with pytest.raises(CheckpointExistsError):
        manager.save(7)
    name, expected = manager.save(7, metadata={"try": 2}, overwrite=True), w()
    train()
    manager.wait()
    assert manager.all() == [name] and manager.metadata() == {"try": 2}
    manager.restore()
    assert w() == expected


def test_what_was_saved_stays_whatever_else_is_there(tmp_path: Path, train, asynchronous: bool) -> None:
    manager = CheckpointManager(tmp_path, max_to_keep=1, asynchronous=asynchronous)
    train()
    for step in (10, 20, 5):
        name = manager.save(step=step)
        manager.wait()
        assert name in manager.all()


def test_names_are_in_the_order_of_their_numbers(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path, prefix="s")
    for name in ("s9", "s10", "s9-b"):
        flow.checkpoint.save(tmp_path / name)
    assert manager.all() == ["s9", "s9-b", "s10"] and manager.latest() == "s10"
    assert manager.metadata() == {} and manager.metrics() == {} and manager.step() is None
    first, second = manager.save(), manager.save()
    assert manager.all()[-2:] == [first, second]


def test_a_damaged_best_is_not_taken_and_the_newest_is_told(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path, monitor="loss")
    for step in range(3):
        manager.save(step, {"loss": step})
    (tmp_path / manager.all()[0] / "oneflow-jax.json").write_text("{")
    assert manager.best() == manager.all()[1]
    data = tmp_path / manager.all()[2] / "w" / "out"
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    with pytest.raises(CheckpointError, match="variable 'w'.*not those that were saved"):
        manager.restore_or_init()


def test_deleting_is_one_step(tmp_path: Path, train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it deletes, a manager leaves a checkpoint or none, and the rest goes with the next save."""
    from oneflow.checkpoint import hidden

    manager = CheckpointManager(tmp_path, max_to_keep=1)
    manager.save(1)
    with monkeypatch.context() as patch:
        patch.setattr(hidden, "_remove", lambda path: None)  # a kill after the rename
        manager.save(2)
    assert manager.all() == ["snapshot_0000000002"] and len(os.listdir(tmp_path)) > 1
    manager.save(3)
    assert os.listdir(tmp_path) == ["snapshot_0000000003"]


def test_a_failed_save_deletes_nothing(tmp_path: Path, train, asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from oneflow.checkpoint import atomic

    manager = CheckpointManager(tmp_path, max_to_keep=1, asynchronous=asynchronous)
    manager.save(1)
    manager.wait()
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_flush", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(CheckpointError, match="No space left"):
            manager.save(2)
            manager.wait()
    assert manager.all() == ["snapshot_0000000001"] == os.listdir(tmp_path)


def test_wrong_arguments(tmp_path: Path, train) -> None:
    for wrong in ({"max_to_keep": 0}, {"max_to_keep": True}, {"monitor": 3}, {"mode": "best"}, {"prefix": "a/b"}):
        with pytest.raises(ArgumentError):
            CheckpointManager(tmp_path, **wrong)
    manager = CheckpointManager(tmp_path)
    for wrong in (
        {"step": -1},
        {"step": 1.5},
        {"metrics": {"loss": "low"}},
        {"metrics": {"loss": np.zeros(2)}},
        {"metadata": {"a": object()}},
        {"metadata": 3},
    ):
        with pytest.raises(ArgumentError):
            manager.save(**wrong)
    with pytest.raises(CheckpointNotFoundError):
        manager.restore()
    with pytest.raises(CheckpointNotFoundError):
        manager.restore("nothing")
    with pytest.raises(ArgumentError):
        manager.restore("../x")
    assert os.listdir(tmp_path) == []
