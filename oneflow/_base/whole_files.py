"""Writing a file: at every instant the path is as before, or the whole file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ExportError
from .files import check_replaceable
from .refuse import refuse


@contextmanager
def replacing(what: str, path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to, which is moved there in the end.

    A symbolic link stays; what it leads to is replaced. Raises ExportError where the disk refuses, and where the path is that of
    anything but a file.
    """
    target = Path(os.path.realpath(path))
    staged = target.with_name(f"{target.name}.{os.getpid()}.saving")
    problem: Exception | None = None
    try:
        check_replaceable(target)
        yield staged
        os.replace(staged, target)
    except OSError as error:
        problem = error
    finally:
        with suppress(OSError):
            staged.unlink()
    if problem is not None:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        hint = "" if path.parent.is_dir() else f"create the directory {str(path.parent)!r} first"
        refuse(ExportError, f"{what}: {str(path)!r} cannot be written: {reason}", hint=hint, cause=problem)
