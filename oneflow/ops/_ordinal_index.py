"""Looks up and enters the keys of a categorical encoder, on the host, whole batches at a time."""

from __future__ import annotations

import threading

import numpy as np

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: 2**64 divided by the golden ratio


class OrdinalIndex:
    """A hash table over the pairs (key, number) of one encoder's table.

    The table, a variable, alone decides: it may be loaded, assigned, or filled by another job between two calls. Each call
    compares what it relies on and brings the index up to date, so the index is a cache and nothing else.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._lock = threading.Lock()  # several devices may run one program at the same time
        self._count = -1  # no table was read yet
        self._free: np.ndarray | None = None  # rows for keys to come, where these are not simply the next ones

    def encode(self, pairs: np.ndarray, size: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers for keys, and what is new.

        Args:
          pairs: the table, (capacity, 2): keys and numbers; key 0 marks a free row.
          size: how many numbers were given so far.
          keys: (n,), of the table's dtype.
        Returns: the number of each key (0: key 0, or a key for which there is no room); the positions of the new keys, in the
          order of their numbers, which follow ``size``; the rows of the table where they belong.
        """
        with self._lock:
            if self._count != size:
                self._read(pairs, size)
            numbers, slots = self._find(keys)
            missing = np.flatnonzero((numbers == 0) & (keys != 0))
            # known keys are looked up in the table, too; that it lacks the others is certain only of the table that was read
            if (missing.size or not self._agrees(pairs, keys, numbers)) and not self._is_current(pairs):
                self._read(pairs, size)
                numbers, slots = self._find(keys)
                missing = np.flatnonzero((numbers == 0) & (keys != 0))
            rows = np.arange(self._count, self._capacity) if self._free is None else self._free
            rows = rows[: self._capacity - self._count]
            if missing.size == 0 or rows.size == 0:
                return numbers, missing[:0], missing[:0]
            return self._enter(keys, numbers, slots, missing, rows)

    def _agrees(self, pairs: np.ndarray, keys: np.ndarray, numbers: np.ndarray) -> bool:
        """Whether the table has the keys that were found where the index says."""
        rows = numbers - 1 if self._free is None else self._rows.take(numbers)
        found = pairs.reshape(-1).take(2 * rows.astype(np.int64), mode="clip")
        return bool(((found == keys) | (numbers == 0)).all())

    def _is_current(self, pairs: np.ndarray) -> bool:
        """Whether the table is the one that the index was made of."""
        used = self._count if self._free is None else self._capacity
        return np.array_equal(pairs[:used], self._pairs[:used])

    # --- the index

    def _read(self, pairs: np.ndarray, size: int) -> None:
        """Makes the index anew from the table, or enters what another job has appended to it."""
        known = self._count
        if 0 <= known < size <= self._capacity and self._free is None and self._is_current(pairs):
            added = np.arange(known, size)
            if pairs[added, 0].all() and np.array_equal(pairs[added, 1], added + 1) and not pairs[size:, 0].any():
                self._fill(pairs, added, size)
                return
        self._pairs = np.zeros_like(pairs)
        self._keys = np.zeros(self._capacity + 1, pairs.dtype)  # by number
        self._rows = np.zeros(self._capacity + 1, np.int64)  # of the table, by number
        self._bits = max(int(4 * self._capacity - 1).bit_length(), 4)
        self._slots = np.zeros(1 << self._bits, np.int32)  # numbers, at the hashes of their keys or behind
        used = np.flatnonzero((pairs[:, 0] != 0) & (pairs[:, 1] > 0) & (pairs[:, 1] <= self._capacity))
        is_dense = np.array_equal(used, np.arange(size)) and np.array_equal(pairs[used, 1], used + 1)
        self._free = None if is_dense else np.flatnonzero(pairs[:, 0] == 0)
        self._fill(pairs, used, size)

    def _fill(self, pairs: np.ndarray, rows: np.ndarray, size: int) -> None:
        keys, numbers = pairs[rows, 0], pairs[rows, 1].astype(np.int64)
        np.copyto(self._pairs, pairs)
        self._keys[numbers], self._rows[numbers] = keys, rows
        self._count = min(max(size, 0), self._capacity)
        claimed = self._claim(keys, self._homes(keys))
        self._slots[claimed] = numbers

    def _homes(self, keys: np.ndarray) -> np.ndarray:
        wide = keys.astype(np.int64).view(np.uint64)
        return ((wide ^ (wide >> np.uint64(32))) * _MULTIPLIER >> np.uint64(64 - self._bits)).view(np.int64)

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of keys, 0 for unknown ones, and the slots where the search ended."""
        slots = self._homes(keys)
        numbers = self._slots.take(slots)
        pending = np.flatnonzero(self._keys.take(numbers) != keys)
        pending = pending[numbers[pending] > 0]
        while pending.size:
            at = slots[pending] + 1 & self._slots.size - 1
            found = self._slots.take(at)
            slots[pending], numbers[pending] = at, found
            pending = pending[(self._keys.take(found) != keys[pending]) & (found > 0)]
        return numbers, slots

    def _claim(self, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Free slots for distinct or repeated unknown keys: equal keys get one slot.

        Claimed slots hold -1 - (the position in ``keys`` that claimed them), the first position of its key.
        """
        slots = slots.copy()
        pending = np.arange(keys.size)
        while pending.size:
            at = slots[pending]
            there = self._slots.take(at)
            free = there == 0
            last_first = pending[free][::-1]  # of several writes to one slot the last one counts: the first position
            self._slots[slots[last_first]] = -1 - last_first
            there = self._slots.take(at)
            owners = -1 - there
            settled = (there < 0) & (keys.take(owners, mode="clip") == keys[pending])
            pending = pending[~settled]
            slots[pending] = slots[pending] + 1 & self._slots.size - 1
        return slots

    def _enter(
        self, keys: np.ndarray, numbers: np.ndarray, slots: np.ndarray, missing: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gives the keys at the positions ``missing`` numbers, as long as there are ``free`` rows."""
        unknown = keys[missing]
        claimed = self._claim(unknown, slots[missing])
        owners = -1 - self._slots.take(claimed)
        is_first = owners == np.arange(missing.size)
        order = np.cumsum(is_first)  # of first appearances
        given = self._count + order[owners]
        first = missing[is_first][: free.size]
        rows, fresh = free[: first.size], np.arange(self._count + 1, self._count + 1 + first.size)
        numbers[missing] = np.where(given <= fresh[-1], given, 0)
        self._slots[claimed] = given
        self._keys[fresh], self._rows[fresh] = keys[first], rows
        self._pairs[rows, 0], self._pairs[rows, 1] = keys[first], fresh
        self._count += first.size
        if self._free is not None:
            self._free = self._free[first.size :]
        if given.max() > fresh[-1]:  # without the slots of keys that found no room
            self._read(self._pairs.copy(), self._count)
        return numbers, first, rows
