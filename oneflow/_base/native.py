"""The native part: the distribution oneflow-jax-native, where it is installed, works here and fits the JAX at hand."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

from .jax import jax

_log = logging.getLogger("oneflow")
_lock = threading.Lock()
PROTOCOL = 3
DTYPES = {"float32": 0, "bfloat16": 1}  # that calls take, and what they are in a spec


def target(call: str) -> str:
    """XLA's name of a call; it changes with the calls' meaning, so that no cached program meets another one."""
    return f"oneflow_{call}_{PROTOCOL}"


class Part:
    """What was found: ``library`` where it can be used, ``reason`` where not."""

    def __init__(self) -> None:
        self.library: Any = None
        self.reason = ""
        try:
            self.library = self._load()
        except ImportError as error:
            if error.name == "oneflow_native":
                self.reason = "oneflow-jax-native is not installed"
            else:
                self.reason = f"oneflow-jax-native cannot be imported: {error}"
        except Exception as error:  # whatever a broken part does, the job runs without it
            self.reason = f"oneflow-jax-native cannot be used: {type(error).__name__}: {error}"

    @staticmethod
    def _load() -> Any:
        module = importlib.import_module("oneflow_native")
        if module.PROTOCOL != PROTOCOL:
            raise RuntimeError(f"it speaks protocol {module.PROTOCOL}, this oneflow-jax {PROTOCOL}: install both from one tree")
        library = module.load(_threads())
        for call, handler in library.handlers.items():
            jax.ffi.register_ffi_target(target(call), jax.ffi.pycapsule(handler), platform="cpu")
        return library


_part: Part | None = None


def part() -> Part:
    """Looks once a process; says what would be faster with it, or what is wrong with it."""
    global _part
    with _lock:
        if _part is None:
            _part = Part()
            if _part.reason.endswith("not installed"):
                _log.info(
                    "oneflow: convolutions and matrix products run faster on this CPU with the native part: pip install ./native"
                )
            elif _part.reason:
                _log.warning("oneflow: %s; convolutions and matrix products are computed by XLA", _part.reason)
        return _part


def _threads() -> int:
    """The cores that this process may use: affinity, the control group's quota and OMP_NUM_THREADS, the least of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _quota()
    if quota is not None:
        count = min(count, max(1, round(quota)))
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        count = min(count, int(asked))
    return count


def _quota() -> float | None:
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            limit, period = file.read().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", encoding="ascii") as file:
            limit_us = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us", encoding="ascii") as file:
            return limit_us / int(file.read()) if limit_us > 0 else None
    except (OSError, ValueError):
        return None
