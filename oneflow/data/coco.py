"""COCO annotations: one file of JSON, pictures in a directory; batches in OneFlow's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class CocoSample:
    """One picture: raw file bytes, its id, (height, width), boxes (k, 4), labels (k,), polygons (points, 2) and their index."""

    image: np.ndarray
    image_id: int
    image_size: tuple[int, int]
    boxes: np.ndarray
    labels: np.ndarray
    polygons: np.ndarray
    polygon_index: np.ndarray


class CocoSource:
    """Endless batches of one reader instance of ``shards``; ``batch_size`` is the instance's."""

    def __init__(
        self, annotation_file: str, image_dir: str, batch_size: int, *, shard: int = 0, shards: int = 1, shuffle: bool = True,
        random_seed: int = 0, group_by_aspect_ratio: bool = True, stride_partition: bool = True,
        remove_images_without_annotations: bool = True,
    ): ...  # fmt: skip

    def take(self) -> list[CocoSample]:
        """The next batch."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError
