"""Runs one case in a process of its own, under a limit of memory and time."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from oneflow.errors import OneFlowError

MEMORY = 2 << 30  # bytes of address space
SECONDS = 10  # of processor time, which a busy machine does not use up
WAIT = 120  # seconds by the clock, for a case that waits
GOOD = ("read", "refused")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case.

    ``kind`` is "read", "refused" (an error of the library's own), "raw" (another exception), "time" or "killed"; ``detail`` the
    error; ``peak`` bytes of memory.
    """

    case: str
    kind: str
    detail: str
    peak: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.kind in GOOD and self.peak <= MEMORY


def each(*steps: Callable[[], object]) -> None:
    """All steps, whatever earlier ones raise of the library's own; then the first of these errors."""
    first: OneFlowError | None = None
    for step in steps:
        try:
            step()
        except OneFlowError as error:
            first = first or error
    if first is not None:
        raise first


def run(case: str, body: Callable[[], object], own: type[BaseException]) -> Outcome:
    """Runs ``body`` in a fork of this process, which must have no threads that hold locks. ``own`` are errors it may raise."""
    read_end, write_end = os.pipe()
    begin = time.monotonic()
    child = os.fork()
    if not child:
        _in_child(body, own, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        told = pipe.read()
    _, status, usage = os.wait4(child, 0)
    seconds, peak = time.monotonic() - begin, usage.ru_maxrss * 1024
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        kind = "time" if number in (signal.SIGALRM, signal.SIGPROF) else "killed"
        return Outcome(case, kind, signal.Signals(number).name, peak, seconds)
    kind, detail = json.loads(told) if told else ("killed", f"status {os.waitstatus_to_exitcode(status)}")
    return Outcome(case, kind, detail, peak, seconds)


def _in_child(body: Callable[[], object], own: type[BaseException], write_end: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # decoders have their own opinion of damaged files
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(WAIT)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        body()
        kind, detail = "read", ""
    except own as error:
        kind, detail = "refused", f"{type(error).__name__}: {error}"
    except BaseException:
        kind, detail = "raw", traceback.format_exc()
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(json.dumps([kind, detail]).encode())
    os._exit(0)
