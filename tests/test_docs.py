"""The documentation is right: its Python runs, its links lead somewhere, and the package is complete."""

from __future__ import annotations

import doctest
import importlib.metadata
import importlib.util
import os
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


WITHOUT_A_PROGRAM = {
    "site.md",  # about building these pages: tests/test_site.py does it
    *(f"performance-{part}.md" for part in ("kernels", "around", "machines", "dropped")),  # measured by what performance.md shows
}
OF_USERS = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # with all that the compiler does
END_OF_OUTPUT = "<end of the output that the page shows>"


def blocks_of(page: Path) -> list[tuple[str, int, str]]:
    """The page's fenced blocks: language, number of the line above the block, text."""
    found, language, start, lines = [], "", 0, page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            if start:
                found.append((language, start, "\n".join(lines[start : number - 1])))
            language, start = (line.removeprefix("```"), number) if not start else ("", 0)
    return found


def python_of(page: Path) -> str:
    """The page's ```python blocks, which together are one program; lines keep their numbers.

    Where an ```output block follows, the program prints a mark that ends what has to be printed up to there.
    """
    program: list[str] = []
    for language, start, text in blocks_of(page):
        if language == "python":
            program += [""] * (start - len(program)) + text.splitlines()
        elif language == "output":
            program += [""] * (start - 1 - len(program)) + [f"print({END_OF_OUTPUT!r})"]
    return "\n".join(program) + "\n"


def check_output(page: Path, printed: str) -> None:
    """Compares what a page's program printed with the output that the page shows; `...` there stands for anything."""
    shown = [text for language, _, text in blocks_of(page) if language == "output"]
    parts = printed.split(f"{END_OF_OUTPUT}\n")[:-1]
    assert len(parts) == len(shown)
    for wanted, got in zip(shown, parts, strict=True):
        same = doctest.OutputChecker().check_output(f"{wanted}\n", got, doctest.ELLIPSIS)
        assert same, f"{page.name} shows\n{wanted}\nand its program prints\n{got}"


def run(program: Path, *arguments: str, environment: dict[str, str] = OF_USERS) -> str:
    """Runs a program in its directory; what it printed."""
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, cwd=program.parent, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


ALL = """
import contextlib, io, os, pathlib, runpy, sys, traceback
import oneflow as flow

for path in map(pathlib.Path, sys.argv[1:]):
    os.chdir(path.parent)
    flow.clear_default_session()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except BaseException:
            path.with_suffix(".failed").write_text(traceback.format_exc())
    path.with_suffix(".printed").write_text(printed.getvalue())
"""
WITH_PROGRAMS = [page for page in PAGES if python_of(page).strip()]
COMPARED = re.compile(r"^import (torch|keras)$", re.MULTILINE)  # what the page compares with


def lacking(page: Path) -> list[str]:
    return [name for name in COMPARED.findall(python_of(page)) if importlib.util.find_spec(name) is None]


def in_a_folder(page: Path, root: Path) -> Path:
    program = root / page.stem / f"{page.stem}.py"
    program.parent.mkdir()
    program.write_text(python_of(page), encoding="utf-8")
    return program


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """The pages' programs, which have been run: all by one process, which saves two seconds each, and compiled as tests are."""
    root = tmp_path_factory.mktemp("pages")
    found = {page: in_a_folder(page, root) for page in WITH_PROGRAMS if not lacking(page)}
    (root / "all.py").write_text(ALL)
    run(root / "all.py", *map(str, found.values()), environment=dict(os.environ))
    return found


def skip_if_lacking(page: Path) -> None:
    if names := lacking(page):
        pytest.skip(f"the page compares with {names[0]}, which is not installed")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=lambda p: p.name)
def test_examples_run(page: Path, programs: dict[Path, Path]) -> None:
    skip_if_lacking(page)
    failed = programs[page].with_suffix(".failed")
    assert not failed.exists(), failed.read_text()
    check_output(page, programs[page].with_suffix(".printed").read_text())


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=lambda p: p.name)
def test_examples_run_by_themselves(page: Path, tmp_path: Path) -> None:
    skip_if_lacking(page)
    check_output(page, run(in_a_folder(page, tmp_path)))


def test_every_page_has_a_program_and_shown_output_follows_one() -> None:
    for page in PAGES:
        languages = [language for language, _, _ in blocks_of(page) if language in ("python", "output")]
        assert "python" in languages or page.parent == ROOT or page.name in WITHOUT_A_PROGRAM, page.name
        for language, following in zip(["", *languages], languages, strict=False):
            assert following == "python" or language == "python", f"{page.name}: output of no program"


def test_output_that_a_page_shows_is_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1.25)\n```\nprints\n```output\n1.2...\n```\n```python\nprint(2)\n```\n```output\n3\n```\n")
    (tmp_path / "page.py").write_text(python_of(page))
    printed = run(tmp_path / "page.py")
    with pytest.raises(AssertionError, match=r"page.md shows\s+3\s+and its program prints\s+2"):
        check_output(page, printed)
    page.write_text(page.read_text().replace("3", "2"))
    check_output(page, printed)


def test_the_main_example_on_a_little_data(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_lenet.py"), "--batches"]
    runs = [("lenet_model", 40), ("lenet_model_2", 1)]  # each saves to a fresh directory
    for directory, batches in runs if "ONEFLOW_THOROUGH" in os.environ else runs[:1]:
        done = subprocess.run(
            [*command, str(batches)], cwd=tmp_path, env=OF_USERS, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert (tmp_path / directory / "conv1-weight" / "out").stat().st_size == 32 * 5 * 5 * 4
        *lines, accuracy, digit = done.stdout.splitlines()
        assert f"saved {directory}" in lines
        percent = float(accuracy.removeprefix("accuracy: ").removesuffix("%"))
        assert percent > 20 or batches == 1  # mostly 85; 27 once, as the first values are others in each run
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
