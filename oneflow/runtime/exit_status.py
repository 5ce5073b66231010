"""The exit status of this process, where a callback failed and the error was not reported, and in forked children.

CPython has destroyed SystemExit when exit hooks run, and its status is only on the C stack then. The argument of ``sys.exit``,
``exit`` or ``quit`` is noted (``_Exit``); ``raise SystemExit(3)``, or a ``sys.exit`` that was imported by name before this
package, or an exception that was caught and raised again, as ``asyncio.run`` does, is not seen, and the status is 120 instead.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
from typing import Any, NoReturn

from ..errors import CallbackError

PREEMPTED = 75  # of a program that saved and left because its machine is taken away; EX_TEMPFAIL of sysexits.h: try again later
_FAILED = 120  # of a program that ends well by itself, and whose callback failed unnoticed; Python's own, see _FailingAtTheEnd


class _Exit(SystemExit):
    """The exception that ``sys.exit`` raises. If no Python code runs when it is destroyed, nobody caught it: the process ends."""

    def __reduce__(self) -> tuple[type[SystemExit], tuple[Any, ...]]:
        return SystemExit, self.args

    def __del__(self) -> None:
        try:
            sys._getframe(1)
        except ValueError:
            if threading.current_thread() is threading.main_thread():
                exit_status.chosen = self.code


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # as tracebacks show it, of a callback or thread
_Exit.__module__ = "builtins"


class ExitStatus:
    """The exit status that the program asked for, and the one that it ends with instead."""

    def __init__(self) -> None:
        self.chosen: Any = None  # what the program gave sys.exit, once it is leaving
        self._failed = False

    def watch(self) -> None:
        """Notes the argument of ``sys.exit``: an exit hook has no other way to know the status with which the process ends."""
        sys.exit = _exit
        for name in ("exit", "quit"):  # the interactive interpreter's
            quitter = getattr(builtins, name, None)
            if quitter is not None:
                setattr(builtins, name, _Quitter(quitter))

    def fail(self, why: str) -> None:
        """Says why, and makes the process end with an error status: its own where it has one, else 120."""
        with contextlib.suppress(Exception):
            print(f"oneflow: {why}", file=sys.stderr)
        if not self._failed and self.expected() == 0:
            self._failed = True
            sys.stdout = _FailingAtTheEnd(sys.stdout, why)

    def expected(self, *, failed: bool = False) -> int:
        """The status that the interpreter is about to end with, as far as is known; ``failed``: a callback has, unnoticed."""
        if self.chosen is not None:
            status = self.chosen & 0xFF if isinstance(self.chosen, int) else 1
        else:
            status = 1 if getattr(sys, "last_type", None) is not None else 0
        return status or (_FAILED if failed else 0)


def _exit(status: Any = None, /) -> NoReturn:
    raise _Exit(status)


_exit.__name__ = _exit.__qualname__ = "exit"
_exit.__doc__ = sys.exit.__doc__


class _Quitter:
    """``exit`` or ``quit`` of the interactive interpreter, which raises SystemExit by itself."""

    def __init__(self, quitter: Any):
        self._quitter = quitter

    def __call__(self, code: Any = None) -> Any:
        try:
            return self._quitter(code)
        except SystemExit:
            raise _Exit(code) from None

    def __repr__(self) -> str:
        return repr(self._quitter)


class _FailingAtTheEnd:
    """Standard output whose last flush fails, which makes the interpreter's exit status 120.

    SystemExit inside an exit hook leaves status 0, and ``os._exit`` would skip everything that others do at exit: flushing
    files, removing temporary directories.
    """

    closed = False

    def __init__(self, stream: Any, why: str):
        self._stream = stream
        self._why = why

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        if sys._getframe().f_back is None:  # called by the interpreter, at its end
            raise CallbackError(self._why)

    def __repr__(self) -> str:
        return "<oneflow>"


exit_status = ExitStatus()
