"""Lines of the user's program, for errors."""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NAME = __name__.partition(".")[0]
# like those of frozen modules, their frames are between the user's line and the library
_BETWEEN = {contextlib.__file__, copy.__file__, functools.__file__}
_CALLED_BY_BOTH = sys.stdlib_module_names | {"jax", "jaxlib", "numpy"}  # their frames belong to whoever called them


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


def is_library_frame(frame: FrameType) -> bool:
    """Whether a frame is this package's, or of what stands between that and the user's code."""
    filename = frame.f_code.co_filename
    if filename == "<string>":  # generated code: a dataclass's __init__ is ours, `python -c` is the user's
        return _package(frame) == _NAME
    return is_library(filename) or filename in _BETWEEN or filename.startswith("<frozen ")


def is_library_module(name: str) -> bool:
    """Whether a module is part of this package."""
    return name.partition(".")[0] == _NAME


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def caller() -> Source:
    """The innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library_frame(frame):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def without_library(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without this package's frames, and those of other packages that it called."""
    kept = [entry for entry, is_ours in _owned(traceback) if not is_ours]
    shown = None
    for entry in reversed(kept):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def innermost(traceback: TracebackType | None) -> Source | None:
    """The last line of a traceback that is neither this package's nor of what that, or the user's code, called."""
    lines = [entry for entry, is_ours in _owned(traceback) if not is_ours and _package(entry.tb_frame) not in _CALLED_BY_BOTH]
    if not lines:
        return None
    code = lines[-1].tb_frame.f_code
    return Source(code.co_filename, lines[-1].tb_lineno, code.co_name)


def colon_and_text(error: BaseException) -> str:
    """What a message has behind the type of an error: its text, if it has one."""
    try:
        text = str(error)
    except Exception:
        text = "(an error whose text cannot be shown)"
    return f": {text}" if text else ""


def raised_at(error: BaseException) -> str:
    """A row of a message that shows the line of the user's that an error came from; "" where it has none."""
    line = innermost(error.__traceback__)
    return "" if line is None else f"  raised at  {line}   {line.text}\n"


def is_accident(error: BaseException) -> bool:
    """Whether an error came about in this package, or in what that called, and was not raised there on purpose."""
    entries = list(_owned(error.__traceback__))
    if not entries or not entries[-1][1]:
        return False
    innermost = entries[-1][0]
    code = innermost.tb_frame.f_code
    is_raised = is_library_frame(innermost.tb_frame) and code.co_code[innermost.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return not is_raised or type(error) is AssertionError  # `assert` is the same instruction


def begins_in_library(traceback: TracebackType | None) -> bool:
    """Whether the outermost frame is this package's: that of the code that has caught the error."""
    return traceback is not None and is_library_frame(traceback.tb_frame)


def _owned(traceback: TracebackType | None) -> Iterator[tuple[TracebackType, bool]]:
    """The entries of a traceback, each with whether it is this package's, or of what that called."""
    is_ours = False
    while traceback is not None:
        frame = traceback.tb_frame
        if is_library_frame(frame):
            is_ours = True
        elif _package(frame) not in _CALLED_BY_BOTH:
            is_ours = False
        yield traceback, is_ours
        traceback = traceback.tb_next


def of_function(function: object) -> Source:
    """The line of a function's definition."""
    code = getattr(function, "__code__", None)
    if code is None:
        return caller()
    return Source(code.co_filename, code.co_firstlineno, code.co_name)
