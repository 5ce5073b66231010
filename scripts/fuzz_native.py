"""Random calls of the native part under AddressSanitizer, from several threads at once. Needs g++ or clang++, and oneDNN's
packages (pip install onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0).

    python scripts/fuzz_native.py               # builds it, then 300 calls: about a minute
    python scripts/fuzz_native.py --calls 5000 --seed 7
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

NATIVE = Path(__file__).resolve().parent.parent / "native"
FOLDER, THREADS = "ONEFLOW_FUZZ_FOLDER", 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if FOLDER in os.environ:
        return calls(Path(os.environ[FOLDER]), options.calls, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, str(NATIVE / "build_libraries.py"), "--sanitize", folder]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        compiler = "clang++" if _runs("clang++") else "g++"
        libraries = [_path(compiler, name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
        environment = {
            **os.environ, FOLDER: folder, "LD_PRELOAD": " ".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:detect_odr_violation=0", "UBSAN_OPTIONS": "halt_on_error=1",
        }  # fmt: skip
        return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


def _runs(command: str) -> bool:
    try:
        return subprocess.run([command, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def _path(compiler: str, library: str) -> str:
    return subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout.strip()


def calls(folder: Path, count: int, seed: int) -> int:
    sys.path.insert(0, str(NATIVE))
    import oneflow_native

    oneflow_native.HERE = folder
    library = oneflow_native.load(3)
    library.min_parallel_work = 0 if seed % 2 == 0 else 2e4  # small calls run on all threads, too
    random = np.random.default_rng(seed)

    def one(spec: list[int]) -> bool:
        n = spec[3]
        at = 5
        shapes = [tuple(spec[at + i * (n + 2) : at + (i + 1) * (n + 2)]) for i in range(3)]
        x, w, y = (np.ones(shape, np.float32) for shape in shapes)
        return call("conv", spec, *((x, w, y), (y, w, x), (x, y, w))[spec[0]])

    def product(spec: list[int]) -> bool:
        batch, m, n, k, a_transposed, b_transposed = spec[1:]
        a, b = (k, m) if a_transposed else (m, k), (n, k) if b_transposed else (k, n)
        return call("matmul", spec, *(np.ones((batch, *shape), np.float32) for shape in (a, b, (m, n))))

    def call(name: str, spec: list[int], first: np.ndarray, second: np.ndarray, made: np.ndarray) -> bool:
        if library.describe(name, spec).startswith("!"):
            return False
        library.execute(name, spec, first.ctypes.data, second.ctypes.data, made.ctypes.data)
        assert np.isfinite(made).all()
        return True

    specs = [_spec(random) for _ in range(count)]
    specs += [specs[i][: random.integers(0, len(specs[i]))] for i in range(0, count, 20)]  # cut off: refused
    products = [[0, *(int(random.integers(low, high)) for low, high in _PRODUCT)] for _ in range(count)]
    whole = [s for s in specs if len(s) > 5 and len(s) == 5 + 3 * (s[3] + 2) + 4 * s[3]]
    for broken in specs:
        if broken not in whole:
            assert library.describe("conv", broken).startswith("!")
    with ThreadPoolExecutor(THREADS) as pool:
        taken = sum(pool.map(one, whole)) + sum(pool.map(product, products))
    print(f"{taken} of {len(whole) + len(products)} calls taken, nothing found")
    return 0


# batch, m, n, k, and which operands lie transposed
_PRODUCT = [(1, 4), (1, 90), (1, 90), (1, 90), (0, 2), (0, 2)]


def _spec(random: np.random.Generator) -> list[int]:
    n = int(random.integers(1, 4))
    some = lambda low, high: [int(v) for v in random.integers(low, high + 1, n)]  # noqa: E731
    groups = int(random.choice([1, 1, 2, 5]))
    fan, out = (int(v) for v in random.integers(1, 20, 2))
    kernel, strides, dilations = some(1, 4), some(1, 3), some(1, 2)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    low, high = ([int(random.integers(0, e)) for e in extents] for _ in range(2))
    sizes = [e + int(random.integers(0, 8)) for e in extents]
    result = [(s + a + b - e) // t + 1 for s, a, b, e, t in zip(sizes, low, high, extents, strides, strict=True)]
    batch, kind = int(random.integers(1, 4)), int(random.integers(0, 3))
    flags = int(random.integers(0, 2)) + int(random.choice([0, 2, 4]))
    head = [kind, flags, 0, n, groups]
    shapes = [batch, groups * fan, *sizes, groups * out, fan, *kernel, batch, groups * out, *result]
    return [*head, *shapes, *strides, *dilations, *low, *high]


if __name__ == "__main__":
    sys.exit(main())
