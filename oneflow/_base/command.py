"""What the library's commands for a shell share: exit statuses, a parser, and the end of a command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from ..errors import OneFlowError

FOUND, ERROR, INTERRUPTED = 1, 2, 130


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with status 2."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; `{self.prog} --help` says more", file=sys.stderr)
        raise SystemExit(ERROR)


def status_of(
    command: Callable[[], int],
    *,
    expected: tuple[type[Exception], ...] = (OneFlowError,),
    text: Callable[[Exception], str] | None = None,
    interrupted: str = "",
) -> int:
    """Runs a command. Returns its exit status.

    Args:
      expected: errors that are printed without a traceback, as ``text`` says; None: whole, see ``in_a_shell``.
      interrupted: printed after Ctrl-C.
    """
    try:
        status = command()
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output has ended; without this, Python would write the rest at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except expected as error:
        print(f"error: {(text or in_a_shell)(error)}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        if interrupted:
            print(interrupted, file=sys.stderr)
        return INTERRUPTED


def in_a_shell(error: Exception) -> str:
    """The text of an error without the caller's line, which a shell does not have; what to try is on the same line."""
    lines = [line for line in str(error).splitlines() if not line.startswith("  your line")]
    if len(lines) == 2 and lines[1].startswith("  try "):
        return f"{lines[0]}; try {lines[1].removeprefix('  try ').strip()}"
    return "\n".join(lines)
