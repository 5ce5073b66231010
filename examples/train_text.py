"""Text classification: is a line prose or code? Characters, embeddings, a convolution, the maximum over the line.

python examples/train_text.py [--epochs N] [--steps N]

The lines are those of Python's own library, which every reader has: docstrings and comments against the rest. Modules are split
into two halves, so that the test's lines are of modules that training has not seen.
"""

import argparse
import io
import sysconfig
import tokenize
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH, LENGTH, CHARACTERS = 100, 64, 128


def classify(text):
    """Logits (N, 2) of characters (N, LENGTH)."""
    initializer = flow.truncated_normal(0.05)
    table = flow.get_variable("characters", (CHARACTERS, 32), initializer=flow.random_normal_initializer(stddev=0.3))
    x = flow.transpose(flow.gather(table, text), [0, 2, 1])
    x = flow.layers.conv1d(x, 128, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=initializer, name="conv")
    x = flow.math.reduce_max(x, axis=2)
    return flow.layers.dense(x, 2, kernel_initializer=initializer, name="output")


Text = tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32)
Labels = tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)


@flow.global_function("train")
def train(text: Text, labels: Labels) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, classify(text))
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [2e-3])).minimize(loss)
    return loss


@flow.global_function("predict")
def evaluate(text: Text, labels: Labels) -> dict[str, tp.Numpy]:
    logits = classify(text)
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}


def lines_of(path):
    """(line, whether it is prose) of a module: lines within comments and docstrings, and the others."""
    source = path.read_text(encoding="utf-8")
    prose, before = set(), tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        starts_a_line = token.line[: token.start[1]].strip() == ""
        if starts_a_line and token.type == tokenize.COMMENT or token.type == tokenize.STRING and before in _BEFORE_DOCSTRINGS:
            prose.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip(" #\"'\t")  # the marks would say it all
        if len(text) >= 8 and text.isascii():
            yield text, number in prose


_BEFORE_DOCSTRINGS = (tokenize.NEWLINE, tokenize.INDENT)


def dataset(paths):
    """Characters (N, LENGTH), 0 behind the end of a line, and labels (N,), as many lines of each kind."""
    kinds = ([], [])
    for path in paths:
        for text, is_prose in lines_of(path):
            kinds[is_prose].append(text)
    lines = [(text, label) for label, texts in enumerate(kinds) for text in texts[: min(map(len, kinds))]]
    x = np.zeros((len(lines), LENGTH), np.int32)
    for row, (text, _) in zip(x, lines, strict=True):
        codes = np.frombuffer(text[:LENGTH].encode(), np.uint8)
        row[: len(codes)] = codes
    return x, np.array([label for _, label in lines], np.int32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    options = parser.parse_args()

    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    modules = modules[:20] if options.steps else modules
    trainer = flow.Trainer(max_epochs=options.epochs, max_steps=options.steps, seed=0, metrics=flow.metrics.Accuracy())
    trainer.fit(train, dataset(modules[::2]))
    accuracy = trainer.test(evaluate, dataset(modules[1::2]))["test_accuracy"]
    print(f"{100 * accuracy:.1f} % of the lines of modules that were never seen")


if __name__ == "__main__":
    main()
