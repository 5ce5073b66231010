"""The programs of examples/ run as their README says, for a few steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = {
    "train_images_from_folder.py": (["--steps", "3"], r"10 classes: \d+\.\d % of 160 images"),
    "train_text.py": (["--steps", "30"], r"(9|8)\d\.\d % of the lines"),
    "train_tabular.py": (["--steps", "60", "--rows", "2000"], r"mean squared error \d+\.\d+ of a variance of 24\.8"),
    "train_segmentation.py": (["--steps", "2"], r"intersection over union .* [01]\.\d+"),
    "train_dqn.py": (["--steps", "520"], r"episode +\d+  the pole stood for \d+ steps of 200"),
    "serve_digits.py": (["--steps", "20", "--requests", "40"], r"\d+ answers per second to 8 clients; \d+\.\d % of the digits"),
}


LONGER = ("train_segmentation.py", "serve_digits.py")


@pytest.mark.parametrize("name", [n if n not in LONGER else pytest.param(n, marks=pytest.mark.thorough) for n in PROGRAMS])
def test_a_program_of_the_gallery(name: str, tmp_path: Path) -> None:
    arguments, printed = PROGRAMS[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(printed, done.stdout), done.stdout
    assert not list(tmp_path.iterdir()), "the program left files"


def test_the_readme_lists_every_program() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")} - {"mnist_util.py"}
    rows = dict(re.findall(r"^\| \[`(\w+\.py)`\]\(\1\) \|.*?\| (\d+) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert rows.keys() == programs
    for name, lines in rows.items():
        assert int(lines) == len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_every_program_has_help_and_steps(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if 'if __name__ == "__main__":' not in source:
        return
    parsers = source + (EXAMPLES / "models" / "command_line.py").read_text(encoding="utf-8") * ("command_line." in source)
    assert "ArgumentParser(" in parsers and "description=__doc__" in source or re.search(r"(make|plain)_parser\(__doc__", source)
    shared = re.search(r"make_parser\(|train_gpt\.arguments\(", source)
    assert '"--steps"' in parsers or shared or path.name == "plan_gpt.py"  # which runs no step
