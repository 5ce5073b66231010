"""The command ``oneflow``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.cli import main
from oneflow.cli.main import COMMANDS
from oneflow.cli.scripts import load_job

SCRIPT = """
import argparse
import numpy as np
import oneflow as flow
import oneflow.typing as tp

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=3)
    width = parser.parse_args().width

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        loss = flow.layers.dense(x, width, name="only")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return flow.layers.dense(x, width, name="only")

    train(np.ones((4, 2), np.float32))
    raise RuntimeError("it was trained")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def test_help_version_and_words_that_are_none(capsys):
    assert main(["--help"]) == 0 and main([]) == 2
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS) and "exit statuses" in text
    assert main(["--version"]) == 0 and flow.__version__ in capsys.readouterr().out
    assert main(["docter"]) == 2
    assert "did you mean `oneflow doctor`?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name):
    done = subprocess.run([sys.executable, "-m", "oneflow", name, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "usage" in done.stdout and "example" in done.stdout, done.stderr


def test_a_script_is_read_as_far_as_its_jobs(script, capsys):
    assert main(["summary", f"{script}:predict"]) == 0
    assert "only-matmul" in capsys.readouterr().out
    flow.clear_default_session()
    job = load_job(f"{script}:train", ["--width", "7"])
    assert job.train and job.graph.variables["only-weight"].shape == (7, 2)
    assert repr(sys.argv[0]) != repr(script)


def test_what_cannot_be_loaded_is_one_line_with_a_way_out(script, tmp_path, capsys):
    (tmp_path / "empty.py").write_text("x = 1\n")
    for target, words in (
        ("nothing.py:job", "there is no script 'nothing.py'"),
        (f"{script}:trian", "train.py:train"),
        (script, "declares several jobs"),
        (str(tmp_path / "empty.py"), "declares no job"),
    ):
        flow.clear_default_session()
        assert main(["summary", target]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["summary"])
    assert left.value.code == 2 and "--help` says more" in capsys.readouterr().err


def test_jobs_are_called_as_ever_afterwards(script):
    load_job(f"{script}:train")

    @flow.global_function()
    def job(x: flow.typing.Numpy.Placeholder((1,))) -> flow.typing.Numpy:
        return x + 1

    import numpy as np

    assert job(np.ones(1, np.float32))[0] == 2
