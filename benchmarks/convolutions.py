"""``python -m benchmarks.convolutions``: single convolutions inside XLA's programs and by oneDNN called directly, in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from oneflow._base import native as _native
from oneflow.ops import _native_conv as conv

from .stats import Ratio, Spread

# name, batch, sizes, channels, filters, window, stride, padding, groups
SHAPES: list[tuple[str, int, tuple[int, ...], int, int, int, int, int, int]] = [
    ("LeNet, first", 100, (28, 28), 1, 32, 5, 1, 2, 1),
    ("LeNet, second", 100, (14, 14), 32, 64, 5, 1, 2, 1),
    ("ResNet-50, 7 x 7", 8, (64, 64), 3, 64, 7, 2, 3, 1),
    ("ResNet-50, 3 x 3 of 64", 8, (16, 16), 64, 64, 3, 1, 1, 1),
    ("ResNet-50, 1 x 1 to 256", 8, (16, 16), 64, 256, 1, 1, 0, 1),
    ("ResNet-50, 3 x 3 of 512", 8, (2, 2), 512, 512, 3, 1, 1, 1),
    ("MobileNet-v2, depthwise", 8, (32, 32), 96, 96, 3, 1, 1, 96),
    ("MobileNet-v2, 1 x 1 to 24", 8, (32, 32), 96, 24, 1, 1, 0, 1),
    ("3-D U-Net, 3 x 3 x 3", 1, (32, 32, 32), 16, 32, 3, 1, 1, 1),
]
ROUNDS, TURN = 15, 0.04
COUNT = 4  # convolutions of one kind in a program, each of arrays of its own: what a program's start costs is shared by them
KINDS = ("forward", "data", "weights")


def timed(run: Callable[[], Any], times: int) -> float:
    """Seconds of one convolution."""
    begin = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - begin) / times / COUNT


def main() -> int:
    part = _native.part()
    if part.library is None:
        print(part.reason)
        return 1
    print(f"{'':28}{'':9}{'direct, us':>12}{'in XLA, us':>12}   XLA / direct, 95 % interval   {part.library.threads} threads")
    for name, n, sizes, channels, filters, k, stride, pad, groups in SHAPES:
        d = len(sizes)
        g = conv.Geometry((stride,) * d, (1,) * d, (pad,) * d, (pad,) * d, groups)
        random = np.random.default_rng(0)
        x, w = (n, *sizes, channels), (filters, channels // groups, *[k] * d)
        y = jax.eval_shape(conv.differentiable(g), *(jax.ShapeDtypeStruct(s, np.float32) for s in (x, w))).shape
        arrays = {"x": x, "w": w, "y": y}
        host = [{key: random.standard_normal(shape, np.float32) for key, shape in arrays.items()} for _ in range(COUNT)]
        device = [{key: jax.device_put(value) for key, value in one.items()} for one in host]
        for kind, (ins, out) in enumerate((("xw", "y"), ("yw", "x"), ("xy", "w"))):
            spec = g.spec(kind, np.float32, *g.channels_second(x, w))
            made = [np.empty(arrays[out], np.float32) for _ in range(COUNT)]
            addresses = [[*(one[key].ctypes.data for key in ins), m.ctypes.data] for one, m in zip(host, made, strict=True)]
            single = conv.call(kind, g, x, w)
            jitted = jax.jit(lambda pairs, single=single: [single(*pair) for pair in pairs])
            given = [[one[key] for key in ins] for one in device]

            def direct(spec: Any = spec, addresses: Any = addresses) -> None:
                for each in addresses:
                    part.library.execute("conv", spec, *each)

            def inside(jitted: Any = jitted, given: Any = given) -> None:
                jax.block_until_ready(jitted(given))

            times = max(2, int(TURN / COUNT / max(timed(direct, 2), timed(inside, 2), 1e-6)))
            turns = [(timed(direct, times), timed(inside, times)) for _ in range(ROUNDS)]
            both = [Spread.of([t[i] for t in turns]).median * 1e6 for i in range(2)]
            ratio = Ratio.paired([t[1] for t in turns], [t[0] for t in turns])
            interval = f"{ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f})"
            verdict = "" if ratio.at_most(1.1) else "   over 1.1"
            print(f"{name:28}{KINDS[kind]:9}{both[0]:12.0f}{both[1]:12.0f}   {interval}{verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
