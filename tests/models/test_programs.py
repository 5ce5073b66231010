"""The programs of examples/models run as a user runs them: they train, evaluate, save and draw."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import train_cnn
from mobilenet_v2 import mobilenet_v2
from vision import Layers

import oneflow as flow
import oneflow.typing as tp

PROGRAMS = Path(__file__).parents[2] / "examples" / "models"
SMALL_CNN = ["--batch=4", "--size=64", "--steps=3", "--warmup=1"]
RUNS = {
    "alexnet on MNIST": ["train_cnn", "--model=alexnet", "--data=mnist", *SMALL_CNN],
    "wide_and_deep": ["train_wide_and_deep", "--steps=4", "--batch=32", "--hidden=16", "--lazy"],
    "dcgan": ["train_dcgan", "--steps=3", "--batch=16", "--width=4", "--image=digits.png"],
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[float]]:
    """Runs a program with options, in an empty directory; gives the losses that it printed."""
    monkeypatch.chdir(tmp_path)

    def losses(program: str, *options: str) -> list[float]:
        flow.clear_default_session()
        monkeypatch.setattr(sys, "argv", [program, *options])
        importlib.import_module(program).main()
        printed = capsys.readouterr().out.splitlines()
        found = [float(loss) for line in printed for loss in re.findall(r"^step .*?(?:loss|generator) (\S+)", line)]
        assert found and np.isfinite(found).all()
        return found

    return losses


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.thorough] * n.startswith("alexnet")) for n in RUNS])
def test_a_program_runs(name: str, run: Callable[..., list[float]], tmp_path: Path) -> None:
    run(*RUNS[name])
    if "--image=digits.png" in RUNS[name]:
        assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_questions_are_learned_from_what_pretraining_saved(run: Callable[..., list[float]]) -> None:
    run("train_bert", "--steps=2", "--save=first")
    run("train_bert", "--task=squad", "--steps=1", "--learning-rate=0", "--load=first", "--save=second")
    files = [Path(directory, "bert-encoder-layer-0-intermediate-dense-weight", "out") for directory in ("first", "second")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert Path("second", "qa_outputs-weight", "out").stat().st_size == 64 * 2 * 4


@pytest.mark.thorough  # test_megatron_gpt.py trains another one on many
def test_a_gpt_is_the_same_on_several_devices(tmp_path: Path) -> None:
    """Two stages of 2x2 devices that share the batch and the matrices; gradients are clipped by the norm of all of them."""

    def losses(*options: str) -> list[str]:
        small = ["--steps=4", "--batch=4", "--length=16", "--warmup=1"]
        command = [sys.executable, str(PROGRAMS / "train_gpt.py"), *small, *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ, timeout=150)
        assert done.returncode == 0, done.stderr[-4000:]
        return [line.split()[3] for line in done.stdout.splitlines() if line.startswith("step")]

    alone = losses("--write=3")
    assert len(alone) == 4 and float(alone[-1]) < float(alone[0])
    assert alone == losses("--stages=2", "--data=2", "--tensor=2", "--write=0")


def test_channels_last_is_channels_first() -> None:
    """One image model in both data formats; a model is built at any batch and image size, and shares variables by name."""
    random = np.random.default_rng(0)
    results = []
    for batch, size in ((2, 32), (3, 45)):
        images = random.standard_normal((batch, 3, size, size), np.float32)

        @flow.global_function()
        def first(x: tp.Numpy.Placeholder(images.shape)) -> tp.Numpy:
            return mobilenet_v2(x, 5, Layers(), width=0.35)

        first(images)
        weights = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
        results.append(first(images))
    assert {r.shape for r in results} == {(2, 5), (3, 5)}
    flow.clear_default_session()

    @flow.global_function()
    def last(x: tp.Numpy.Placeholder((batch, size, size, 3))) -> tp.Numpy:
        return mobilenet_v2(x, 5, Layers(data_format="NHWC"), width=0.35)

    flow.load_variables({n: w.transpose(0, 2, 3, 1) if w.ndim == 4 else w for n, w in weights.items()}, ignore_mismatch=False)
    channels_last = train_cnn.arranged(images, "NHWC")
    np.testing.assert_allclose(last(channels_last), results[-1], rtol=1e-4, atol=1e-6)
