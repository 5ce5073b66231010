"""The soak of ``scripts/soak_serving.py``, for a few seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_good_and_bad_requests_clients_that_leave_and_reloads() -> None:
    command = [
        sys.executable,
        str(ROOT / "scripts" / "soak_serving.py"),
        "--seconds",
        "3",
        "--clients",
        "4",
        "--reload-every",
        "0.1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == 0 and not found["traceback"]
    assert found["good"] and found["bad"] and found["leaving"] and found["reload"]
