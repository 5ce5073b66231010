"""Lines of the user's program, for errors."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
from dataclasses import dataclass
from types import FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NAME = __name__.partition(".")[0]
_BETWEEN = {contextlib.__file__, functools.__file__}  # their frames are between the user's line and the library


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The text of the line, or "" if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}"


def _short(path: str) -> str:
    try:
        relative = os.path.relpath(path) if os.path.isabs(path) and os.path.exists(path) else path
    except OSError:  # the working directory is gone
        return path
    return path if relative.startswith("..") else relative


def is_library(filename: str) -> bool:
    """Whether a file is part of this package."""
    return filename.startswith(_PACKAGE)


def _is_library_frame(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    if filename == "<string>":  # generated code: a dataclass's __init__ is ours, `python -c` is the user's
        return str(frame.f_globals.get("__name__")).partition(".")[0] == _NAME
    return is_library(filename) or filename in _BETWEEN


def caller() -> Source:
    """The innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_library_frame(frame):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def without_library(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without this package's frames."""
    if traceback is None:
        return None
    inner = without_library(traceback.tb_next)
    if _is_library_frame(traceback.tb_frame):
        return inner
    return TracebackType(inner, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def of_function(function: object) -> Source:
    """The line of a function's definition."""
    code = getattr(function, "__code__", None)
    if code is None:
        return caller()
    return Source(code.co_filename, code.co_firstlineno, code.co_name)
