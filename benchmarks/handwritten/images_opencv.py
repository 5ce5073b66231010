"""The same by OpenCV and NumPy alone; the encoded images are in memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np

MEAN, INVERSE = np.float32([123.68, 116.779, 103.939]), np.float32(1) / np.float32([58.393, 57.12, 57.375])


def encoded_images(folder: str) -> list[np.ndarray]:
    return [np.fromfile(path, np.uint8) for path in sorted(Path(folder).glob("*.jpg"))]


def prepared(encoded: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One image, float32 (3, 224, 224)."""
    image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    height, width = image.shape[:2]
    for _ in range(10):
        area, ratio = random.uniform(0.08, 1.0) * height * width, np.exp(random.uniform(np.log(0.75), np.log(1.333333)))
        w, h = max(1, round(np.sqrt(area * ratio))), max(1, round(np.sqrt(area / ratio)))
        if w <= width and h <= height:
            break
    else:
        w, h = width, height
    y, x = random.integers(height - h + 1), random.integers(width - w + 1)
    image = cv2.resize(image[y : y + h, x : x + w], (224, 224), interpolation=cv2.INTER_LINEAR)
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    if random.random() < 0.5:
        image = cv2.flip(image, 1)
    values = image.astype(np.float32)
    values -= MEAN
    values *= INVERSE
    return values.transpose(2, 0, 1)


def make(folder: str, batch: int, threads: int) -> tuple[Callable[[int], None], Any]:
    cv2.setNumThreads(1)
    images, pool, at = encoded_images(folder), ThreadPoolExecutor(threads), 0
    randoms = [np.random.default_rng(i) for i in range(batch)]

    def run(steps: int) -> None:
        nonlocal at
        for _ in range(steps):
            chosen = [images[(at + i) % len(images)] for i in range(batch)]
            np.stack(list(pool.map(prepared, chosen, randoms)))
            at += batch

    return run, None
