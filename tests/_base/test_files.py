"""Opening files: never a wait, never anything but a regular file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from oneflow._base.files import is_below, leads_straight, open_regular, read_regular


def test_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"content"
    assert read_regular(str(tmp_path / "file"), 7) == b"content"
    with pytest.raises(OSError, match="longer than 6 bytes"):
        read_regular(tmp_path / "file", 6)


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        read_regular(tmp_path / "sparse", 1000)


@pytest.mark.timeout(20)
def test_special_files_are_errors_and_never_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        place = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket may have 107 bytes
        try:
            server.bind("socket")
        finally:
            os.chdir(place)
        kinds = {"fifo": "FIFO", "link": "FIFO", "socket": "socket", ".": "directory", "/dev/zero": "character device"}
        for name, kind in kinds.items():
            with pytest.raises(OSError, match=f"it is a {kind}, not a regular file"):
                open_regular(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="cannot be that of a file"):
        open_regular(f"{tmp_path}/{name}")


def test_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"
    with pytest.raises(OSError, match="symbolic link"):
        open_regular(tmp_path / "link", follow_symlinks=False)


def test_what_lies_below_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deeper").mkdir(parents=True)
    (folder / "out").symlink_to("..")
    (folder / "in").symlink_to("deeper")
    (tmp_path / "alias").symlink_to(folder)
    for name in ("file", "deeper/file", "deeper/../file", "in/file", "../alias/file"):
        assert is_below(folder / name, folder) and is_below(folder / name, tmp_path / "alias"), name
    for name in ("../file", "/etc/passwd", "out/file", "../folder2", "a\0b"):
        path = f"{folder}/{name}" if not name.startswith("/") else name
        assert not is_below(path, folder) and (not leads_straight(path, str(folder)) or "\0" in name), name


@pytest.mark.skipif(os.name == "nt", reason="no path is said to be free of Windows' many kinds of links")
def test_ways_without_links(tmp_path: Path) -> None:
    folder = str(tmp_path / "folder")
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    (tmp_path / "folder" / "in").symlink_to("deeper")
    (tmp_path / "alias").symlink_to(folder)
    for name in ("file", "deeper/file", "deeper/nothing/file"):
        for begin in (folder, f"{tmp_path}/alias"):
            assert leads_straight(f"{begin}/{name}", begin), name
    for name in ("in", "in/file", "deeper/../in/file", "../folder/file", "", "deeper//file"):
        assert not leads_straight(f"{folder}/{name}", folder), name
    assert not leads_straight(f"{folder}2/file", folder)
