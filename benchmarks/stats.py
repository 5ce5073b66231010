"""Medians, spread, and intervals for paired ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and minimum of some measurements."""

    median: float
    low: float
    high: float
    least: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        least, low, median, high = np.percentile(np.asarray(values, float), [0, 25, 50, 75])
        return cls(float(median), float(low), float(high), float(least))

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.least * factor)


@dataclass(frozen=True)
class Ratio:
    """Median of ratios that were taken round by round, with a 95 % bootstrap interval of that median."""

    median: float
    low: float
    high: float

    @classmethod
    def paired(cls, above: Sequence[float], below: Sequence[float], resamples: int = 4000) -> Ratio:
        """``above[i] / below[i]``: both measured in round ``i``, so that what slows the machine for a while hits both."""
        ratios = np.asarray(above, float) / np.asarray(below, float)
        drawn = np.random.default_rng(0).integers(0, len(ratios), (resamples, len(ratios)))
        low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
        return cls(float(np.median(ratios)), float(low), float(high))

    def at_least(self, bound: float) -> bool:
        """Whether a lower bound holds: the interval reaches it."""
        return self.high >= bound

    def at_most(self, bound: float) -> bool:
        """Whether an upper bound holds: the interval reaches it."""
        return self.low <= bound
