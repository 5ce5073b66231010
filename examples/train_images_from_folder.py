"""Images from a folder: one directory per class, decoded and augmented in threads while the network trains.

python examples/train_images_from_folder.py [FOLDER] [--size N] [--epochs N] [--steps N]

FOLDER holds CLASS/NAME.png, .jpg and so on. Without it the digits of MNIST are written to a temporary one, in colour on noise.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import oneflow as flow
import oneflow.typing as tp

BATCH = 64
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


def network(images, classes, train=False):
    """Logits (N, classes) of images (N, 3, size, size)."""
    x = images
    for i, filters in enumerate((32, 64, 128)):
        x = flow.layers.conv2d(x, filters, 3, padding="SAME", use_bias=False, name=f"conv{i}",
                               kernel_initializer=flow.variance_scaling_initializer(2.0))  # fmt: skip
        x = flow.nn.relu(flow.layers.batch_normalization(x, axis=1, momentum=0.9, training=train, name=f"norm{i}"))
        x = flow.nn.max_pool2d(x, 2, 2, "SAME")
    x = flow.math.reduce_mean(x, axis=[2, 3])
    return flow.layers.dense(x, classes, kernel_initializer=flow.xavier_uniform_initializer(), name="output")


def make_jobs(size, classes):
    images = tp.Numpy.Placeholder((BATCH, 3, size, size))
    labels = tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)

    @flow.global_function("train")
    def train(images: images, labels: labels) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, classes, train=True))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [2e-3])).minimize(loss)
        return loss

    @flow.global_function("predict")
    def evaluate(images: images, labels: labels) -> dict[str, tp.Numpy]:
        logits = network(images, classes)
        return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}

    return train, evaluate


def files_of(folder):
    """The paths (N,), the labels (N,), and the names of the classes."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    found = [(path, i) for i, name in enumerate(names) for path in sorted((folder / name).iterdir()) if path.suffix in SUFFIXES]
    paths, labels = zip(*found, strict=True)
    return np.array([str(path) for path in paths]), np.array(labels, np.int32), names


def reader(size):
    """A transform of batches: paths become images (N, 3, size, size)."""

    def read(path):
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((size, size))).transpose(2, 0, 1)

    return lambda batch, rng: (np.stack([read(path) for path in batch[0]]).astype(np.float32) / 255, batch[1])


def write_digits(folder, count, rng):
    (images, labels), _ = flow.data.load_mnist(100)
    for i, (digit, label) in enumerate(zip(images.reshape(-1, 28, 28)[:count], labels.ravel(), strict=False)):
        colour, noise = rng.uniform(0.5, 1, 3), rng.uniform(0, 0.5, (28, 28, 3))
        pixels = np.where(digit[..., None] > 0.3, digit[..., None] * colour, noise)
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray((255 * pixels).astype(np.uint8)).save(folder / str(label) / f"{i}.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=int, default=28, help="images are resized to so many pixels in both directions")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop after so many steps, of fewer images")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as made:
        if options.folder is None:
            write_digits(Path(made), 8000 if options.steps is None else 800, np.random.default_rng(0))
        paths, labels, names = files_of(options.folder or Path(made))
        order = np.random.default_rng(0).permutation(len(paths))
        held_out, rest = np.split(order, [len(order) // 5])
        train, evaluate = make_jobs(options.size, len(names))
        read, crop = reader(options.size), flow.data.RandomCrop(options.size, padding=2)
        trainer = flow.Trainer(max_epochs=options.epochs, max_steps=options.steps, seed=0, metrics=flow.metrics.Accuracy())
        trainer.fit(
            train,
            flow.data.ArrayLoader(
                (paths[rest], labels[rest]), BATCH, shuffle=True, seed=0, transform=[read, crop], num_workers=2
            ),
            evaluate,
            flow.data.ArrayLoader((paths[held_out], labels[held_out]), BATCH, transform=read, num_workers=2),
        )
        accuracy = 100 * trainer.history["val_accuracy"][-1]
        print(f"{len(names)} classes: {accuracy:.1f} % of {len(held_out)} images that were held out")


if __name__ == "__main__":
    main()
