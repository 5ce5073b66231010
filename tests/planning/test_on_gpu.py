"""``scripts/on_gpu``: what it says without a GPU, its arguments, and how it writes tables; nothing is measured here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="the benchmarks are part of the repository only")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("on_gpu", ROOT / "scripts" / "on_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_and_runs_nothing():
    environment = {**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([ROOT / "scripts" / "on_gpu"], capture_output=True, text=True, env=environment, timeout=150)
    assert done.returncode == 2 and not done.stdout
    assert "there is no GPU here: JAX has 1 device(s) of the platform 'cpu'. Nothing was run." in done.stderr
    assert "jax[cuda12]" in done.stderr and "--device cpu" in done.stderr


@pytest.mark.parametrize(
    "wrong", ["--models none", "--precisions int8", "--rounds 0", "--batch -1", "--seconds 0", "--workers 0"]
)
def test_wrong_arguments(script, wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        script.parsed(wrong.split())
    assert ended.value.code == 2 and wrong.split()[0] in capsys.readouterr().err


def test_everybody_gets_the_same_options(script):
    found = script.accelerator.contenders("mlp", "train", 8, "tf32", "gpu", torch_compile=True)
    assert len(found) == 4 and [c.needs_torch for c in found] == [False, False, True, True]
    same = {"model": "mlp", "mode": "train", "batch": 8, "precision": "tf32", "device": "gpu"}
    assert all(same.items() <= dict(c.options).items() for c in found) and found[3].options["compiled"]


def test_attention_by_cudnn_is_measured_beside_the_default(script):
    def labels(model, precision, device):
        return [c.label for c in script.accelerator.contenders(model, "train", 8, precision, device, torch_compile=False)]

    assert labels("gpt", "bfloat16", "gpu")[:2] == ["ours", "ours, attention by cuDNN"]
    for other in (("mlp", "bfloat16", "gpu"), ("gpt", "tf32", "gpu"), ("gpt", "bfloat16", "cpu")):
        assert "ours, attention by cuDNN" not in labels(*other)


def test_tables_of_tests_and_benchmarks_are_written_between_the_marks(script, tmp_path, monkeypatch, capsys):
    tests = tmp_path / "test_two.py"
    tests.write_text(
        "import os\n\ndef test_a():\n    assert os.environ['JAX_DEFAULT_MATMUL_PRECISION'] == 'highest'\n"
        "    assert os.environ['ONEFLOW_TEST_PLATFORMS'] == 'cpu'\n\ndef test_b(): assert 0\n"
    )
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")

    def measured(device, models, precisions, rounds, seconds, batch, torch_compile):
        assert (device, models, precisions, rounds, batch, torch_compile) == ("cpu", ["mlp"], ["tf32"], 2, 8, False)
        section = script.Section("MLP", "a note", ["", "median"])
        section.rows.append(["ours", "1.0"])
        return [section]

    monkeypatch.setattr(script.accelerator, "measure", measured)
    monkeypatch.setattr(script, "gpu", lambda: ("", "none"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    wanted = f"--device cpu --tests {tests} --models mlp --precisions tf32 --rounds 2 --batch 8 --no-torch-compile --out {page}"
    assert script.main(wanted.split()) == 1, "a test failed"
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| test_two.py | 1 | 1 | 0 |" in text and "| ours | 1.0 |" in text and "a trial of the script" in text
    assert not {"JAX_DEFAULT_MATMUL_PRECISION", "ONEFLOW_TEST_PLATFORMS"} & {*os.environ}
    script.written(tmp_path / "new.md", "body")
    assert "body" in (tmp_path / "new.md").read_text()
    (tmp_path / "without.md").write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the lines"):
        script.written(tmp_path / "without.md", "body")
