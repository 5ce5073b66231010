"""Compiled programs of targets on disk: what the compiler said about each, by program, target and versions."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from .._base import cache_files
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
        cache_files.write(path, f"{key}.json.gz", gzip.compress(json.dumps(entry).encode(), 1), MAX_BYTES)
