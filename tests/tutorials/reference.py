"""The tutorials' two models in plain NumPy, reading the weights from a saved model's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import oneflow

Array = np.ndarray


def mnist(part: str, batches: int, batch_size: int = 100) -> tuple[Array, Array]:
    """The first images (uint8, one channel) and labels of "train" or "test", straight from the packaged file."""
    with np.load(Path(oneflow.__file__).parent / "data" / "mnist.npz") as data:
        count = batches * batch_size
        return data[f"x_{part}"][:count].reshape(-1, 1, 28, 28), data[f"y_{part}"][:count].astype(np.int32)


def centred(images: Array) -> Array:
    """The scale of ``mnist_util``."""
    return (images.astype(np.float32) - 128.0) / 255.0


def unit(images: Array) -> Array:
    """The scale of ``flow.data.load_mnist``."""
    return images.astype(np.float32) / 255.0


def png(path: Path) -> Array:
    """An image as page 2 prepares it."""
    image = Image.open(path).convert("L").resize((28, 28), Image.Resampling.LANCZOS)
    return centred(np.array(image).reshape(1, 1, 28, 28))


def parameter(model: Path, name: str, *shape: int) -> Array:
    return np.frombuffer((model / name / "out").read_bytes(), "<f4").reshape(shape)


def dense(model: Path, name: str, x: Array, units: int) -> Array:
    return x @ parameter(model, f"{name}-weight", units, x.shape[1]).T + parameter(model, f"{name}-bias", units)


def conv5x5(model: Path, name: str, x: Array, filters: int) -> Array:
    padded = np.pad(x, [(0, 0), (0, 0), (2, 2), (2, 2)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))  # n, c, h, w, 5, 5
    weight = parameter(model, f"{name}-weight", filters, x.shape[1], 5, 5)
    out = np.tensordot(windows, weight, axes=([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)
    return out + parameter(model, f"{name}-bias", filters)[:, None, None]


def pool2x2(x: Array) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def lenet(model: Path, x: Array, hidden: str, output: str) -> Array:
    """Logits of the LeNet saved in ``model``; its last two layers are named differently from page to page."""
    x = pool2x2(relu(conv5x5(model, "conv1", x, 32)))
    x = pool2x2(relu(conv5x5(model, "conv2", x, 64)))
    return dense(model, output, relu(dense(model, hidden, x.reshape(len(x), -1), 512)), 10)


def mlp(model: Path, x: Array, hidden: str, output: str) -> Array:
    """Logits of the two-layer perceptron saved in ``model``."""
    return dense(model, output, relu(dense(model, hidden, x.reshape(len(x), -1), 512)), 10)


def accuracy_line(logits: Array, labels: Array) -> str:
    """The output of the programs."""
    return f"accuracy: {np.sum(logits.argmax(1) == labels) * 100 / len(labels):.1f}%"
