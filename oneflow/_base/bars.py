"""What progress bars are drawn on: a standard error that may be closed, or a pipe that nobody reads."""

from __future__ import annotations

from typing import Any


class ForgivingFile:
    """A file that takes no more text after a write has failed: nobody reads a pipe any more, or standard error is closed."""

    def __init__(self, file: Any):
        self._target = file

    def write(self, text: str) -> None:
        self._try("write", text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, method: str, *args: Any) -> None:
        if self._target is not None:
            try:
                getattr(self._target, method)(*args)
            except (OSError, ValueError):  # ValueError: it is closed
                self._target = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)
