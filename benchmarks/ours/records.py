"""Click-through records from part files, read and decoded into arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.data.decoders import decode_raw
from oneflow.data.parts import part_paths
from oneflow.data.source import RecordSource

KINDS = {"int32": np.int32, "int64": np.int64, "float": np.float32, "bytes": np.uint8}


def make(
    folder: str, parts: int, batch: int, features: dict[str, tuple[str, int]], decode: bool = True, buffer: int = 0
) -> tuple[Callable[[int], None], Any]:
    """``features``: name to (kind, count). Without ``decode`` records are found, but not looked into."""
    source = RecordSource(part_paths(folder, parts), random_shuffle=buffer > 0, buffer_size=buffer)

    def run(steps: int) -> None:
        for _ in range(steps):
            records = source.take(batch)
            if decode:
                for name, (kind, count) in features.items():
                    decode_raw(records, name, (count,), KINDS[kind])

    return run, None
