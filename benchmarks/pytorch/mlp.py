"""The MLP of the tutorials in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ..data import Losses
from .loops import training_loop


def make(compiled: bool = False, passes: int | None = None) -> tuple[Callable[[int], None], Losses]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    return training_loop(model, compiled=compiled, passes=passes)
