"""Wide & Deep and DCGAN in PyTorch, from parts; no dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu
from torch_parts import BatchNorm2d


class WideAndDeep(nn.Module):
    def __init__(self, f: Any):
        super().__init__()
        self.wide_embedding = nn.Parameter(0.1 * torch.randn(f.wide_values, 1))
        self.deep_embedding = nn.Parameter(0.1 * torch.randn(f.deep_values, f.embedding))
        sizes = (f.deep * f.embedding + f.dense, *f.hidden)
        for i, units in enumerate(f.hidden):
            setattr(self, f"fc{i}", nn.Linear(sizes[i], units))
        self.fc_out = nn.Linear(sizes[-1], 1)
        self.layers = len(f.hidden)

    def forward(self, dense: torch.Tensor, wide: torch.Tensor, deep: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.deep_embedding[deep].flatten(1), dense], 1)
        for i in range(self.layers):
            x = torch.relu(getattr(self, f"fc{i}")(x))
        return self.wide_embedding[wide].flatten(1).sum(1, keepdim=True) + self.fc_out(x)


class Generator(nn.Module):
    def __init__(self, width: int, code: int):
        super().__init__()
        self.width = width
        self.fc = nn.Linear(code, 4 * width * 49)
        self.bn0, self.bn1 = BatchNorm2d(4 * width), BatchNorm2d(2 * width)
        self.deconv1 = nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False)
        self.deconv2 = nn.ConvTranspose2d(2 * width, 1, 4, 2, 1, bias=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        x = leaky_relu(self.bn0(self.fc(codes).view(-1, 4 * self.width, 7, 7)), 0.2)
        return torch.tanh(self.deconv2(leaky_relu(self.bn1(self.deconv1(x)), 0.2)))


class Discriminator(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(1, width, 4, 2, 1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.fc = nn.Linear(2 * width * 49, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = leaky_relu(self.conv1(leaky_relu(self.conv0(images), 0.2)), 0.2)
        return self.fc(x.flatten(1))


class DCGAN(nn.Module):
    def __init__(self, width: int, code: int):
        super().__init__()
        self.generator, self.discriminator = Generator(width, code), Discriminator(width)

    def generator_loss(self, codes: torch.Tensor) -> torch.Tensor:
        logits = self.discriminator(self.generator.train()(codes))
        return binary_cross_entropy_with_logits(logits, torch.ones_like(logits), reduction="none")

    def discriminator_loss(self, codes: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        made, real = self.discriminator(self.generator.eval()(codes).detach()), self.discriminator(images)
        loss = binary_cross_entropy_with_logits
        return loss(made, torch.zeros_like(made), reduction="none") + loss(real, torch.ones_like(real), reduction="none")
