"""Checks of a machine. Each looks at one thing, raises nothing, and says what to do about a problem."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base import jax_versions, native
from .._base.jax import jax
from .._base.memory import keep_freed
from ..errors import ProcessError
from ..runtime import compilation_cache
from ..runtime.processes import cluster

GOOD, NOTE, TROUBLE = "ok", "note", "trouble"
_EXTRAS = {
    "data": ("google.protobuf", "cv2"), "native": ("oneflow_native",), "tensorboard": ("tensorboardX",), "onnx": ("onnx",),
    "export": ("flatbuffers", "safetensors"), "serve": ("uvicorn", "httptools", "prometheus_client"),
    "completion": ("argcomplete",),
}  # fmt: skip
_ENOUGH_DISK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact. ``state`` is "ok", "note" or "trouble"; ``todo`` says what helps, where something does."""

    topic: str
    name: str
    value: Any
    state: str = GOOD
    todo: str = ""


def examine() -> list[Finding]:
    """Everything that the checks find, in the order of their topics."""
    found: list[Finding] = []
    for topic, check in _CHECKS:
        try:
            found += check(topic)
        except Exception as error:  # a doctor that falls ill helps nobody
            found.append(Finding(topic, "this check failed", f"{type(error).__name__}: {error}", TROUBLE, "report it, please"))
    return found


def _versions(topic: str) -> Iterator[Finding]:
    yield Finding(topic, "python", f"{platform.python_version()} ({sys.executable})")
    for name in ("oneflow-jax", "jax", "jaxlib", "numpy", "oneflow-jax-native"):
        version = _version(name)
        if version is not None:
            yield Finding(topic, name, version)
        elif name == "oneflow-jax":
            yield Finding(topic, name, "not installed as a distribution: run from a checkout", NOTE)
    jax_version, jaxlib = _version("jax"), _version("jaxlib")
    if jax_version and not jax_versions.is_supported(jax_version):
        todo = f'pip install "{jax_versions.REQUIREMENT}"'
        yield Finding(topic, "version of jax", f"{jax_version}, which is not supported", TROUBLE, todo)
    if jax_version and jaxlib and jax_version.split(".")[:2] != jaxlib.split(".")[:2]:
        yield Finding(topic, "jax and jaxlib", f"{jax_version} and {jaxlib}", TROUBLE, f"pip install jaxlib=={jax_version}")
    yield Finding(topic, "system", f"{platform.system()} {platform.release()}, {platform.machine()}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras(topic: str) -> Iterator[Finding]:
    for extra, modules in _EXTRAS.items():
        missing = [m for m in modules if _is_missing(m)]
        if not missing:
            yield Finding(topic, extra, "installed")
        else:
            yield Finding(topic, extra, f"not installed ({', '.join(missing)})", NOTE, f'pip install "oneflow-jax[{extra}]"')


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # a package above it
        return True


def _devices(topic: str) -> Iterator[Finding]:
    backend = jax.default_backend()
    kinds: dict[str, int] = {}
    for device in jax.devices():
        kinds[device.device_kind] = kinds.get(device.device_kind, 0) + 1
    yield Finding(topic, "JAX computes on", f"{backend}: " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items()))
    has_nvidia = os.path.exists("/dev/nvidia0") or shutil.which("nvidia-smi") is not None
    if backend == "cpu" and has_nvidia:
        yield Finding(
            topic, "NVIDIA GPU", "this machine has one, and JAX does not use it", TROUBLE,
            f'pip install "jax[cuda12]=={_version("jax")}"; JAX_PLATFORMS={os.environ.get("JAX_PLATFORMS", "")!r} decides, too',
        )  # fmt: skip
    if os.environ.get("JAX_PLATFORMS"):
        yield Finding(topic, "JAX_PLATFORMS", os.environ["JAX_PLATFORMS"], NOTE)


