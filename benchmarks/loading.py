"""``python -m benchmarks.loading HOW CHECKPOINT``: reads a checkpoint of float32 vectors once, and prints the seconds.

HOW: ``load`` (into the variables of a session), ``read`` (arrays of ``flow.checkpoint.get``) or ``fromfile`` (NumPy, no digests).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.typing as tp


def declare(checkpoint: Path) -> None:
    """A job with the checkpoint's variables, which has run."""

    @flow.global_function()
    def job() -> tp.Numpy:
        first = []
        for out in sorted(checkpoint.glob("*/out")):
            shape = (out.stat().st_size // 4,)
            variable = flow.get_variable(out.parent.name, shape, initializer=flow.zeros_initializer())
            first.append(flow.slice(variable, [0], [1]))
        return flow.math.add_n(first)

    job()


def main() -> int:
    how, checkpoint = sys.argv[1], Path(sys.argv[2])
    declare(checkpoint)
    begin = time.perf_counter()
    if how == "load":
        flow.load_variables(flow.checkpoint.get(checkpoint))
    elif how == "read":
        kept = [value.numpy() for value in flow.checkpoint.get(checkpoint).values()]  # noqa: F841 - all are in memory at once
    else:
        kept = [np.fromfile(out, np.float32) for out in sorted(checkpoint.glob("*/out"))]  # noqa: F841
    print(time.perf_counter() - begin)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
