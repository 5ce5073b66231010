"""Writing a file: at every instant the path is as before, or the whole file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ExportError
from .files import check_replaceable
from .refuse import refuse


@contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes its place at the end of the block; removed where the block raises.

    Args:
      durable: the file is on the disk before it takes the place.
    Raises:
      OSError: the disk refuses.
    """
    target = Path(path)
    staged = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield staged
        if durable:
            with open(staged, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(staged, target)
    finally:
        with suppress(OSError):
            staged.unlink()


@contextmanager
def exporting(what: str, path: Path) -> Iterator[Path]:
    """As ``replacing``, for a file that a user asked for.

    A symbolic link stays; what it leads to is replaced. Raises ExportError where the disk refuses, and where the path is that of
    anything but a file.
    """
    problem: OSError | None = None
    try:
        target = os.path.realpath(path)
        check_replaceable(target)
        with replacing(target) as staged:
            yield staged
    except OSError as error:
        problem = error
    if problem is not None:
        hint = "" if path.parent.is_dir() else f"create the directory {str(path.parent)!r} first"
        rule = f"{what}: {str(path)!r} cannot be written: {problem.strerror or str(problem) or type(problem).__name__}"
        refuse(ExportError, rule, hint=hint, cause=problem)
