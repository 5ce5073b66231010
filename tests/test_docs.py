"""The documentation is right: its Python runs, its links lead somewhere, and the package is complete."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import oneflow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(oneflow.__file__).resolve().parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def python_of(page: Path) -> str:
    """The page's ```python blocks, which together are one program; lines keep their numbers."""
    program, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            program.append("")
        else:
            program.append(line if inside else "")
    return "\n".join(program) + "\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [p for p in PAGES if python_of(p).strip()], ids=lambda p: p.name)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    for other in re.findall(r"^import (torch|keras)$", python_of(page), re.MULTILINE):
        if importlib.util.find_spec(other) is None:
            pytest.skip(f"the page compares with {other}, which is not installed")
    program = tmp_path / f"{page.stem}.py"
    program.write_text(python_of(page), encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_main_example_on_a_little_data(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_lenet.py"), "--batches", "80"]
    for directory in ("lenet_model", "lenet_model_2"):  # each run saves to a fresh directory
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr[-4000:]
        assert (tmp_path / directory / "conv1-weight" / "out").stat().st_size == 32 * 5 * 5 * 4
        *lines, accuracy, digit = done.stdout.splitlines()
        assert f"saved {directory}" in lines
        assert float(accuracy.removeprefix("accuracy: ").removesuffix("%")) > 60
        assert re.fullmatch(r"9\.png shows a \d", digit)
        assert "100%" in done.stderr  # the progress bar


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    missing = [t for t in targets if t and not (page.parent / t).exists()]
    assert not missing


def test_readme_commands_are_one_line_each() -> None:
    commands = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [c.split("/")[-1] for c in commands] == ["train_lenet.py", "pytest"]


def test_the_page_of_settings_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_settings.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run: python scripts/write_settings.py"
    assert script["STUB"].read_text(encoding="utf-8") == script["stub"](), "run: python scripts/write_settings.py"


def test_the_list_of_ops_that_take_sizes_of_data_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_sizes.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run: python scripts/write_sizes.py"


def installed() -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution("oneflow-jax")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("oneflow-jax is not installed: these tests run on the working tree")
    if not Path(str(distribution.locate_file("oneflow/__init__.py"))).exists():
        pytest.skip("oneflow-jax is installed in editable mode: these tests run on the working tree")
    return distribution


def test_the_installed_package_is_tested() -> None:
    assert Path(str(installed().locate_file("oneflow"))).resolve() == PACKAGE


def test_the_wheel_is_complete() -> None:
    files = {str(f) for f in installed().files or ()}
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "oneflow").rglob("*.py*") if p.suffix != ".pyc"}
    template = {p.relative_to(ROOT).as_posix() for p in (ROOT / "oneflow/cli/template").iterdir() if p.is_file()}
    assert sources | template | {"oneflow/data/mnist.npz", "oneflow/py.typed"} <= files
    assert not [f for f in files if f.startswith(("tests/", "examples/", "docs/"))]
