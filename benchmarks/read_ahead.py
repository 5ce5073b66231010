"""``python -m benchmarks.read_ahead [ROUNDS]``: what reading beside the step costs a job that reads its own data.

The reader and the step sleep besides their small work (a slow disk, a device elsewhere), so that both have the cores they need
on any machine. The ideal is that of two things that overlap wholly: the slower one alone. Its sleeps are measured, because a busy
machine wakes a thread late.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.data import samples
from oneflow.data.source import RecordSource

BATCH, RECORDS, PARTS, STEPS = 100, 2000, 4, 20
MILLISECONDS = ((50, 50), (50, 10), (10, 50), (2, 50))  # of reading a batch, and of a step


class SlowDisk:
    """Makes every reader of this process as slow as a disk."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []
        take = RecordSource.take

        def taken(source: RecordSource, count: int) -> Any:
            self.slept.append(_sleep(self.seconds))
            return take(source, count)

        RecordSource.take = taken  # type: ignore[method-assign]


def _sleep(seconds: float) -> float:
    begin = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - begin


def declare(folder: str, seconds: float, slept: list[float]) -> Any:
    """A predict job whose step sleeps."""

    def sleep(x: np.ndarray) -> np.ndarray:
        slept.append(_sleep(seconds))
        return np.asarray(x)

    @flow.experimental.register_op(f"sleeping_{time.monotonic_ns()}")
    def sleeping(x: Any) -> Any:
        return jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    @flow.global_function()
    def step() -> tp.Callback[tp.Numpy]:
        records = flow.data.ofrecord_reader(folder, BATCH, data_part_num=PARTS, random_shuffle=True)
        values = flow.data.OFRecordRawDecoder(records, "dense_fields", shape=(13,), dtype=flow.float32)
        return sleeping(flow.math.reduce_sum(values))

    return step


def measure(disk: SlowDisk, folder: str, reading: float, computing: float) -> tuple[float, float]:
    """Seconds per call, and the seconds that its slower side slept per call."""
    flow.clear_default_session()
    slept: list[float] = []
    disk.seconds = reading
    step = declare(folder, computing, slept)
    for _ in range(3):
        step()(lambda _: None)
    flow.sync_default_session()
    time.sleep(8 * reading)  # as many batches as fit are read ahead: what they gain is not counted
    for _ in range(8):  # they are used up
        step()(lambda _: None)
    flow.sync_default_session()
    slept.clear()
    disk.slept.clear()
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()(lambda _: None)
    flow.sync_default_session()
    took = time.perf_counter() - begin
    return took / STEPS, max(sum(disk.slept), sum(slept)) / STEPS


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    disk = SlowDisk()
    with tempfile.TemporaryDirectory() as folder:
        samples.clicks(Path(folder) / "clicks", RECORDS, PARTS)
        for reading, computing in MILLISECONDS:
            found = [measure(disk, str(Path(folder) / "clicks"), reading / 1e3, computing / 1e3) for _ in range(rounds)]
            costs = sorted(took / ideal - 1 for took, ideal in found)
            best = min(found)
            print(
                f"reading {reading} ms, step {computing} ms: {best[0] * 1e3:.1f} ms per call, the slower one alone "
                f"{best[1] * 1e3:.1f}; "
                f"overlapping costs {costs[0]:.1%} at best, {costs[len(costs) // 2]:.1%} in the median of {rounds}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
