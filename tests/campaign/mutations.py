"""How bytes and JSON are damaged: as disks, transfers and hostile people do it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_SIZES = (1, 2, 4, 8)
_TELLING = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**31 + 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
]


def _place(data: bytearray, rng: np.random.Generator) -> int:
    """Headers are hit as often as all that follows them."""
    size = len(data) if rng.random() < 0.5 else min(len(data), 64)
    return int(rng.integers(max(size, 1)))


def _flip_bit(data: bytearray, rng: np.random.Generator) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << int(rng.integers(8))


def _set_byte(data: bytearray, rng: np.random.Generator) -> None:
    if data:
        data[_place(data, rng)] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, int(rng.integers(256))]))


def _set_number(data: bytearray, rng: np.random.Generator) -> None:
    size, at = int(rng.choice(_SIZES)), _place(data, rng)
    value = int(rng.choice(np.array(_TELLING, np.uint64))) & ((1 << 8 * size) - 1)
    data[at : at + size] = value.to_bytes(size, "little" if rng.random() < 0.5 else "big")


def _cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[int(rng.integers(len(data) + 1)) :]


def _remove(data: bytearray, rng: np.random.Generator) -> None:
    at = _place(data, rng)
    del data[at : at + int(rng.integers(1, 17))]


def _insert(data: bytearray, rng: np.random.Generator) -> None:
    at = _place(data, rng)
    data[at:at] = rng.integers(0, 256, int(rng.integers(1, 17)), np.uint8).tobytes()


def _repeat(data: bytearray, rng: np.random.Generator) -> None:
    at = _place(data, rng)
    data[at:at] = data[at : at + int(rng.integers(1, 200))] * int(rng.integers(1, 50))


def _zeros(data: bytearray, rng: np.random.Generator) -> None:
    at, size = _place(data, rng), int(rng.integers(1, 512))
    data[at : at + size] = bytes(len(data[at : at + size]))


def _append(data: bytearray, rng: np.random.Generator) -> None:
    data += rng.integers(0, 256, int(rng.integers(1, 5000)), np.uint8).tobytes()


def _exchange(data: bytearray, rng: np.random.Generator) -> None:
    a, b, size = _place(data, rng), _place(data, rng), int(rng.integers(1, 64))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


_BYTES: tuple[Callable[[bytearray, np.random.Generator], None], ...] = (
    _flip_bit, _flip_bit, _set_byte, _set_byte, _set_number, _set_number, _cut, _remove, _insert, _repeat, _zeros, _append,
    _exchange,
)  # fmt: skip


ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, 1e999, float("nan"),
    float("-inf"),
    "", "0", "a\0b", "../..", "/etc/passwd", "/dev/zero", "\ud800", "x" * 5000, [], [[]], [None], [1], ["1", "2", "3", "4"],
    [1, 2, 3, 4], [1e999] * 8, {}, {"a": 1}, [{}], {"id": {}}, [[[[[[[[]]]]]]]],
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Holder and key of every value inside; few of long lists."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 50)) if isinstance(value, list) else []
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


class Damage:
    """The damage to one data set: a function of its generator. With ``none`` nothing is damaged."""

    def __init__(self, rng: np.random.Generator, none: bool = False):
        self._rng = rng
        self._none = none

    def chance(self, probability: float) -> bool:
        """True with this probability; never where nothing is damaged."""
        return bool(self._rng.random() < probability) and not self._none

    def below(self, count: int) -> int:
        """A number from 0 to ``count`` - 1."""
        return int(self._rng.integers(count))

    def _changes(self) -> int:
        return 0 if self._none else 1 if self.chance(0.6) else 2 + self.below(3)

    def bytes(self, data: bytes) -> bytes:
        """These bytes with one to four changes, most often one."""
        made = bytearray(data)
        for _ in range(self._changes()):
            _BYTES[self.below(len(_BYTES))](made, self._rng)
        return bytes(made)

    def text(self, text: str, parts: Sequence[str], others: Sequence[str]) -> str:
        """The text with one of these parts of it replaced by another."""
        old, new = parts[self.below(len(parts))], others[self.below(len(others))]
        return text if self._none else text.replace(old, new, 1 + self.below(2))

    def json(self, content: Any) -> Any:
        """JSON with one to four of its values replaced, removed, repeated, renamed or nested."""
        made = copy.deepcopy(content)
        for _ in range(self._changes()):
            places = list(_places(made))
            if places:
                self._change(*places[self.below(len(places))])
        return made

    def _change(self, holder: Any, key: Any) -> None:
        kind = self.below(6)
        if kind <= 2:
            holder[key] = copy.deepcopy(ODD_VALUES[self.below(len(ODD_VALUES))])
        elif kind == 3:
            del holder[key]
        elif kind == 4:
            holder[key] = [holder[key]] * (1 + self.below(3)) if self.chance(0.5) else {"a": holder[key]}
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[f"{key}_"] = holder.pop(key)
