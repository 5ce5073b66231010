"""TensorBoard's event files: records of one ``Event`` message each, with checksums. Numbers are encoded many at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ..data.crc32c import crc32c, crc32c_of_rows, masked


class EventFile:
    """A file that is appended to. What was added is there for readers after ``flush``, and perhaps before."""

    def __init__(self, path: str):
        self._file = open(path, "ab")  # noqa: SIM115  closed by close()
        self.add(_field(3, b"brain.Event:2"))

    def add(self, event: bytes) -> None:
        """Appends one event, serialized."""
        header = struct.pack("<Q", len(event))
        self._file.write(header + _checksum(header) + event + _checksum(event))

    def add_numbers(self, names: Sequence[str], times: Sequence[float], steps: Sequence[int], values: np.ndarray) -> None:
        """Appends an event for each step, with one number for each name.

        Args:
          names: tags.
          times: seconds since the epoch.
          steps: as many.
          values: float32 (steps, names).
        """
        step_bytes = [_varint(step) for step in steps]
        begin = 0
        for end in range(1, len(steps) + 1):  # rows of one length are encoded together
            if end == len(steps) or len(step_bytes[end]) != len(step_bytes[begin]):
                part = slice(begin, end)
                self._file.write(_rows(names, times[part], step_bytes[part], values[part]).tobytes())
                begin = end

    def flush(self) -> None:
        """Hands everything to the system."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()


def _rows(names: Sequence[str], times: Sequence[float], steps: Sequence[bytes], values: np.ndarray) -> np.ndarray:
    """Records with equally many bytes, as uint8 (records, bytes)."""
    made, places = bytearray(), []
    for name in names:
        value = _field(1, _field(1, name.encode()) + b"\x15" + bytes(4))  # tag, simple_value
        made += value
        places.append(len(made) - 4)
    head = b"\x09" + bytes(8) + b"\x10" + steps[0]  # wall_time, step
    summary = _field(5, bytes(made))
    offset = len(head) + len(summary) - len(made)
    event = head + summary
    length = struct.pack("<Q", len(event))
    records = np.empty((len(steps), 12 + len(event) + 4), np.uint8)
    records[:, :12] = np.frombuffer(length + _checksum(length), np.uint8)
    body = records[:, 12:-4]
    body[:] = np.frombuffer(event, np.uint8)
    body[:, 1:9] = _bytes_of(np.asarray(times, "<f8")[:, None])
    body[:, 10 : len(head)] = np.frombuffer(b"".join(steps), np.uint8).reshape(len(steps), -1)
    for i, place in enumerate(places):
        body[:, offset + place : offset + place + 4] = _bytes_of(np.ascontiguousarray(values[:, i : i + 1], "<f4"))
    records[:, -4:] = _bytes_of(masked(crc32c_of_rows(body)).astype("<u4")[:, None])
    return records


def _bytes_of(column: np.ndarray) -> np.ndarray:
    return column.view(np.uint8)


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that has a length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(crc32c(data)))
