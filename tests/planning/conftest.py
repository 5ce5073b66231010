"""The answers of the compilers, stored, so that reports can be tested without them."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from oneflow._targets import process

DATA = Path(__file__).parent / "data"


@pytest.fixture
def stored(monkeypatch):
    """Answers for ``jobs.small`` on "h100:2" and "tpu-v5e:1x2" in the place of the compilers; the list of what was asked."""
    asked = []

    def answer(self, request, program, job):
        asked.append(request)
        return json.loads(gzip.decompress((DATA / f"{str(self._target).replace(':', '_')}.json.gz").read_bytes()))

    monkeypatch.setattr(process.WorkerProcess, "ask", answer)
    monkeypatch.setattr("oneflow.job.planning.check_installed", lambda platform: None)
    return asked
