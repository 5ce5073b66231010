"""The models that are served: functions of ``nn``, the layers of one library, as in ``models/architectures.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..models.architectures import lenet

WORDS, LENGTH, WIDTH, HEADS, DEPTH = 30522, 64, 128, 2, 2  # BERT-tiny


def bert_tiny(nn: Any, tokens: Any) -> Any:
    """Two logits per token, as for SQuAD."""
    x = nn.layer_norm(nn.add_rows(nn.embedded(nn.table("words", WORDS, WIDTH), tokens), "positions", LENGTH, WIDTH), "ln0")
    for i in range(DEPTH):
        y = nn.attention(x, nn.dense(x, f"q{i}", WIDTH), nn.dense(x, f"k{i}", WIDTH), nn.dense(x, f"v{i}", WIDTH), HEADS, LENGTH)
        x = nn.layer_norm(nn.add(x, nn.dense(y, f"o{i}", WIDTH)), f"ln{i}a")
        y = nn.dense(nn.gelu(nn.dense(x, f"f{i}", 4 * WIDTH)), f"g{i}", WIDTH)
        x = nn.layer_norm(nn.add(x, y), f"ln{i}b")
    return nn.dense(x, "span", 2)


@dataclass(frozen=True)
class Served:
    """A model, the shape and the dtype of one row, and the shape of one row of the result."""

    build: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    dtype: str
    result: tuple[int, ...]

    def rows(self, count: int) -> np.ndarray:
        random = np.random.default_rng(0)
        if self.dtype == "int32":
            return random.integers(0, WORDS, (count, *self.shape)).astype(np.int32)
        return random.standard_normal((count, *self.shape), np.float32)


SERVED = {
    "lenet": Served(lenet, (1, 28, 28), "float32", (10,)),
    "bert_tiny": Served(bert_tiny, (LENGTH,), "int32", (LENGTH, 2)),
}
