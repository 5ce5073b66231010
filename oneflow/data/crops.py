"""Random crops and flips: pure functions of (seed, stream, call, position), so that threads and resuming change nothing.

Random words come from Philox, a counter-based generator: the k-th word of a stream costs the same whatever k is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._base.refuse import refuse, shown
from ..errors import ArgumentError

_BLOCK = 4  # words per value of Philox's counter
_MASK = (1 << 64) - 1


def _philox(seed: int, stream: int, counter: int) -> np.random.Philox:
    return np.random.Philox(key=(seed & _MASK) | (stream & _MASK) << 64, counter=counter)


def uniform_words(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Words ``first`` to ``first + count - 1`` of a stream, uint64."""
    block, skip = divmod(first, _BLOCK)
    return np.asarray(_philox(seed, stream, block).random_raw(skip + count))[skip:]


class Window(NamedTuple):
    """A part of an image, in pixels."""

    y: int
    x: int
    height: int
    width: int


class RandomWindows:
    """Random crop windows of one op instance: a part of the area, an aspect ratio, a place.

    Args:
      seed: of the op; instances on several devices pass their number as ``stream``.
      num_attempts: >= 1; the number of draws of area and ratio before a window of full height or width is taken.
      random_area: (smallest, largest) share of the image's area, 0 < smallest <= largest.
      random_aspect_ratio: (smallest, largest) width / height, 0 < smallest <= largest.
    Raises: ArgumentError.
    Example: >>> windows = RandomWindows(7); windows.window(480, 640, windows.draw(call=0, count=32)[5])
    """

    def __init__(
        self,
        seed: int,
        *,
        num_attempts: int = 10,
        random_area: Sequence[float] = (0.08, 1.0),
        random_aspect_ratio: Sequence[float] = (0.75, 1.333333),
        stream: int = 0,
    ):
        if isinstance(num_attempts, bool) or not isinstance(num_attempts, (int, np.integer)) or num_attempts < 1:
            refuse(ArgumentError, f"num_attempts must be an int >= 1, got {shown(num_attempts)}")
        self.seed, self.stream, self.num_attempts = seed, stream, int(num_attempts)
        self.area = _range("random_area", random_area)
        self.ratio = _range("random_aspect_ratio", random_aspect_ratio)

    def draw(self, call: int, count: int) -> np.ndarray:
        """The random numbers of one batch, float64 in [0, 1), (count, 2 * num_attempts + 2). ``call``: its number from 0.

        Row i belongs to position i of the batch, whatever ``count`` is.
        """
        width = 2 * self.num_attempts + 2
        generator = np.random.Generator(_philox(self.seed, self.stream, call << 64))
        return generator.random((count, width))

    def window(self, height: int, width: int, draws: np.ndarray) -> Window:
        """The window in an image of this size. ``draws`` is its row of ``draw``."""
        a0, (r0, r1) = self.area[0], self.ratio
        widest, highest = max(1, int(height * r1)), max(1, int(width / r0))
        area = height * width
        if height * widest < a0 * area:
            h, w = height, widest
        elif width * highest < a0 * area:
            h, w = highest, width
        else:
            h, w = self._attempts(height, width, draws) or self._last_resort(height, width, widest, highest)
        y = min(int(draws[-2] * (height - h + 1)), height - h)
        x = min(int(draws[-1] * (width - w + 1)), width - w)
        return Window(y, x, h, w)

    def _attempts(self, height: int, width: int, draws: np.ndarray) -> tuple[int, int] | None:
        (a0, a1), (r0, r1) = self.area, self.ratio
        low, high = math.log(r0), math.log(r1)
        for i in range(self.num_attempts):
            area = (a0 + (a1 - a0) * draws[2 * i]) * height * width
            ratio = math.exp(low + (high - low) * draws[2 * i + 1])
            w = max(1, math.floor(math.sqrt(area * ratio) + 0.5))
            h = max(1, math.floor(math.sqrt(area / ratio) + 0.5))
            if w <= width and h <= height and r0 <= w / h <= r1:
                return h, w
        return None

    def _last_resort(self, height: int, width: int, widest: int, highest: int) -> tuple[int, int]:
        ratio = width / height
        h, w = height, width
        if ratio > self.ratio[1]:
            w = widest
        elif ratio < self.ratio[0]:
            h = highest
        scale = math.sqrt(min(1.0, self.area[1] * height * width / (h * w)))
        return max(1, int(h * scale)), max(1, int(w * scale))


def _range(argument: str, value: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = map(float, value)
    except Exception:  # of the user's object
        refuse(ArgumentError, f"{argument} must be two numbers, got {shown(value)}")
    if not 0 < low <= high < math.inf:
        refuse(ArgumentError, f"{argument} must be (least, most) with 0 < least <= most, got {shown(value)}")
    return low, high


def coin_flips(seed: int, call: int, count: int, probability: float = 0.5, stream: int = 0) -> np.ndarray:
    """int8 (count,), 1 with that probability, else 0; element i depends on (seed, stream, call, i) only."""
    return (np.random.Generator(_philox(seed, stream, call << 64)).random(count) < probability).astype(np.int8)
