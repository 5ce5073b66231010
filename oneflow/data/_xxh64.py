"""XXH64 with seed 0, vectorised over many pieces of a buffer."""

from __future__ import annotations

import numpy as np

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p) for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)  # fmt: skip


def _rotated(x: np.ndarray, bits: int) -> np.ndarray:
    return x << np.uint64(bits) | x >> np.uint64(64 - bits)


def _round(accumulator: np.ndarray, word: np.ndarray) -> np.ndarray:
    return _rotated(accumulator + word * _P2, 31) * _P1


def xxh64(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The digests of all pieces, uint64. At least 8 bytes of ``data`` must follow the last piece."""
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    halves = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    order = np.argsort(-lengths, kind="stable")  # longer ones first
    at, left = starts[order].astype(np.int64), lengths[order].astype(np.int64)
    with np.errstate(over="ignore"):
        lanes = np.empty((len(order), 4), np.uint64)
        lanes[:] = np.array([_P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1])
        step = np.arange(4) * 8
        stripes = left // 32
        for i in range(int(stripes.max()) if len(stripes) else 0):
            going = int(np.searchsorted(-stripes, -i, side="left"))  # more than i stripes
            lanes[:going] = _round(lanes[:going], words[at[:going, None] + (step + 32 * i)])
        a, b, c, d = lanes.T
        hashed = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        for lane in (a, b, c, d):
            hashed = (hashed ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
        hashed = np.where(left >= 32, hashed, _P5) + left.astype(np.uint64)
        at, left = at + stripes * 32, left % 32
        for _ in range(3):
            rows = np.flatnonzero(left >= 8)
            word = _round(np.zeros(len(rows), np.uint64), words[at[rows]])
            hashed[rows] = _rotated(hashed[rows] ^ word, 27) * _P1 + _P4
            at[rows], left[rows] = at[rows] + 8, left[rows] - 8
        rows = np.flatnonzero(left >= 4)
        hashed[rows] = _rotated(hashed[rows] ^ halves[at[rows]].astype(np.uint64) * _P1, 23) * _P2 + _P3
        at[rows], left[rows] = at[rows] + 4, left[rows] - 4
        for _ in range(3):
            rows = np.flatnonzero(left)
            hashed[rows] = _rotated(hashed[rows] ^ data[at[rows]].astype(np.uint64) * _P5, 11) * _P1
            at[rows], left[rows] = at[rows] + 1, left[rows] - 1
        hashed = (hashed ^ hashed >> np.uint64(33)) * _P2
        hashed = (hashed ^ hashed >> np.uint64(29)) * _P3
        hashed ^= hashed >> np.uint64(32)
    made = np.empty_like(hashed)
    made[order] = hashed
    return made
