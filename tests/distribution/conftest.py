"""Programs that tests start: each in a process of its own, because JAX fixes the number of devices for one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import oneflow as flow

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("distribution", "onnx", "ops")]


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``program(source, *command, arguments=())``: runs it to its end, with what comes before and after it."""

    def run(
        source: str, *command: str, arguments: tuple[str, ...] = (), timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source))
        return subprocess.run(
            [sys.executable, *command, str(path), *arguments],
            capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment},
        )  # fmt: skip

    return run


@pytest.fixture(autouse=True, scope="module")
def one_device_afterwards() -> Iterator[None]:
    """Other tests expect a session of one device."""
    yield
    flow.clear_default_session()
