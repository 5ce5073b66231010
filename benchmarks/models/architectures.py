"""The models that are measured: each is a function of ``nn``, the layers of one library (``in_oneflow.py`` and its sisters)."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data import Losses

VOCABULARY, LENGTH, WIDTH, HEADS, DEPTH = 30522, 128, 512, 8, 4  # of BERT-small
MOMENTUM, RATE = 0.9, 0.001


@dataclass(frozen=True)
class Model:
    """``build(nn, inputs)`` gives logits of (samples, classes). ``rule`` is "sgd", "momentum" or "adam"."""

    build: Callable[[Any, Any], Any]
    batch: int
    shape: tuple[int, ...]  # of one input: pixels, or token numbers where there is one axis and ``vocabulary``
    classes: int
    rule: str
    vocabulary: int = 0

    def data(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels, the same in every library."""
        random = np.random.default_rng(0)
        if self.vocabulary:
            inputs = random.integers(0, self.vocabulary, (batch, *self.shape)).astype(np.int32)
            return inputs, random.integers(0, self.classes, batch * self.shape[0]).astype(np.int32)
        inputs = random.standard_normal((batch, *self.shape), np.float32)
        return inputs, random.integers(0, self.classes, batch).astype(np.int32)


def weight(name: str, shape: Sequence[int], kind: str) -> np.ndarray:
    """The first value of a weight: the same in every library, whatever the order of making. Convolutions: (O, I, ...)."""
    if kind in ("zeros", "ones"):
        return np.full(shape, float(kind == "ones"), np.float32)
    fan = int(np.prod(shape[1:]))
    scale = 0.02 if kind == "embedding" else (2.0 / fan) ** 0.5
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(shape), np.float32) * np.float32(scale)


class Seen(Losses):
    """Keeps the means of the first results, to be compared before anything is timed."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[float] = []
        self.latencies: list[float] = []

    @property
    def p99(self) -> float | None:
        """Of single steps, the first ones left out."""
        return float(np.percentile(self.latencies[10:], 99)) if len(self.latencies) > 20 else None

    def __call__(self, result: np.ndarray) -> None:
        if len(self.first) < 3:
            self.first.append(float(np.abs(result).mean()))
        super().__call__(result)


def loop(step: Callable[[np.ndarray, np.ndarray], np.ndarray], inputs: np.ndarray, labels: np.ndarray) -> Any:
    """``run(steps)`` and what it saw; ``step`` gives a NumPy array."""
    seen = Seen()

    def run(steps: int) -> None:
        for _ in range(steps):
            begin = time.perf_counter()
            seen(step(inputs, labels))
            seen.latencies.append(time.perf_counter() - begin)

    return run, seen


# --- the models


def mlp(nn: Any, x: Any) -> Any:
    return nn.dense(nn.relu(nn.dense(nn.flatten(x), "hidden", 512)), "output", 10)


def lenet(nn: Any, x: Any) -> Any:
    x = nn.max_pool(nn.relu(nn.conv(nn.image(x), "conv1", 32, 5, pad=2, bias=True)), 2, 2)
    x = nn.max_pool(nn.relu(nn.conv(x, "conv2", 64, 5, pad=2, bias=True)), 2, 2)
    return nn.dense(nn.relu(nn.dense(nn.flatten(x), "hidden", 512)), "output", 10)


def resnet50(nn: Any, x: Any) -> Any:
    x = nn.relu(nn.batch_norm(nn.conv(nn.image(x), "conv1", 64, 7, 2, 3), "bn1"))
    x = nn.max_pool(x, 3, 2, 1)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            short = x
            if stride != 1 or channels != 4 * width:
                short = nn.batch_norm(nn.conv(x, name + "short", 4 * width, 1, stride), name + "bns")
            y = nn.relu(nn.batch_norm(nn.conv(x, name + "a", width, 1), name + "bna"))
            y = nn.relu(nn.batch_norm(nn.conv(y, name + "b", width, 3, stride, 1), name + "bnb"))
            x = nn.relu(nn.add(nn.batch_norm(nn.conv(y, name + "c", 4 * width, 1), name + "bnc"), short))
            channels = 4 * width
    return nn.dense(nn.global_pool(x), "output", 1000)


def mobilenet_v2(nn: Any, x: Any) -> Any:
    x = nn.relu(nn.batch_norm(nn.conv(nn.image(x), "conv1", 32, 3, 2, 1), "bn1"))
    channels, number = 32, 0
    for expand, out, blocks, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    ):  # fmt: skip
        for block in range(blocks):
            name, stride, wide = f"b{number}", first if not block else 1, channels * expand
            y = x if expand == 1 else nn.relu(nn.batch_norm(nn.conv(x, name + "a", wide, 1), name + "bna"))
            y = nn.relu(nn.batch_norm(nn.conv(y, name + "b", wide, 3, stride, 1, groups=wide), name + "bnb"))
            y = nn.batch_norm(nn.conv(y, name + "c", out, 1), name + "bnc")
            x = nn.add(x, y) if stride == 1 and channels == out else y
            channels, number = out, number + 1
    x = nn.relu(nn.batch_norm(nn.conv(x, "last", 1280, 1), "bnl"))
    return nn.dense(nn.global_pool(x), "output", 1000)


def bert_small(nn: Any, tokens: Any) -> Any:
    table = nn.table("words", VOCABULARY, WIDTH)
    x = nn.layer_norm(nn.add_rows(nn.embedded(table, tokens), "positions", LENGTH, WIDTH), "ln0")
    for i in range(DEPTH):
        y = nn.attention(x, nn.dense(x, f"q{i}", WIDTH), nn.dense(x, f"k{i}", WIDTH), nn.dense(x, f"v{i}", WIDTH), HEADS, LENGTH)
        x = nn.layer_norm(nn.add(x, nn.dense(y, f"o{i}", WIDTH)), f"ln{i}a")
        y = nn.dense(nn.gelu(nn.dense(x, f"f{i}", 4 * WIDTH)), f"g{i}", WIDTH)
        x = nn.layer_norm(nn.add(x, y), f"ln{i}b")
    return nn.times_transposed(x, table)


def gpt(nn: Any, tokens: Any) -> Any:
    width, heads, length = 256, 4, LENGTH
    table = nn.table("words", 8192, width)
    x = nn.add_rows(nn.embedded(table, tokens), "positions", length, width)
    for i in range(4):
        y = nn.layer_norm(x, f"ln{i}a")
        q, k, v = (nn.dense(y, f"{name}{i}", width) for name in "qkv")
        x = nn.add(x, nn.dense(nn.attention(y, q, k, v, heads, length, causal=True), f"o{i}", width))
        y = nn.layer_norm(x, f"ln{i}b")
        x = nn.add(x, nn.dense(nn.gelu(nn.dense(y, f"f{i}", 4 * width)), f"g{i}", width))
    return nn.times_transposed(nn.layer_norm(x, "ln"), table)


MODELS = {
    "mlp": Model(mlp, 100, (1, 28, 28), 10, "sgd"),
    "lenet": Model(lenet, 100, (1, 28, 28), 10, "sgd"),
    "resnet50": Model(resnet50, 8, (3, 64, 64), 1000, "momentum"),
    "mobilenet_v2": Model(mobilenet_v2, 8, (3, 64, 64), 1000, "momentum"),
    "bert_small": Model(bert_small, 8, (LENGTH,), VOCABULARY, "adam", vocabulary=VOCABULARY),
    "gpt": Model(gpt, 8, (LENGTH,), 8192, "adam", vocabulary=8192),
}
