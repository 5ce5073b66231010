"""What the library's commands for a shell share: exit statuses, a parser, and the end of a command."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeGuard

from ..errors import OneFlowError
from .frames import show_users_frames
from .source import caller

FOUND, ERROR, INTERRUPTED = 1, 2, 130
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with status 2."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; `{self.prog} --help` says more", file=sys.stderr)
        raise SystemExit(ERROR)


def add_rest(parser: argparse.ArgumentParser, **described: Any) -> None:
    """Adds the argument ``arguments``: all that is left of the command line, which may be nothing."""
    parser.add_argument("arguments", nargs=argparse.REMAINDER, **described).required = False  # some versions of Python ask for it


def status_of(
    command: Callable[[], int],
    *,
    expected: tuple[type[Exception], ...] = (OneFlowError,),
    text: Callable[[Exception], str] | None = None,
    interrupted: str = "",
) -> int:
    """Runs a command. Returns its exit status.

    Args:
      expected: errors that are printed without a traceback, as ``text`` says; None: whole, see ``in_a_shell``. Others are shown
        as Python shows those of a script.
      interrupted: printed after Ctrl-C.
    """
    _write_all_characters()
    try:
        try:
            return command()
        finally:  # of --help and --version, too, which end by SystemExit
            if sys.stdout is not None:  # None where the shell has closed it
                sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended
        _discard_output()
        return 0
    except Exception as error:
        if _is_of_output(error):
            _discard_output()
            print(f"oneflow: cannot write the output: {error.strerror}", file=sys.stderr)
            return ERROR
        if not isinstance(error, expected):
            show_users_frames(error)
            sys.excepthook(type(error), error, error.__traceback__)
            return FOUND
        print(f"error: {(text or in_a_shell)(error)}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        if interrupted:
            print(interrupted, file=sys.stderr)
        return INTERRUPTED


def _write_all_characters() -> None:
    """Characters that the output's encoding lacks are written as ``\\xe9``, as Python writes them to the standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _is_of_output(error: Exception) -> TypeGuard[OSError]:
    """Whether the disk that the output goes to is full or broken. Only writing tells it from another file's disk."""
    if not isinstance(error, OSError) or error.errno not in _NOT_WRITABLE or sys.stdout is None:
        return False
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """Keeps Python from writing the rest of the output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_a_shell(error: Exception) -> str:
    """The text of an error. Of what is not about a line of a script, without one, and what to try is on the same line."""
    of_the_command = f"  your line  {caller()} "  # where the command was started
    lines = [line for line in str(error).splitlines() if not f"{line} ".startswith(of_the_command)]
    if len(lines) == 2 and lines[1].startswith("  try "):
        return f"{lines[0]}; try {lines[1].removeprefix('  try ').strip()}"
    return "\n".join(lines)
