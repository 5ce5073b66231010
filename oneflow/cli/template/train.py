"""Trains a classifier of handwritten digits.

python train.py [--config FILE] [--steps N] [--resume]
"""

import argparse
import tomllib
from dataclasses import dataclass

import oneflow as flow
import oneflow.typing as tp


@dataclass(frozen=True)
class Config:
    """What config.toml may set."""

    batch_size: int = 100
    hidden: int = 256
    learning_rate: float = 0.001
    epochs: int = 2
    seed: int = 1
    directory: str = "runs"


def read_config(path: str) -> Config:
    with open(path, "rb") as file:
        return Config(**tomllib.load(file))


def network(images, config: Config):
    """Logits (N, 10) of images (N, 1, 28, 28)."""
    init = flow.xavier_uniform_initializer()
    x = flow.flatten(images, start_dim=1)
    x = flow.layers.dense(x, config.hidden, activation=flow.nn.relu, kernel_initializer=init, name="hidden")
    return flow.layers.dense(x, 10, kernel_initializer=init, name="output")


def declare(config: Config):
    """The training job and the evaluation job, which share the variables of ``network``."""
    Images = tp.Numpy.Placeholder((config.batch_size, 1, 28, 28))
    Labels = tp.Numpy.Placeholder((config.batch_size,), dtype=flow.int32)

    @flow.global_function("train")
    def train(images: Images, labels: Labels) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, config))
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [config.learning_rate])
        flow.optimizer.Adam(schedule).minimize(loss)
        return loss

    @flow.global_function("predict")
    def evaluate(images: Images, labels: Labels) -> dict[str, tp.Numpy]:
        logits = network(images, config)
        return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}

    return train, evaluate


def fit(config: Config, train_data, test_data, steps: int | None = None, resume: bool = False) -> flow.trainer.History:
    """Trains, evaluates after each epoch, and keeps the best and the last checkpoint."""
    train, evaluate = declare(config)
    trainer = flow.Trainer(
        max_epochs=config.epochs,
        max_steps=steps,
        seed=config.seed,
        metrics=flow.metrics.Accuracy(),
        logger=flow.loggers.CSVLogger(config.directory),
        callbacks=[flow.callbacks.ModelCheckpoint(f"{config.directory}/checkpoints", monitor="val_loss", save_last=True)],
    )
    return trainer.fit(train, train_data, evaluate, test_data, ckpt_path="last" if resume else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="config.toml", help="a file with the settings (%(default)s)")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    options = parser.parse_args()
    config = read_config(options.config)
    train_data, test_data = flow.data.load_mnist(config.batch_size, config.batch_size)
    history = fit(config, train_data, test_data, options.steps, options.resume)
    print(f"accuracy on the test images: {history['val_accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main()
