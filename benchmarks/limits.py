"""``python -m benchmarks.limits [--rounds N] [--calls] [MODEL ...]``: training steps beside what the machine itself could do.

The machine's own time for a step, its limit, is

    FLOPs of products and convolutions / peak rate + bytes of everything else / rate of memory.

- FLOPs are those of the native calls, the products and the convolutions of the compiled program: two per multiplication and
  addition; in attention two products forward and five backward, which computes the scores again. Each has the peak of its own
  dtype, which is the rate of oneDNN's best call for a large shape: a product of 1024 x 1024 matrices with its weights packed
  or not, a convolution of 3 x 3 over 256 channels.
- Bytes are those that every other instruction of the compiled program, which is a fused loop mostly, reads and writes.
- The rate of memory is that of NumPy's addition of two arrays into a third, of 64 MiB each, counted as STREAM does: three
  arrays.

Everything is measured on one core with one thread, by CPU time, in turns in the same process: the best rate of all rounds, and
the least time of a step. A share of 1 is not a bound in the strict sense. Arrays that stay in a cache are read faster than
memory is; depthwise convolutions and small products cannot reach the peak of large ones.

``--calls`` lists the native calls whose time is more than 1.15 times that of the best way to compute them in the native part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

MODELS = ("lenet", "mlp", "resnet50", "bert_small", "mobilenet_v2")
PRECISIONS = {"float32": "", "mixed precision": "bfloat16"}
F32, BF16 = 0, 1  # whether a call multiplies in bfloat16
TURN = 0.25  # CPU seconds of steps per round
WORSE = 1.15
MULTIPLYING = ("conv", "matmul", "attention", "attention_grad")  # other native calls read and write, as XLA's loops do
_SPEC = re.compile(r"spec = dense<\[([-\d, ]+)\]>")
_CALL = re.compile(r"oneflow_(\w+?)_\d+$")


# --- what a program has to do


def flops_of(call: str, spec: Sequence[int]) -> tuple[float, int]:
    """The floating point operations of a native call, and the dtype that it multiplies in."""
    if call == "conv":
        n = spec[3]
        kernel, output = (spec[5 + i * (n + 2) : 5 + (i + 1) * (n + 2)] for i in (1, 2))
        return 2.0 * math.prod(output) * math.prod(kernel[1:]), min(spec[2], 1)
    if call == "matmul":
        return 2.0 * math.prod(spec[1:5]), min(spec[0], 1)
    if call in ("attention", "attention_grad"):
        return 2.0 * math.prod(spec[1:6]) * (2 if call == "attention" else 5), spec[0]
    return 0.0, F32


def native_calls(hlo: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The native calls of a program, as pairs of a name and a spec."""
    for line in hlo.splitlines():
        target, spec = re.search(r'custom_call_target="(oneflow_\w+)"', line), _SPEC.search(line)
        if target is not None and spec is not None:
            yield _CALL.match(target[1])[1], tuple(map(int, spec[1].split(",")))  # type: ignore[index]


def work_of(hlo: str) -> tuple[dict[int, float], float]:
    """FLOPs of products and convolutions by dtype, and the bytes that all other instructions read and write."""
    import oneflow as flow
    from oneflow._base import native
    from oneflow._base.dist import Placement
    from oneflow._targets.roofline import estimate

    module, made = estimate(hlo, flow.Target("h100:1"), Placement("cpu", ((0, 0),)))  # its seconds are not used
    flops, moved = {F32: 0.0, BF16: 0.0}, 0.0
    for name, (cost, times) in made.by_instruction.items():
        instruction = module.find(name)
        found = _CALL.match(instruction.target) if instruction is not None else None
        products = sum(cost.products.values())
        if found is not None and found[1] in MULTIPLYING:
            spec = _SPEC.search(instruction.rest)  # type: ignore[union-attr]
            count, dtype = flops_of(found[1], tuple(map(int, spec[1].split(","))))  # type: ignore[index]
            flops[dtype if native.multiplies_bfloat16() else F32] += count * times  # else of rounded numbers
        elif products:  # by XLA
            flops[F32] += products * times
        else:
            moved += cost.bytes * times
    return flops, moved


