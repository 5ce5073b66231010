"""AlexNet, VGG-16, MobileNet-v2 and Inception-v3 in PyTorch, from parts; no dropout."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, max_pool2d
from torch_parts import BatchNorm2d


def _mean() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


# --- without normalization


def _plain(features: list[nn.Module], columns: int, hidden: int, classes: int, first: int) -> nn.Module:
    dense = [nn.Identity()] * first + [nn.Linear(columns, hidden), nn.ReLU()]
    dense += [nn.Identity(), nn.Linear(hidden, hidden), nn.ReLU()]
    dense += [nn.Linear(hidden, classes)] if first else [nn.Identity(), nn.Linear(hidden, classes)]
    parts = {"features": nn.Sequential(*features), "flatten": nn.Flatten(), "classifier": nn.Sequential(*dense)}
    return nn.Sequential(OrderedDict(parts))


def alexnet(classes: int, hidden: int, columns: int) -> nn.Module:
    features = [
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(), nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(),
        nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    return _plain(features, columns, hidden, classes, first=1)


def vgg16(classes: int, hidden: int, columns: int) -> nn.Module:
    features: list[nn.Module] = []
    channels = 3
    for entry in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        features += [nn.Conv2d(channels, entry, 3, 1, 1), nn.ReLU()] if entry else [nn.MaxPool2d(2)]
        channels = entry or channels
    return _plain(features, columns, hidden, classes, first=0)


# --- MobileNet-v2


def _unit6(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, BatchNorm2d(filters), nn.ReLU6())


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, filters: int, widening: int, stride: int):
        super().__init__()
        inside = channels * widening
        first = [] if widening == 1 else [_unit6(channels, inside, 1)]
        last = [nn.Conv2d(inside, filters, 1, bias=False), BatchNorm2d(filters)]
        self.conv = nn.Sequential(*first, _unit6(inside, inside, 3, stride, inside), *last)
        self.adds = stride == 1 and channels == filters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def mobilenet_v2(classes: int) -> nn.Module:
    """A quarter of the channels: multiples of 8, no more than a tenth below that."""
    layers = [_unit6(3, 8, 3, 2)]
    channels = 8
    rows = [(1, 8, 1, 1), (6, 8, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1), (6, 40, 3, 2), (6, 80, 1, 1)]
    for widening, filters, blocks, stride in rows:
        for block in range(blocks):
            layers.append(InvertedResidual(channels, filters, widening, stride if block == 0 else 1))
            channels = filters
    layers.append(_unit6(80, 1280, 1))
    classifier = nn.Sequential(nn.Identity(), nn.Linear(1280, classes))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), avgpool=_mean(), classifier=classifier))


# --- Inception-v3


class Unit(nn.Module):
    def __init__(self, channels: int, filters: int, kernel: Any, stride: int = 1, pad: Any = 0):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride, pad, bias=False)
        self.bn = BatchNorm2d(filters, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x)))


def _averaged(x: torch.Tensor) -> torch.Tensor:
    return avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class A(nn.Module):
    def __init__(self, n: int, pooled: int):
        super().__init__()
        self.branch1x1 = Unit(n, 64, 1)
        self.branch5x5_1, self.branch5x5_2 = Unit(n, 48, 1), Unit(48, 64, 5, pad=2)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = Unit(n, 64, 1), Unit(64, 96, 3, pad=1)
        self.branch3x3dbl_3 = Unit(96, 96, 3, pad=1)
        self.branch_pool = Unit(n, pooled, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), self.branch5x5_2(self.branch5x5_1(x)), twice, self.branch_pool(_averaged(x))], 1)


class B(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.branch3x3 = Unit(n, 384, 3, 2)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = Unit(n, 64, 1), Unit(64, 96, 3, pad=1)
        self.branch3x3dbl_3 = Unit(96, 96, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), twice, max_pool2d(x, 3, 2)], 1)


class C(nn.Module):
    def __init__(self, n: int, c: int):
        super().__init__()
        flat: dict[str, Any] = {"kernel": (1, 7), "pad": (0, 3)}
        tall: dict[str, Any] = {"kernel": (7, 1), "pad": (3, 0)}
        self.branch1x1 = Unit(n, 192, 1)
        self.branch7x7_1, self.branch7x7_2, self.branch7x7_3 = Unit(n, c, 1), Unit(c, c, **flat), Unit(c, 192, **tall)
        self.branch7x7dbl_1, self.branch7x7dbl_2, self.branch7x7dbl_3 = Unit(n, c, 1), Unit(c, c, **tall), Unit(c, c, **flat)
        self.branch7x7dbl_4, self.branch7x7dbl_5 = Unit(c, c, **tall), Unit(c, 192, **flat)
        self.branch_pool = Unit(n, 192, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        twice = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        twice = self.branch7x7dbl_5(self.branch7x7dbl_4(twice))
        return torch.cat([self.branch1x1(x), once, twice, self.branch_pool(_averaged(x))], 1)


class D(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.branch3x3_1, self.branch3x3_2 = Unit(n, 192, 1), Unit(192, 320, 3, 2)
        self.branch7x7x3_1, self.branch7x7x3_2 = Unit(n, 192, 1), Unit(192, 192, (1, 7), pad=(0, 3))
        self.branch7x7x3_3, self.branch7x7x3_4 = Unit(192, 192, (7, 1), pad=(3, 0)), Unit(192, 192, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seven = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([self.branch3x3_2(self.branch3x3_1(x)), seven, max_pool2d(x, 3, 2)], 1)


class E(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.branch1x1, self.branch_pool = Unit(n, 320, 1), Unit(n, 192, 1)
        self.branch3x3_1 = Unit(n, 384, 1)
        self.branch3x3_2a, self.branch3x3_2b = Unit(384, 384, (1, 3), pad=(0, 1)), Unit(384, 384, (3, 1), pad=(1, 0))
        self.branch3x3dbl_1, self.branch3x3dbl_2 = Unit(n, 448, 1), Unit(448, 384, 3, pad=1)
        self.branch3x3dbl_3a, self.branch3x3dbl_3b = Unit(384, 384, (1, 3), pad=(0, 1)), Unit(384, 384, (3, 1), pad=(1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.branch3x3_1(x), self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        crossed = [self.branch3x3_2a(y), self.branch3x3_2b(y), self.branch3x3dbl_3a(z), self.branch3x3dbl_3b(z)]
        return torch.cat([self.branch1x1(x), *crossed, self.branch_pool(_averaged(x))], 1)


def inception_v3(classes: int) -> nn.Module:
    layers = OrderedDict(
        Conv2d_1a_3x3=Unit(3, 32, 3, 2), Conv2d_2a_3x3=Unit(32, 32, 3), Conv2d_2b_3x3=Unit(32, 64, 3, pad=1),
        maxpool1=nn.MaxPool2d(3, 2), Conv2d_3b_1x1=Unit(64, 80, 1), Conv2d_4a_3x3=Unit(80, 192, 3), maxpool2=nn.MaxPool2d(3, 2),
        Mixed_5b=A(192, 32), Mixed_5c=A(256, 64), Mixed_5d=A(288, 64), Mixed_6a=B(288), Mixed_6b=C(768, 128),
        Mixed_6c=C(768, 160), Mixed_6d=C(768, 160), Mixed_6e=C(768, 192), Mixed_7a=D(768), Mixed_7b=E(1280), Mixed_7c=E(2048),
        avgpool=_mean(), fc=nn.Linear(2048, classes),
    )  # fmt: skip
    return nn.Sequential(layers)
