"""oneDNN's convolutions and matrix products as XLA calls, for oneflow-jax on a CPU: see ``load``."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

__version__ = "0.1.0"
PROTOCOL = 50
HERE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib")
EXTENSION = "fast_path.abi3.so"


class Library:
    """The loaded libraries.

    Attributes:
      handlers: the XLA FFI handlers, by the names of their calls.
      ffi_version: (major, minor) of XLA's FFI that they were built for.
      has_bfloat16: the machine multiplies bfloat16 numbers (AVX-512 BF16 or AMX), faster than float32.
      has_slow_bfloat16: it does, but not faster.
    """

    CALLS = (
        "conv", "matmul", "transpose", "pack_weights", "product", "attention", "attention_grad", "update", "product_update",
        "summed_update", "exchange", "batch_norm", "batch_norm_grad", "cross_entropy", "cross_entropy_grad", "max_pool",
        "max_pool_grad", "layer_norm", "layer_norm_grad", "group_norm", "group_norm_grad", "lstm_cell", "lstm_cell_grad",
        "lstm_layer", "lstm_layer_grad", "largest",
    )  # fmt: skip

    def __init__(self, threads: int) -> None:
        if not os.path.exists(os.path.join(HERE, "libofnative.so")):
            raise OSError("it was built without its libraries, which exist for Linux on x86-64 only")
        # in this order: each finds those before it by their names, whatever the search path is
        self._pool, self._onednn, self._calls = (
            ctypes.CDLL(os.path.join(HERE, name)) for name in ("libofpool.so", "libofdnnl.so", "libofnative.so")
        )
        self._pool.oneflow_min_parallel_work.restype = ctypes.c_double
        self._pool.oneflow_moves.restype = self._pool.oneflow_taken_over.restype = ctypes.c_long
        self.threads = threads
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._calls.oneflow_ffi_version(ctypes.byref(major), ctypes.byref(minor))
        self.ffi_version = (major.value, minor.value)
        bfloat16 = self._calls.oneflow_bfloat16()
        self.has_bfloat16, self.has_slow_bfloat16 = bfloat16 == 2, bfloat16 == 1
        self.handlers: dict[str, Any] = {name: self._calls[f"oneflow_{name}"] for name in self.CALLS}

    @property
    def threads(self) -> int:
        """The most threads that a call may have."""
        return int(self._pool.oneflow_threads())

    @threads.setter
    def threads(self, threads: int) -> None:
        self._pool.oneflow_set_threads(ctypes.c_int(threads))

    @property
    def min_parallel_work(self) -> float:
        """The floating point operations from which on a call takes all threads instead of one."""
        return float(self._pool.oneflow_min_parallel_work())

    @min_parallel_work.setter
    def min_parallel_work(self, flops: float) -> None:
        self._pool.oneflow_set_min_parallel_work(ctypes.c_double(flops))

    @property
    def moves(self) -> int:
        """How often a thread of a call that waited for a busy core went on on that of the call's first thread, so far."""
        return int(self._pool.oneflow_moves())

    @property
    def taken_over(self) -> int:
        """How often the first thread of a call has also computed the part of one that had not begun by then, so far."""
        return int(self._pool.oneflow_taken_over())

    def set_patience(self, seconds: int) -> None:
        """The time that a call which devices make together waits for the last of them, 600 seconds at first."""
        self._calls.oneflow_set_patience(ctypes.c_int(seconds))

    def describe(self, call: str, spec: Sequence[int]) -> str:
        """The name of oneDNN's implementation for a call, or "! " and why there is none."""
        return self._text(self._calls.oneflow_describe, call, spec)

    def execute(self, call: str, spec: Sequence[int], *addresses: int) -> None:
        """One call outside XLA, for measuring and for tests.

        Args:
          call: one of ``CALLS``.
          spec: what describes it.
          addresses: of its inputs and its results, whose sizes the spec says.

        Raises:
          RuntimeError: it cannot be computed.
        """
        error = self._text(self._calls.oneflow_execute, call, spec, (ctypes.c_void_p * len(addresses))(*addresses))
        if error:
            raise RuntimeError(f"oneDNN failed: {error[2:]}")

    @staticmethod
    def _text(function: Any, call: str, spec: Sequence[int], *more: Any) -> str:
        text = ctypes.create_string_buffer(512)
        function(call.encode(), (ctypes.c_int64 * len(spec))(*spec), len(spec), *more, text, len(text))
        return text.value.decode(errors="replace")


class JpegWindows:
    """Decodes windows of JPEG images, without what is beside and below them, by the libjpeg-turbo in a file.

    Raises OSError where that file, or this machine, has none that can be used.
    """

    MARGIN = 32  # pixels by which the rows of a result are longer than those of the window

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(os.path.join(HERE, "libofjpeg.so"))
        if not library.oneflow_jpeg_load(path.encode()):
            raise OSError(f"{path} is not a libjpeg-turbo with the interface of libjpeg 6.2")
        size, number, address = ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p
        self._decode = library.oneflow_jpeg_window
        self._decode.argtypes = [address, size, *[number] * 7, address, size]

    def decode(
        self, data: int, size: int, image: tuple[int, int], factor: int, window: tuple[int, int, int, int], out: int
    ) -> int:
        """Decodes a window of an image, or of the image at a fraction of its size, to BGR.

        Args:
          data: the address of the file's bytes.
          size: how many there are.
          image: its height and width, as its header says.
          factor: 1, 2, 4 or 8: by how much the sides are shorter than that.
          window: y, x, height and width, of the shorter sides.
          out: the address of uint8 (height, width + MARGIN, 3) for the window's height and width.

        Returns:
          the column of ``out`` where the window begins; -1 for a damaged image, or one that another decoder must read.
        """
        return int(self._decode(data, size, *image, factor, *window, out, 3 * (window[3] + self.MARGIN)))


def fast_path() -> Any:
    """The extension module that makes calls of jobs. Raises ImportError where there is none for this Python."""
    path = os.path.join(HERE, EXTENSION)
    if ".abi3.so" not in importlib.machinery.EXTENSION_SUFFIXES:
        raise ImportError("this Python does not take modules of the stable ABI")
    if not os.path.exists(path):
        raise ImportError("it was built without the headers of Python or NumPy")
    name = EXTENSION.partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(threads: int) -> Library:
    """Loads the libraries. Raises OSError where the machine cannot."""
    return Library(threads)
