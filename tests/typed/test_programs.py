"""The example programs run."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import oneflow as flow

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "programs"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        flow.clear_default_session()
        runpy.run_path(str(PROGRAMS / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_image_classifier(run) -> None:
    printed = run("image_classifier.py", "--epochs=1", "--batches=10")
    assert re.search(r"accuracy: [\d.]+%\nthe first digits: \[\d", printed)


def test_character_gpt(run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 200)
    printed = run("character_gpt.py", "--text=text.txt", "--epochs=1", "--width=16", "--characters=3")
    assert re.fullmatch(r"to be or not to be\n[to bern\n]{3}\n", printed)


def test_table(run) -> None:
    assert float(run("table.py", "--epochs=3").split()[-1]) > 0.9


def test_sweep(run) -> None:
    losses = [float(line.split()[-1]) for line in run("sweep.py", "--epochs=1").splitlines()]
    assert len(losses) == 4 and losses == sorted(losses)


def test_debugging(run) -> None:
    printed = run("debugging.py")
    assert "the op to look at: Log_0 at" in printed and re.search(r"takes \d+% of a step\n20 steps", printed)


def test_resumed_run(run) -> None:
    whole = run("resumed_run.py", "--epochs=3", "--out=whole")
    assert run("resumed_run.py", "--epochs=2") == "".join(whole.splitlines(keepends=True)[:2])
    went_on = run("resumed_run.py", "--epochs=3")  # from the last checkpoint, five steps before the end of epoch 1
    assert went_on == "".join(whole.splitlines(keepends=True)[1:])
