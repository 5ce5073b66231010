"""Entries of a cache on disk: written whole or not at all, and the least recently used removed beyond a size."""

from __future__ import annotations

import contextlib
from pathlib import Path

from .whole_files import replacing


def write(folder: Path, name: str, content: bytes, max_bytes: int) -> None:
    """Writes an entry that only its owner may read, and keeps the folder below a size.

    Args:
      folder: made where it is missing, for its owner alone.
      max_bytes: of all entries; those whose time of change is oldest go first, so a reader that uses one touches it.
    Raises:
      OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(folder / name) as staged:
        staged.touch(0o600)
        staged.write_bytes(content)
    _prune(folder, max_bytes)


def _prune(folder: Path, max_bytes: int) -> None:
    found = []
    for file in folder.iterdir():  # what killed processes left as well
        with contextlib.suppress(OSError):
            found.append((file.stat().st_mtime, file.stat().st_size, file))
    total = sum(size for _, size, _ in found)
    for _, size, file in sorted(found, key=lambda entry: entry[0]):
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            file.unlink()
        total -= size
