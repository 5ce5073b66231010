"""Makes ``both.py`` importable, and its numbers the same for a test whatever ran before."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _numbers_of_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("both._RNG", np.random.default_rng(4))  # not the seed of the arrays that files share
