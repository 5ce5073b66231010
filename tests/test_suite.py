"""The suite itself runs wherever it is started from."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def test_programs_that_tests_start_can_be_interrupted() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr


def test_also_where_the_suite_was_started_with_sigint_ignored() -> None:
    """As ``nohup``, a shell's ``&`` and some CI systems do."""
    test = f"{Path(__file__)}::{test_programs_that_tests_start_can_be_interrupted.__name__}"
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    suite = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
    done = subprocess.run([*ignoring, *suite], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_that_come_first_exist(pytestconfig: pytest.Config) -> None:
    (conftest,) = (
        p
        for p in pytestconfig.pluginmanager.get_plugins()
        if Path(getattr(p, "__file__", None) or "").resolve() == HERE / "conftest.py"
    )
    assert all((ROOT / name).is_file() for name in conftest.LONGEST)


def test_the_tests_of_a_file_share_a_process(tmp_path: Path) -> None:
    """What they compile and build once for all of them would otherwise be built by every worker."""
    source = """
        import os, pytest

        @pytest.mark.parametrize("n", range(9))
        def test(n):
            open(f"{__file__}.{os.getpid()}", "a").close()
    """
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(textwrap.dedent(source))
    suite = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "--noconftest"]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [*suite, "-p", "no:cacheprovider", "."], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
    )
    assert "27 passed" in done.stdout, done.stdout + done.stderr
    processes = [{path.suffix for path in tmp_path.glob(f"test_{name}.py.*")} for name in "abc"]
    assert [len(seen) for seen in processes] == [1, 1, 1]
    assert len(set.union(*processes)) > 1, "the files should have been spread over the workers"
