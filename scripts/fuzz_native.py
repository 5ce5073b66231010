"""Random calls of the native part under AddressSanitizer and UBSan, from several threads at once: python scripts/fuzz_native.py

    python scripts/fuzz_native.py                              # builds it, then 300 calls of each kind
    python scripts/fuzz_native.py --seconds 600 --seed 7       # rounds of calls of each kind until the time is over
    python scripts/fuzz_native.py --sanitizer thread           # under ThreadSanitizer
    python scripts/fuzz_native.py --folder build/asan --build  # builds alone; without --build, the folder's libraries are called

Needs g++ or clang++ with its sanitizers, and oneDNN's packages (pip install onednn-cpu-gomp==2023.2.0
onednn-devel-cpu-gomp==2023.2.0). The exit status is 2 where one of these is missing, 1 where something was found.

The sanitizers see the native part's own code. oneDNN's kernels are generated as they are needed: a result is surrounded by
bytes that must remain.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

NATIVE = Path(__file__).resolve().parent.parent / "native"
FOLDER = "ONEFLOW_FUZZ_FOLDER"
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
NOT_RUN = 2
MEETINGS = "meetings"
ONES = {
    "float32": np.ones(1, np.float32), "bfloat16": np.full(1, 0x3F80, np.uint16),  # NumPy has no bfloat16
    "uint8": np.ones(1, np.uint8), "int8": np.ones(1, np.int8),
}  # fmt: skip
INFINITE_BFLOAT16 = 0x7F80
CALLERS, POOL = 4, 3  # threads that make calls, and those that they share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="of each kind, per round")
    parser.add_argument("--seconds", type=float, default=0, help="begin rounds until so much time has passed; 0: one round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitizer", choices=RUNTIMES, default="address")
    parser.add_argument("--folder", type=Path, help="where --build leaves the libraries, and a later run finds them")
    parser.add_argument("--build", action="store_true", help="only build, into --folder")
    options = parser.parse_args()
    if options.build and options.folder is None:
        parser.error("--build needs the --folder that it builds into")
    if FOLDER in os.environ:
        return rounds(Path(os.environ[FOLDER]), options.calls, options.seconds, options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        environment = _environment(folder, options.sanitizer)
        if environment is None:
            return NOT_RUN
        if options.build or options.folder is None:
            begin = time.monotonic()
            _build(folder, options.sanitizer)
            print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
        if options.build:
            return 0
        if subprocess.run([folder / MEETINGS], env={**os.environ, "UBSAN_OPTIONS": "halt_on_error=1"}, timeout=120).returncode:
            return 1
        return min(subprocess.run([sys.executable, *sys.argv], env=environment).returncode, 1)


def _environment(folder: Path, sanitizer: str) -> dict[str, str] | None:
    """The environment to run the folder's libraries in; None, and says why, where they cannot be built."""
    sys.path.insert(0, str(NATIVE))
    import build_libraries

    compiler = build_libraries.sanitizing_compiler()
    if not build_libraries.is_supported() or compiler is None:
        print("not run: " + ("there is neither clang++ nor g++ here" if compiler is None else "this is not Linux on x86-64"))
        return None
    libraries = [_path(compiler, name) for name in (*RUNTIMES[sanitizer], "libstdc++.so")]
    missing = [name for name in libraries if not Path(name).exists()]  # the compiler returns the bare name then
    if missing:
        print(f"not run: {compiler} has no {', '.join(missing)}")
        return None
    try:
        build_libraries.check_packages()
    except RuntimeError as error:
        print(f"not run: {error}")
        return None
    return {
        **os.environ, FOLDER: str(folder), "LD_PRELOAD": " ".join(libraries),
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:detect_odr_violation=0",
    }  # fmt: skip


def _build(folder: Path, sanitizer: str) -> None:
    """Builds the libraries, and the program of calls that devices make together, which begin in XLA alone."""
    import build_libraries

    build_libraries.build(folder, sanitize=sanitizer)
    command = [
        str(build_libraries.sanitizing_compiler()), "-std=c++17", "-g1", "-O1", "-pthread",
        f"-fsanitize={build_libraries.SANITIZERS[sanitizer]}", f"-I{build_libraries.SOURCES}",
    ]  # fmt: skip
    subprocess.run([*command, str(Path(__file__).with_name("fuzz_meetings.cc")), "-o", str(folder / MEETINGS)], check=True)


def _path(compiler: str, library: str) -> str:
    return subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout.strip()


