"""The data of all contenders: the same batches of MNIST, made once by the parent process and read by each worker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

BATCH = 100
BATCHES = 60
VARIABLE = "BENCHMARK_DATA"  # the environment variable with the path of the batches, for workers
_MNIST = Path(__file__).parent.parent / "oneflow" / "data" / "mnist.npz"


def write(folder: Path) -> Path:
    """Writes ``BATCHES`` batches to a file, from the package's MNIST where it is there, else random ones."""
    if _MNIST.exists():
        with np.load(_MNIST) as mnist:
            pixels, labels = mnist["x_train"][: BATCH * BATCHES], mnist["y_train"][: BATCH * BATCHES]
    else:
        random = np.random.default_rng(0)
        pixels = random.integers(0, 256, (BATCH * BATCHES, 28, 28), np.uint8)
        labels = random.integers(0, 10, BATCH * BATCHES)
    path = folder / "batches.npz"
    np.savez(path, pixels=pixels.reshape(BATCHES, BATCH, 1, 28, 28), labels=labels.reshape(BATCHES, BATCH).astype(np.int32))
    return path


@functools.cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    with np.load(os.environ[VARIABLE]) as file:
        return file["pixels"], file["labels"]


@functools.cache
def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of images, float32 (100, 1, 28, 28) in [0, 1], and labels, int32 (100,): views of two arrays, as load_mnist gives."""
    pixels, labels = _read()
    images = pixels.astype(np.float32) / np.float32(255)
    return list(zip(images, labels, strict=True))


def preprocess(pixels: np.ndarray, passes: int, random: np.random.Generator) -> np.ndarray:
    """Host work as before a step: a random shift, then ``passes`` times normalising and adding noise."""
    down, right = random.integers(-2, 3, 2)
    images = np.roll(pixels, (down, right), (2, 3)).astype(np.float32)
    images *= np.float32(1 / 255)
    for _ in range(passes):
        images += np.float32(0.01) * random.standard_normal(images.shape, np.float32)
        images -= images.mean(axis=(1, 2, 3), keepdims=True)
        images /= images.std(axis=(1, 2, 3), keepdims=True) + np.float32(1e-3)
    return images


def source(passes: int | None) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Returns batch ``i``: ready-made, or (``passes`` not None) preprocessed when it is asked for."""
    if passes is None:
        ready = batches()
        return lambda i: ready[i % BATCHES]
    pixels, labels = _read()
    random = np.random.default_rng(0)
    return lambda i: (preprocess(pixels[i % BATCHES], passes, random), labels[i % BATCHES])


class Losses:
    """Every program's use of its results: it looks at each twentieth."""

    def __init__(self) -> None:
        self.seen = 0
        self.last = float("nan")

    def __call__(self, loss: np.ndarray) -> None:
        if self.seen % 20 == 0:
            self.last = float(loss.mean())
        self.seen += 1
