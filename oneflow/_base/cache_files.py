"""Entries of a cache on disk: written whole or not at all, and the least recently used removed beyond a size."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .process_state import process_state
from .whole_files import replacing

_BETWEEN_LOOKS = 16  # entries added by this process: to look through ten thousand takes as long as to build a small job


def write(folder: Path, name: str, content: bytes, max_bytes: int) -> None:
    """Writes an entry that only its owner may read, and keeps the folder below about a size (``added``).

    Args:
      folder: made where it is missing, for its owner alone.
      max_bytes: of all entries.
    Raises:
      OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(folder / name) as staged:
        staged.touch(0o600)
        staged.write_bytes(content)
    added(folder, max_bytes)


def added(folder: Path, max_bytes: int, suffixes: tuple[str, ...] = ("",)) -> None:
    """Notes that an entry has been added; with this process's first, and then with some of them, the oldest entries are removed.

    Args:
      max_bytes: of all entries; those that were neither changed nor read for longest go first. A file system may note that a
        file is read but once a day, so a reader that can touches what it uses.
      suffixes: how the names of entries end; other files, and folders, are left alone.
    """
    count = process_state.cache_entries_added.get(folder, 0)
    process_state.cache_entries_added[folder] = count + 1
    if count % _BETWEEN_LOOKS:
        return
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:  # what killed processes left as well
            with contextlib.suppress(OSError):
                if entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    found.append((max(about.st_mtime_ns, about.st_atime_ns), about.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
