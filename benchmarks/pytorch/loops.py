"""The usual PyTorch loop around a model: NumPy in, loss out as NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..data import Losses, source


def initialise(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("weight"):
                torch.nn.init.trunc_normal_(parameter, 0.0, 0.1, -0.2, 0.2)
            else:
                parameter.zero_()


def training_loop(model: torch.nn.Module, *, compiled: bool, passes: int | None) -> tuple[Callable[[int], None], Losses]:
    """Returns ``run(steps)``, which comes back when all losses have been seen, and where they went."""
    initialise(model)
    batch, losses = source(passes), Losses()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)

    def forward(images: Any, labels: Any) -> Any:
        each = functional.cross_entropy(model(images), labels, reduction="none")
        return each.mean(), each

    if compiled:
        forward = torch.compile(forward)
    at = 0

    def run(steps: int) -> None:
        nonlocal at
        for i in range(at, at + steps):
            images, labels = batch(i)
            mean, each = forward(torch.from_numpy(images), torch.from_numpy(labels).long())
            optimizer.zero_grad(set_to_none=True)
            mean.backward()
            optimizer.step()
            losses(each.detach().numpy())
        at += steps

    return run, losses
