"""``CheckpointManager``: the last checkpoints, the best one, and what was noted with each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint import CheckpointManager
from oneflow.checkpoint.description import Description, text_of
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


# --- which is the newest


def noted(manager: CheckpointManager, name: str, **changes: object) -> None:
    """Rewrites what the manager noted with a checkpoint, as if it had been saved so."""
    path = Path(manager.path(name))
    description = Description.read(str(path))
    extra = {**description.extra, "manager": {**description.extra["manager"], **changes}}  # type: ignore[dict-item]
    assert description.digests is not None
    (path / "oneflow-jax.json").write_bytes(text_of(extra, description.digests))


def test_the_newest_is_the_one_that_was_noted_last_whatever_the_names_are(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path)
    by_time = manager.save()
    by_step = manager.save(7)
    assert by_time > by_step  # the largest number is in the name that is a time
    assert manager.all() == [by_time, by_step] and manager.latest() == by_step
    os.rename(tmp_path / by_time, tmp_path / "snapshot_99999999_of_monday")
    assert CheckpointManager(tmp_path).all() == ["snapshot_99999999_of_monday", by_step]


def test_steps_are_those_that_were_noted(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path)
    for step in (3, 1, 2):
        manager.save(step)
    os.rename(manager.path("snapshot_0000000001"), tmp_path / "snapshot_77")
    assert manager.all() == ["snapshot_77", "snapshot_0000000002", "snapshot_0000000003"]
    assert manager.latest() == "snapshot_0000000003" and manager.step("snapshot_77") == 1


def test_without_notes_the_time_in_the_name_counts(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path)
    old = "snapshot_20200102_030405_678901"  # of OneFlow's manager
    flow.checkpoint.save(tmp_path / old)
    assert manager.latest() == old
    new = manager.save(5)
    noted(manager, new, time=0.0)
    assert manager.all() == [new, old]
    noted(manager, new, time=4e9)
    assert manager.all() == [old, new]


def test_names_do_not_go_back_when_daylight_saving_ends(tmp_path: Path, train, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        manager, names = CheckpointManager(tmp_path), []
        for second in (1_698_539_400, 1_698_541_200, 1_698_543_000):  # 2:30 in summer time, 2:00 and 2:30 in winter time
            monkeypatch.setattr(time, "time", lambda second=second: float(second))
            names.append(manager.save())
        assert names == sorted(names) == manager.all() and names[0] == "snapshot_20231029_003000_000000"
    finally:
        monkeypatch.undo()
        time.tzset()


# --- what is refused


class Evil:
    """Raises whatever it is asked."""

    def _raise(self, *args: object) -> object:
        raise RuntimeError("evil")

    __float__ = __index__ = __len__ = __iter__ = __bool__ = __hash__ = item = _raise  # type: ignore[assignment]


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": [("loss", 1.0)]}, {"metrics": 0.5}, {"metrics": {"loss": 10**400}}, {"metrics": {"loss": "1.5"}},
        {"metrics": {1: 0.5}}, {"metrics": {None: 0.5}}, {"metrics": {"loss": Evil()}}, {"metrics": {"loss": None}},
        {"overwrite": "no"}, {"overwrite": np.zeros(2)}, {"step": 10**5000}, {"step": 2**63}, {"metadata": Evil()},
        {"metadata": {"a": 10**5000}},
    ],
)  # fmt: skip
def test_arguments_of_save_are_checked_before_anything_is_written(tmp_path: Path, train, wrong) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1)
    with pytest.raises(ArgumentError, match="your line .*test_manager"):
        manager.save(**{"step": 1, **wrong})
    assert os.listdir(tmp_path) == ["snapshot_0000000001"]


@pytest.mark.parametrize(
    "wrong",
    [{"asynchronous": np.zeros(2)}, {"asynchronous": 1}, {"prefix": "a\0"}, {"prefix": "\ud800"}, {"directory": "a\ud800"},
     {"directory": "a\0"}, {"max_to_keep": Evil()}],
)  # fmt: skip
def test_arguments_of_the_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError):
        CheckpointManager(**{"directory": "run", **wrong})
    assert os.listdir(tmp_path) == []


def test_a_manager_stays_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    manager = CheckpointManager("run")
    manager.save(1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    manager.save(2)
    assert manager.all() == ["snapshot_0000000001", "snapshot_0000000002"]
    assert manager.restore() == "snapshot_0000000002" and manager.directory == str(tmp_path / "run")
    assert repr(manager) == "<CheckpointManager of 'run': 2 checkpoints>" and not os.listdir()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/", "\ud800", "a\0", 3, np.zeros(2), b"a", ".oneflow-saving-x.d"])
def test_names_that_no_checkpoint_has(tmp_path: Path, train, name) -> None:
    manager = CheckpointManager(tmp_path / "run")
    manager.save(1)
    for method in (manager.restore, manager.metadata, manager.metrics, manager.step, manager.path):
        with pytest.raises(ArgumentError, match="must be one that all"):
            method(name)


def test_a_checkpoint_that_is_not_there(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1)
    (tmp_path / "snapshot_other").mkdir()
    for method in (manager.restore, manager.metadata, manager.metrics, manager.step):
        for name in ("nope", "snapshot_other"):
            with pytest.raises(CheckpointNotFoundError, match=f"there is no checkpoint '{name}'"):
                method(name)
    for wrong in ("no", np.zeros(2), 1):
        with pytest.raises(ArgumentError, match="strict"):
            manager.restore(strict=wrong)


def test_a_directory_that_is_gone(tmp_path: Path, train) -> None:
    manager = CheckpointManager(tmp_path / "run", max_to_keep=1, monitor="loss")
    manager.save(1)
    (tmp_path / "run").rename(tmp_path / "moved")
    for method in (manager.all, manager.latest, manager.best, manager.step, manager.restore, manager.restore_or_init):
        with pytest.raises(CheckpointNotFoundError, match="directory of a CheckpointManager.*No such file"):
            method()
    assert "cannot be read" in repr(manager)
    manager.save(2)
    assert manager.all() == ["snapshot_0000000002"]
