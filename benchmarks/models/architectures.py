"""The models that are measured: each is a function of ``nn``, the layers of one library (``in_oneflow.py`` and its sisters)."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data import Losses

VOCABULARY, LENGTH, WIDTH, HEADS, DEPTH = 30522, 128, 512, 8, 4  # of BERT-small
STEPS, ROWS = 128, 1_000_000  # of the GRU; of the recommender's table
CONTEXT = 256  # positions of the cache that a decode step reads
MOMENTUM, RATE = 0.9, 0.001


@dataclass(frozen=True)
class Model:
    """``build(nn, inputs)`` computes logits of (samples, classes). ``rule``: "sgd", "momentum", "adam", "row-sparse adam".

    With ``context`` the model is a decode step: it takes one token per sample, and ``nn`` keeps the keys and values of that many.
    """

    build: Callable[[Any, Any], Any]
    batch: int
    shape: tuple[int, ...]  # of one input: pixels, or token numbers where there is one axis and ``vocabulary``
    classes: int
    rule: str
    vocabulary: int = 0
    labels: int = 1  # per sample
    context: int = 0

    def data(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels, the same in every library."""
        random = np.random.default_rng(0)
        if self.vocabulary:
            inputs = random.integers(0, self.vocabulary, (batch, *self.shape)).astype(np.int32)
        else:
            inputs = random.standard_normal((batch, *self.shape), np.float32)
        return inputs, random.integers(0, self.classes, batch * self.labels).astype(np.int32)


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


def decode_loop(step: Callable[[np.ndarray, int], np.ndarray], tokens: np.ndarray) -> Any:
    """``run(steps)`` and what it saw: each step takes the next tokens of (batch, context), and begins again after the last.

    Args:
      step: ``step(tokens, position)`` takes one token per sample and computes logits, a NumPy array.
      tokens: one row per sample.
    """
    columns = [np.ascontiguousarray(column) for column in tokens.T]
    positions = itertools.cycle(range(len(columns)))

    def next_step(*_: np.ndarray) -> np.ndarray:
        position = next(positions)
        return step(columns[position], position)

    return loop(next_step, tokens, tokens)


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


def _gpt(nn: Any, tokens: Any, depth: int, width: int, heads: int, is_step: bool = False) -> Any:
    table = nn.table("words", 8192, width)
    x = nn.embedded(table, tokens)
    x = nn.add_row(x, "positions", CONTEXT, width) if is_step else nn.add_rows(x, "positions", LENGTH, width)
    for i in range(depth):
        y = nn.layer_norm(x, f"ln{i}a")
        q, k, v = (nn.dense(y, f"{name}{i}", width) for name in "qkv")
        y = nn.cached_attention(f"c{i}", q, k, v, heads) if is_step else nn.attention(y, q, k, v, heads, LENGTH, causal=True)
        x = nn.add(x, nn.dense(y, f"o{i}", width))
        y = nn.layer_norm(x, f"ln{i}b")
        x = nn.add(x, nn.dense(nn.gelu(nn.dense(y, f"f{i}", 4 * width)), f"g{i}", width))
    return nn.times_transposed(nn.layer_norm(x, "ln"), table)


def gpt(nn: Any, tokens: Any) -> Any:
    return _gpt(nn, tokens, 4, 256, 4)


def gpt6(nn: Any, tokens: Any) -> Any:
    return _gpt(nn, tokens, 6, 512, 8)


def gpt_decode(nn: Any, tokens: Any) -> Any:
    return _gpt(nn, tokens, 4, 256, 4, is_step=True)


def gpt6_decode(nn: Any, tokens: Any) -> Any:
    return _gpt(nn, tokens, 6, 512, 8, is_step=True)


def recurrence(nn: Any, x: Any, name: str, width: int, length: int) -> Any:
    """An LSTM over rows of (samples * length, C), step by step, with one product of the inputs of all steps.

    The gates have PyTorch's order.
    """
    hidden = cell = None
    outputs = []
    for inputs in nn.steps(nn.dense(x, name + "-x", 4 * width), length):
        gates = inputs if hidden is None else nn.add(inputs, nn.times(hidden, name + "-h", 4 * width))
        i, f, g, o = nn.split(gates, 4)
        new = nn.mul(nn.sigmoid(i), nn.tanh(g))
        cell = new if cell is None else nn.add(nn.mul(nn.sigmoid(f), cell), new)
        hidden = nn.mul(nn.sigmoid(o), nn.tanh(cell))
        outputs.append(hidden)
    return nn.joined(outputs)


