"""Builds the libraries of oneflow_native: oneDNN made independent of any OpenMP, the threads for it, and the XLA calls.

Where the headers of Python and NumPy are there, it also builds an extension module.

    python build_libraries.py oneflow_native/lib            # for working on the native part from a checkout
    python build_libraries.py --sanitize address build/asan  # with AddressSanitizer and UBSan; needs clang or gcc
    python build_libraries.py --sanitize thread build/tsan   # with ThreadSanitizer

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
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"
ONEDNN, THREAD_POOL, CALLS = "libofdnnl.so", "libofpool.so", "libofnative.so"  # as long as the names that two of them replace
JPEG = "libofjpeg.so"
EXTENSION = "fast_path.abi3.so"  # for every CPython from 3.11 on
OPENMP = (  # the functions that it wants of libgomp
    "GOMP_barrier", "GOMP_loop_end_nowait", "GOMP_loop_static_next", "GOMP_loop_static_start", "GOMP_parallel_end",
    "GOMP_parallel_start", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num", "omp_in_parallel",
)  # fmt: skip
GLIBC = "2.27"  # what oneDNN's own library needs
SANITIZERS = {"address": "address,undefined", "thread": "thread"}


def is_supported() -> bool:
    """Whether oneDNN's packages exist for this machine."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def check_packages() -> None:
    """Raises RuntimeError, which names the package, where one is missing that the libraries are built from."""
    for distribution in ("onednn-cpu-gomp", "onednn-devel-cpu-gomp", "jaxlib"):
        try:
            importlib.metadata.distribution(distribution)
        except importlib.metadata.PackageNotFoundError:
            raise RuntimeError(f"{distribution} is not installed") from None


def build(target: Path, *, sanitize: str = "") -> list[Path]:
    """Builds into ``target``, with one of ``SANITIZERS`` if asked to; returns the files.

    Files that are there already are replaced, not written over: a program that has loaded them would crash.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as made:
        _build(Path(made), sanitize)
        if not (Path(made) / EXTENSION).exists():
            (target / EXTENSION).unlink(missing_ok=True)  # an old one
        for file in Path(made).iterdir():
            file.replace(target / file.name)
    return sorted(target.iterdir())


def _build(target: Path, sanitize: str) -> None:
    library = _file_of("onednn-cpu-gomp", "libdnnl.so.3")
    include = _file_of("onednn-devel-cpu-gomp", "dnnl.hpp", "oneapi").parents[2]
    (target / ONEDNN).write_bytes(_renamed(library.read_bytes()))
    shutil.copyfile(_file_of("onednn-cpu-gomp", "LICENSE.txt"), target / "LICENSE.oneDNN.txt")
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(os.cpu_count()) as workers:
        compiled, linked = _compiler(Path(cache), sanitize)
        pool = SOURCES / "thread_pool.cc"
        # beside all else: where the compiler first links, it makes its own C++ library, which takes nearly as long
        threads = workers.submit(lambda: linked([compiled(pool)], target / THREAD_POOL, SOURCES / "thread_pool.map"))
        headers = ["-isystem", str(include), "-isystem", str(_xla_headers())]
        with_precompiled = [*headers, *_precompiled(Path(cache), compiled, headers)]
        sources = sorted({*SOURCES.glob("*.cc")} - {pool})
        calls = [workers.submit(compiled, source, with_precompiled) for source in sources]
        window = workers.submit(compiled, SOURCES / "jpeg" / "window.cc")
        threads.result()
        libraries = [f"-L{target}", f"-l:{ONEDNN}", f"-l:{THREAD_POOL}"]
        linked([call.result() for call in calls], target / CALLS, SOURCES / "calls.map", libraries)
        linked([window.result()], target / JPEG, SOURCES / "jpeg" / "window.map", ["-ldl"])
        found = _python_headers()
        if found is not None:
            # Python ends daemon threads by unwinding their stacks with libgcc; the compiler's own unwinder does not understand it
            options = [*found, "-fno-exceptions"]
            try:
                module = compiled(SOURCES / "python" / "fast_path.cc", options)
                linked([module], target / EXTENSION, SOURCES / "python" / "module.map")
            except subprocess.CalledProcessError as error:  # it is there for speed: all works without it
                print(f"{EXTENSION} is left out: it cannot be built with the headers of this Python ({error})", file=sys.stderr)


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


def sanitizing_compiler() -> str | None:
    """The compiler that builds with sanitizers: one of this machine, as ziglang comes without their libraries."""
    return next((c for c in ("clang++", "g++") if shutil.which(c)), None)


def _compiler(cache: Path, sanitize: str) -> tuple[Callable[..., Path], Callable[..., None]]:
    """``compiled(source, options)`` makes an object file, ``linked(objects, output, exports, libraries)`` a shared library."""
    if sanitize:
        found = sanitizing_compiler()
        if found is None:
            raise RuntimeError("sanitizers need clang++ or g++ on this machine")
        compile_ = [found, "-g1", "-O0", f"-fsanitize={SANITIZERS[sanitize]}", "-fno-omit-frame-pointer"]
        if "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="ascii").split():
            compile_.append("-DWITHOUT_AVX512")  # kernels that cannot be called here take a third of the time
    else:
        compile_ = [sys.executable, "-m", "ziglang", "c++", "-target", f"x86_64-linux-gnu.{GLIBC}", "-O3", "-s"]
    # a product and a sum of vectors are rounded once where the source says so, by whatever compiler
    command = [*compile_, "-std=c++17", "-fPIC", "-Wall", "-ffp-contract=off"]
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache), **os.environ}

    def compiled(source: Path, options: Sequence[str] = ()) -> Path:
        kind = ["-x", "c++-header"] if source.suffix == ".h" else ["-c"]
        made = cache / f"{source.name}{'.gch' if source.suffix == '.h' else '.o'}"
        subprocess.run([*command, *options, *kind, str(source), "-o", str(made)], check=True, env=environment)
        return made

    def linked(objects: list[Path], output: Path, exports: Path, libraries: Sequence[str] = ()) -> None:
        link = [f"-Wl,-soname,{output.name}", f"-Wl,--version-script={exports}", "-Wl,-rpath,$ORIGIN"]
        subprocess.run(
            [*command, "-shared", *map(str, objects), "-o", str(output), *libraries, *link], check=True, env=environment
        )

    return compiled, linked


def _precompiled(cache: Path, compiled: Callable[..., Path], options: Sequence[str]) -> list[str]:
    """The options for the calls' sources that spare them their common headers, which take as long as most sources themselves."""
    header = cache / "common.h"
    header.write_text(f'#include <immintrin.h>\n#include "{SOURCES / "operation.h"}"\n', encoding="utf-8")
    compiled(header, options)
    return ["-include", str(header)]  # of which each compiler finds the precompiled form


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


def _python_headers() -> list[str] | None:
    """The compiler's options for the headers of this Python and of NumPy; None where one is missing, or without a stable ABI."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    numpy = importlib.util.find_spec("numpy")
    python = Path(sysconfig.get_paths()["include"])
    folders = numpy.submodule_search_locations or [] if numpy is not None else []
    for include in (Path(folder) / "_core" / "include" for folder in folders):
        if (python / "Python.h").exists() and (include / "numpy" / "arrayobject.h").exists():
            debian = ["-idirafter", "/usr/include"]  # where its pyconfig.h includes one of the architecture
            return ["-isystem", str(python), "-isystem", str(include), *debian]
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", choices=SANITIZERS, default="")
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    for made in build(options.target, sanitize=options.sanitize):
        print(made)
