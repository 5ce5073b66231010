"""Helpers for the inputs that can be packed into OFRecords."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from .._base.files import Path
from .._base.refuse import refuse
from ..errors import DataError
from .records import ofrecord

KINDS = {"float": "float_list", "double": "double_list", "int32": "int32_list", "int64": "int64_list", "bytes": "bytes_list"}
INTEGERS = {"int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1)}  # smallest and largest


def plain_number(text: str, kind: Callable[[str], Any]) -> Any:
    """``int`` or ``float`` of a text, without what Python alone takes for digits: 2020_01 is a name.

    Raises: ValueError.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")
    return kind(text)


def make_record(values: Mapping[str, tuple[str, Sequence[Any]]]) -> bytes:
    """A serialised OFRecord. ``values`` maps names of features to (kind, values), kinds as in ``KINDS``."""
    message = ofrecord()()
    for name, (kind, items) in values.items():
        getattr(message.feature[name], KINDS[kind]).value.extend(items)
    return message.SerializeToString(deterministic=True)


def stamp(path: Path) -> list[Any]:
    """Path, size and time of a file, by which a later run recognises it. Raises DataError."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        refuse_file(path, error)
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]


def in_seconds(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity as older versions wrote it, with the times of its stamps in whole seconds."""

    def older(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if [type(part) for part in value] == [str, int, int]:
            return [*value[:2], value[2] // 10**9]
        return [older(part) for part in value]

    return {name: older(value) for name, value in identity.items()}


def refuse_file(path: Path, error: Exception) -> NoReturn:
    """Raises DataError for a file that cannot be read."""
    why = getattr(error, "strerror", None) or str(error)
    refuse(DataError, f"a file cannot be read: {why}", found=[("file", os.fspath(path))])