def rounds(folder: Path, count: int, seconds: float, seed: int) -> int:
    sys.path.insert(0, str(NATIVE))
    import oneflow_native

    oneflow_native.HERE = str(folder)
    library = oneflow_native.load(POOL)
    random = np.random.default_rng(seed)
    begin, taken, made = time.monotonic(), 0, 0
    least = library.min_parallel_work
    while not made or time.monotonic() - begin < seconds:
        work = [(call, make(random)) for call, make in _MAKE.items() for _ in range(count)]
        for call, spec in work[::20]:
            for broken in (spec[: random.integers(0, len(spec))], [*spec, 1]):
                assert library.describe(call, broken).startswith("!"), (call, broken)
        shares = random.choice([0, 0, 2, 3], len(work))  # of how many devices the calls are: they share the cores
        for flops in (0.0, least):  # the small calls, too, on all threads; then on one, side by side
            library.min_parallel_work = flops
            mine = [(library, *call, int(share)) for call, share in zip(work, shares, strict=True)][flops > 0 :: 2]
            with ThreadPoolExecutor(CALLERS) as pool:
                taken += sum(pool.map(_run, *zip(*mine, strict=True)))
        made += len(work)
        if importlib.util.find_spec("PIL") is not None:
            _decode_windows(oneflow_native, random, count)
    print(f"{taken} of {made} calls taken in {time.monotonic() - begin:.0f} s, nothing found")
    return 0


class _Guarded:
    """A result's memory, with bytes on both sides that no call may change."""

    SIZE, BYTE = 64, 0xA5

    def __init__(self, dtype: str, count: int) -> None:
        ones = ONES[dtype]
        self._all = np.full(count * ones.itemsize + 2 * self.SIZE, self.BYTE, np.uint8)
        self.array = self._all[self.SIZE : -self.SIZE].view(ones.dtype)

    def check(self) -> None:
        for edge in (self._all[: self.SIZE], self._all[-self.SIZE :]):
            assert (edge == self.BYTE).all(), "a call has written beside its result"


