"""The suite itself runs wherever it is started from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
