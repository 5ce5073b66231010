"""Random numbers of crops and flips: pure functions of (seed, call, position), so that threads and resuming change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    """A part of a picture."""

    y: int
    x: int
    height: int
    width: int


class RandomWindows:
    """Random crop windows of one op instance."""

    def __init__(
        self,
        seed: int,
        *,
        num_attempts: int = 10,
        random_area: Sequence[float] = (0.08, 1.0),
        random_aspect_ratio: Sequence[float] = (0.75, 1.333333),
    ): ...

    def draw(self, call: int, count: int) -> np.ndarray:
        """The uniform numbers of one batch, float64 (count, 2 * num_attempts + 2)."""
        raise NotImplementedError

    def window(self, height: int, width: int, draws: np.ndarray) -> Window:
        """The window of one picture from its row of ``draw``."""
        raise NotImplementedError


def coin_flips(seed: int, call: int, count: int, probability: float = 0.5) -> np.ndarray:
    """int8 (count,) of 0 and 1."""
    raise NotImplementedError
