"""A run that may be killed at any time: started again, it goes on from its last checkpoint, and ends with the same losses.

python examples/programs/resumed_run.py [--epochs N] [--steps N] [--out DIRECTORY]
"""

import argparse
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH = 50
X = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, 4))]
Labels = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)]


@flow.global_function("train")
def train(x: X, labels: Labels) -> tp.Tuple[tp.Numpy, tp.Numpy]:
    x = flow.layers.dense(x, 32, activation=flow.nn.relu, kernel_initializer=flow.xavier_uniform_initializer(), name="hidden")
    logits = flow.layers.dense(flow.nn.dropout(x, rate=0.1), 3, name="output")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.Adam(flow.optimizer.CosineScheduler(1e-2, 1000)).minimize(loss)
    return loss, logits


class Epochs(flow.callbacks.Callback):
    """Prints a line per epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        print(f"epoch {epoch}: loss {logs['loss']:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--out", type=Path, default=Path("resumed_run"))
    arguments = parser.parse_args()

    x = np.random.default_rng(0).standard_normal((1000, 4)).astype(np.float32)
    labels = x[:, :3].argmax(axis=1).astype(np.int32)
    saving = flow.callbacks.ModelCheckpoint(arguments.out, save_last=True, every_n_steps=7)
    trainer = flow.Trainer(
        max_epochs=arguments.epochs,
        max_steps=arguments.steps,
        seed=1,
        callbacks=[Epochs(), flow.callbacks.Preemption(), saving],
        logger=flow.loggers.CSVLogger(arguments.out),
        enable_progress_bar=False,
    )
    trainer.fit(train, (x, labels), ckpt_path="last")


if __name__ == "__main__":
    main()
