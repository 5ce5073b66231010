"""CRC-32C (Castagnoli), plain and masked, as in TFRecord and TensorBoard's event files."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np

_POLYNOMIAL = 0x82F63B78
_BLOCK = 256  # bytes per lookup


@cache
def _tables() -> tuple[np.ndarray, list[list[int]]]:
    """The contribution of each byte at each place of a block; and that of the four bytes of the CRC before the block."""
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = np.where(byte & 1, byte >> 1 ^ np.uint32(_POLYNOMIAL), byte >> 1)
    places = np.empty((_BLOCK, 256), np.uint32)
    places[-1] = byte
    for i in range(_BLOCK - 2, -1, -1):
        places[i] = byte[places[i + 1] & 0xFF] ^ places[i + 1] >> 8
    # a CRC is added to the first four bytes of the block that follows it
    return places, [places[i].tolist() for i in range(4)]


def crc32c(data: bytes | np.ndarray) -> int:
    """The checksum of bytes, or of a uint8 array."""
    flat = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    places, (a, b, c, d) = _tables()
    whole = len(flat) // _BLOCK * _BLOCK
    blocks = flat[:whole].reshape(-1, _BLOCK)
    crc, rows = 0xFFFFFFFF, np.arange(_BLOCK)
    for i in range(0, len(blocks), 4096):
        for added in np.bitwise_xor.reduce(places[rows, blocks[i : i + 4096]], axis=1).tolist():
            crc = added ^ a[crc & 0xFF] ^ b[crc >> 8 & 0xFF] ^ c[crc >> 16 & 0xFF] ^ d[crc >> 24]
    last = places[-1].tolist()
    for value in flat[whole:].tolist():
        crc = last[(crc ^ value) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def crc32c_of_rows(rows: np.ndarray) -> np.ndarray:
    """The checksum of each row of a uint8 array, as uint64."""
    places, length = _tables()[0], rows.shape[1]
    if length > _BLOCK:
        return np.array([crc32c(row) for row in rows], np.uint64)
    own = places[np.arange(_BLOCK - length, _BLOCK), rows]  # without the value that the CRC begins with
    return (np.bitwise_xor.reduce(own, axis=1) ^ np.uint32(crc32c(bytes(length)))).astype(np.uint64)


_Crc = TypeVar("_Crc", int, np.ndarray)


def masked(crc: _Crc) -> _Crc:
    """A checksum in the form that the files store; for an array, uint64, each of them."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
