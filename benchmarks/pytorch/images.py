"""The same calls, or torchvision's transforms, in the worker processes of ``torch.utils.data.DataLoader``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..handwritten.images_opencv import encoded_images, prepared


def by_torchvision() -> Callable[[np.ndarray, np.random.Generator], torch.Tensor]:
    """The transforms of torchvision's documentation, which decode with Pillow."""
    from PIL import Image
    from torchvision import transforms

    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    return lambda encoded, random: steps(Image.open(io.BytesIO(encoded)).convert("RGB"))


def by_opencv(encoded: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.ascontiguousarray(prepared(encoded, random))


class Images(IterableDataset):
    """As many images as ``batches`` says, so that nothing is prepared before a turn begins."""

    def __init__(self, folder: str, batch: int, prepare: Callable[[np.ndarray, np.random.Generator], Any]):
        self._images, self._batch, self._prepare = encoded_images(folder), batch, prepare
        self.batches = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[Any]:
        cv2.setNumThreads(1)
        worker = get_worker_info()
        random = np.random.default_rng(worker.id)
        for i in range(len(range(worker.id, int(self.batches), worker.num_workers)) * self._batch):
            yield self._prepare(self._images[i % len(self._images)], random)


def make(folder: str, batch: int, threads: int, torchvision: bool = False) -> tuple[Callable[[int], None], Any]:
    images = Images(folder, batch, by_torchvision() if torchvision else by_opencv)
    loader = DataLoader(images, batch_size=batch, num_workers=threads, persistent_workers=True)

    def run(steps: int) -> None:
        images.batches[0] = steps
        assert sum(1 for _ in loader) == steps

    return run, None
