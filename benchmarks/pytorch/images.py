"""The same calls in the worker processes of ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..handwritten.images_opencv import encoded_images, prepared


class Images(IterableDataset):
    """As many images as ``batches`` says, so that nothing is prepared before a turn begins."""

    def __init__(self, folder: str, batch: int):
        self._images, self._batch = encoded_images(folder), batch
        self.batches = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[np.ndarray]:
        cv2.setNumThreads(1)
        worker = get_worker_info()
        random = np.random.default_rng(worker.id)
        for i in range(len(range(worker.id, int(self.batches), worker.num_workers)) * self._batch):
            yield np.ascontiguousarray(prepared(self._images[i % len(self._images)], random))


def make(folder: str, batch: int, threads: int) -> tuple[Callable[[int], None], Any]:
    images = Images(folder, batch)
    loader = DataLoader(images, batch_size=batch, num_workers=threads, persistent_workers=True)

    def run(steps: int) -> None:
        images.batches[0] = steps
        assert sum(1 for _ in loader) == steps

    return run, None
