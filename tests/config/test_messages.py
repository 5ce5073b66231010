"""The messages of the library, and how to make it say more or less."""

from __future__ import annotations

import subprocess
import sys

import pytest

import oneflow as flow

PROGRAM = """
import time
import numpy as np
import oneflow as flow
import oneflow.typing as tp
from oneflow.runtime.executable import Executable
compile_only = Executable.compile_only
def slow(self, feeds):
    time.sleep({seconds})
    compile_only(self, feeds)
Executable.compile_only = slow
{setting}
@flow.global_function()
def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x + 1
print(job(np.ones(4, np.float32))[0])
"""


def run(seconds: float, setting: str = "", **environment: str) -> subprocess.CompletedProcess:
    import os

    program = PROGRAM.format(seconds=seconds, setting=setting)
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env)


def test_long_compilations_are_announced():
    done = run(2.6)
    lines = done.stderr.splitlines()
    assert any(line.startswith("oneflow: compiling job 'job' (2 ops) ...") for line in lines), done.stderr
    assert any(line.startswith("oneflow: compiled job 'job' in ") for line in lines) and done.stdout == "2.0\n"


def test_short_ones_are_not_and_levels_silence_the_others():
    assert "compil" not in run(0.0).stderr
    assert "compil" not in run(2.6, setting='flow.config.log_level("warning")').stderr
    assert "compil" not in run(2.6, ONEFLOW_LOG="error").stderr


def test_more_can_be_told_and_logging_of_the_programs_own_is_used():
    done = run(2.6, setting="import logging; logging.basicConfig(format='mine %(levelname)s %(message)s', level=logging.INFO)")
    assert "mine NOTICE oneflow: compiling job" in done.stderr
    done = run(0.0, setting="flow.config.enable_native_cpu(True); flow.config.use_rdma(True)", ONEFLOW_LOG="debug")
    assert "use_rdma(True) has no effect" in done.stderr


def test_levels_that_do_not_exist():
    with pytest.raises(flow.errors.ArgumentError, match="'notice'.*got 'loud'"):
        flow.config.log_level("loud")
    assert "ONEFLOW_LOG=loud is not a level" in run(0.0, ONEFLOW_LOG="loud").stderr