def lstm(nn: Any, tokens: Any) -> Any:
    x = nn.embedded(nn.table("words", 1000, 256), tokens)
    for i in range(2):
        x = nn.lstm(x, f"lstm{i}", 256, 32)
    return nn.dense(x, "output", 1000)


def gru(nn: Any, tokens: Any) -> Any:
    """Step by step; each state is read by elementwise ops alone, besides the product of the next step."""
    x, width = nn.embedded(nn.table("words", 1000, 64), tokens), 128
    hidden = None
    for inputs in nn.steps(nn.dense(x, "x", 3 * width), STEPS):
        if hidden is None:
            _, z, n = nn.split(inputs, 3)
            hidden = nn.mul(nn.sigmoid(z), nn.tanh(n))
            continue
        (r, z, n), (from_r, from_z, from_n) = nn.split(inputs, 3), nn.split(nn.times(hidden, "h", 3 * width), 3)
        new = nn.tanh(nn.add(n, nn.mul(nn.sigmoid(nn.add(r, from_r)), from_n)))
        hidden = nn.add(hidden, nn.mul(nn.sigmoid(nn.add(z, from_z)), nn.sub(new, hidden)))
    return nn.dense(hidden, "output", 1000)


def recommender(nn: Any, features: Any) -> Any:
    """Each sample reads 26 rows of a table of a million."""
    x = nn.grouped(nn.embedded(nn.table("features", ROWS, 16), features), 26)
    return nn.dense(nn.relu(nn.dense(x, "hidden", 128)), "output", 10)


def unet3d(nn: Any, x: Any) -> Any:
    def twice(x: Any, name: str, out: int) -> Any:
        for part in "ab":
            x = nn.relu(nn.batch_norm(nn.conv(x, name + part, out, 3, pad=1), name + part + "bn"))
        return x

    x, skipped = nn.image(x), []
    for level, width in enumerate((16, 32)):
        x = twice(x, f"down{level}", width)
        skipped.append(x)
        x = nn.max_pool(x, 2, 2)
    x = twice(x, "bottom", 64)
    for level, width in ((1, 32), (0, 16)):
        x = twice(nn.concat(nn.conv_transpose(x, f"up{level}", width), skipped[level]), f"joined{level}", width)
    return nn.voxels(nn.conv(x, "output", 4, 1, bias=True))


MODELS = {
    "mlp": Model(mlp, 100, (1, 28, 28), 10, "sgd"),
    "lenet": Model(lenet, 100, (1, 28, 28), 10, "sgd"),
    "resnet50": Model(resnet50, 8, (3, 64, 64), 1000, "momentum"),
    "mobilenet_v2": Model(mobilenet_v2, 8, (3, 64, 64), 1000, "momentum"),
    "bert_small": Model(bert_small, 8, (LENGTH,), VOCABULARY, "adam", vocabulary=VOCABULARY, labels=LENGTH),
    "gpt": Model(gpt, 8, (LENGTH,), 8192, "adam", vocabulary=8192, labels=LENGTH),
    "gpt6": Model(gpt6, 8, (LENGTH,), 8192, "adam", vocabulary=8192, labels=LENGTH),
    "gpt_decode": Model(gpt_decode, 1, (CONTEXT,), 8192, "", vocabulary=8192, context=CONTEXT),
    "gpt6_decode": Model(gpt6_decode, 1, (CONTEXT,), 8192, "", vocabulary=8192, context=CONTEXT),
    "lstm": Model(lstm, 32, (32,), 1000, "sgd", vocabulary=1000, labels=32),
    "gru": Model(gru, 32, (STEPS,), 1000, "sgd", vocabulary=1000),
    "recommender": Model(recommender, 512, (26,), 10, "sgd", vocabulary=ROWS),
    "recommender_adam": Model(recommender, 512, (26,), 10, "row-sparse adam", vocabulary=ROWS),
    "unet3d": Model(unet3d, 2, (1, 32, 32, 32), 4, "momentum", labels=32**3),
}
