"""``python -m benchmarks.pipeline [MICRO_BATCHES ...]``: a train job of four stages on four devices beside the ideal schedule.

Each stage sleeps instead of computing (a callback to the host, which releases the interpreter's lock), forward and backward, so
that a machine of two cores shows how four devices would overlap. The ideal is a pipeline without gaps: (micro-batches + stages
- 1) times the seconds of one stage, forward and backward. Printed with it: the most sleeps of one stage at one time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np

import oneflow as flow
import oneflow.typing as tp

STAGES, SECONDS, STEPS = 4, 0.03, 5
Event = tuple[int, str, float, float]  # stage, "forward" or "backward", begin, end


def declare(micro_batches: int, note: Callable[[Event], None], seconds: float = SECONDS) -> Any:
    """The train job. ``note`` is called with each stage's sleep."""
    flow.clear_default_session()
    flow.config.cpu_device_num(STAGES)
    width = 4

    def sleeping(stage: int, kind: str) -> Callable[[Any], Any]:
        def sleep(x: np.ndarray) -> np.ndarray:
            begin = time.perf_counter()
            time.sleep(seconds)
            note((stage, kind, begin, time.perf_counter()))
            return np.asarray(x)

        return lambda x: jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    @flow.experimental.register_op(
        f"sleeping_stage_{time.monotonic_ns()}",
        attrs={"stage": 0},
        grad=lambda inputs, outputs, cotangents, stage: (sleeping(stage, "backward")(cotangents[0]),),
    )
    def stage_of(x: Any, *, stage: int) -> Any:
        return sleeping(stage, "forward")(x)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((2 * micro_batches, width))) -> tp.Numpy:
        x = flow.unpack(x, micro_batches) if micro_batches > 1 else x
        for stage in range(STAGES):
            with flow.scope.placement("cpu", f"0:{stage}"):
                weight = flow.get_variable(f"w{stage}", (width,), initializer=flow.ones_initializer())
                x = stage_of(x * weight, stage=stage, name=f"stage{stage}")
        with flow.scope.placement("cpu", f"0:{STAGES - 1}"):
            loss = flow.math.reduce_mean(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.001]), momentum=0).minimize(loss)
        return flow.pack(loss, micro_batches) if micro_batches > 1 else loss

    return step


def ideal(micro_batches: int, seconds: float = SECONDS) -> float:
    return (micro_batches + STAGES - 1) * 2 * seconds


def at_once(events: list[Event]) -> int:
    """The most sleeps of one stage at one time."""
    most = 0
    for stage in range(STAGES):
        marks = sorted([(b, 1) for s, _, b, _ in events if s == stage] + [(e, -1) for s, _, _, e in events if s == stage])
        now = 0
        for _, change in marks:
            now += change
            most = max(most, now)
    return most


def main() -> int:
    for micro_batches in map(int, sys.argv[1:] or ("1", "4", "8")):
        events: list[Event] = []
        lock = threading.Lock()

        def note(event: Event, events: list[Event] = events, lock: threading.Lock = lock) -> None:
            with lock:
                events.append(event)

        step = declare(micro_batches, note)
        x = np.ones((2 * micro_batches, 4), np.float32)
        step(x)
        times = []
        for _ in range(STEPS):
            events.clear()
            begin = time.perf_counter()
            step(x)
            flow.sync_default_session()
            flow.get_all_variables()["w0"].numpy()  # the backward pass of the first stage, too
            times.append(time.perf_counter() - begin)
        wanted, took = ideal(micro_batches), median(times)
        print(
            f"{micro_batches} micro-batches: {took * 1e3:.0f} ms (best {min(times) * 1e3:.0f}), ideal {wanted * 1e3:.0f} ms, "
            f"{took / wanted:.2f} of it; at most {at_once(events)} at once per stage",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
