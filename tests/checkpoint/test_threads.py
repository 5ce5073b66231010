"""The threads that read and verify files."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="os.kill does not interrupt the main thread there")

PROGRAM = """
import os, random, signal, threading, time
from oneflow.checkpoint.threads import on_threads

for _ in range(1000):
    timer = threading.Timer(0.0008 * random.random(), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        assert list(on_threads(abs, range(8))) == list(range(8))
        timer.join()
        time.sleep(0.0005)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.timeout(120)
def test_an_interrupt_while_threads_start_hangs_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert "Error" not in ended.stderr, ended.stderr
