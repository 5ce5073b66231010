"""Compiled steps on disk, found by what a job is made of: a second process neither traces, lowers nor compiles them.

XLA's own cache is looked up by the lowered program, which has to be made first. These entries are found by the digest of the plan
(``compiler/fingerprint.py``) together with everything else that a program depends on: the library's source files, versions,
settings, the environment and the machine. Only steps on JAX's default CPU device are kept; all others use XLA's cache.

An entry holds machine code, and a pickle of JAX's: whoever can write it can run code. So only regular files are read that the
user of this process owns and nobody else may write.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import platform
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._base import cache_files, cores, files, jax_versions, native
from .._base.jax import jax
from .._base.process_state import process_state
from .._base.version import __version__
from ..compiler.fingerprint import NotDescribedError, fingerprint
from ..compiler.layout import Storage
from ..compiler.plan import Plan
from ..config import Resource
from . import compilation_cache

MAX_BYTES = 512 << 20
_MAGIC = b"oneflow step 1\n"
_PREFIXES = ("ONEFLOW_", "XLA_", "JAX_", "TF_", "OMP_", "PJRT_", "NPROC", "ONEDNN_", "DNNL_")
_ELSEWHERE = ("ONEFLOW_CACHE_DIR",)  # where things are kept changes no program
_CHANGING = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id", "physical id", "microcode")
_log = logging.getLogger("oneflow")


class KeptProgram(NamedTuple):
    """A step that was compiled by another process.

    Attributes:
      compiled: a ``jax.stages.Compiled``.
      temporary_bytes, code_bytes: the memory that it needs, where the backend says so.
    """

    compiled: Any
    temporary_bytes: int | None
    code_bytes: int | None


def directory() -> Path | None:
    """Where steps are kept; None where they are not."""
    base = compilation_cache.in_use()
    return None if base is None else base / "steps"


def key_of(plan: Plan, storages: Mapping[str, Storage], arguments: Any) -> str | None:
    """The name of a plan's entry; None where its program is not kept.

    Args:
      plan: of a job on JAX's default device.
      arguments: shapes and dtypes of the step's arguments.
    """
    if plan.platform != "cpu" or plan.transactional or directory() is None:
        return None
    environment, sources = _environment(), _sources()
    if environment is None or sources is None:
        return None
    shapes = [(a.shape, str(a.dtype)) for a in jax.tree.leaves(arguments)]
    try:
        return fingerprint(plan, storages, (environment, sources, shapes))
    except (NotDescribedError, RecursionError) as error:
        _log.debug("the program of job %r is not kept: %s", plan.graph.name, error)
        return None


def load(key: str) -> KeptProgram | None:
    """The program of an entry; None where there is none, or none that can be used."""
    path = directory()
    if path is None:
        return None
    try:
        payload = _read(path / key, key)
        if payload is None:
            return None
        made, temporary, code = pickle.loads(payload)
        return KeptProgram(jax_versions.deserialized(*made), temporary, code)
    except Exception as error:  # a file of any content must do no more than cost the time of compiling
        _log.debug("a kept program cannot be used: %s: %s", type(error).__name__, error)
        return None


def save(key: str, compiled: Any, temporary_bytes: int | None, code_bytes: int | None) -> None:
    """Keeps a program that this process has compiled (not one that was read from a cache). A failure is not an error."""
    path = directory()
    if path is None:
        return
    try:
        payload = zlib.compress(pickle.dumps((jax_versions.serialized(compiled), temporary_bytes, code_bytes)), 1)
        cache_files.write(path, key, _header(key, payload) + payload, MAX_BYTES)
    except Exception as error:
        _log.debug("a program is not kept: %s: %s", type(error).__name__, error)


def _header(key: str, payload: bytes) -> bytes:
    return _MAGIC + key.encode() + hashlib.sha256(payload).digest()


def _read(file: Path, key: str) -> bytes | None:
    """The content of an entry: of a whole file with this key in it, that only the user of this process can have written."""
    try:
        handle = os.open(file, files.READING | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        is_own = not hasattr(os, "geteuid") or (
            found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        )
        if not stat.S_ISREG(found.st_mode) or not is_own:
            _log.warning("oneflow: %s is not read: it does not belong to this user, or others may write it", file)
            return None
        content = opened.read()
    length = len(_MAGIC) + len(key) + hashlib.sha256().digest_size
    payload = content[length:]
    if content[:length] != _header(key, payload):
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # the last one to go
    return zlib.decompress(payload)


# --- what a program depends on beside its plan


def _environment() -> Any:
    """Versions, settings, the machine, the environment; None where they cannot be described."""
    context = jax_versions.trace_context()
    if context is None:
        return None
    import jaxlib
    import numpy as np

    device = jax.devices()[0]
    settings = {k: v for k, v in jax.config.values.items() if "cache" not in k}
    own = {k: v for k, v in os.environ.items() if k.startswith(_PREFIXES) and k not in _ELSEWHERE}
    return (
        (__version__, jax.__version__, jaxlib.__version__, np.__version__, sys.version, platform.machine(), sys.byteorder),
        (device.platform, device.device_kind, device.client.platform_version, len(jax.devices())),
        (cores.allowed(), native.usable_cores(), _processor(), _native_part()),
        sorted((k, repr(v)) for k, v in settings.items()),
        sorted((k, repr(v)) for k, v in Resource.values.items()),
        sorted(own.items()),
        context,
    )


@functools.cache
def _processor() -> Any:
    """What is known of the processor that does not change from hour to hour."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return platform.processor()
    return [line for line in first.splitlines() if not line.startswith(_CHANGING)]


def _native_part() -> Any:
    """The native part, by its files."""
    part = native.part()
    return native.PROTOCOL, part.reason, _native_files() if part.library is not None else ()


@functools.cache
def _native_files() -> Any:
    root = Path(sys.modules["oneflow_native"].__file__ or "").parent
    files = [(str(file.relative_to(root)), file.stat()) for file in root.rglob("*") if file.suffix != ".pyc" and file.is_file()]
    return sorted((name, found.st_size, found.st_mtime_ns) for name, found in files)


@functools.cache
def _sources() -> str | None:
    """A digest of the library's source files; None where they are not there, or are no longer those that this process runs."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    try:
        for file in _python_files(root):
            found = os.stat(file)
            if max(found.st_mtime_ns, found.st_ctime_ns) > process_state.imported_at_ns:
                return None
            with open(file, "rb") as opened:
                digest.update(file.encode() + b"\0" + hashlib.sha256(opened.read()).digest())
    except OSError:
        return None
    return digest.hexdigest()


def _python_files(root: Path) -> Iterator[str]:
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(".py")]
    if not found:
        raise FileNotFoundError(root)
    yield from sorted(found)
