"""The same calls in the worker processes of ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..handwritten.pictures_opencv import encoded_pictures, prepared


class Pictures(IterableDataset):
    """As many pictures as ``batches`` says, so that nothing is prepared before a turn begins."""

    def __init__(self, folder: str, batch: int):
        self._pictures, self._batch = encoded_pictures(folder), batch
        self.batches = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[np.ndarray]:
        cv2.setNumThreads(1)
        worker = get_worker_info()
        random = np.random.default_rng(worker.id)
        for i in range(len(range(worker.id, int(self.batches), worker.num_workers)) * self._batch):
            yield np.ascontiguousarray(prepared(self._pictures[i % len(self._pictures)], random))


def make(folder: str, batch: int, threads: int) -> tuple[Callable[[int], None], Any]:
    pictures = Pictures(folder, batch)
    loader = DataLoader(pictures, batch_size=batch, num_workers=threads, persistent_workers=True)

    def run(steps: int) -> None:
        pictures.batches[0] = steps
        assert sum(1 for _ in loader) == steps

    return run, None
