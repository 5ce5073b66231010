"""C++'s ``std::mt19937`` and ``std::shuffle``, so that orders are those of OneFlow's readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

T = TypeVar("T")
_RANGE = 0xFFFFFFFF


def outputs(seed: int) -> Iterator[int]:
    """The outputs of ``std::mt19937(seed)``, in order."""
    state = np.random.RandomState(seed & _RANGE)  # seeded like std::mt19937
    while True:
        yield from state.randint(0, 1 << 32, 256, np.uint32).tolist()


def _below(count: int, source: Iterator[int]) -> int:
    """``std::uniform_int_distribution<unsigned long>(0, count - 1)`` of libstdc++ since GCC 11, for counts up to 2**32.

    The upper half of a 64-bit product; draws that would bias the result are repeated.
    """
    product = next(source) * count
    if product & _RANGE < count:
        least = (_RANGE + 1 - count) % count
        while product & _RANGE < least:
            product = next(source) * count
    return product >> 32


def shuffle(values: list[T], seed: int | Iterator[int]) -> None:
    """``std::shuffle(values.begin(), values.end(), std::mt19937(seed))`` of libstdc++, in place.

    The standard does not define the order: other libraries, and GCC before 11, make another one. Instead of a seed, the
    ``outputs`` of a generator can be passed, so that several shuffles share it.

    Where the square of the size fits into 32 bits, one random number yields two positions.
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
