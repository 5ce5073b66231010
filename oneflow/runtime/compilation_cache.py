"""JAX's persistent compilation cache, switched on around our own compilations only."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._base import cache_files
from .._base.jax import jax

_log = logging.getLogger("oneflow")
MAX_BYTES = 1 << 30
_OF_JAX = ("-cache", "-atime")  # its files; those of the second kind are written where it bounds its cache itself
_lock = threading.Lock()
_inside = 0  # threads inside ``enabled``
_before: dict[str, Any] = {}  # JAX's settings, as they were before the first of them


def directory() -> Path | None:
    """Where compiled programs are kept; None where the cache is off.

    ``ONEFLOW_CACHE_DIR`` names another place, or, set to the empty string, switches the cache off.
    """
    chosen = os.environ.get("ONEFLOW_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "oneflow-jax" / "compiled"


def in_use() -> Path | None:
    """``directory``; None also where the user has set up JAX's own cache, or switched caches off."""
    config: Any = jax.config  # its settings are not typed
    with _lock:
        chosen = _before.get("jax_compilation_cache_dir") if _inside else config.jax_compilation_cache_dir
    return None if chosen or not config.jax_enable_compilation_cache else directory()


@contextmanager
def enabled() -> Iterator[None]:
    """Compilations inside use the cache, unless the user has set up JAX's own or the directory cannot be written."""
    config: Any = jax.config
    path = in_use()
    if path is None:
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(f"{path} is not writable")
    except OSError as error:
        _log.debug("no compilation cache: %s", error)
        yield
        return
    from jax.experimental.compilation_cache import compilation_cache

    settings = {
        "jax_compilation_cache_dir": str(path),
        "jax_compilation_cache_max_size": -1,  # to bound it, JAX would read a file per entry at every compilation
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    global _inside, _before
    with _lock:  # the settings are the process's: the first thread inside makes them, the last one takes them back
        if not _inside:
            _before = {name: getattr(config, name) for name in settings}
            for name, value in settings.items():
                config.update(name, value)
            compilation_cache.reset_cache()  # JAX reads the settings once, at its first use of the cache
        _inside += 1
    before = _changed_at(path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                for name, value in _before.items():
                    config.update(name, value)
                compilation_cache.reset_cache()
    if _changed_at(path) != before:
        cache_files.added(path, MAX_BYTES, _OF_JAX)


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
