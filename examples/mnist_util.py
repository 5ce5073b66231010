"""The ``mnist_util`` that the oldest tutorials import from the script's directory."""

import oneflow as flow


def load_data(train_batch_size=100, test_batch_size=100, data_format="NCHW"):
    """MNIST in batches, scaled as those tutorials did: (x - 128) / 255. Nothing is downloaded.

    Returns: ((train_images, train_labels), (test_images, test_labels)), shapes and dtypes as flow.data.load_mnist.
    """
    digits = flow.data.read_mnist()
    return flow.data.mnist_batches(digits, train_batch_size, test_batch_size, data_format, lambda gray: (gray - 128) / 255)
