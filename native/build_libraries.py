"""Builds the three libraries of oneflow_native: oneDNN made independent of any OpenMP, the threads for it, and the XLA calls.

    python build_libraries.py oneflow_native/lib            # for working on the native part from a checkout
    python build_libraries.py --sanitize build/asan          # under AddressSanitizer's and UBSan's eyes; needs clang or gcc

The compiler is that of the package ziglang, so that a machine needs none of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"
ONEDNN, THREAD_POOL, CALLS = "libofdnnl.so", "libofpool.so", "libofnative.so"  # as long as the names that two of them replace
OPENMP = (  # the functions that it wants of libgomp
    "GOMP_barrier", "GOMP_loop_end_nowait", "GOMP_loop_static_next", "GOMP_loop_static_start", "GOMP_parallel_end",
    "GOMP_parallel_start", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num", "omp_in_parallel",
)  # fmt: skip
GLIBC = "2.27"  # what oneDNN's own library needs


def is_supported() -> bool:
    """Whether oneDNN's packages exist for this machine."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def build(target: Path, *, sanitize: bool = False) -> list[Path]:
    """Builds into ``target``; gives the files."""
    target.mkdir(parents=True, exist_ok=True)
    library = _file_of("onednn-cpu-gomp", "libdnnl.so.3")
    include = _file_of("onednn-devel-cpu-gomp", "dnnl.hpp", "oneapi").parents[2]
    (target / ONEDNN).write_bytes(_renamed(library.read_bytes()))
    shutil.copyfile(_file_of("onednn-cpu-gomp", "LICENSE.txt"), target / "LICENSE.oneDNN.txt")
    with tempfile.TemporaryDirectory() as cache:
        run = _compiler(cache, sanitize)
        pool = SOURCES / "thread_pool.cc"
        run([pool], target / THREAD_POOL, SOURCES / "thread_pool.map")
        headers = ["-isystem", str(include), "-isystem", str(_xla_headers())]
        libraries = [f"-L{target}", f"-l:{ONEDNN}", f"-l:{THREAD_POOL}"]
        run(sorted({*SOURCES.glob("*.cc")} - {pool}), target / CALLS, SOURCES / "calls.map", *headers, *libraries)
    return sorted(target.iterdir())


def _renamed(library: bytes) -> bytes:
    """oneDNN's library, wanting our threads in place of libgomp, under a name that no other program's oneDNN has.

    The functions are renamed, too: a program that imported PyTorch has a libgomp loaded globally, where the dynamic linker looks
    first.
    """
    names = {"libgomp.so.1": THREAD_POOL, "libdnnl.so.3": ONEDNN}
    names |= {name: name.replace("GOMP_", "OFMP_").replace("omp_", "ofp_") for name in OPENMP}
    for old, new in names.items():
        found = library.count(f"\0{old}\0".encode())
        if found != 1 or len(new) != len(old):
            raise RuntimeError(f"this build of oneDNN is not the one expected: {old} occurs {found} times")
        library = library.replace(f"\0{old}\0".encode(), f"\0{new}\0".encode())
    return library


def _compiler(cache: str, sanitize: bool):  # type: ignore[no-untyped-def]
    common = ["-std=c++17", "-fPIC", "-shared", "-Wall"]
    if sanitize:
        found = next((c for c in ("clang++", "g++") if shutil.which(c)), None)
        if found is None:
            raise RuntimeError("AddressSanitizer needs clang++ or g++ on this machine")
        command = [found, "-g", "-O1", "-fsanitize=address,undefined", "-fno-omit-frame-pointer", *common]
    else:
        zig = [sys.executable, "-m", "ziglang", "c++", "-target", f"x86_64-linux-gnu.{GLIBC}"]
        command = [*zig, "-O3", "-s", *common]
    environment = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}

    def run(sources: list[Path], output: Path, exports: Path, *more: str) -> None:
        link = [f"-Wl,-soname,{output.name}", f"-Wl,--version-script={exports}", "-Wl,-rpath,$ORIGIN"]
        subprocess.run([*command, *map(str, sources), "-o", str(output), *more, *link], check=True, env=environment)

    return run


def _file_of(distribution: str, name: str, folder: str = "") -> Path:
    files = importlib.metadata.distribution(distribution).files or []
    for file in files:
        if file.name == name and (not folder or folder in file.parts):
            return Path(str(file.locate())).resolve()
    raise RuntimeError(f"{distribution} has no {name}")


def _xla_headers() -> Path:
    spec = importlib.util.find_spec("jaxlib")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "include" / "xla" / "ffi" / "api" / "ffi.h").exists():
            return Path(place) / "include"
    raise RuntimeError("jaxlib's headers were not found")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    for made in build(options.target, sanitize=options.sanitize):
        print(made)
