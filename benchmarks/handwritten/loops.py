"""The loops around a jitted step ``(state, images, labels) -> (state, loss)``: fetch each loss, or fetch it a few steps later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ..data import Losses, source

IN_FLIGHT = 8

Step = Callable[[Any, np.ndarray, np.ndarray], tuple[Any, Any]]


def truncated_normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal of deviation 0.1, drawn again beyond two deviations."""
    values = random.standard_normal(shape, np.float32)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = random.standard_normal(int(beyond.sum()), np.float32)
    return values * np.float32(0.1)


def training_loop(step: Step, state: Any, *, asynchronous: bool, passes: int | None) -> tuple[Callable[[int], None], Losses]:
    """Returns ``run(steps)``, which comes back when all losses have been seen, and where they went."""
    batch, losses = source(passes), Losses()
    at = 0

    def synchronous_run(steps: int) -> None:
        nonlocal state, at
        current = state
        for i in range(at, at + steps):
            images, labels = batch(i)
            current, loss = step(current, images, labels)
            losses(np.asarray(loss))
        state, at = current, at + steps

    def asynchronous_run(steps: int) -> None:
        nonlocal state, at
        current = state
        waiting: deque[Any] = deque()
        for i in range(at, at + steps):
            images, labels = batch(i)
            # the caller may change the arrays while the step runs: JAX would see it
            current, loss = step(current, images.copy(), labels.copy())
            waiting.append(loss)
            if len(waiting) > IN_FLIGHT:
                losses(np.asarray(waiting.popleft()))
        while waiting:
            losses(np.asarray(waiting.popleft()))
        state, at = current, at + steps

    return (asynchronous_run if asynchronous else synchronous_run), losses
