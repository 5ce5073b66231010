"""oneDNN's convolutions and matrix products as XLA calls, for oneflow-jax on a CPU: see ``load``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__version__ = "0.1.0"
PROTOCOL = 3
HERE = Path(__file__).resolve().parent / "lib"


class Library:
    """The loaded libraries: the XLA FFI handlers by the names of their calls, and how many threads a call may have."""

    CALLS = ("conv", "matmul", "transpose")

    def __init__(self, threads: int) -> None:
        if not (HERE / "libofnative.so").exists():
            raise OSError("it was built without its libraries, which exist for Linux on x86-64 only")
        # in this order: each finds those before it by their names, whatever the search path is
        self._team, self._onednn, self._calls = (
            ctypes.CDLL(str(HERE / name)) for name in ("libofteam.so", "libofdnnl.so", "libofnative.so")
        )
        self._team.oneflow_min_parallel_work.restype = ctypes.c_double
        self.threads = threads
        self.handlers: dict[str, Any] = {name: self._calls[f"oneflow_{name}"] for name in self.CALLS}

    @property
    def threads(self) -> int:
        """The most threads that a call may have."""
        return int(self._team.oneflow_threads())

    @threads.setter
    def threads(self, threads: int) -> None:
        self._team.oneflow_set_threads(ctypes.c_int(threads))

    @property
    def min_parallel_work(self) -> float:
        """The floating point operations from which on a call takes all threads instead of one."""
        return float(self._team.oneflow_min_parallel_work())

    @min_parallel_work.setter
    def min_parallel_work(self, work: float) -> None:
        self._team.oneflow_set_min_parallel_work(ctypes.c_double(work))

    def describe(self, call: str, spec: Sequence[int]) -> str:
        """The name of oneDNN's implementation for a call, or "! " and why there is none."""
        text = ctypes.create_string_buffer(512)
        self._calls[f"oneflow_describe_{call}"]((ctypes.c_int64 * len(spec))(*spec), len(spec), text, len(text))
        return text.value.decode(errors="replace")

    def execute(self, call: str, spec: Sequence[int], first: int, second: int, made: int) -> None:
        """One call on memory at these addresses, outside XLA; for measuring."""
        values, addresses = (ctypes.c_int64 * len(spec))(*spec), map(ctypes.c_void_p, (first, second, made))
        if self._calls[f"oneflow_execute_{call}"](values, len(spec), *addresses):
            raise RuntimeError(f"oneDNN failed: {self.describe(call, spec)}")


def load(threads: int) -> Library:
    """Loads the libraries. Raises OSError where the machine cannot."""
    return Library(threads)
