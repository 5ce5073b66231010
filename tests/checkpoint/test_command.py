"""``python -m oneflow.checkpoint``: what people see of checkpoints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneflow.checkpoint import safetensors
from oneflow.checkpoint.__main__ import main
from oneflow.checkpoint.atomic import write
from oneflow.checkpoint.layout import EXTRA

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array([7])}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with two checkpoints, as a manager leaves it."""
    for step, loss in ((1, 0.5), (2, 0.25)):
        arrays = {"a": ARRAYS["a"] + step, "step": np.array([step])}
        extra = {"manager": {"step": step, "metrics": {"loss": loss}, "time": 0.0}, "metadata": {"epoch": step}}
        write(tmp_path / "run" / f"s{step}", arrays, extra)
    (tmp_path / "run" / "notes").mkdir()
    (tmp_path / "run" / "notes" / "text").write_text("mine")
    (tmp_path / "run" / ".oneflow-saving-s3-0123456789ab.d").mkdir()
    return tmp_path / "run"


def test_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(rf"{run}/s1  2 variables, 32 B  step 1  loss=0.5  \d+-\d+-\d+ \d+:\d+:\d+", lines[0])
    (run / "s1" / "a" / "out").unlink()
    assert main(["list", str(run / "s1")]) == 0
    assert capsys.readouterr().out.endswith("  1 without a value\n")
    (run / "s2" / "snapshot_done").unlink()
    (run / "s1" / EXTRA).write_text("{")
    assert main(["list", str(run)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "damaged" in first and second.endswith("not finished")


def test_a_directory_above_the_checkpoints_is_answered_with_theirs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(run.parent)]) == 2
    error = capsys.readouterr().err
    assert "nor in it" in error and str(run) in error


def test_show(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run / "s1")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^a     float32\[2, 3\] +24 B$", text, re.M) and re.search(r"^step  int64\[1\] +8 B$", text, re.M)
    assert "2 variables, 32 B, crc32 of each 4 MiB" in text and '"epoch": 1' in text


def test_verify(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run), str(run / "s1"), str(run / "s1" / "a")]) == 0
    assert capsys.readouterr().out.count("whole") == 4
    data = bytearray((run / "s2" / "a" / "out").read_bytes())
    data[5] ^= 4
    (run / "s2" / "a" / "out").write_bytes(data)
    os.rename(run / "s2" / "step", run.parent / "gone")
    assert main(["verify", str(run)]) == 1
    text = capsys.readouterr().out
    assert "bytes 0 to 23 are not those that were saved" in text and "'step'" in text and "missing" in text
    assert f"{run}/s1: 2 variables, 32 B: whole" in text
    assert "2 damaged" in text and "your line" not in text


@pytest.mark.parametrize("damage", ["json", "unfinished", "variable alone"])
def test_verify_tells_other_damage(run: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    target = run / "s1"
    if damage == "json":
        text = (target / EXTRA).read_text()
        (target / EXTRA).write_text(text.replace('"epoch": 1', '"epoch": 9'))
    elif damage == "unfinished":
        (target / "snapshot_done").unlink()
    else:
        target /= "a"
        (target / "out").write_bytes(bytes(24))
    assert main(["verify", str(target)]) == 1
    assert "1 damaged" in capsys.readouterr().out


def test_without_digests(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "s1" / EXTRA).unlink()
    assert main(["verify", str(run / "s1")]) == 0
    assert "sizes fit; no digests" in capsys.readouterr().out
    assert main(["show", str(run / "s1")]) == 0 and "no digests" in capsys.readouterr().out
    (run / "s1" / "a" / "out").write_bytes(bytes(23))
    assert main(["verify", str(run / "s1")]) == 1
    assert "truncated" in capsys.readouterr().out


def test_diff(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = str(run / "s1"), str(run / "s2")
    assert main(["diff", one, one]) == 0 and capsys.readouterr().out == "no differences\n"
    assert main(["diff", one, other]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "a: 6 of 6 elements differ, by at most 1" in lines and "step: 1 of 1 elements differ, by at most 1" in lines
    assert lines[-1] == "4 differences"  # with the manager's notes and the metadata
    values = np.array([[np.nan, -0.0, np.inf]], np.float32)
    write(tmp_path / "x", {"a": values, "b": np.zeros(2, np.int8)})
    write(tmp_path / "y", {"a": values.astype(np.float64), "c": np.zeros(2), "b": np.zeros(3, np.int8)})
    assert main(["diff", str(tmp_path / "x"), str(tmp_path / "y")]) == 1
    text = capsys.readouterr().out
    assert f"c: only in {tmp_path / 'y'}" in text and "b: int8[2] and int8[3]" in text
    assert "a: float32[1, 3] and float64[1, 3]" in text
    write(tmp_path / "z", {"a": np.array([[np.nan, 0.0, np.inf]], np.float32), "b": np.zeros(2, np.int8)})
    assert main(["diff", str(tmp_path / "x"), str(tmp_path / "z")]) == 1
    assert capsys.readouterr().out == "a: 1 of 3 elements differ, by at most 0\n1 differences\n"  # the sign of zero


def test_safetensors_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, bare = run / "w.safetensors", run / "bare"
    safetensors.write(file, {**ARRAYS, "half": np.zeros(3, "<f2")}, {"jobs": {"job": ["a"]}})
    bare.write_bytes(file.read_bytes())
    assert main(["list", str(run), str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(bare), str(run / "s1"), str(run / "s2"), str(file), str(file)]
    assert lines[0] == f"{bare}  3 variables, 38 B  safetensors"
    assert main(["show", str(file)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^a     float32\[2, 3\] +24 B$", text, re.M) and '"job": [' in text
    assert f"{file}: 3 variables, 38 B, safetensors, no digests" in text
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 3 variables, 38 B: sizes fit; no digests\n"
    assert main(["diff", str(file), str(bare)]) == 0
    assert main(["diff", str(run / "s1"), str(file)]) == 1
    text = capsys.readouterr().out
    assert "a: 6 of 6 elements differ, by at most 1\n" in text and f"half: only in {file}\n" in text and "3 differences" in text
    file.write_bytes(file.read_bytes()[:-1])
    bare.write_bytes(b"{" * 20)
    assert main(["verify", str(file)]) == 1
    assert f"{file}: 0 variables, 0 B: 1 damaged" in capsys.readouterr().out
    assert main(["list", str(run)]) == 0
    assert f"{file}  damaged: " in capsys.readouterr().out
    assert main(["show", str(file)]) == 2 and "is not a safetensors file, or is damaged" in capsys.readouterr().err
    assert main(["show", str(bare)]) == 2 and "checkpoints are directories" in capsys.readouterr().err


def test_errors_are_one_line_with_status_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for arguments in (
        ["show", "nowhere"],
        ["verify", str(tmp_path / "empty")],
        ["list", "nowhere"],
        ["diff", "nowhere", "nowhere"],
    ):
        assert main(arguments) == 2
        found = capsys.readouterr()
        assert found.err.startswith("error: ") and found.err.count("\n") == 1 and not found.out
    for arguments in (["shw"], ["diff", "one"], []):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_it_starts_without_jax(run: Path) -> None:
    program = "import sys; from oneflow.checkpoint.__main__ import main; main(sys.argv[1:]); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, "verify", str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