# --- what the machine does


def cpu_seconds(run: Callable[[], Any], least: float = 0.05) -> float:
    """CPU time of one run, of as many as take ``least`` seconds together."""
    times, begin = 0, time.process_time()
    while time.process_time() - begin < least:
        run()
        times += 1
    return (time.process_time() - begin) / times


def large_calls(library: Any, dtype: int) -> list[tuple[float, Callable[[], Any]]]:
    """Pairs of FLOPs and a call of a large product or convolution."""
    n = 1024
    one, zero = (int(np.float32(v).view(np.uint32)) for v in (1, 0))
    code = 1 if dtype else 0
    one_of = np.array(0x3F80, np.uint16) if dtype else np.float32(1)  # NumPy has no bfloat16
    specs = [("matmul", [code, 1, n, n, n, 0, transposed]) for transposed in (0, 1)]
    image, kernel = (8, 256, 28, 28), (256, 256, 3, 3)
    flags = 1 + 2  # channels last, by oneDNN: Winograd's way multiplies less than is counted
    specs.append(("conv", [0, flags, code, 2, 1, *image, *kernel, *image, 1, 1, 1, 1, 1, 1, 1, 1]))
    specs.append(("product", [2 if dtype else 1, 2 if dtype else 1, 0, 0, 0, one, zero, zero, zero, n, n, n, 1]))
    made: list[tuple[float, Callable[[], Any]]] = []
    for call, spec in specs:
        elements = (math.prod(image), math.prod(kernel), math.prod(image)) if call == "conv" else (n * n,) * 3
        arrays = [np.full(count, one_of) for count in elements]
        if call == "product":
            given, arrays[1] = np.ones(n * n, np.float32), np.zeros(int(library.describe("pack_weights", spec)), np.int8)
            library.execute("pack_weights", spec, given.ctypes.data, arrays[1].ctypes.data)
            arrays.insert(2, np.zeros(n, np.float32))
        addresses = [array.ctypes.data for array in arrays]
        count = 2.0 * math.prod(image) * math.prod(kernel[1:]) if call == "conv" else 2.0 * n**3

        def run(call: str = call, spec: Any = spec, addresses: Any = addresses, keep: Any = arrays) -> None:
            library.execute(call, spec, *addresses)

        made.append((count, run))
    return made


def memory_rate() -> Callable[[], float]:
    """Bytes per second of an addition of large arrays, when called."""
    a, b, c = (np.ones(16 << 20, np.float32) for _ in range(3))  # memory that was not written is not read
    return lambda: 3 * a.nbytes / cpu_seconds(lambda: np.add(a, b, out=c))


def measure(model: str, precision: str, rounds: int) -> dict[str, Any]:
    """One workload in this process."""
    from oneflow._base import native

    from .models import in_oneflow

    run, _ = in_oneflow.make(model, "train", precision=PRECISIONS[precision])
    run(3)
    steps = max(1, int(TURN / cpu_seconds(lambda: run(1))))
    hlo = run.job.executables[-1][1].hlo()
    flops, moved = work_of(hlo)
    library, rate = native.part().library, memory_rate()
    kinds = [dtype for dtype in flops if flops[dtype]]
    large = {dtype: large_calls(library, dtype) for dtype in kinds}
    peaks, rates, times = {dtype: [] for dtype in kinds}, [], []  # type: ignore[var-annotated]
    for _ in range(rounds):
        for dtype in kinds:
            peaks[dtype].append(max(count / cpu_seconds(call) for count, call in large[dtype]))
        rates.append(rate())
        begin = time.process_time()
        run(steps)
        times.append((time.process_time() - begin) / steps)
    return {
        "flops": flops, "bytes": moved, "peaks": {d: max(p) for d, p in peaks.items()}, "rate": max(rates), "step": min(times),
        "calls": [(call, spec, count) for (call, spec), count in Counter(native_calls(hlo)).items()],
    }  # fmt: skip


