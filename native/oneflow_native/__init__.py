"""oneDNN's convolutions as XLA calls, for oneflow-jax on a CPU. ``load`` is all that oneflow-jax asks of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__version__ = "0.1.0"
PROTOCOL = 1
HERE = Path(__file__).resolve().parent / "lib"


class Library:
    """The loaded libraries. ``handler`` is the XLA FFI handler, ``threads`` how many threads a convolution may have."""

    def __init__(self, threads: int) -> None:
        if not (HERE / "libofnative.so").exists():
            raise OSError("it was built without its libraries, which exist for Linux on x86-64 only")
        # in this order: each finds those before it by their names, whatever the search path is
        self._team, self._onednn, self._calls = (
            ctypes.CDLL(str(HERE / name)) for name in ("libofteam.so", "libofdnnl.so", "libofnative.so")
        )
        self._team.oneflow_set_threads(ctypes.c_int(threads))
        self.handler: Any = self._calls.oneflow_conv

    @property
    def threads(self) -> int:
        return int(self._team.oneflow_threads())

    def describe(self, spec: Sequence[int]) -> str:
        """The name of oneDNN's implementation for a call, or "! " and why there is none."""
        text = ctypes.create_string_buffer(512)
        self._calls.oneflow_describe((ctypes.c_int64 * len(spec))(*spec), len(spec), text, len(text))
        return text.value.decode(errors="replace")

    def execute(self, spec: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """One call on memory at these addresses, outside XLA; for measuring."""
        ins, outs = (ctypes.c_void_p * len(inputs))(*inputs), (ctypes.c_void_p * len(outputs))(*outputs)
        values = (ctypes.c_int64 * len(spec))(*spec)
        if self._calls.oneflow_execute(values, len(spec), ins, len(inputs), outs, len(outputs)):
            raise RuntimeError(f"oneDNN failed: {self.describe(spec)}")


def load(threads: int) -> Library:
    """Loads the libraries. Raises OSError where the machine cannot."""
    return Library(threads)
