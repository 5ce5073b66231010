"""The loops of the tutorials around a train job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oneflow as flow

from ..data import Losses, source


def training_loop(job: Any, *, asynchronous: bool, passes: int | None) -> tuple[Callable[[int], None], Losses]:
    """Returns ``run(steps)``, which comes back when all losses have been seen, and where they went."""
    batch, losses = source(passes), Losses()
    at = 0

    def synchronous_run(steps: int) -> None:
        nonlocal at
        for i in range(at, at + steps):
            images, labels = batch(i)
            losses(job(images, labels))
        at += steps

    def asynchronous_run(steps: int) -> None:
        nonlocal at
        for i in range(at, at + steps):
            images, labels = batch(i)
            job(images, labels)(losses)
        at += steps
        flow.sync_default_session()

    return (asynchronous_run if asynchronous else synchronous_run), losses
