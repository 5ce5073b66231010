"""Damaged files of every format: only the library's own errors, within 2 GB and 10 seconds each (tests/campaign/files.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
FORMATS = ["ofrecord", "onerec", "images", "coco", "npz", "tokens", "inputs", "positions"]
MODELS = ["checkpoint", "safetensors", "settings", "stablehlo", "onnx"]


def campaign(*arguments: str, timeout: float) -> None:
    environment = {**os.environ, "OPENCV_LOG_LEVEL": "OFF"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-W", "error", "-m", "campaign.files", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("formats", [FORMATS[:4], FORMATS[4:], MODELS], ids=" ".join)
def test_some_damaged_files_of_every_format(formats: list[str]) -> None:
    campaign("--count", "50", "--seconds", "3" if formats is MODELS else "4", "--seed", "0", "--formats", *formats, timeout=120)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*FORMATS, *MODELS])
def test_many_damaged_files(name: str) -> None:
    campaign("--count", "2000", "--seed", "5", "--formats", name, timeout=3500)
