"""LeNet on MNIST: trains for one epoch, saves, reloads, evaluates, and reads the digit on an image.

python examples/train_lenet.py [--epochs N] [--batches N] [--out DIRECTORY] [--image PNG]
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

import oneflow as flow
import oneflow.typing as tp

BATCH_SIZE = 100


def lenet(images, train=False):
    """Logits (N, 10) of images (N, 1, 28, 28)."""
    init = flow.truncated_normal(0.1)
    conv = {"padding": "SAME", "activation": flow.nn.relu, "kernel_initializer": init}
    pool = {"ksize": 2, "strides": 2, "padding": "SAME"}
    x = flow.nn.max_pool2d(flow.layers.conv2d(images, 32, 5, name="conv1", **conv), **pool)
    x = flow.nn.max_pool2d(flow.layers.conv2d(x, 64, 5, name="conv2", **conv), **pool)
    x = flow.reshape(x, [x.shape[0], -1])
    x = flow.layers.dense(x, 512, activation=flow.nn.relu, kernel_initializer=init, name="dense1")
    if train:
        x = flow.nn.dropout(x, rate=0.5)
    return flow.layers.dense(x, 10, kernel_initializer=init, name="dense2")


def train(epochs: int, batches: int | None, directory: Path) -> None:
    """Trains a LeNet and saves it in ``directory``."""

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((BATCH_SIZE, 1, 28, 28), dtype=flow.float),
        labels: tp.Numpy.Placeholder((BATCH_SIZE,), dtype=flow.int32),
    ) -> tp.Callback[tp.Numpy]:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, lenet(images, train=True))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    (images, labels), _ = flow.data.load_mnist(BATCH_SIZE)
    images, labels = images[:batches], labels[:batches]
    with tqdm(total=epochs * len(images), unit="step", desc="train") as bar:

        def show(loss):
            bar.set_postfix(loss=f"{loss.mean():.3f}", refresh=False)
            bar.update()

        for _ in range(epochs):
            for batch in zip(images, labels, strict=True):
                train_job(*batch)(show)
        flow.sync_default_session()  # every callback has run from here on

    flow.checkpoint.save(str(directory))
    print(f"saved {directory}")


def evaluate(directory: Path, batches: int | None) -> float:
    """The accuracy, in percent, of the saved model on the test images."""
    flow.clear_default_session()  # forget the variables: what is evaluated are the files

    @flow.global_function(type="predict")
    def eval_job(images: tp.Numpy.Placeholder((BATCH_SIZE, 1, 28, 28), dtype=flow.float)) -> tp.Numpy:
        return lenet(images)

    flow.load_variables(flow.checkpoint.get(str(directory)))
    _, (images, labels) = flow.data.load_mnist(BATCH_SIZE, BATCH_SIZE)
    images, labels = images[:batches], labels[:batches]
    progress = tqdm(zip(images, labels, strict=True), total=len(images), unit="step", desc="evaluate")
    correct = sum(int((eval_job(batch).argmax(1) == label).sum()) for batch, label in progress)
    return 100 * correct / labels.size


def predict(image: Path) -> int:
    """The digit that the loaded model sees on an image, white on black."""

    @flow.global_function(type="predict")
    def predict_job(image: tp.Numpy.Placeholder((1, 1, 28, 28), dtype=flow.float)) -> tp.Numpy:
        return lenet(image)

    pixels = np.asarray(Image.open(image).convert("L").resize((28, 28)), dtype=np.float32)
    return int(predict_job(pixels.reshape(1, 1, 28, 28) / 255).argmax())


def fresh(directory: Path) -> Path:
    """``directory``, or the first of ``directory_2``, ``directory_3``, ... that does not exist yet."""
    names = itertools.chain([directory], (directory.with_name(f"{directory.name}_{i}") for i in itertools.count(2)))
    return next(name for name in names if not name.exists())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batches", "--steps", type=int, help="use only so many batches of 100 images (default: all)")
    parser.add_argument("--out", type=Path, default=Path("lenet_model"), help="where the model is saved (default: %(default)s)")
    parser.add_argument("--image", "--picture", dest="image", type=Path, default=Path(__file__).with_name("9.png"))
    arguments = parser.parse_args()

    directory = fresh(arguments.out)
    train(arguments.epochs, arguments.batches, directory)
    print(f"accuracy: {evaluate(directory, arguments.batches):.1f}%")
    print(f"{arguments.image.name} shows a {predict(arguments.image)}")


if __name__ == "__main__":
    main()
