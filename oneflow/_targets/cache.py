"""Compiled programs of targets on disk: what the compiler said about each, by program, target and versions."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from ..runtime import compilation_cache

MAX_BYTES = 512 << 20
_PACKAGES = {"gpu": ("jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt"), "tpu": ("jaxlib", "libtpu")}


def directory() -> Path | None:
    """Where they are kept; None where the library's cache is off (``ONEFLOW_CACHE_DIR=``)."""
    base = compilation_cache.directory()
    return None if base is None else base / "plans"


def key_of(platform: str, request: Any, program: bytes) -> str:
    """The name of an entry."""
    versions = {}
    for package in _PACKAGES[platform]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    text = json.dumps([platform, versions, request], sort_keys=True).encode()
    return hashlib.sha256(text + b"\0" + program).hexdigest()


def load(key: str) -> Any:
    """An entry, None where there is none or it cannot be read."""
    path = directory()
    if path is None:
        return None
    file = path / f"{key}.json.gz"
    try:
        found = json.loads(gzip.decompress(file.read_bytes()))
        os.utime(file)
    except (OSError, EOFError, ValueError):
        return None
    return found


def save(key: str, entry: Any) -> None:
    """Writes an entry. A cache that cannot be written is none: nothing is raised."""
    path = directory()
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(gzip.compress(json.dumps(entry).encode(), 1))
            os.replace(name, path / f"{key}.json.gz")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _prune(path)


def _prune(path: Path) -> None:
    """Removes the entries that were used least recently, beyond MAX_BYTES."""
    found = []
    for file in path.glob("*.json.gz"):
        with contextlib.suppress(OSError):
            found.append((file.stat().st_mtime, file.stat().st_size, file))
    total = sum(size for _, size, _ in found)
    for _, size, file in sorted(found, key=lambda entry: entry[0]):
        if total <= MAX_BYTES:
            return
        with contextlib.suppress(OSError):
            file.unlink()
        total -= size
