"""A network for tables: regression of Friedman's function, with validation, early stopping and the best checkpoint.

python examples/train_tabular.py [--rows N] [--epochs N] [--steps N]

The target is 10 sin(pi a b) + 20 (c - 0.5)^2 + 10 d + 5 e + noise, of ten columns of which five say nothing (J. Friedman,
"Multivariate adaptive regression splines", Annals of Statistics 19, 1991). Noise of variance 1 is what nobody can predict.
"""

import argparse
import tempfile

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH, COLUMNS = 128, 10


def network(x):
    """(N, COLUMNS) to (N,)."""
    initializer = flow.variance_scaling_initializer(2.0)
    for i in range(2):
        x = flow.layers.dense(x, 128, activation=flow.nn.relu, kernel_initializer=initializer, name=f"hidden{i}")
    return flow.squeeze(flow.layers.dense(x, 1, kernel_initializer=initializer, name="output"), [1])


@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((BATCH, COLUMNS)), y: tp.Numpy.Placeholder((BATCH,))) -> tp.Numpy:
    loss = flow.math.squared_difference(network(x), y)
    flow.optimizer.AdamW(flow.optimizer.PiecewiseConstantScheduler([], [2e-3]), weight_decay=1e-4).minimize(loss)
    return loss


@flow.global_function("predict")
def evaluate(x: tp.Numpy.Placeholder((BATCH, COLUMNS)), y: tp.Numpy.Placeholder((BATCH,))) -> tp.Numpy:
    return flow.math.squared_difference(network(x), y)


def table(rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, COLUMNS), np.float32)
    a, b, c, d, e = x.T[:5]
    y = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e + rng.standard_normal(rows, np.float32)
    return 2 * x - 1, y.astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        best = flow.callbacks.ModelCheckpoint(directory, monitor="val_loss")
        trainer = flow.Trainer(
            max_epochs=options.epochs,
            max_steps=options.steps,
            seed=0,
            callbacks=[best, flow.callbacks.EarlyStopping("val_loss", patience=6)],
        )
        trainer.fit(train, table(options.rows, seed=1), evaluate, table(4_000, seed=2))
        error = trainer.test(evaluate, table(10_000, seed=3), ckpt_path="best")["test_loss"]
    print(f"mean squared error {error:.3f} of a variance of {table(10_000, seed=3)[1].var():.1f}; the noise alone is 1")


if __name__ == "__main__":
    main()
