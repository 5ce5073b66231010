"""The C library's allocator, set to keep freed memory for the next step.

XLA allocates a step's working memory again each time. glibc gives pieces of that size back to the system at once, and the next
step pays a page fault for every 4 KiB of it: of ResNet-50's step, a fifth of the time. One arena keeps it in one place: those
that threads have for themselves hold no piece of more than 64 MiB.

The price is that threads share what one arena knows of its memory. Where JAX's thread and the caller's take turns within
microseconds, a step takes up to 1.6 times as long: programs of tiny jobs let each thread have an arena. The compiler's threads
wait for each other's allocations. For a GPU many kernels are compiled to choose from: on 12 cores that took 4 to 5 times as
long as in a process without this policy, and there steps work in the GPU's memory.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
# of NVIDIA's driver, of WSL's, of AMD's, and of TPUs
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg", "/dev/kfd", "/dev/accel0", "/dev/vfio/0")
_PLUGINS, _PLUGIN_PATHS = ("jax_plugins", "libtpu"), ("PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH")
_MOST = (1 << 31) - 1  # the largest number that mallopt takes
_TINY, _LARGE = 1 << 20, 1 << 27  # bytes
_ARENAS_PER_CORE = 8  # at most, as by default
SWITCH = "ONEFLOW_KEEP_MEMORY"


def give_back() -> None:
    """Returns free memory to the system: what compiling and the first run of a job took is not needed again."""
    if keep_freed():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def keep_freed() -> bool:
    """Sets the policy, which has to happen before XLA's threads exist. Returns whether it is set.

    Pieces of up to 2 GiB, or a quarter of the machine's memory where that is less, are kept, and as much of them in all.
    The environment has the last word: ``ONEFLOW_KEEP_MEMORY`` (0 or 1), or any of glibc's own ``MALLOC_..._`` variables. Where
    JAX will find a GPU or a TPU, steps work in its memory, and glibc is left as it is.
    """
    chosen = os.environ.get(SWITCH)
    if not sys.platform.startswith("linux") or chosen == "0" or (chosen is None and _has_accelerator()):
        return False
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    kept = min(_MOST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    return bool(mallopt(_ARENA_MAX, 1) and mallopt(_MMAP_THRESHOLD, kept) and mallopt(_TRIM_THRESHOLD, kept))


_is_settled = _has_arenas = False


def is_settled() -> bool:
    """Whether threads may be started: glibc counts arenas from the first allocation of any but the main thread on."""
    return _is_settled or not keep_freed()


def settle(taken: Callable[[], int]) -> None:
    """Chooses the arenas for jobs whose values and variables all together take as many bytes. Changes nothing the second time,
    nor where other threads have allocated memory before. At a prompt, larger jobs may follow."""
    global _is_settled, _has_arenas
    if not is_settled() and os.environ.get(SWITCH) != "1" and not hasattr(sys, "ps1") and taken() <= _TINY:
        _has_arenas = bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS_PER_CORE * (os.cpu_count() or 1)))
    _is_settled = True


def gives_back(taken: int) -> bool:
    """Whether a job of that many bytes gets its memory from the system in each step, because the process began with tiny ones."""
    return _has_arenas and taken > _LARGE


def _has_accelerator() -> bool:
    """Whether JAX has a plugin for an accelerator and this machine a driver: asking JAX itself would start it."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and set(platforms.split(",")) <= {"cpu"}:
        return False
    return any(map(os.path.exists, _DRIVERS)) and has_plugin()


@cache
def has_plugin() -> bool:
    """Whether JAX may find GPUs or TPUs. Without any of these it has CPUs alone, and need not be started to find that out."""
    return any(map(os.environ.get, _PLUGIN_PATHS)) or any(map(_is_installed, _PLUGINS))


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is not None:
        return spec is not None
    return any(pkgutil.iter_modules(spec.submodule_search_locations))  # pip leaves the folder of a namespace behind, empty
