"""A sweep over learning rates and widths: each run in a session of its own, in which variables, seed and jobs begin anew.

python examples/programs/sweep.py [--epochs N] [--steps N]
"""

import argparse
import itertools
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import oneflow as flow
import oneflow.typing as tp

BATCH = 50
X = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, 4))]
Y = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, 1))]
Rows = tuple[NDArray[np.float32], NDArray[np.float32]]


def make_rows(count: int, seed: int) -> Rows:
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return x, np.sin(x[:, :1] * x[:, 1:2])


def final_loss(rate: float, width: int, epochs: int, steps: int | None) -> float:
    """The validation loss of one run."""

    def squared_error(x: flow.Blob, y: flow.Blob) -> flow.Blob:
        x = flow.layers.dense(x, width, activation=flow.math.tanh, kernel_initializer=flow.xavier_uniform_initializer(), name="h")
        return flow.math.square(flow.layers.dense(x, 1, name="out") - y)

    with flow.session():

        @flow.global_function("train")
        def train(x: X, y: Y) -> tp.Numpy:
            loss = squared_error(x, y)
            flow.optimizer.Adam(rate).minimize(loss)
            return loss

        @flow.global_function("predict")
        def evaluate(x: X, y: Y) -> tp.Numpy:
            return squared_error(x, y)

        trainer = flow.Trainer(max_epochs=epochs, max_steps=steps, seed=1, enable_progress_bar=False)
        history = trainer.fit(train, make_rows(2000, seed=0), evaluate, make_rows(500, seed=1))
        return float(history["val_loss"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()

    losses = {
        (rate, width): final_loss(rate, width, arguments.epochs, arguments.steps)
        for rate, width in itertools.product((1e-3, 1e-2), (8, 32))
    }
    for (rate, width), loss in sorted(losses.items(), key=lambda item: item[1]):
        print(f"rate {rate:<6} width {width:<3} loss {loss:.4f}")


if __name__ == "__main__":
    main()
