"""A GPT over characters: trains on a text file, and writes on from its first line.

python examples/programs/character_gpt.py [--text FILE] [--epochs N] [--steps N] [--width N] [--characters N]
"""

import argparse
import math
from pathlib import Path
from typing import Annotated

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH, LENGTH, HEADS, LAYERS = 16, 64, 4, 2
Tokens = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32)]
Context = Annotated[tp.Numpy, tp.Numpy.Placeholder((1, LENGTH), dtype=flow.int32)]
Position = Annotated[tp.Numpy, tp.Numpy.Placeholder((1,), dtype=flow.int32)]


class GPT:
    """The network; jobs that use it share its variables."""

    def __init__(self, vocabulary: int, width: int) -> None:
        self.vocabulary, self.width = vocabulary, width

    def __call__(self, tokens: flow.Blob) -> flow.Blob:
        """Logits (N, LENGTH, vocabulary) of the characters after tokens (N, LENGTH)."""
        normal = flow.random_normal_initializer(stddev=0.02)
        x = flow.layers.embedding(tokens, self.vocabulary, self.width, initializer=normal, name="characters")
        x = x + flow.get_variable("positions", (1, LENGTH, self.width), initializer=normal)
        for i in range(LAYERS):
            with flow.scope.namespace(f"layer{i}-"):
                x = x + self._attention(self._norm(x, "norm1"))
                h = self._dense(self._norm(x, "norm2"), 4 * self.width, "wide")
                x = x + self._dense(flow.math.gelu(h), self.width, "narrow")
        return self._dense(self._norm(x, "norm"), self.vocabulary, "logits")

    def _attention(self, x: flow.Blob) -> flow.Blob:
        size = self.width // HEADS
        x = flow.reshape(self._dense(x, 3 * self.width, "qkv"), (-1, LENGTH, 3, HEADS, size))
        x = flow.transpose(x, (2, 0, 3, 1, 4))
        q, k, v = (flow.squeeze(x[i : i + 1], [0]) for i in range(3))
        scores = flow.matmul(q, k, transpose_b=True)
        weights = flow.nn.fused_scale_tril_softmax_dropout(scores, fill_value=-1e4, scale=1 / math.sqrt(size))
        mixed = flow.transpose(flow.matmul(weights, v), (0, 2, 1, 3))
        return self._dense(flow.reshape(mixed, (-1, LENGTH, self.width)), self.width, "out")

    def _dense(self, x: flow.Blob, units: int, name: str) -> flow.Blob:
        return flow.layers.dense(x, units, kernel_initializer=flow.random_normal_initializer(stddev=0.02), name=name)

    def _norm(self, x: flow.Blob, name: str) -> flow.Blob:
        return flow.layers.layer_norm(x, begin_norm_axis=2, begin_params_axis=2, name=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "docs" / "guide.md")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--characters", type=int, default=200)
    arguments = parser.parse_args()

    text = arguments.text.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    tokens = np.array([alphabet.index(c) for c in text], np.int32)
    gpt = GPT(len(alphabet), arguments.width)

    @flow.global_function("train")
    def train(tokens: Tokens, targets: Tokens) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(targets, gpt(tokens))
        flow.optimizer.AdamW(flow.optimizer.CosineScheduler(3e-3, 2000), weight_decay=0.01).minimize(loss)
        return loss

    @flow.global_function("predict")
    def following(tokens: Context, position: Position) -> tp.Numpy:
        logits = flow.gather(flow.reshape(gpt(tokens), (LENGTH, len(alphabet))), position)
        return flow.random.categorical(logits, temperature=0.8, top_p=0.9)

    starts = np.arange(0, len(tokens) - LENGTH - 1, LENGTH // 2)
    rows = np.stack([tokens[s : s + LENGTH + 1] for s in starts])
    flow.Trainer(max_epochs=arguments.epochs, max_steps=arguments.steps, seed=1).fit(train, (rows[:, :-1], rows[:, 1:]))

    written = list(tokens[: text.index("\n") + 1])
    for _ in range(arguments.characters):
        context = np.zeros((1, LENGTH), np.int32)
        recent = written[-LENGTH:]
        context[0, : len(recent)] = recent
        written.append(following(context, np.array([len(recent) - 1], np.int32))[0])
    print("".join(alphabet[i] for i in written))


if __name__ == "__main__":
    main()