def _processor(topic: str) -> Iterator[Finding]:
    model, flags = _cpu()
    yield Finding(topic, "processor", model or platform.processor() or "unknown")
    useful = [f for f in ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8") if f in flags]
    if flags:
        yield Finding(topic, "vector instructions", ", ".join(useful) or "none of AVX2 and newer", GOOD if useful else NOTE)
    cores, usable = os.cpu_count() or 1, native.usable_cores()
    state = GOOD if usable == cores else NOTE
    todo = "" if usable == cores else "affinity, the control group's quota or OMP_NUM_THREADS keeps the others away"
    yield Finding(topic, "cores", f"{usable} of {cores}", state, todo)
    part = native.part()
    if part.library is not None:
        yield Finding(topic, "native part", f"in use, protocol {native.PROTOCOL}")
    elif sys.platform == "linux" and platform.machine() == "x86_64":
        yield Finding(topic, "native part", part.reason, NOTE, "pip install ./native makes convolutions and products faster")
    else:
        yield Finding(topic, "native part", "not for this system: XLA computes everything")


def _cpu() -> tuple[str, set[str]]:
    model, flags = "", set()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
                break
    except OSError:
        pass
    return model, flags


def _memory(topic: str) -> Iterator[Finding]:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield Finding(topic, "memory", f"{total / 2**30:.1f} GiB")
    kept = keep_freed()
    yield Finding(
        topic, "freed memory", "is kept for the next step" if kept else "goes back to the system", GOOD if kept else NOTE,
        "" if kept else "as it should for a GPU or TPU; on a CPU page faults take time: unset MALLOC_*, GLIBC_TUNABLES "
        "and ONEFLOW_KEEP_MEMORY=0, where they are set",
    )  # fmt: skip


def _caches(topic: str) -> Iterator[Finding]:
    path = compilation_cache.directory()
    if path is None:
        yield Finding(topic, "compiled programs", "not kept: ONEFLOW_CACHE_DIR is empty", NOTE, "unset ONEFLOW_CACHE_DIR")
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError("Permission denied")
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        yield Finding(topic, "compiled programs", why, TROUBLE, "set ONEFLOW_CACHE_DIR to a directory of yours")
        return
    files = [p for p in path.rglob("*") if p.is_file()]
    size = sum(p.stat().st_size for p in files)
    yield Finding(topic, "compiled programs", f"{len(files)} files, {size / 1e6:.0f} MB in {path}")
    free = shutil.disk_usage(path).free
    if free < _ENOUGH_DISK_BYTES:
        yield Finding(topic, "disk", f"{free / 1e6:.0f} MB are free for them", TROUBLE, "make room, or set ONEFLOW_CACHE_DIR")


def _network(topic: str) -> Iterator[Finding]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        with socket.create_connection(server.getsockname(), timeout=5):
            yield Finding(topic, "loopback", "connects")
    name = socket.gethostname()
    try:
        yield Finding(topic, "this machine", f"{name} is {socket.gethostbyname(name)}")
    except OSError:
        yield Finding(topic, "this machine", f"{name} has no address", NOTE, "give addresses to --master and flow.env.machine")


def _processes(topic: str) -> Iterator[Finding]:
    """The launcher whose variables are set, which decides whether a program runs alone."""
    try:
        claim = cluster.find()
        if claim is not None and (claim.host is None or claim.port is None):
            cluster.refuse_unknown_place(claim)
    except ProcessError as error:
        what, _, hint = str(error).partition("\n  try")
        yield Finding(topic, "launcher", what, TROUBLE, hint.strip())
        return
    if claim is None:
        yield Finding(topic, "launcher", "none in the environment: a program runs alone")
        return
    where = f"{claim.host}:{claim.port}"
    yield Finding(topic, "launcher", f"{claim.launcher.name}: process {claim.rank} of {claim.count}; the first one is at {where}")
    if claim.rank == 0:
        yield _port(topic, str(claim.host), int(claim.port or 0))


def _port(topic: str, host: str, port: int) -> Finding:
    """Whether the first process can listen where the others look for it."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            why, todo = f"{host} is not an address of this machine", "ONEFLOW_BIND_ADDRESS, where others reach it by that one"
        else:
            why, todo = f"{host}:{port}: {error.strerror or error}", f"{cluster.COORDINATOR[0]} with a port that is free"
        return Finding(topic, "port", why, TROUBLE, todo)
    return Finding(topic, "port", f"{port} is free")


_CHECKS: tuple[tuple[str, Callable[[str], Iterator[Finding]]], ...] = (
    ("versions", _versions),
    ("extras", _extras),
    ("devices", _devices),
    ("processor", _processor),
    ("memory", _memory),
    ("caches", _caches),
    ("network", _network),
    ("processes", _processes),
)
