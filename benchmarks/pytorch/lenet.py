"""The LeNet of the tutorials in PyTorch, channels last (faster on CPU)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ..data import Losses
from .loops import training_loop


def make(compiled: bool = False, passes: int | None = None) -> tuple[Callable[[int], None], Losses]:
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    return training_loop(model, compiled=compiled, passes=passes)
