"""``python -m benchmarks.instructions [MICRO_BATCHES]``: a two-stage MLP's step, instruction by instruction.

Of the staged job's list: microseconds of each instruction, medians over steps that wait for each (nothing overlaps). Above
it what a call costs the host, where it waits for nothing, and the whole call.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp

ROWS, WIDTH, LAYERS, STEPS = 16, 16, 2, 100


def declare(micro_batches: int) -> Any:
    flow.config.cpu_device_num(2)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((ROWS, WIDTH)), y: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32)) -> tp.Numpy:
        if micro_batches > 1:
            x, y = flow.unpack(x, micro_batches), flow.unpack(y, micro_batches)
        for half in range(2):
            with flow.scope.placement("cpu", f"0:{half}"):
                for i in range(LAYERS):
                    start = flow.random_normal_initializer(stddev=0.05)
                    x = flow.layers.dense(x, WIDTH, activation=flow.nn.relu, kernel_initializer=start, name=f"d{half}{i}")
                if half:
                    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.001])).minimize(loss)
        return loss

    return step


def main() -> int:
    step = declare(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((ROWS, WIDTH)).astype(np.float32), rng.integers(0, WIDTH, ROWS).astype(np.int32)
    step(*batch)
    executable = step.executables[-1][1]
    program, on_host, calls = executable.function, [], []

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        outputs = program(*arguments)
        on_host.append(time.perf_counter() - start)
        return outputs

    executable.launcher.function = timed
    for _ in range(STEPS):
        start = time.perf_counter()
        step(*batch)
        calls.append(time.perf_counter() - start)
    executable.launcher.function = program
    spent: dict[int, list[float]] = {}
    names: dict[int, str] = {}

    def note(instruction: Any, seconds: float) -> None:
        names[id(instruction)] = instruction.name
        spent.setdefault(id(instruction), []).append(seconds)

    with program.observed(note):
        for _ in range(STEPS):
            step(*batch)
    print(f"{median(on_host) * 1e6:9.1f} us on the host per call, {median(calls) * 1e6:.1f} us until it returns")
    for key, seconds in spent.items():
        print(f"{median(seconds) * 1e6:9.1f} us  {names[key]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
