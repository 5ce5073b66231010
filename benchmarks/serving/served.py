"""The models that are served: functions of ``nn``, the layers of one library, as in ``models/architectures.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..models.architectures import lenet

WORDS, WIDTH, HEADS, DEPTH = 30522, 128, 2, 2  # BERT-tiny
LENGTHS = (16, 32, 64, 128)  # tokens


def bert_tiny(length: int, nn: Any, tokens: Any) -> Any:
    """Two logits per token, as for SQuAD."""
    x = nn.layer_norm(nn.add_rows(nn.embedded(nn.table("words", WORDS, WIDTH), tokens), "positions", length, WIDTH), "ln0")
    for i in range(DEPTH):
        y = nn.attention(x, nn.dense(x, f"q{i}", WIDTH), nn.dense(x, f"k{i}", WIDTH), nn.dense(x, f"v{i}", WIDTH), HEADS, length)
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
    **{f"bert_tiny_{n}": Served(partial(bert_tiny, n), (n,), "int32", (n, 2)) for n in LENGTHS},
}
