"""Ctrl-C ends a training after its step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ..runtime import processes


class Interrupt:
    """Within the block the first Ctrl-C sets ``came``, and the next one interrupts at once, as ever.

    On threads other than the main one, where a program has a handler of its own, and in a run of several processes, which
    must end at the same step, nothing is changed.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and processes.count() == 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            signal.signal(signal.SIGINT, before)

    def __exit__(self, *_: object) -> None:
        self._restore()
