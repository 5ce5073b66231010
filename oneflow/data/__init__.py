"""``flow.data``: data sets and readers."""

from .epoch import EpochArray
from .mnist import batches as mnist_batches
from .mnist import load_mnist, read_mnist

__all__ = ["EpochArray", "load_mnist", "mnist_batches", "read_mnist"]
