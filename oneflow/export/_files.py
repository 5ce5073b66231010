"""The path and the largest size of a model's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._base import check
from .._base.refuse import refuse
from ..errors import ArgumentError

LARGEST_FILE = (1 << 31) - 1  # bytes: the largest flatbuffer (StableHLO), and the largest protobuf message (ONNX)


def as_path(what: str, path: Any) -> Path:
    """The path of a file. Raises ArgumentError for anything but a non-empty str or os.PathLike of str."""
    text, problem = check.path(path)
    if problem:
        refuse(ArgumentError, f"{what}: the file's path {problem}")
    return Path(text)
