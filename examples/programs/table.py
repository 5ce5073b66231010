"""A table: which rows are positive, from numbers and a category, with early stopping on a held-out part and the AUC at the end.

python examples/programs/table.py [--epochs N] [--steps N]
"""

import argparse
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import oneflow as flow
import oneflow.typing as tp

BATCH, NUMBERS, CITIES = 64, 5, 20
Numbers = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, NUMBERS))]
City = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)]
Target = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, 1))]
Columns = dict[str, NDArray[np.float32] | NDArray[np.int32]]


def logits(numbers: flow.Blob, city: flow.Blob) -> flow.Blob:
    table = flow.get_variable("cities", (CITIES, 4), initializer=flow.random_normal_initializer(stddev=0.1))
    x = flow.concat([numbers, flow.gather(table, city)], axis=1)
    x = flow.layers.dense(x, 32, activation=flow.nn.relu, kernel_initializer=flow.xavier_uniform_initializer(), name="hidden")
    return flow.layers.dense(x, 1, name="output")


@flow.global_function("train")
def train(numbers: Numbers, city: City, target: Target) -> tp.Numpy:
    loss = flow.nn.sigmoid_cross_entropy_with_logits(target, logits(numbers, city))
    flow.optimizer.AdamW(1e-2, weight_decay=1e-4, weight_decay_excludes=["bias"]).minimize(loss)
    return loss


@flow.global_function("predict")
def evaluate(numbers: Numbers, city: City, target: Target) -> tp.Dict[str, tp.Numpy]:
    score = logits(numbers, city)
    return {"loss": flow.nn.sigmoid_cross_entropy_with_logits(target, score), "score": flow.math.sigmoid(score)}


def make_rows(count: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((count, NUMBERS)).astype(np.float32)
    city = rng.integers(0, CITIES, count).astype(np.int32)
    positive = numbers[:, 0] * numbers[:, 1] + (city % 3 - 1) > 0
    return {"numbers": numbers, "city": city, "target": positive.astype(np.float32)[:, None]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()

    auc = flow.metrics.AUC("score", "target")
    stopping = flow.callbacks.EarlyStopping("val_loss", patience=3)
    trainer = flow.Trainer(max_epochs=arguments.epochs, max_steps=arguments.steps, seed=1, metrics=auc, callbacks=stopping)
    history = trainer.fit(train, make_rows(5000, seed=0), evaluate, make_rows(1000, seed=1))
    print(f"after {len(history.rows)} epochs: AUC {history['val_auc'][-1]:.3f}")


if __name__ == "__main__":
    main()