# --- the calls one by one


def ways(call: str, spec: Sequence[int]) -> dict[str, list[int]]:
    """Specs of the same call by each way that there is to compute it; "chosen" first."""
    if call == "conv":
        flags, names = spec[1] & 1, {"chosen": 0, "direct": 2, "im2col": 4, "rows": 8}
        return {name: [spec[0], flags + way, *spec[2:]] for name, way in names.items()}
    if call == "matmul":
        names = {"chosen": 0, "matmul": 2, "gemm": 4, "packed": 8}
        return {name: [*spec[:-1], spec[-1] % 2 + way] for name, way in names.items()}
    return {}


def operands_of(call: str, spec: Sequence[int]) -> list[np.ndarray]:
    """Arrays for a call, of ones and large enough for any dtype."""
    if call == "matmul":
        _, batch, m, n, k = spec[:5]
        counts = [batch * m * k, batch * k * n, batch * m * n]
    else:
        n = spec[3]
        x, w, y = (math.prod(spec[5 + i * (n + 2) : 5 + (i + 1) * (n + 2)]) for i in range(3))
        counts = [[x, w, y], [y, w, x], [x, y, w]][spec[0]]
    return [np.ones(count, np.float32) for count in counts]


def compare_calls(calls: Sequence[tuple[str, Sequence[int], int]]) -> list[tuple[float, str]]:
    """For calls that another way computes in less time: how much their choice costs a step in milliseconds, and a line."""
    from oneflow._base import native

    library, found = native.part().library, []
    for call, spec, count in calls:
        made = ways(call, spec)
        if not made:
            continue
        operands = operands_of(call, spec)
        addresses = [array.ctypes.data for array in operands]
        spent: dict[str, list[float]] = {}
        for _ in range(5):
            for name, each in made.items():
                spent.setdefault(name, []).append(cpu_seconds(partial(library.execute, call, each, *addresses), 0.01))
        least = {name: min(times) for name, times in spent.items()}
        best = min(least, key=least.__getitem__)
        if least["chosen"] > WORSE * least[best]:
            microseconds = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in least.items())
            lost = (least["chosen"] - least[best]) * count * 1e3
            line = f"{call} {','.join(map(str, spec))} x {count}: {microseconds} us ({library.describe(call, made['chosen'])})"
            found.append((lost, line))
    return sorted(found, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--one", choices=PRECISIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX and the native part count the cores
    if options.one:
        made = measure(options.models[0], options.one, options.rounds)
        made["slow"] = compare_calls(made.pop("calls")) if options.calls else []
        print(json.dumps(made))
        return 0
    print("| | limit, ms: products | the rest | together | measured, ms | share | peak, GFLOP/s | memory, GB/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    slow = []
    for model in options.models or MODELS:
        for precision in PRECISIONS:
            command = [sys.executable, "-m", "benchmarks.limits", model, "--one", precision, "--rounds", str(options.rounds)]
            process = subprocess.run(command + ["--calls"] * options.calls, capture_output=True, text=True)
            if process.returncode:
                print(process.stderr, file=sys.stderr)
                return 1
            made = json.loads(process.stdout.splitlines()[-1])
            products = sum(count / made["peaks"][dtype] for dtype, count in made["flops"].items() if count) * 1e3
            rest, step = made["bytes"] / made["rate"] * 1e3, made["step"] * 1e3
            peaks = ", ".join(f"{peak / 1e9:.0f}" for _, peak in sorted(made["peaks"].items()))
            figures = [f"{v:.2f}" for v in (products, rest, products + rest, step, (products + rest) / step)]
            print("| " + " | ".join([f"{model}, {precision}", *figures, peaks, f"{made['rate'] / 1e9:.1f}"]) + " |", flush=True)
            slow += [(f"{model}, {precision}", *each) for each in made["slow"]]
    for where, lost, line in slow:
        print(f"{where}: {lost:.3f} ms per step: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
