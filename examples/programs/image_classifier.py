"""An image classifier with augmentation: crops and shifts on the training images, accuracy on the test images.

python examples/programs/image_classifier.py [--epochs N] [--batches N]
"""

import argparse
from typing import Annotated

import oneflow as flow
import oneflow.typing as tp

BATCH = 100
Images = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH, 1, 28, 28))]
Labels = Annotated[tp.Numpy, tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)]


def network(images: flow.Blob) -> flow.Blob:
    """Logits (N, 10) of images (N, 1, 28, 28)."""
    x = images
    for i, filters in enumerate((16, 32)):
        x = flow.layers.conv2d(x, filters, 3, padding="SAME", activation=flow.nn.relu, name=f"conv{i}")
        x = flow.nn.max_pool2d(x, 2, 2, padding="SAME")
    x = flow.reshape(x, (x.shape[0], -1))
    x = flow.layers.dense(x, 64, activation=flow.nn.relu, kernel_initializer=flow.xavier_uniform_initializer(), name="hidden")
    return flow.layers.dense(x, 10, kernel_initializer=flow.xavier_uniform_initializer(), name="logits")


@flow.global_function("train")
def train(images: Images, labels: Labels) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
    flow.optimizer.Adam(2e-3).minimize(loss)
    return loss


@flow.global_function("predict")
def evaluate(images: Images, labels: Labels) -> tp.Dict[str, tp.Numpy]:
    logits = network(images)
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", "--steps", type=int, help="use only so many batches (default: all)")
    arguments = parser.parse_args()

    (images, labels), (test_images, test_labels) = flow.data.load_mnist(BATCH, BATCH)  # arrays of batches
    some = slice(arguments.batches)
    loader = flow.data.ArrayLoader(
        (images[some], labels[some]), BATCH, shuffle=True, seed=1, transform=flow.data.RandomCrop(28, padding=2), num_workers=2
    )
    trainer = flow.Trainer(max_epochs=arguments.epochs, seed=1, metrics=flow.metrics.Accuracy())
    history = trainer.fit(train, loader, evaluate, (test_images[some], test_labels[some]))
    print(f"accuracy: {history['val_accuracy'][-1]:.1%}")

    logits = evaluate(test_images[0], test_labels[0])["logits"]
    print("the first digits:", logits.argmax(axis=1)[:10])


if __name__ == "__main__":
    main()
