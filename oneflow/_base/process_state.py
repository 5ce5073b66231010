"""The state of this operating-system process below the runtime, whose own is in ``runtime/process.py``: one object."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class ProcessState:
    """What all sessions of a process share.

    Attributes:
      annotations_required: whether jobs without annotations are refused.
      logged_settings: the settings without effect that users have been told of.
      native_part: the native part, once it has been looked for, under ``native_lock``.
      sgemm_generated: whether oneDNN has been asked to generate the code of its sgemm, under the same lock.
      said_no_bfloat16: whether users have been told that mixed precision is not faster on this machine.
      cache_entries_added: entries of caches on disk that this process has added, by folder.
      callback_errors: errors of Python code inside a step, with this code, until its call takes them; under ``callback_lock``.
      imported_at_ns: when the library was imported, by the clock of files.
      profiler_ranges: the ranges that a thread has begun, under ``stack``.
    """

    def __init__(self) -> None:
        self.imported_at_ns = time.time_ns()
        self.annotations_required = False
        self.logged_settings: set[str] = set()
        self.native_part: Any = None
        self.sgemm_generated = False
        self.said_no_bfloat16 = False
        self.cache_entries_added: dict[Path, int] = {}
        self.profiler_ranges = threading.local()
        self.after_fork()

    def after_fork(self) -> None:
        """Locks may be held by threads that a forked child does not have."""
        self.native_lock = threading.Lock()
        self.callback_lock = threading.Lock()
        self.callback_errors: list[tuple[Exception, Any]] = []


process_state = ProcessState()
