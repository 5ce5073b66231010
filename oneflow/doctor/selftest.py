"""A few seconds of work, and how fast it went beside what the same machine gives without this library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np

from .. import layers, math, nn, optimizer
from .. import typing as tp
from .._base import dtype as dtypes
from .._base.jax import jax, jnp
from ..job import global_function
from ..ops.array import reshape
from ..ops.matrix import matmul
from ..runtime.processes import cluster
from ..runtime.session import session
from .checks import GOOD, NOTE, TROUBLE, Finding

_SECONDS = 0.7  # that each contender runs
_SIZE = 1024


def measure() -> list[Finding]:
    """Runs the test, in a session of its own. Takes about ten seconds."""
    topic, found = "speed", []
    if hasattr(os, "getloadavg"):
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        busy = load > 0.5 * cores
        todo = "the figures below are of a machine that others use" if busy else ""
        found.append(Finding(topic, "load of the last minute", f"{load:.1f} on {cores} cores", NOTE if busy else GOOD, todo))
    with _alone(), session(seed=0):
        found += [_product(topic), _step(topic), _call(topic)]
    return found


@contextmanager
def _alone() -> Iterator[None]:
    """Sessions started inside are of this process alone, also where a launcher has started several."""
    name = cluster.COUNT[0]
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _best(run: Callable[[], Any], seconds: float = _SECONDS) -> float:
    """The least time of a run, in seconds."""
    run()
    best, finish = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < finish:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _product(topic: str) -> Finding:
    a = np.random.default_rng(0).standard_normal((_SIZE, _SIZE)).astype(np.float32)

    @global_function("predict")
    def product(x: Annotated[tp.Numpy, tp.Numpy.Placeholder((_SIZE, _SIZE))]) -> tp.Numpy:
        return matmul(x, x)

    flop = 2.0 * _SIZE**3
    ours, numpys = flop / _best(lambda: product(a)) / 1e9, flop / _best(lambda: a @ a) / 1e9
    state = GOOD if ours > 0.6 * numpys else TROUBLE
    todo = "" if state == GOOD else "look at the native part and at the cores, above; is the machine busy?"
    return Finding(topic, "matrix products", f"{ours:.0f} GFLOP/s in float32; NumPy: {numpys:.0f}", state, todo)


def _step(topic: str) -> Finding:
    images = np.random.default_rng(0).random((100, 1, 28, 28), np.float32)
    labels = np.zeros(100, np.int32)

    @global_function("train")
    def lenet(
        x: Annotated[tp.Numpy, tp.Numpy.Placeholder((100, 1, 28, 28))],
        y: Annotated[tp.Numpy, tp.Numpy.Placeholder((100,), dtypes.int32)],
    ) -> tp.Numpy:
        for filters in (32, 64):
            x = layers.conv2d(x, filters, 5, padding="SAME", activation=nn.relu)
            x = nn.max_pool2d(x, 2, 2, "SAME", data_format="NCHW")
        logits = layers.dense(reshape(x, (100, -1)), 10)
        loss = nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        optimizer.SGD(optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    start = time.perf_counter()
    lenet(images, labels)
    first = time.perf_counter() - start
    each = _best(lambda: lenet(images, labels))
    return Finding(topic, "LeNet, batch of 100", f"{1 / each:.0f} steps/s; {first:.1f} s from declaration to first step")


def _call(topic: str) -> Finding:
    x = np.ones((2, 3), np.float32)
    bare = jax.jit(lambda v: jnp.maximum(v, 0))

    @global_function("predict")
    def tiny(x: Annotated[tp.Numpy, tp.Numpy.Placeholder((2, 3))]) -> tp.Numpy:
        return math.relu(x)

    def many(run: Callable[[], Any]) -> Callable[[], None]:
        def loop() -> None:
            for _ in range(200):
                run()

        return loop

    ours, jaxs = _best(many(lambda: tiny(x)), 0.3) / 200, _best(many(lambda: np.asarray(bare(x))), 0.3) / 200
    return Finding(topic, "one small call", f"{ours * 1e6:.1f} microseconds; a jitted function of JAX: {jaxs * 1e6:.1f}")
