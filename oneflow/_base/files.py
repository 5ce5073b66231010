"""Opening files that somebody else may have made: regular files only, and none outside the folder they belong to."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
from io import FileIO

Path = str | os.PathLike[str]

READING = os.O_RDONLY  # flags that neither wait for the writer of a FIFO nor give the file to other programs
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    READING |= getattr(os, _flag, 0)
TO_NOWHERE = "it is a symbolic link to nowhere"
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFLNK: "symbolic link",
}


def absolute(path: Path) -> str:
    """The path from the root, which stays the same place after ``os.chdir``; links and ".." in it are kept."""
    try:
        return str(pathlib.Path(path).absolute())
    except FileNotFoundError:  # the working directory is gone, which opening the path says
        return os.fspath(path)


def open_regular(path: Path, *, follow_symlinks: bool = True) -> FileIO:
    """Opens a regular file for reading, in binary and unbuffered.

    Anything else that can stand in its place is refused without being opened: opening a FIFO waits for its other end, and
    opening a device may set it going.

    Args:
      path: of the file.
      follow_symlinks: whether the last part of the path may be a symbolic link.
    Raises: OSError, whose ``strerror`` says what is wrong: the file is missing, is not a regular file, cannot be read, ...
    """
    flags = READING | (0 if follow_symlinks else getattr(os, "O_NOFOLLOW", 0))
    try:
        _check(os.stat(path, follow_symlinks=follow_symlinks).st_mode, path)
        file = FileIO(path, "rb", opener=lambda name, _: os.open(name, flags))  # closes it whenever an interrupt comes
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise FileNotFoundError(errno.ENOENT, TO_NOWHERE, os.fspath(path)) from error
        raise
    except ValueError as error:  # a null character, or text that the file system cannot encode
        raise OSError(errno.EINVAL, f"its path cannot be that of a file: {error}", os.fspath(path)) from error
    try:
        _check(os.fstat(file.fileno()).st_mode, path)  # it may have been replaced since
    except BaseException:
        file.close()
        raise
    return file


def check_replaceable(path: Path) -> None:
    """Raises OSError where a path is taken by anything but a regular file, such as a device."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    _check(mode, path)


def _check(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "special file")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"it is a {kind}, not a regular file", os.fspath(path))


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file. Raises OSError as ``open_regular`` does, and for a file of more than ``most`` bytes."""
    with open_regular(path) as file:
        return read_all(file, most)


def read_all(file: FileIO, most: int) -> bytes:
    """The rest of an open file. Raises OSError where that is more than ``most`` bytes; it is not read then."""
    size = os.fstat(file.fileno()).st_size
    pieces, left = [], most + 1 if size <= most else 0
    while left > 0 and (piece := file.read(min(left, max(size, 1 << 16)))):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it is longer than {most} bytes")
    return b"".join(pieces)


def leads_outside(name: str) -> bool:
    """Whether a name that stands for a file below some folder is absolute, or leads out of the folder by ".."."""
    return os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir


def leads_straight(path: str, folder: str) -> bool:
    """Whether a path goes from ``folder`` to something below it without symbolic links: quickly seen, and true of most."""
    rest = path.removeprefix(os.path.join(folder, ""))
    if os.name == "nt" or rest == path or os.path.normpath(rest) != rest or leads_outside(rest):  # Windows has other links, too
        return False
    at = folder
    for name in rest.split(os.sep):
        at = os.path.join(at, name)
        if os.path.islink(at):
            return False
    return True


def is_below(path: Path, folder: Path) -> bool:
    """Whether a path leads to something below ``folder`` after all symbolic links are followed."""
    try:
        inside = os.path.realpath(folder)
        return os.path.commonpath([os.path.realpath(path), inside]) == inside
    except ValueError:  # a null character; on Windows, another drive
        return False


def why_outside(path: Path, folder: Path, what: str) -> str:
    """What is wrong with a path that must lead to something below ``folder``; "" where nothing is.

    Args:
      what: the folder in words.
    """
    if is_below(path, folder):
        return ""
    return TO_NOWHERE if not os.path.exists(path) else f"it is a symbolic link that leads outside {what}"
