"""Parts of the PyTorch references that differ from torch.nn on purpose."""

from __future__ import annotations

import torch
from torch import nn


class BatchNorm2d(nn.BatchNorm2d):
    """Keeps the batch's biased variance, as OneFlow does; torch.nn keeps the unbiased one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x)
        with torch.no_grad():
            self.running_mean.lerp_(x.mean((0, 2, 3)), self.momentum)
            self.running_var.lerp_(x.var((0, 2, 3), unbiased=False), self.momentum)
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
