"""mypy and pyright, in strict mode, over programs of users: what is right passes, and mistakes are reported where they are."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import oneflow

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = Path(oneflow.__file__).resolve().parent
MISTAKES = HERE / "mistakes.py"
EXAMPLES = sorted((ROOT / "examples" / "programs").glob("*.py"))
PROGRAMS = [*EXAMPLES, HERE / "results.py", HERE / "classic.py", MISTAKES]
ALIAS = "oneflow.compatible.single_client"
Errors = dict[str, list[str]]  # "file:line" -> messages


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def search_path() -> list[str]:
    """Where the package is, unless type checkers find it by themselves."""
    return [] if PACKAGE.parent.name == "site-packages" else [str(PACKAGE.parent)]


def programs(directory: Path) -> list[Path]:
    """The programs, and those without mistakes once more as written for 0.6."""
    made = []
    for path in (*EXAMPLES, HERE / "results.py", HERE / "classic.py"):
        text = path.read_text(encoding="utf-8")
        text = text.replace("import oneflow as flow", f"import {ALIAS} as flow")
        text = text.replace("import oneflow.typing as tp", f"import {ALIAS}.typing as tp")
        assert text.count(ALIAS) == 2, path
        made.append(directory / f"v06_{path.name}")
        made[-1].write_text(text, encoding="utf-8")
    return [*PROGRAMS, *made]


def mypy(cache: Path) -> Errors:
    environment = os.environ | {"MYPYPATH": os.pathsep.join(search_path())}
    options = [
        "--strict",
        "--follow-imports=silent",
        "--config-file=",
        f"--cache-dir={cache}",
        "--hide-error-context",
        "--no-color",
    ]
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", sys.executable, *map(str, programs(cache))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=cache, env=environment)
    found: Errors = {}
    for path, line, text in re.findall(r"^(.*?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(f"{Path(path).name}:{line}", []).append(text)
    assert done.returncode in (0, 1) and not done.stderr, done.stdout + done.stderr
    return found


def pyright(directory: Path) -> Errors:
    checked = programs(directory)
    settings = {"typeCheckingMode": "strict", "include": list(map(str, checked)), "extraPaths": search_path()}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=directory)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(checked), report["summary"]
    found: Errors = {}
    for problem in report["generalDiagnostics"]:
        place = f"{Path(problem['file']).name}:{problem['range']['start']['line'] + 1}"
        found.setdefault(place, []).append(problem["message"])
    return found


def expected() -> set[str]:
    lines = MISTAKES.read_text(encoding="utf-8").splitlines()
    return {f"{MISTAKES.name}:{i}" for i, line in enumerate(lines, 1) if line.endswith("# wrong")}


def check(found: Errors) -> None:
    missed, surplus = expected() - found.keys(), {place: text for place, text in found.items() if place not in expected()}
    assert not missed and not surplus, f"not reported: {sorted(missed)}\nreported: {json.dumps(surplus, indent=2)}"


def test_there_are_six_example_programs() -> None:
    assert len(EXAMPLES) == 6 and len(expected()) > 30


def test_stubs_are_up_to_date() -> None:
    scope = runpy.run_path(str(ROOT / "scripts" / "write_stubs.py"))
    for path, text in scope["stubs"]().items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/write_stubs.py: {path.name}"


@pytest.mark.skipif(not installed("mypy"), reason="mypy is not installed: pip install oneflow-jax[dev]")
def test_mypy(tmp_path: Path) -> None:
    check(mypy(tmp_path))


@pytest.mark.skipif(not installed("basedpyright"), reason="basedpyright is not installed: pip install oneflow-jax[dev]")
def test_pyright(tmp_path: Path) -> None:
    check(pyright(tmp_path))
