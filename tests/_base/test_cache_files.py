"""A cache on disk stays below about a size: what was used last remains, and so does all that is no entry."""

from __future__ import annotations

import os
from pathlib import Path

from oneflow._base import cache_files

SIZE = 1000


def _added(folder: Path, *names: str, suffixes: tuple[str, ...] = ("",)) -> None:
    for name in names:
        (folder / name).write_bytes(bytes(SIZE))
        cache_files.added(folder, 10 * SIZE, suffixes)


def test_entries_that_were_neither_written_nor_read_for_longest_go_first(tmp_path):
    names = [f"{i:03}" for i in range(40)]
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(SIZE))
        os.utime(tmp_path / name, (i + 1, i + 1))
    os.utime(tmp_path / "000", (100, 1))  # was read
    os.utime(tmp_path / "001", (1, 100))  # was touched
    _added(tmp_path, "new")
    assert {file.name for file in tmp_path.iterdir()} == {"000", "001", *names[-7:], "new"}


def test_a_folder_is_looked_through_once_in_a_while(tmp_path):
    _added(tmp_path, *(f"{i:03}" for i in range(17)))
    assert len(list(tmp_path.iterdir())) == 10
    _added(tmp_path, *(f"{i:03}" for i in range(17, 32)))
    assert len(list(tmp_path.iterdir())) == 25
    _added(tmp_path, "last")
    assert len(list(tmp_path.iterdir())) == 10 and (tmp_path / "last").exists()


def test_what_is_no_entry_is_left_alone(tmp_path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data-cache").write_bytes(bytes(SIZE))
    (tmp_path / "link-cache").symlink_to(tmp_path / "elsewhere" / "data-cache")
    mine = ["thesis.tex", "cache", "a-cache.txt"]
    for name in mine:
        (tmp_path / name).write_bytes(bytes(20 * SIZE))
    _added(tmp_path, *(f"{i}-cache" for i in range(33)), suffixes=("-cache",))
    assert all((tmp_path / name).exists() for name in [*mine, "link-cache", "steps", "elsewhere/data-cache"])
    assert sum(file.name.endswith("-cache") for file in tmp_path.iterdir()) == 10 + 1


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    cache_files.added(tmp_path / "gone", 1)
