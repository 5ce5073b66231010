"""The history of a training."""

from __future__ import annotations

import pytest
import trainer_jobs as jobs
from trainer_jobs import quiet

import oneflow as flow
from oneflow.errors import ArgumentError, MissingExtraError


@pytest.fixture
def history():
    trainer = quiet(max_epochs=3, log_every_n_steps=4, seed=1)
    return trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(20, 1))


def test_rows(history):
    assert len(history) == 3 and [row["epoch"] for row in history] == [0, 1, 2]
    assert history["loss"] == [row["loss"] for row in history.rows] and history["val_loss"][0] > history["val_loss"][-1]
    assert [(row["epoch"], row["step"]) for row in history.steps] == [(0, 3), (1, 7), (1, 11), (2, 15)]
    assert (
        repr(history).startswith("<History of 3 rows: epoch=2, step=17, loss=")
        and repr(flow.trainer.History()) == "<History of 0 rows>"
    )
    with pytest.raises(ArgumentError, match="(?s)no row of the history has 'val_los'.*did you mean 'val_loss'"):
        history["val_los"]


def test_pandas(history):
    pytest.importorskip("pandas")
    frame = history.to_pandas()
    assert (
        list(frame.columns) == ["epoch", "step", "loss", "val_loss", "val_logits"]
        and frame["val_loss"].tolist() == history["val_loss"]
    )
    assert len(history.to_pandas("steps")) == 4
    with pytest.raises(ArgumentError, match="which must be"):
        history.to_pandas("epochs")


def test_plot(history):
    pytest.importorskip("matplotlib").use("Agg")
    axes = history.plot("loss", "val_loss")
    assert [line.get_label() for line in axes.lines] == ["loss", "val_loss"]
    assert list(axes.lines[0].get_xdata()) == [5, 11, 17] and list(axes.lines[0].get_ydata()) == history["loss"]
    assert history.plot("loss", which="steps", ax=axes) is axes and len(axes.lines) == 3
    with pytest.raises(ArgumentError, match="nothing was logged as 'accuracy'"):
        history.plot("accuracy")


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("plot", "matplotlib")])
def test_without_the_packages(history, monkeypatch, method, package):
    import sys

    for name in [n for n in sys.modules if n.split(".")[0] == package] or [package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"History.{method} needs {package}.*\n.*pip install {package}"):
        getattr(history, method)()
