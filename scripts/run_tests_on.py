"""Runs the tests on given versions of Python, JAX and NumPy, in a fresh virtual environment.

    python scripts/run_tests_on.py --python 3.13 --jax 0.12.0.1 --numpy 2.5.5
    python scripts/run_tests_on.py --python 3.11 --jax 0.10.0 --numpy 2.0.0 tests/ops tests/jobs
    python scripts/run_tests_on.py --python 3.13 --jax 0.12 --numpy 2.5 --sample

Installs the package as a user would, with the dependencies of its tests. Each file of tests runs in a process of its own, so
that a crash of the compiler costs one file; those of the sample share one. Prints a line per process and a table with the counts
of each part; the exit status is 1 where a test failed or a file could not be run. ``--native`` builds and installs the native
part as well.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("passed", "failed", "skipped")
SAMPLE = (
    "tests/_base/test_jax_versions.py",
    "tests/jobs/test_calls.py",
    "tests/jobs/test_annotations.py",
    "tests/jobs/test_errors.py",
    "tests/planning/test_target_plan.py",
    "tests/test_typing.py",
)


def interpreter(version: str) -> str | None:
    """The interpreter of a version such as "3.13", on the path or among those of pyenv; a path stands for itself."""
    if os.sep in version:
        return version if os.access(version, os.X_OK) else None
    folders = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = sorted(folders.glob(f"{version}*/bin/python"), key=lambda path: [*map(int, re.findall(r"\d+", path.parts[-3]))])
    candidates = [shutil.which(f"python{version}"), *map(str, reversed(found))]
    return next((c for c in candidates if c is not None and _is_version(c, version)), None)


def _is_version(python: str, version: str) -> bool:
    """pyenv puts a script on the path for each version that it has, which fails where that version is not selected."""
    asked = [python, "-c", "import platform; print(platform.python_version())"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.returncode == 0 and (done.stdout.strip() + ".").startswith(version + ".")


def requirement(name: str, version: str) -> str:
    """``jax==0.12.*`` of ("jax", "0.12"), ``jax==0.12.0.1`` of a whole version."""
    return f"{name}=={version}" if version.count(".") >= 2 else f"{name}=={version}.*"


def install(python: str, venv: Path, options: argparse.Namespace) -> str:
    """Makes the environment, and returns its interpreter."""
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    inside = str(venv / "bin" / "python")
    with open(ROOT / "pyproject.toml", "rb") as file:
        needed = tomllib.load(file)["project"]["optional-dependencies"]["test"]
    if options.without_torch:
        needed = [each for each in needed if not each.startswith(("torch==", "onnxscript"))]
    if options.sample:
        needed = [each for each in needed if each.startswith(("pytest", "hypothesis", "scipy", "flatbuffers"))]
    chosen = [requirement("jax", options.jax), requirement("jaxlib", options.jax), requirement("numpy", options.numpy)]
    parts = [str(ROOT), *([str(ROOT / "native")] if options.native else [])]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]  # most modules are never imported
    subprocess.run([inside, "-m", "pip", "install", *quiet, *parts, *needed, *chosen], check=True)
    names = ("jax", "jaxlib", "numpy", "scipy", "torch", "oneflow-jax-native")
    listed = (
        "import importlib.metadata as m, platform\n"
        f"found = {{d.name: d.version for d in m.distributions() if d.name in {names}}}\n"
        "print('Python', platform.python_version(), *(f'{n} {found[n]}' for n in sorted(found)), sep=', ')"
    )
    subprocess.run([inside, "-c", listed], check=True)
    return inside


def files(wanted: list[str]) -> list[Path]:
    """The files of tests under the paths, each once."""
    found: dict[Path, None] = {}
    for whole in (ROOT / path for path in wanted):
        if not whole.exists():
            raise SystemExit(f"{whole} does not exist")
        found.update(dict.fromkeys(sorted(whole.rglob("test_*.py")) if whole.is_dir() else [whole]))
    return list(found)


def run(python: str, files: list[Path], report: Path, arguments: list[str]) -> tuple[Counter[str], str]:
    """Runs files of tests in one process; returns their counts, and the output where something failed."""
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments,
               *map(str, files)]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )
    counts: Counter[str] = Counter()
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
            counts["failed"] += number["failures"] + number["errors"]
            counts["skipped"] += number["skipped"]
            counts["passed"] += number["tests"] - number["failures"] - number["errors"] - number["skipped"]
    if done.returncode not in (0, 1, 5):  # 5: there are none for this tier
        counts["failed"] += 1
        counts["crashed"] += 1
    return counts, done.stdout if counts["failed"] else ""


def part_of(file: Path) -> str:
    """The room of a file of tests: the name of its folder, or "house rules" for those that lie in tests/."""
    folder = file.relative_to(ROOT / "tests").parts[0]
    return "house rules" if folder.endswith(".py") else folder


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, metavar="VERSION", help="3.13, or a path; of 3.13,3.12 the first there is")
    parser.add_argument("--jax", required=True, metavar="VERSION", help="0.12 (the newest of it) or 0.12.0.1")
    parser.add_argument("--numpy", required=True, metavar="VERSION", help="2.5 or 2.5.5")
    parser.add_argument("--without-torch", action="store_true", help="leave out the comparisons with PyTorch")
    parser.add_argument("--native", action="store_true", help="build and install the native part as well")
    parser.add_argument("--sample", action="store_true", help="a minute's choice of tests, without PyTorch")
    parser.add_argument("--if-present", action="store_true", help="without that Python: say so, and succeed")
    parser.add_argument("--venv", type=Path, help="where to make the environment, which is kept; otherwise a temporary one")
    parser.add_argument("tests", nargs="*", help="folders or files; all of them by default")
    options, arguments = parser.parse_known_args()
    options.without_torch |= options.sample
    python = next(filter(None, map(interpreter, options.python.split(","))), None)
    if python is None:
        absent = f"there is no Python {options.python.replace(',', ' or ')}, neither on the path nor among pyenv's versions"
        if not options.if_present:
            raise SystemExit(absent)
        print(f"not run: {absent}")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        inside = install(python, options.venv or Path(temporary) / "venv", options)
        parts: dict[str, Counter[str]] = {}
        found = files(options.tests or (list(SAMPLE) if options.sample else ["tests"]))
        for together in [found] if options.sample else [[file] for file in found]:
            start = time.monotonic()
            counts, output = run(inside, together, Path(temporary) / "report.xml", arguments)
            shown = ", ".join(f"{counts[name]} {name}" for name in (*OUTCOMES, "crashed") if counts[name]) or "no tests"
            names = ", ".join(str(file.relative_to(ROOT)) for file in together)
            print(f"{names}: {shown} in {time.monotonic() - start:.0f} s", flush=True)
            print(output, end="", flush=True)
            parts.setdefault("sample" if options.sample else part_of(together[0]), Counter()).update(counts)
    print(f"\n| part | {' | '.join(OUTCOMES)} |\n|---|{'---:|' * len(OUTCOMES)}")
    for part, counts in sorted(parts.items()):
        print(f"| {part} | {' | '.join(str(counts[name]) for name in OUTCOMES)} |")
    return 1 if any(counts["failed"] for counts in parts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
