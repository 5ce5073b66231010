"""The library's messages: the logger "oneflow", notices, and a line about what takes long."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import memory

logger = logging.getLogger("oneflow")
NOTICE = 25  # between info and warning: what a user wants to know who has set nothing up
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "notice": NOTICE, "warning": logging.WARNING, "error": logging.ERROR,
          "silent": logging.CRITICAL}  # fmt: skip
ENVIRONMENT = "ONEFLOW_LOG"
_PATIENCE_SECONDS = 2.0
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_SECONDS = 0.1


class _Handler(logging.StreamHandler[Any]):
    """Writes to the standard error of the moment, where the program has not set up logging by itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


class Level:
    """The level of messages, by ``ONEFLOW_LOG`` or ``flow.config.log_level``. By default notices and above are shown."""

    def __init__(self) -> None:
        self.value = NOTICE
        self._handler: _Handler | None = None
        name = os.environ.get(ENVIRONMENT, "").lower()
        if name in LEVELS:
            self.set(name)
        elif name:
            logger.warning("oneflow: %s=%s is not a level; there are %s", ENVIRONMENT, name, ", ".join(LEVELS))

    def set(self, name: str) -> None:
        """From now on messages of this level and above are shown; ``name`` is a key of LEVELS."""
        self.value = LEVELS[name]
        logger.setLevel(self.value)
        if self._handler is None:
            self._handler = _Handler()
            logger.addHandler(self._handler)


logging.addLevelName(NOTICE, "NOTICE")
level = Level()


def notice(text: str) -> None:
    """Shows the user a message that is not a warning: through logging where the program has set it up, else on standard error."""
    if level.value > NOTICE:
        return
    if logging.getLogger().handlers:
        logger.log(NOTICE, "%s", text)
    elif sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # a closed stream, or a pipe that nobody reads
            print(text, file=sys.stderr, flush=True)


@contextmanager
def announced(doing: Callable[[], str], done: Callable[[], str]) -> Iterator[None]:
    """Tells what is being done where that takes longer than two seconds, and at its end how long it took.

    On a terminal a spinner runs meanwhile. While there must be no other threads, only the end is told.
    """
    started = time.monotonic()
    if not memory.is_settled():
        yield
        if time.monotonic() - started > _PATIENCE_SECONDS:
            notice(f"oneflow: {done()} in {time.monotonic() - started:.1f} s")
        return
    over = threading.Event()
    shown: list[bool] = []
    thread = threading.Thread(target=_tell, args=(doing, over, shown, started), name="oneflow-notices", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)  # at the program's end it would keep the job alive, and with it the files that its module has open
    if shown:
        notice(f"oneflow: {done()} in {time.monotonic() - started:.1f} s")


def _tell(doing: Callable[[], str], over: threading.Event, shown: list[bool], started: float) -> None:
    if over.wait(_PATIENCE_SECONDS) or level.value > NOTICE:
        return
    shown.append(True)
    terminal = sys.stderr
    if terminal is None or not terminal.isatty() or logging.getLogger().handlers:
        notice(f"oneflow: {doing()} ...")
        return
    with contextlib.suppress(OSError, ValueError):
        for frame in itertools.cycle(_FRAMES):
            terminal.write(f"\r{frame} oneflow: {doing()} ... {time.monotonic() - started:.0f} s ")
            terminal.flush()
            if over.wait(_FRAME_SECONDS):
                break
        terminal.write("\r\033[K")
        terminal.flush()
