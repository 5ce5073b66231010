"""C++'s ``std::mt19937`` and what ``std::shuffle`` makes of it, so that orders are those of OneFlow's readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

T = TypeVar("T")
_RANGE = 0xFFFFFFFF


def outputs(seed: int) -> Iterator[int]:
    """What ``std::mt19937(seed)`` gives, one after the other."""
    state = np.random.RandomState(seed & _RANGE)  # seeds as std::mt19937 does
    while True:
        yield from state.randint(0, 1 << 32, 256, np.uint32).tolist()


def _below(count: int, source: Iterator[int]) -> int:
    """``std::uniform_int_distribution<unsigned long>(0, count - 1)`` of libstdc++ before GCC 11."""
    if count - 1 == _RANGE:
        return next(source)
    scaling = _RANGE // count
    while (value := next(source)) >= count * scaling:
        pass
    return value // scaling


def shuffle(values: list[T], seed: int | Iterator[int]) -> None:
    """``std::shuffle(values.begin(), values.end(), std::mt19937(seed))`` of libstdc++ 7 to 10, in place.

    Instead of a seed it takes a generator's ``outputs``, which several shuffles may go on with.

    Where the square of the size fits into 32 bits, one random number gives two positions.
    """
    count, source = len(values), outputs(seed) if isinstance(seed, int) else seed
    i = 1
    if count and _RANGE // count >= count:
        if count % 2 == 0:
            j = _below(2, source)
            values[1], values[j] = values[j], values[1]
            i = 2
        while i < count:
            both = _below((i + 1) * (i + 2), source)
            for j in divmod(both, i + 2):
                values[i], values[j] = values[j], values[i]
                i += 1
        return
    for i in range(1, count):
        j = _below(i + 1, source)
        values[i], values[j] = values[j], values[i]
