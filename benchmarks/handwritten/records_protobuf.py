"""The same records by a Python loop over protobuf messages."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oneflow.core.record.record_pb2 import OFRecord

KINDS = {"int32": np.int32, "int64": np.int64, "float": np.float32, "bytes": np.uint8}
MANY = 100  # numbers of a feature: an array of each record is then faster than one list


def serialised(folder: str, parts: int) -> Iterator[bytes]:
    while True:
        for i in range(parts):
            with open(f"{folder}/part-{i}", "rb") as file:
                while prefix := file.read(8):
                    yield file.read(struct.unpack("<q", prefix)[0])


def shuffled(records: Iterator[bytes], buffer: int) -> Iterator[bytes]:
    draw, held = random.Random(0), [next(records) for _ in range(buffer)]
    for record in records:
        i = draw.randrange(buffer)
        record, held[i] = held[i], record
        yield record


def make(
    folder: str, parts: int, batch: int, features: dict[str, tuple[str, int]], buffer: int = 0
) -> tuple[Callable[[int], None], Any]:
    records = serialised(folder, parts)
    source = map(OFRecord.FromString, shuffled(records, buffer) if buffer else records)

    def run(steps: int) -> None:
        for _ in range(steps):
            values: dict[str, list[Any]] = {name: [] for name in features}
            for _ in range(batch):
                found = next(source).feature
                for name, (kind, count) in features.items():
                    numbers = getattr(found[name], f"{kind}_list").value
                    if count < MANY:
                        values[name].extend(numbers)
                    else:
                        values[name].append(np.frombuffer(numbers[0], np.uint8) if kind == "bytes" else np.array(numbers))
            for name, (kind, count) in features.items():
                np.array(values[name], KINDS[kind]).reshape(batch, count)

    return run, None
