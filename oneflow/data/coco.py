"""COCO annotations: one file of JSON, pictures in a directory; batches in the order of OneFlow's reader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .._base.refuse import refuse
from ..errors import ArgumentError, DataError
from . import _mt19937
from .source import WITHOUT_POSITIONS

_LEAST_KEYPOINTS = 10  # visible ones; images of people with fewer are not used


@dataclass(frozen=True, slots=True)
class CocoSample:
    """One picture: its file's bytes (int8), id, (height, width), and its instances; the file's path.

    ``boxes`` float32 (k, 4) as x1 y1 x2 y2; ``labels`` int32 (k,) from 1; ``polygons`` float32 (points, 2); ``polygon_index``
    int32 (points, 3): number of the point in its polygon, of the polygon in its instance, of the instance.
    """

    image: np.ndarray
    image_id: int
    image_size: tuple[int, int]
    boxes: np.ndarray
    labels: np.ndarray
    polygons: np.ndarray
    polygon_index: np.ndarray
    path: str = ""


@dataclass(frozen=True, slots=True)
class CocoImage:
    """A picture of the annotation file that is used."""

    id: int
    path: str
    height: int
    width: int
    annotations: Sequence[Mapping[str, Any]]


class CocoAnnotations:
    """What an annotation file says of its pictures; crowds (``iscrowd``) are left out, images are in the order of their ids.

    Args:
      annotation_file: JSON with "images", "annotations" and "categories".
      image_dir: of the pictures.
      remove_images_without_annotations: leave out images without a box wider and higher than 1 pixel, and, where there are
        keypoints, those with fewer than 10 visible ones.
    Raises: DataError, which names the file and the annotation.
    """

    def __init__(
        self,
        annotation_file: str | os.PathLike[str],
        image_dir: str | os.PathLike[str],
        remove_images_without_annotations: bool = True,
    ):
        self.file = os.fspath(annotation_file)
        content = self._load()
        self._annotations: dict[int, list[Mapping[str, Any]]] = {}
        for i, annotation in enumerate(content["annotations"]):
            if self._field(annotation, "iscrowd", f"annotation {i}", default=0) != 1:
                image = self._field(annotation, "image_id", f"annotation {i}")
                self._annotations.setdefault(image, []).append(annotation)
        categories = sorted(self._field(c, "id", f"category {i}") for i, c in enumerate(content["categories"]))
        self.labels = {category: i for i, category in enumerate(categories, 1)}
        self.images = [self._image(i, image, os.fspath(image_dir)) for i, image in enumerate(content["images"])]
        if remove_images_without_annotations:
            self.images = [image for image in self.images if _is_useful(image.annotations)]
        self.images.sort(key=lambda image: image.id)
        if not self.images:
            self._refuse("no image in it has an annotation that can be used")

    def _load(self) -> dict[str, list[Any]]:
        try:
            with open(self.file, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            self._refuse("there is no such file")
        except (OSError, ValueError) as error:
            self._refuse(f"it is not JSON: {error}")
        for key in ("images", "annotations", "categories"):
            if not isinstance(content, dict) or not isinstance(content.get(key), list):
                self._refuse(f'it has no list "{key}"')
        return content

    def _refuse(self, why: str) -> NoReturn:
        refuse(DataError, f"COCO annotations cannot be read: {why}", found=[("file", self.file)])

    def _field(self, entry: Any, key: str, what: str, default: Any = None) -> Any:
        value = entry.get(key, default) if isinstance(entry, dict) else None
        if value is None:
            self._refuse(f'{what} has no "{key}"')
        return value

    def _image(self, i: int, entry: Any, folder: str) -> CocoImage:
        id_, name, height, width = (self._field(entry, key, f"image {i}") for key in ("id", "file_name", "height", "width"))
        if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
            self._refuse(f"image {id_} has a size of {height} x {width}")
        annotations = self._annotations.get(id_, [])
        for annotation in annotations:
            self._check(annotation)
        return CocoImage(id_, os.path.join(folder, name), height, width, annotations)

    def _check(self, annotation: Mapping[str, Any]) -> None:
        what = f"annotation {annotation.get('id', '?')} of image {annotation['image_id']}"
        box = self._field(annotation, "bbox", what)
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, (int, float)) for v in box):
            self._refuse(f"the box of {what} is not [x, y, width, height] but {box!r}")
        category = self._field(annotation, "category_id", what)
        if category not in self.labels:
            self._refuse(f"{what} is of category {category!r}, which is not one of the {len(self.labels)} categories")
        polygons = annotation.get("segmentation", [])
        if not isinstance(polygons, list):
            self._refuse(f"{what} is not outlined by polygons, although it is no crowd")
        for polygon in polygons:
            if not isinstance(polygon, list) or len(polygon) <= 6 or len(polygon) % 2:
                size = f"{len(polygon)} numbers" if isinstance(polygon, list) else repr(polygon)
                self._refuse(f"a polygon of {what} must have an even number of coordinates, more than 6, and has {size}")

    def __len__(self) -> int:
        return len(self.images)

    def load(self, i: int) -> CocoSample:
        """Picture ``i`` with its instances. Reads its file; pure, and may run in any thread. Raises DataError."""
        image = self.images[i]
        try:
            data = np.fromfile(image.path, np.int8)
        except OSError as error:
            rows = [("file", image.path), ("image", str(image.id)), ("listed in", self.file)]
            refuse(DataError, f"a picture of the COCO annotations cannot be read: {error.strerror}", found=rows)
        boxes: list[tuple[float, ...]] = []
        labels, points, index = [], [], []
        for annotation in image.annotations:
            box = _clipped(annotation["bbox"], image.width, image.height)
            if box is None:
                continue
            for k, polygon in enumerate(annotation.get("segmentation", [])):
                corners = np.asarray(polygon, np.float32).reshape(-1, 2)
                points.append(corners)
                index.append(np.stack([np.arange(len(corners)), np.full(len(corners), k), np.full(len(corners), len(boxes))], 1))
            boxes.append(box)
            labels.append(self.labels[annotation["category_id"]])
        return CocoSample(
            data, image.id, (image.height, image.width),
            np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int32),
            np.concatenate([np.zeros((0, 2), np.float32), *points]), np.concatenate([np.zeros((0, 3)), *index]).astype(np.int32),
            image.path,
        )  # fmt: skip


def _is_useful(annotations: Sequence[Mapping[str, Any]]) -> bool:
    if not any(a["bbox"][2] > 1 and a["bbox"][3] > 1 for a in annotations):
        return False
    if "keypoints" not in annotations[0]:
        return True
    return sum(v > 0 for a in annotations for v in a.get("keypoints", [])[2::3]) >= _LEAST_KEYPOINTS


def _clipped(box: Sequence[float], width: int, height: int) -> tuple[float, float, float, float] | None:
    """Corners inside the picture; None where nothing is left."""
    x, y, w, h = box
    left, right = (min(max(v, 0), width - 1) for v in (x, x + max(w - 1, 0)))
    top, bottom = (min(max(v, 0), height - 1) for v in (y, y + max(h - 1, 0)))
    return (left, top, right, bottom) if right > left and bottom > top else None


class CocoSource:
    """Endless batches of one reader instance, in the order of OneFlow's ``coco_reader``. One thread at a time may use it.

    Args:
      annotations: the data set; several instances may share it.
      batch_size: of this instance.
      shard: its number, in [0, shards).
      shards: how many instances there are.
      shuffle: shuffle the images before each epoch.
      random_seed: of the shuffling; the same for all instances.
      group_by_aspect_ratio: a batch has images of equal height // width only; others wait for a later batch.
      stride_partition: instances take images by turns; otherwise each a contiguous piece of every epoch.
    Example: >>> source = CocoSource(CocoAnnotations("instances.json", "images"), 4); batch = source.take()
    """

    def __init__(
        self,
        annotations: CocoAnnotations,
        batch_size: int,
        *,
        shard: int = 0,
        shards: int = 1,
        shuffle: bool = True,
        random_seed: int = 0,
        group_by_aspect_ratio: bool = True,
        stride_partition: bool = True,
    ):
        if not 0 <= shard < shards or batch_size < 1:
            refuse(ArgumentError, f"shard {shard} of {shards}, batch_size {batch_size}: out of range")
        self.annotations, self.batch_size = annotations, batch_size
        self._shard, self._shards, self._shuffle, self._seed = shard, shards, shuffle, random_seed
        self._grouped, self._stride = group_by_aspect_ratio, stride_partition
        size = len(annotations)
        self._piece = -(-size // shards)
        self._order = list(range(size))
        self._epoch = -1
        self._new_epoch()
        self._at = (shard if stride_partition else shard * self._piece) % size
        self._in_piece = 0
        self._waiting: list[tuple[int, list[int]]] = []  # batches by group, the one that was begun first comes first

    def _new_epoch(self) -> None:
        self._epoch += 1
        if self._shuffle:
            _mt19937.shuffle(self._order, self._seed + self._epoch)

    def _next(self) -> int:
        i = self._order[self._at]
        self._at += self._shards if self._stride else 1
        self._in_piece += 1
        if not self._stride and self._in_piece == self._piece:
            self._at, self._in_piece = self._at + (self._shards - 1) * self._piece, 0
        if self._at >= len(self._order):
            self._new_epoch()
            self._at %= len(self._order)
        return i

    def _group(self, i: int) -> int:
        image = self.annotations.images[i]
        return image.height // image.width if self._grouped else 0

    def next_batch(self) -> list[int]:
        """The numbers of the next batch's images, for ``annotations.load``. Reads no file."""
        if self._waiting:
            group, batch = self._waiting.pop(0)
        else:
            first = self._next()
            group, batch = self._group(first), [first]
        while len(batch) < self.batch_size:
            i = self._next()
            if self._group(i) == group:
                batch.append(i)
            else:
                self._let_wait(i)
        return batch

    def _let_wait(self, i: int) -> None:
        group = self._group(i)
        for other, batch in self._waiting:
            if other == group and len(batch) < self.batch_size:
                batch.append(i)
                return
        self._waiting.append((group, [i]))

    def take(self) -> list[CocoSample]:
        """The next batch. Raises DataError where a picture's file cannot be read, and then leaves the position where it was."""
        before = self.state()
        try:
            return [self.annotations.load(i) for i in self.next_batch()]
        except BaseException:
            self.restore(before)
            raise

    def state(self) -> dict[str, Any]:
        """The position before the next batch, as JSON can hold it."""
        waiting = [[group, list(batch)] for group, batch in self._waiting]
        made = {"epoch": self._epoch, "at": self._at, "in_piece": self._in_piece, "seed": self._seed, "waiting": waiting}
        return made | {"images": len(self._order), "shard": [self._shard, self._shards]}

    def mark(self) -> Callable[[], dict[str, Any]]:
        """The position before the next batch, to be spelled out later."""
        state = self.state()
        return lambda: state

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on exactly where ``state()`` was taken. Raises DataError where it belongs to other data or another instance."""
        expected = {"images": len(self._order), "shard": [self._shard, self._shards]}
        if not isinstance(state, dict) or any(state.get(key) != value for key, value in expected.items()):
            found = {key: state.get(key) for key in expected} if isinstance(state, dict) else state
            rows = [("expected", str(expected)), ("found", str(found))]
            refuse(DataError, "a COCO reader's saved position belongs to other data or another number of readers", found=rows,
                hint=WITHOUT_POSITIONS)  # fmt: skip
        if state["epoch"] != self._epoch or state["seed"] != self._seed:
            self._order, self._epoch, self._seed = list(range(len(self._order))), -1, state["seed"]
            while self._epoch < state["epoch"]:
                self._new_epoch()
        self._at, self._in_piece = state["at"], state["in_piece"]
        self._waiting = [(group, list(batch)) for group, batch in state["waiting"]]
