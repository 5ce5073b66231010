"""The programs of examples/data run, learn, and go on where they were interrupted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent.parent / "examples" / "data"


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, PROGRAMS / program, *arguments], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])


def test_images(tmp_path: Path) -> None:
    small = ["--images=96", "--size=32", "--batch=16", "--parts=2"]
    text = run("train_images.py", "--steps=31", "--save", str(tmp_path / "saved"), *small)
    first, last = (number(text, rf"step +{step}  loss ([\d.]+)") for step in (0, 30))
    assert last < 0.8 * first and number(text, r"accuracy on other images: ([\d.]+)%") > 20
    again = run("train_images.py", "--steps=11", "--resume", str(tmp_path / "saved"), *small)
    assert number(again, r"step +0  loss ([\d.]+)") < first


def test_clicks() -> None:
    text = run("train_clicks.py", "--steps=41", "--clicks=4000", "--batch=128", "--hidden=16", "--embedding=4")
    assert number(text, r"area under the curve on other clicks: ([\d.]+)") > 0.6


def test_coco() -> None:
    text = run("train_coco.py", "--steps=26", "--images=12")
    assert number(text, r"step +25  loss ([\d.]+)") < number(text, r"step +0  loss ([\d.]+)")
