"""The parent's side: a contender's process, asked over pipes. One works at a time, the others wait."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .worker import resident_bytes

ROOT = Path(__file__).parent.parent
PATIENCE = 600.0  # seconds for one answer


class ContenderFailed(Exception):
    """The process ended or answered nothing; the message has the end of what it wrote."""


@dataclass(frozen=True)
class Contender:
    """The program that runs: a module of this package with ``make(**options)``, and variables for its environment."""

    label: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None  # another interpreter; "" where it is not there

    @property
    def needs_torch(self) -> bool:
        return "pytorch" in self.module


class Process:
    """A running contender. Use as a context manager."""

    def __init__(self, contender: Contender, data: Path | None):
        self.contender = contender
        self._errors = tempfile.TemporaryFile()
        environment = {**os.environ, **({"BENCHMARK_DATA": str(data)} if data else {}), **contender.environment}
        self._process = subprocess.Popen(
            [contender.python or sys.executable, "-m", "benchmarks.worker"], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def ask(self, do: str, *, memory_every: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer.

        With ``memory_every`` the process's memory is sampled at that interval (seconds); the answer has ``"samples"``.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        samples: list[int] = []
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed("ended") from None
        deadline = time.monotonic() + PATIENCE
        while not select.select([self._process.stdout], [], [], memory_every or PATIENCE)[0]:
            if time.monotonic() > deadline:
                raise self._failed(f"gave no answer in {PATIENCE:.0f} s")
            samples.append(resident_bytes(self._process.pid))
        line = self._process.stdout.readline()
        if not line:
            raise self._failed("ended")
        return {**json.loads(line), **({"samples": samples} if memory_every else {})}

    def start(self) -> dict[str, Any]:
        return self.ask("start", module=self.contender.module, options=dict(self.contender.options))

    def _failed(self, how: str) -> ContenderFailed:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 3000))
        said = self._errors.read().decode(errors="replace").strip()
        return ContenderFailed(f"{self.contender.label} {how}\n{said}")
