"""The same records by a Python loop over protobuf messages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oneflow.core.record.record_pb2 import OFRecord

KINDS = {"int32": np.int32, "int64": np.int64, "float": np.float32}


def messages(folder: str, parts: int) -> Iterator[Any]:
    while True:
        for i in range(parts):
            with open(f"{folder}/part-{i}", "rb") as file:
                while prefix := file.read(8):
                    yield OFRecord.FromString(file.read(struct.unpack("<q", prefix)[0]))


def make(folder: str, parts: int, batch: int, features: dict[str, tuple[str, int]]) -> tuple[Callable[[int], None], Any]:
    source = messages(folder, parts)

    def run(steps: int) -> None:
        for _ in range(steps):
            values: dict[str, list[float]] = {name: [] for name in features}
            for _ in range(batch):
                found = next(source).feature
                for name, (kind, _) in features.items():
                    values[name].extend(getattr(found[name], f"{kind}_list").value)
            for name, (kind, count) in features.items():
                np.array(values[name], KINDS[kind]).reshape(batch, count)

    return run, None