def _decode_windows(native: Any, random: np.random.Generator, count: int) -> None:
    """Windows of JPEG images, some of them damaged, by Pillow's libjpeg-turbo where it has one."""
    import PIL
    from PIL import Image

    found = sorted((Path(PIL.__file__).parent.parent / "pillow.libs").glob("libjpeg-*.so.62*"))
    if not found:
        return
    decoder = native.JpegWindows(str(found[0]))
    for _ in range(count):
        height, width = (int(v) for v in random.integers(1, 70, 2))
        image, file = Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)), io.BytesIO()
        image.save(file, "JPEG", subsampling=int(random.integers(0, 3)), restart_marker_blocks=int(random.integers(0, 4)))
        data = np.frombuffer(file.getvalue(), np.uint8).copy()
        for place in random.integers(0, len(data), int(random.choice([0, 0, 1, 3]))).tolist():
            data[place] = random.integers(0, 256)
        data = data[: len(data) if random.integers(0, 4) else int(random.integers(1, len(data)))].copy()
        factor = int(random.choice([1, 2, 4, 8]))
        rows, columns = -(-height // factor), -(-width // factor)
        h, w = (int(random.integers(1, size + 1)) for size in (rows, columns))
        window = int(random.integers(0, rows - h + 1)), int(random.integers(0, columns - w + 1)), h, w
        out = _Guarded("uint8", 3 * h * (w + decoder.MARGIN))
        at = decoder.decode(data.ctypes.data, len(data), (height, width), factor, window, out.array.ctypes.data)
        out.check()
        assert -1 <= at <= decoder.MARGIN


def _run(library: Any, call: str, spec: list[int], share: int) -> bool:
    """One call, as one of a program on ``share`` devices if that is not 0. Whether the native part takes it."""
    if library.describe(call, spec).startswith("!"):
        return False
    if call == "product":  # never one of several devices: packed weights are laid out for one number of threads
        return _run_product(library, spec)
    prefix = [-share] if share else []
    if call in ("update", "product_update", "summed_update"):
        return _run_update(library, call, spec, prefix)
    if call == "exchange":
        return _run_exchange(library, spec, prefix)
    if call in ("batch_norm", "batch_norm_grad"):
        return _run_batch_norm(library, call, spec, prefix)
    shapes = list(zip(_SIZES[call](spec), _dtypes(call, spec), strict=True))
    count = _results(call, spec)
    inputs = [ONES[dtype].repeat(size) for size, dtype in shapes[:-count]]
    if call.startswith("cross_entropy"):
        inputs[1] = np.arange(len(inputs[1]), dtype=np.int32) - 2  # some are no classes
    results = [_Guarded(dtype, size) for size, dtype in shapes[-count:]]
    infinite = call == "conv" and sum(spec) % 8 == 0  # it may be computed twice then
    sees_nothing = call.startswith("attention") and spec[-3] == 1 and spec[-2] < 0  # the first query: NaN
    if infinite:
        inputs[1][0] = np.inf if inputs[1].itemsize == 4 else INFINITE_BFLOAT16
    library.execute(call, [*prefix, *spec], *(array.ctypes.data for array in (*inputs, *(r.array for r in results))))
    for result in results:
        result.check()
        assert infinite or sees_nothing or np.isfinite(_wide(result.array)).all(), (call, spec)
    return True


def _results(call: str, spec: list[int]) -> int:
    """How many results a call has."""
    if call == "lstm_cell_grad":
        return 1 + spec[-1]
    if call == "layer_norm_grad":
        return 1 + (spec[3] or spec[4])
    if call == "group_norm_grad":
        return 1 + spec[5]
    if call.startswith("lstm_layer"):
        return 1 + 2 * spec[7] if call.endswith("grad") else 2 + 3 * spec[-1]
    return _RESULTS.get(call, 1)


_TYPES = ("float32", "bfloat16")


def _wide(array: np.ndarray) -> np.ndarray:
    """Numbers as float32; those of two bytes are bfloat16."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


def _dtypes(call: str, spec: list[int]) -> list[str]:
    """Of the operands: see ``SpecReader::next_dtypes`` in native/src/operation.h."""
    code = spec[2 if call == "conv" else 0]
    if call.startswith("cross_entropy"):  # labels are int32, of the same size
        wide = ["float32"] * 3
        return [_TYPES[spec[0]], *wide] if call == "cross_entropy" else [_TYPES[spec[0]], *wide, _TYPES[spec[0]]]
    if call.startswith(("layer_norm", "group_norm")):
        scale, center = spec[3:5] if call.startswith("layer_norm") else (spec[5], spec[5])
        narrow = {0, 2 + scale, 3 + scale} if call.endswith("_grad") else {0, 1 + scale + center}  # x, y and their gradients
        return [_TYPES[spec[0] if i in narrow else 0] for i in range(len(_SIZES[call](spec)))]
    if call == "largest":
        return [_TYPES[spec[0]], "float32"]  # places are int32, of the same size
    if call.startswith("lstm_"):
        return ["float32"] * len(_SIZES[call](spec))
    if call == "max_pool":
        return [_TYPES[spec[0]], _TYPES[spec[0]], "uint8"]
    if call == "max_pool_grad":
        return ["uint8", _TYPES[spec[0]], _TYPES[spec[0]]]
    if call in _RESULTS:  # masks and statistics are float32
        kinds = "xxxfxf" if call == "attention" else "xxxfxfxxxx"
        return ["float32" if spec[0] == 0 or kind == "f" else "bfloat16" for kind in kinds]
    if call == "transpose":
        return [_TYPES[code]] * 2
    return ["float32" if code == 0 or code - 1 >> i & 1 else "bfloat16" for i in range(3)]


def _conv(random: np.random.Generator) -> list[int]:
    if random.integers(0, 6) == 0:
        return [*random.integers(0, (3, 2)).tolist(), *_conv_in_tiles(random)[2:]]  # its kind, and the weights' layout
    n = int(random.integers(1, 4))
    some = lambda low, high: [int(v) for v in random.integers(low, high + 1, n)]  # noqa: E731
    groups = int(random.choice([1, 1, 2, 5]))
    fan, out = (int(v) for v in random.integers(1, 20, 2))
    kernel, strides, dilations = some(1, 4), some(1, 3), some(1, 2)
    special = random.integers(0, 6)
    if special == 0:  # depthwise
        groups, fan, out = int(random.integers(8, 40)), 1, 1
    if special == 3:  # narrow groups
        groups = int(random.integers(2, 24))
        fan = out = int(random.choice([1, 2, 4, 8]))
    if special == 1:  # for few pixels
        groups, kernel = 1, [9, 1, 1][:n] if n == 1 else [3, 3, 1][:n]
        fan, out = (32 * int(v) for v in random.integers(1, 4, 2))
    if special == 2:  # few channels and long windows, of which some blocks are made
        groups, fan, kernel[-1], strides[-1] = 1, int(random.integers(1, 5)), int(random.integers(20, 80)), 1
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pad_low, pad_high = ([int(random.integers(0, e)) for e in extents] for _ in range(2))
    least = [max(1, e - a - b) for e, a, b in zip(extents, pad_low, pad_high, strict=True)]  # windows may exceed images
    sizes = [size + int(random.integers(0, 8)) for size in least]
    if special == 2:
        sizes[-1] += int(random.integers(100, 600))
    result = [(s + a + b - e) // t + 1 for s, a, b, e, t in zip(sizes, pad_low, pad_high, extents, strides, strict=True)]
    batch, kind = int(random.integers(1, 12 if special == 1 else 4)), int(random.integers(0, 3))
    flags = int(random.integers(0, 2)) + int(random.choice([0, 2, 4, 8]))  # weights' layout, and which algorithm
    head = [kind, flags, _dtypes_code(random), n, groups]
    shapes = [batch, groups * fan, *sizes, groups * out, fan, *kernel, batch, groups * out, *result]
    return [*head, *shapes, *strides, *dilations, *pad_low, *pad_high]


def _dtypes_code(random: np.random.Generator) -> int:
    return int(random.choice([0, random.integers(1, 9)]))


def _conv_sizes(spec: list[int]) -> list[int]:
    kind, n = spec[0], spec[3]
    x, w, y = (math.prod(spec[5 + i * (n + 2) : 5 + (i + 1) * (n + 2)]) for i in range(3))
    return [[x, w, y], [y, w, x], [x, y, w]][kind]


def _matmul(random: np.random.Generator) -> list[int]:
    sizes, batch = random.integers(1, 90, 3).tolist(), int(random.integers(1, 4))
    if random.integers(8) == 0:  # sums so long that they are computed in parts
        sizes, batch = [*random.integers(180, 260, 2).tolist(), int(random.integers(3000, 7000))], 1
    if random.integers(8) == 0:  # several blocks
        sizes = [int(random.integers(1, most)) for most in (400, 1200, 600)]
    b_transposed, way = int(random.integers(0, 2)), int(random.choice([0, 2, 4, 8]))
    return [_dtypes_code(random), batch, *sizes, int(random.integers(0, 2)), b_transposed + way]


def _matmul_sizes(spec: list[int]) -> list[int]:
    _, batch, m, n, k, _, _ = spec
    return [batch * m * k, batch * k * n, batch * m * n]


def _transpose(random: np.random.Generator) -> list[int]:
    rows, columns = random.choice([1, 8, 16, random.integers(1, 90)], 2).tolist()
    return [int(random.integers(0, 2)), int(random.integers(1, 4)), rows, columns]


def _attention(random: np.random.Generator) -> list[int]:
    batch, heads = (int(v) for v in random.integers(1, 4, 2))
    queries, keys = (int(random.choice([random.integers(1, 40), random.integers(90, 300)])) for _ in range(2))
    size = int(random.choice([16, 32, 48, 64, 80, 128, 256]))
    layouts: list[int] = []
    for positions in (queries, keys, keys, queries):  # heads before positions, or behind them
        layouts += [[heads * positions * size, positions * size, size], [positions * heads * size, size, heads * size]][
            int(random.integers(0, 2))
        ]
    mask = [int(v) for v in random.integers(0, 2, 5)]
    causal = [int(random.integers(0, 2)), int(random.integers(-50, 50)), int(random.choice([_FILL, 0]))]
    return [int(random.integers(0, 2)), batch, heads, queries, keys, size, *layouts, *mask, _FACTOR, *causal]


def _cross_entropy(random: np.random.Generator) -> list[int]:
    classes = int(random.choice([1, 15, 16, 17, random.integers(1, 200), 4096, 10_001]))
    return [int(random.integers(0, 2)), int(random.integers(1, 40)), classes, int(np.float32(46).view(np.uint32))]


def _largest(random: np.random.Generator) -> list[int]:
    width = int(random.choice([1, 7, 8, 9, 64, 65, random.integers(1, 300), 4099]))
    return [int(random.integers(0, 2)), int(random.integers(1, 40)), width, int(random.integers(1, min(width, 512) + 1))]


def _layer_norm(random: np.random.Generator) -> list[int]:
    flags = [int(v) for v in random.integers(0, 2, 2)]
    if random.integers(0, 2):
        rows, width = int(random.integers(1, 200)), int(random.choice([1, 7, 8, 9, 31, 32, 33, random.integers(1, 300), 4099]))
        parameters, span = width, 1
    else:  # groups of channels
        images, groups, fan = (int(v) for v in random.integers(1, 6, 3))
        span = int(random.choice([2, 7, 8, 31, 32, random.integers(2, 200)]))
        rows, width, parameters = images * groups, fan * span, groups * fan
    return [int(random.integers(0, 2)), rows, width, *flags, _EPSILON, parameters, span]


def _group_norm(random: np.random.Generator) -> list[int]:
    """See ``GroupNormSpec`` in native/src/group_norm.cc."""
    samples, pixels = int(random.integers(1, 12)), int(random.choice([1, 2, 31, 32, 33, random.integers(1, 200)]))
    groups, size = int(random.integers(1, 9)), int(random.choice([1, 2, 7, 8, 16, random.integers(1, 40)]))
    return [int(random.integers(0, 2)), samples, pixels, groups * size, groups, int(random.integers(0, 2)), _EPSILON]


def _group_norm_sizes(spec: list[int]) -> list[int]:
    _, samples, pixels, channels, _, is_affine, _ = spec
    array = samples * pixels * channels
    return [array, *[channels] * (2 * is_affine), array, samples * 2 * (-(-channels // 16) * 16)]


def _group_norm_grad_sizes(spec: list[int]) -> list[int]:
    array, *vectors, _, statistics = _group_norm_sizes(spec)
    return [array, statistics, *vectors[:1], array, array, *[2 * vector for vector in vectors[:1]]]


def _layer_norm_sizes(spec: list[int]) -> list[int]:
    _, rows, width, scale, center, _, parameters, _ = spec
    return [rows * width, *[parameters] * (scale + center), rows * width, 2 * rows]


def _layer_norm_grad_sizes(spec: list[int]) -> list[int]:
    _, rows, width, scale, center, _, parameters, _ = spec
    array = rows * width
    return [array, 2 * rows, *[parameters] * scale, array, array, *[2 * parameters] * (scale or center)]


def _cross_entropy_sizes(spec: list[int]) -> list[int]:
    _, rows, classes, _ = spec
    return [rows * classes, rows, rows, 2 * rows]


_FACTOR, _FILL = 0x3E000000, 0xFF800000  # an eighth and minus infinity, as float32
_EPSILON = 0x3727C5AC  # 1e-5


def _attention_sizes(spec: list[int]) -> list[int]:
    _, batch, heads, queries, keys, size = spec[:6]
    outer, inner = (batch * heads * positions * size for positions in (queries, keys))
    has_mask, *varies = spec[18:23]
    mask = math.prod(n for n, each in zip((keys, queries, heads, batch), varies, strict=True) if has_mask and each)
    return [outer, inner, inner, mask, outer, batch * heads * queries * 2]


def _attention_grad_sizes(spec: list[int]) -> list[int]:
    outer, inner, *others = _attention_sizes(spec)
    return [outer, inner, *others, outer, outer, inner, inner]


def _product(random: np.random.Generator) -> list[int]:
    """Data of all dtypes, with weights that are packed first: see ``ProductSpec`` in native/src/product_spec.h."""
    data = int(random.integers(0, 3))
    result = int(random.integers(0, 2)) if data == 0 else data
    has_residual = int(random.integers(0, 2)) if data or result == 0 else 0
    activation = int(random.integers(0, 3 if data == 0 else 4))
    low, high = (0.0, 255.0) if data == 0 else (0.0, 6.0)
    bits = [int(np.float32(v).view(np.uint32)) for v in (*random.choice([(1.0, 0.0), (0.5, 3.0)]), low, high)]
    if random.integers(0, 3):
        made = _conv_in_tiles(random) if random.integers(0, 3) == 0 else _conv(random)
        return [data, result, 1, has_residual, activation, *bits, *made[3:]]
    sizes = [int(random.integers(1, random.choice([9, 90]))), *random.integers(1, 90, 2).tolist()]  # some of few rows
    return [data, result, 0, has_residual, activation, *bits, *sizes, int(random.integers(0, 2))]


def _conv_in_tiles(random: np.random.Generator) -> list[int]:
    """One for Winograd's minimal filtering, where its data is float32: stride 1, windows of 3 x 3, 16 channels or more.

    The native part takes it for convolutions of 32 and more."""
    fan, out = (int(v) for v in random.integers(16, 80, 2))
    pads, sizes = random.integers(0, 3, (2, 2)).tolist(), random.integers(3, 24, 2).tolist()
    result = [size + sum(sides) - 2 for size, sides in zip(sizes, zip(*pads, strict=True), strict=True)]
    batch = int(random.integers(1, 5))
    return [0, 0, 0, 2, 1, batch, fan, *sizes, out, fan, 3, 3, batch, out, *result, 1, 1, 1, 1, *pads[0], *pads[1]]


def _run_product(library: Any, spec: list[int]) -> bool:
    """Packs weights, then multiplies."""
    data, result, is_conv, has_residual = spec[:4]
    if is_conv:
        n = spec[9]
        x, w, y = (math.prod(spec[11 + i * (n + 2) : 11 + (i + 1) * (n + 2)]) for i in range(3))
        channels = spec[11 + n + 2]
    else:
        m, channels, k, _ = spec[9:]
        x, w, y = m * k, k * channels, m * channels
    names = ("uint8", "float32", "bfloat16")
    weights = ONES["float32" if data else "int8"].repeat(w)
    packed = _Guarded("int8", int(library.describe("pack_weights", spec)))
    packed.array[:] = 0
    library.execute("pack_weights", spec, weights.ctypes.data, packed.array.ctypes.data)
    vectors = [ONES["float32"].repeat(channels)] * (1 if data else 2)
    residual = [ONES[names[result]].repeat(y)] if has_residual else []
    made = _Guarded(names[result], y)
    inputs = ONES[names[data]].repeat(x)
    infinite = names[data] == "float32" and sum(spec) % 8 == 0  # some of it may be computed twice then
    if infinite:
        inputs[0] = np.inf
    operands = [inputs, packed.array, *vectors, *residual, made.array]
    library.execute("product", spec, *(array.ctypes.data for array in operands))
    for guarded in (packed, made):
        guarded.check()
    assert infinite or np.isfinite(_wide(made.array)).all(), spec
    return True


def _update(random: np.random.Generator) -> list[int]:
    sizes = random.choice([0, 1, 15, 16, 17, 1000, 40_000], int(random.integers(1, 5)))
    return [*_rule(random), len(sizes), *sizes.tolist()]


def _rule(random: np.random.Generator) -> list[int]:
    """See ``UpdateSpec`` in native/src/update.cc."""
    rule, decays, skips = (int(v) for v in random.integers(0, (3, 2, 2)))
    constants = [int(np.float32(v).view(np.uint32)) for v in ((0.9,), (0.9, 0.1, 0.999, 0.001, 1e-8), ())[rule]]
    penalty = [int(np.float32(v).view(np.uint32)) for v in random.choice([0.0, 0.1], 2)]
    return [rule, decays, skips, *random.integers(0, 3, 2).tolist(), *penalty, *constants]


def _product_update(random: np.random.Generator) -> list[int]:
    """See ``ProductUpdate`` in native/src/update.cc."""
    m, n, k = (int(random.choice([random.integers(1, 70), random.integers(1, 700)])) for _ in range(3))
    return [m, n, k, *random.integers(0, 2, 2).tolist(), *_rule(random), 1, m * n]


def _summed_update(random: np.random.Generator) -> list[int]:
    return [int(random.integers(2, 5)), int(random.integers(0, 100)), *_update(random)]


def _exchange(random: np.random.Generator) -> list[int]:
    """See ``Exchange`` in native/src/exchange.cc."""
    return [int(random.integers(1, 6)), int(random.integers(0, 100)), int(random.integers(0, 2)), int(random.integers(0, 300))]


def _run_exchange(library: Any, spec: list[int], prefix: list[int]) -> bool:
    """What devices have, for all of them."""
    devices, _, adds_up, count = spec
    mine = np.arange(devices * count, dtype=np.float32).reshape(devices, count)
    results = [_Guarded("float32", count if adds_up else devices * count) for _ in range(devices)]
    arrays = [array for each, result in zip(mine, results, strict=True) for array in (each, result.array)]
    library.execute("exchange", [*prefix, *spec], *(array.ctypes.data for array in arrays))
    for result in results:
        result.check()
        np.testing.assert_array_equal(result.array, mine.sum(0) if adds_up else mine.ravel())
    return True


def _run_update(library: Any, call: str, spec: list[int], prefix: list[int]) -> bool:
    """Updates in place, or not; for one device, or for several."""
    if library.describe(call, spec).startswith("!"):
        return False
    devices, mine = (spec[0], spec[2:]) if call == "summed_update" else (1, spec)
    matrices: list[np.ndarray] = []
    if call == "product_update":
        (m, n, k), mine = spec[:3], spec[5:]
        matrices = [ONES["float32"].repeat(m * k), ONES["float32"].repeat(k * n)]
    rule, decays, skips, before, after = mine[:5]
    slots, sizes = (1, 2, 0)[rule], mine[(9, 13, 8)[rule] :]
    operands: list[np.ndarray] = []
    made: list[np.ndarray] = []
    for _ in range(devices):
        operands += [ONES["float32"]] * (1 + (rule == 1) + decays + before + after) + [np.zeros(1, np.uint8)] * skips
        state = [[ONES["float32"].repeat(size) for _ in range(1 + slots)] for size in sizes]
        results = state if sum(spec) % 2 else [[np.zeros_like(array) for array in each] for each in state]
        for each, size in zip(state, sizes, strict=True):
            operands += [*each, *(matrices or [ONES["float32"].repeat(size)])]
        made += [array for each in results for array in each]
        operands += made[-sum(map(len, results)) :]
    library.execute(call, [*prefix, *spec], *(array.ctypes.data for array in operands))
    assert all(np.isfinite(array).all() for array in made)
    return True


def _batch_norm(random: np.random.Generator) -> list[int]:
    """See ``ForwardSpec`` in native/src/batch_norm.cc."""
    constants = [int(np.float32(v).view(np.uint32)) for v in (1e-3, 0.9, 0.1)]
    return [*_batch_norm_head(random), int(random.integers(0, 2)), *constants]


def _batch_norm_grad(random: np.random.Generator) -> list[int]:
    """See ``BackwardSpec`` in native/src/batch_norm.cc."""
    return [*_batch_norm_head(random), *random.integers(0, 2, 2).tolist(), int(random.integers(1, 3))]


def _batch_norm_head(random: np.random.Generator) -> list[int]:
    rows = int(random.choice([random.integers(1, 40), random.integers(60, 2000)]))
    flags = random.integers(0, 2, 4).tolist()
    passes = int(random.integers(0, 3))
    devices = int(random.integers(1, 5)) if passes else 1
    return [*flags[:2], rows, int(random.integers(1, 200)), *flags[2:], int(random.integers(0, 2)), passes, devices]


def _run_batch_norm(library: Any, call: str, spec: list[int], prefix: list[int]) -> bool:
    x, y = ("float32" if code == 0 else "bfloat16" for code in spec[:2])
    rows, channels, gamma, beta = spec[2:6]
    size = rows * channels
    vectors, statistics = [("float32", channels)] * (gamma + beta), ("float32", 2 * channels)
    passes, devices = spec[7:9]
    is_first, is_second = passes == 1, passes == 2
    if call == "batch_norm":
        moving = [("float32", channels)] * 2
        found = [("float32", 2 * channels * devices)] * is_second
        inputs, results = [(x, size), *found, *vectors, *moving, *[(y, size)] * spec[9]], [(y, size), *moving, statistics]
        inputs, results = ([(x, size)], [statistics]) if is_first else (inputs, results)
    else:
        has_y, keeps, gradients = spec[9:]
        inputs = [(x, size), *vectors, statistics, *[statistics] * is_second, *[(y, size)] * (has_y + gradients)]
        results = [*[(x, size)] * (not is_first), *[(y, size)] * keeps, statistics]
    made = [_Guarded(*each) for each in results]
    operands = [*(ONES[dtype].repeat(count) for dtype, count in inputs), *(each.array for each in made)]
    library.execute(call, [*prefix, *spec], *(array.ctypes.data for array in operands))
    for each in made:
        each.check()
        assert np.isfinite(_wide(each.array)).all(), (call, spec)
    return True


def _max_pool(random: np.random.Generator) -> list[int]:
    """See ``PoolSpec`` in native/src/pool.cc."""
    kernel, strides = (random.integers(1, 5, 3).tolist() for _ in range(2))
    pads = [int(random.integers(0, k + 1)) for k in kernel]
    sizes = random.integers(1, 12, 3).tolist()
    result = [max(0, s + 2 * p - k) // t + 1 for s, p, k, t in zip(sizes, pads, kernel, strides, strict=True)]
    head = [int(random.integers(0, 2)), int(random.integers(1, 4)), int(random.integers(1, 70))]
    return [*head, *sizes, *result, *kernel, *strides, *pads]


def _max_pool_sizes(spec: list[int]) -> list[int]:
    size, result = (math.prod(spec[1:3]) * math.prod(spec[i : i + 3]) for i in (3, 6))
    return [size, result, result]


def _lstm_cell(random: np.random.Generator) -> list[int]:
    """See ``LstmCellSpec`` in native/src/lstm_cell.cc."""
    sizes = [int(random.integers(1, 20)), int(random.choice([1, 15, 16, 17, random.integers(1, 100)]))]
    return [*sizes, *random.permutation(4).tolist(), int(random.integers(0, 2))]


def _lstm_cell_sizes(spec: list[int], operands: str) -> list[int]:
    """Of gates (g), states (s) and what there is of the state before (b)."""
    state = spec[0] * spec[1]
    return [4 * state if kind == "g" else state for kind in operands if kind != "b" or spec[-1]]


def _lstm_layer(random: np.random.Generator) -> list[int]:
    """See ``LstmLayerSpec`` in native/src/lstm_layer.cc."""
    sizes = [*random.integers(1, [5, 20]).tolist(), int(random.choice([1, 15, 16, 17, 64, 65, random.integers(1, 150)]))]
    return [*sizes, *random.permutation(4).tolist(), *random.integers(0, 2, 5).tolist()]


def _lstm_layer_sizes(spec: list[int], operands: str) -> list[int]:
    """Of gates (G) and states (S) of all steps, states (s), the one before (b), bias (v), weights (w), what is kept (K, k)."""
    steps, rows, width = spec[:3]
    state, (has_state, _, _, has_bias, keeps) = rows * width, spec[7:]
    sizes = {
        "G": 4 * steps * state,
        "K": 4 * steps * state,
        "S": steps * state,
        "k": steps * state,
        "w": 4 * width * width,
        "v": 4 * width,
    }
    is_there = {"b": has_state, "v": has_bias, "K": keeps, "k": keeps}
    there = [kind for kind in operands if is_there.get(kind, True)]
    return [sizes.get(kind, state) for kind in there]


_MAKE = {
    "conv": _conv, "matmul": _matmul, "transpose": _transpose, "product": _product, "attention": _attention,
    "attention_grad": _attention, "update": _update, "product_update": _product_update,
    "summed_update": _summed_update, "exchange": _exchange, "batch_norm": _batch_norm, "batch_norm_grad": _batch_norm_grad,
    "cross_entropy": _cross_entropy, "cross_entropy_grad": _cross_entropy, "max_pool": _max_pool, "max_pool_grad": _max_pool,
    "layer_norm": _layer_norm, "layer_norm_grad": _layer_norm, "group_norm": _group_norm, "group_norm_grad": _group_norm,
    "largest": _largest,
    "lstm_cell": _lstm_cell, "lstm_cell_grad": _lstm_cell, "lstm_layer": _lstm_layer, "lstm_layer_grad": _lstm_layer,
}  # fmt: skip
_SIZES = {
    "conv": _conv_sizes, "matmul": _matmul_sizes, "transpose": lambda spec: [math.prod(spec[1:])] * 2,
    "attention": _attention_sizes, "attention_grad": _attention_grad_sizes, "cross_entropy": _cross_entropy_sizes,
    "cross_entropy_grad": lambda spec: [math.prod(spec[1:3]), spec[1], 2 * spec[1], spec[1], math.prod(spec[1:3])],
    "layer_norm": _layer_norm_sizes, "layer_norm_grad": _layer_norm_grad_sizes,
    "group_norm": _group_norm_sizes, "group_norm_grad": _group_norm_grad_sizes,
    "lstm_cell": lambda spec: _lstm_cell_sizes(spec, "gbssg"), "lstm_cell_grad": lambda spec: _lstm_cell_sizes(spec, "gbsssgb"),
    "lstm_layer": lambda spec: _lstm_layer_sizes(spec, "GvbbwSsKkk"),
    "lstm_layer_grad": lambda spec: _lstm_layer_sizes(spec, "GSbwSsGbb"),
    "largest": lambda spec: [spec[1] * spec[2], spec[1] * spec[3]],
    "max_pool": _max_pool_sizes, "max_pool_grad": lambda spec: _max_pool_sizes(spec)[::-1],
}  # fmt: skip
_RESULTS = {
    "attention": 2,
    "attention_grad": 3,
    "cross_entropy": 2,
    "max_pool": 2,
    "layer_norm": 2,
    "group_norm": 2,
    "lstm_cell": 3,
}


if __name__ == "__main__":
    sys.exit(main())
