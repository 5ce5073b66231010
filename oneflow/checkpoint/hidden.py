"""The hidden directory beside a checkpoint in which it is made, and what is left of those whose process was killed.

.oneflow-saving-<name>-<random>.d/
    lock          held by the process that saves, as long as it lives
    target        the name that the checkpoint gets
    checkpoint/   becomes the checkpoint, by one rename
    replaced/     what the checkpoint replaces, on file systems that cannot exchange two directories in one step
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import sys
from contextlib import suppress

from .._base.files import read_regular

if sys.platform != "win32":
    import fcntl

STAGING = ".oneflow-saving-"
_SUFFIX = ".d"
CHECKPOINT = "checkpoint"
_LOCK, _TARGET, _REPLACED = "lock", "target", "replaced"
_LONGEST_NAME = 255  # bytes
_TRIES = 100
_AT_CWD, _EXCHANGE = -100, 2  # of renameat2


class Hidden:
    """A hidden directory of this process."""

    def __init__(self, target: str):
        """Makes and locks it, beside ``target``."""
        self._descriptor: int | None = None
        parent, base = os.path.split(target)
        for _ in range(_TRIES):
            self.path = os.path.join(parent, f"{STAGING}{base[:40]}-{secrets.token_hex(6)}{_SUFFIX}")
            os.mkdir(self.path)
            try:
                if self._is_locked():
                    return
            except FileNotFoundError:  # another process was cleaning up, and took it for abandoned
                self._let_go()
            except BaseException:
                self.remove()
                raise
        raise OSError(errno.EAGAIN, "another process removes its hidden directory again and again")

    def _is_locked(self) -> bool:
        path = os.path.join(self.path, _LOCK)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _lock(self._descriptor) is not False and os.path.samestat(os.fstat(self._descriptor), os.stat(path)):
            return True
        self._let_go()
        return False

    @property
    def checkpoint(self) -> str:
        """The directory that becomes the checkpoint."""
        return os.path.join(self.path, CHECKPOINT)

    def replace(self, target: str) -> None:
        """Puts the checkpoint in the place of the directory ``target``; killed in between, the next save puts that one back."""
        if _exchange(self.checkpoint, target):
            return
        with open(os.path.join(self.path, _TARGET), "wb") as file:
            file.write(os.fsencode(os.path.basename(target)))
            file.flush()
            os.fsync(file.fileno())
        replaced = os.path.join(self.path, _REPLACED)
        os.rename(target, replaced)
        try:
            os.rename(self.checkpoint, target)
        except BaseException:
            os.rename(replaced, target)
            raise

    def remove(self) -> None:
        """Removes it, with all that is in it, and its lock last."""
        _remove(self.path)
        self._let_go()

    def __del__(self) -> None:
        self._let_go()  # of what Ctrl-C left behind, so that the next save removes it

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # nothing was written to the lock, so nothing can be lost
                os.close(descriptor)


def is_hidden(name: str) -> bool:
    """Whether a directory of this name is a save that did not finish, or has not yet."""
    return name.startswith(STAGING)


def is_new(name: str) -> bool:
    """Whether it is one of this version, whose process verifies that its lock is in place before it goes on."""
    return is_hidden(name) and name.endswith(_SUFFIX)


def is_visible(path: str) -> bool:
    """Whether this process sees the hidden directory that another one made."""
    return os.path.isfile(os.path.join(path, _LOCK))


def clean(parent: str) -> None:
    """Frees the space of saves whose process is gone, and puts back what one of them was about to replace. Never raises."""
    with suppress(OSError):
        with os.scandir(parent) as entries:
            found = [e for e in entries if is_new(e.name) and e.is_dir(follow_symlinks=False)]
        for entry in found:
            with suppress(OSError):
                _clean_one(parent, entry.path)


def restore(target: str) -> bool:
    """Puts back a checkpoint that a killed save had moved away and not yet replaced. Whether it has. Never raises."""
    if not os.path.lexists(target):
        clean(os.path.dirname(os.path.abspath(target)))
    return os.path.lexists(target)


def delete(path: str) -> None:
    """Deletes a checkpoint: at every instant it is whole, or not there. Never raises."""
    with suppress(OSError):
        grave = Hidden(os.path.realpath(path))
        with suppress(OSError):
            os.rename(path, os.path.join(grave.path, CHECKPOINT))
        grave.remove()


def _clean_one(parent: str, path: str) -> None:
    try:
        lock = open(os.path.join(path, _LOCK), "r+b", buffering=0)
    except FileNotFoundError:
        os.rmdir(path)  # killed right after it was made, and empty; should its process live, it makes another one
        return
    with lock:
        if _lock(lock.fileno()):
            _put_back(parent, path)
            _remove(path)


def _remove(path: str) -> None:
    """Removes a hidden directory; the lock goes last, so that whoever is killed here leaves one that can be cleaned up."""
    with suppress(OSError):
        for directory, directories, files in os.walk(path, topdown=False):
            for name in directories:
                each = os.path.join(directory, name)
                os.unlink(each) if os.path.islink(each) else os.rmdir(each)
            for name in files:
                if directory != path or name != _LOCK:
                    os.unlink(os.path.join(directory, name))
        os.unlink(os.path.join(path, _LOCK))
    with suppress(OSError):
        os.rmdir(path)


def _put_back(parent: str, path: str) -> None:
    replaced = os.path.join(path, _REPLACED)
    if os.path.isdir(replaced):
        name = read_regular(os.path.join(path, _TARGET), _LONGEST_NAME)
        target = os.path.join(parent, os.path.basename(os.fsdecode(name)))
        if not os.path.lexists(target):
            os.rename(replaced, target)


def _lock(descriptor: int) -> bool | None:
    """Whether this process has the lock now; None where there are no locks: then nobody ever cleans up there."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None


def _exchange(one: str, other: str) -> bool:
    """Exchanges two directories in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), one, None, other)
