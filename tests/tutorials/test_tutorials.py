"""The eleven complete programs of the tutorials, unchanged, page by page, on bounded data."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from . import reference

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
SHA256 = {
    "t1/01_sync_single.py": "87c7ff99a8c3bb6750a8067ce41e3a9de93c38f1c799eb85bae86c6015e4c539",
    "t1/02_sync_batch.py": "0fdbf852b5000c7608fa5bcf7e0ddffbf036e0f27b7b05554862a7abb37afd47",
    "t1/03_async_single.py": "728bbbde151b94d2e7f12d448ad7ce0b7f19bc0c19f7087bed1e0861bd9fe19e",
    "t1/04_async_batch.py": "00818a5b664ed8b46a1b0f5b75c16ed6a5edcbb43a994953ebdd1154d470fa93",
    "t2/01_lenet_train.py": "0e4dfe8c7584719b6acbce1dcc08757bc077feeb61439e0a54a682d9bb3a34f4",
    "t2/02_lenet_eval.py": "6392b719dd8bff94a956a0325af9f0a8dd432b055158ee4da3c9eaad3d489d21",
    "t2/03_lenet_test.py": "63d5ca72ad69aa63c8a2f619befe00fb816d5e88fdbd731161f84b8d89f91ad7",
    "t5/01_sync_single.py": "a8f9e1f6157573bcce89bf85e016d7a191add9f5b8aa306dffe2ce271043b9da",
    "t5/02_sync_batch.py": "fd8306d2bc04f8eb2db1366f339c7515c0c5421e72b35f25127acf72504f02ee",
    "t5/03_async_single.py": "411ff36ae67af8cd2427bdd522e9d9c7b8d41e27a0055900b1d2c546f7be5d17",
    "t5/04_async_batch.py": "3470ac7001086288f8056685fcffae911906268d953335618fe54755ed390e4b",
}
OF_USERS = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # with all that the compiler does
DATA_IS_THERE = "File mnist.npz already exist, path: "


@dataclass
class Output:
    lines: list[str]
    stderr: str

    @property
    def losses(self) -> list[float]:
        return [float(line) for line in self.lines if re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", line)]

    @property
    def images_counted(self) -> int:
        match = re.search(r"images counted: (\d+)", self.stderr)
        assert match is not None
        return int(match[1])


class Page:
    """One tutorial's working directory."""

    def __init__(self, name: str, directory: Path):
        self.name = name
        self.directory = directory
        for helper in ("mnist_util.py", "9.png"):
            shutil.copy(EXAMPLES / helper, directory)

    def run(self, program: str, train_batches: int = 1, test_batches: int = 1) -> Output:
        shutil.copy(HERE / self.name / program, self.directory)
        return self._python("runner.py", program, train_batches, test_batches)

    def make_lenet(self, program: str, train_batches: int) -> Output:
        return self._python("make_lenet.py", program, train_batches)

    def _python(self, script: str, *arguments: object) -> Output:
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.directory, env=OF_USERS, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert "Traceback" not in done.stderr, done.stderr
        return Output(done.stdout.splitlines(), done.stderr)


@pytest.mark.parametrize("program", SHA256)
def test_programs_are_untouched(program: str) -> None:
    assert hashlib.sha256((HERE / program).read_bytes()).hexdigest() == SHA256[program]


def assert_learns(losses: list[float], count: int) -> None:
    assert len(losses) == count
    assert np.isfinite(losses).all()
    assert min(losses[count // 2 :]) < losses[0] / 2


@pytest.mark.timeout(600)
def test_page_1(tmp_path: Path) -> None:
    page = Page("t1", tmp_path)

    trained = page.run("01_sync_single.py", train_batches=60)
    assert_learns(trained.losses, 3)
    (tmp_path / "lenet_models_1").rename(tmp_path / "saved_by_01")  # the next program wants a LeNet of that name
    assert (tmp_path / "saved_by_01" / "snapshot_done").is_file()

    shutil.copy(HERE / "t1" / "02_sync_batch.py", tmp_path)
    page.make_lenet("02_sync_batch.py", train_batches=20)
    evaluated = page.run("02_sync_batch.py", train_batches=6)
    images, labels = reference.mnist("train", 6)
    logits = reference.lenet(tmp_path / "lenet_models_1", reference.centred(images), "hidden", "outlayer")
    assert evaluated.lines[-1] == reference.accuracy_line(logits, labels)
    assert evaluated.images_counted == 600

    trained = page.run("03_async_single.py", train_batches=20)
    assert_learns(trained.losses, 50)

    evaluated = page.run("04_async_batch.py", test_batches=100)
    images, labels = reference.mnist("test", 100)
    logits = reference.mlp(tmp_path / "mlp_models_1", reference.centred(images), "Dense", "Dense_1")
    assert evaluated.lines[-1] == reference.accuracy_line(logits, labels)
    assert evaluated.images_counted == 10_000


@pytest.mark.timeout(600)
def test_page_2(tmp_path: Path) -> None:
    page = Page("t2", tmp_path)

    trained = page.run("01_lenet_train.py", train_batches=8)
    assert_learns(trained.losses, 50)
    assert trained.lines[-1] == "model saved"

    evaluated = page.run("02_lenet_eval.py", train_batches=6)
    images, labels = reference.mnist("train", 6)
    model = tmp_path / "lenet_models_1"
    logits = reference.lenet(model, reference.centred(images), "dense1", "dense2")
    assert evaluated.lines[-1] == reference.accuracy_line(logits, labels)
    assert evaluated.images_counted == 600

    predicted = page.run("03_lenet_test.py")
    assert reference.lenet(model, reference.png(tmp_path / "9.png"), "dense1", "dense2").argmax() == 9
    assert predicted.lines[-1] == "predict:9"


@pytest.mark.timeout(600)
def test_page_5(tmp_path: Path) -> None:
    page = Page("t5", tmp_path)

    trained = page.run("01_sync_single.py", train_batches=2)
    assert trained.lines[0].startswith(DATA_IS_THERE)
    assert_learns(trained.losses, 20)
    assert trained.lines[-1] == "model saved"

    evaluated = page.run("02_sync_batch.py", test_batches=6)
    images, labels = reference.mnist("test", 6)
    logits = reference.lenet(tmp_path / "lenet_models_1", reference.unit(images), "dense1", "dense2")
    assert evaluated.lines[0].startswith(DATA_IS_THERE)
    assert evaluated.lines[1:] == [reference.accuracy_line(logits, labels)]
    assert evaluated.images_counted == 600

    trained = page.run("03_async_single.py", train_batches=25)
    assert trained.lines[0].startswith(DATA_IS_THERE)
    assert_learns(trained.losses, 25)

    evaluated = page.run("04_async_batch.py", test_batches=100)
    images, labels = reference.mnist("test", 100)
    logits = reference.mlp(tmp_path / "mlp_models_1", reference.unit(images), "hidden", "output")
    assert evaluated.lines[0].startswith(DATA_IS_THERE)
    assert evaluated.lines[1:] == [reference.accuracy_line(logits, labels)]
    assert evaluated.images_counted == 10_000
