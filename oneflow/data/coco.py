"""COCO annotations: one file of JSON, images in a directory; batches in the order of OneFlow's reader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .._base.files import TO_NOWHERE, Path, absolute, leads_outside, read_regular, why_outside
from .._base.refuse import refuse
from ..errors import ArgumentError, DataError
from . import _mt19937
from ._positions import WITHOUT_POSITIONS, whole
from .parts import MAX_RECORD_BYTES

_LEAST_KEYPOINTS = 10  # visible ones; images of people with fewer are not used
_LARGEST_SIDE = 1 << 20  # pixels; OpenCV does not decode larger images
_MOST_BYTES = 4 << 30  # of an annotation file; parsed, it takes about ten times as much memory
_FAR = 1 << 31  # pixels; no coordinate is further away
_MOST_REPLAYED = 10**9  # the most images in earlier epochs, whose order restoring a position repeats


@dataclass(frozen=True, slots=True)
class CocoSample:
    """One image: its file's bytes (int8), id, (height, width), and its instances; the file's path.

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
    """An image of the annotation file that is used."""

    id: int
    path: str
    height: int
    width: int
    annotations: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An image, annotation or category of the file. Its fields are checked when they are read."""

    file: str
    kind: str
    number: int
    content: Any

    def refuse(self, field: str, rule: str) -> NoReturn:
        value = self.content.get(field, "nothing") if isinstance(self.content, Mapping) else self.content
        refuse(
            DataError, f"COCO annotations cannot be read: {self.kind} {self.number} {rule}",
            found=[("file", self.file), (self.kind, self._name()), ("field", repr(field)), ("found", _shown(value))],
        )  # fmt: skip

    def _name(self) -> str:
        id_ = self.content.get("id") if isinstance(self.content, Mapping) else None
        image = self.content.get("image_id") if isinstance(self.content, Mapping) else None
        known = [f"{what} {_shown(value)}" for what, value in (("id", id_), ("of image", image)) if value is not None]
        return ", ".join([f"number {self.number} of its list", *known])

    def field(self, name: str, default: Any = None) -> Any:
        value = self.content.get(name, default) if isinstance(self.content, Mapping) else None
        if value is None:
            self.refuse(name, f'has no "{name}"')
        return value

    def integer(self, name: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
        value = self.field(name)
        if type(value) is not int or not least <= value <= most:
            bounds = f" in [{least}, {most}]" if least >= 0 else ""
            self.refuse(name, f'has a "{name}" that is not an integer{bounds}')
        return value

    def numbers(self, name: str, values: Any, rule: str) -> Sequence[float]:
        """``values``, which must be a list of finite numbers."""
        if not isinstance(values, list) or not set(map(type, values)) <= {int, float}:
            self.refuse(name, rule)
        if values and not (-_FAR <= min(values) and max(values) <= _FAR):
            self.refuse(name, "has a coordinate outside any image")
        return values


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (list, dict)) or len(value) < 100 else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 100 else f"{text[:97]}..."


class CocoAnnotations:
    """The images and instances of an annotation file. Crowds (``iscrowd``) are left out; images are in the order of their ids.

    Args:
      annotation_file: JSON with "images", "annotations" and "categories".
      image_dir: directory of the images; their names may not lead outside it.
      remove_images_without_annotations: leave out images without a box wider and higher than 1 pixel, and, where there are
        keypoints, those with fewer than 10 visible ones.
      allow_outside_image_dir: names of images may be absolute, contain "..", or be symbolic links that lead elsewhere.
      max_image_bytes: of the largest file of an image that is read.
    Raises: DataError, which names the file, the annotation and the field.
    """

    def __init__(
        self,
        annotation_file: Path,
        image_dir: Path,
        remove_images_without_annotations: bool = True,
        *,
        allow_outside_image_dir: bool = False,
        max_image_bytes: int = MAX_RECORD_BYTES,
    ):
        self.file, self._folder = os.fspath(annotation_file), absolute(image_dir)
        self._may_leave, self._max_image_bytes = allow_outside_image_dir, max_image_bytes
        content = self._load()
        self.labels = self._labels(content["categories"])
        by_image: dict[int, list[_Entry]] = {}
        for i, annotation in enumerate(content["annotations"]):
            entry = _Entry(self.file, "annotation", i, annotation)
            if entry.field("iscrowd", 0) not in (0, 1):
                entry.refuse("iscrowd", 'has an "iscrowd" that is neither 0 nor 1')
            if not entry.field("iscrowd", 0):
                by_image.setdefault(entry.integer("image_id"), []).append(entry)
        self.images = [self._image(_Entry(self.file, "image", i, image), by_image) for i, image in enumerate(content["images"])]
        self._check_ids(content["images"])
        if remove_images_without_annotations:
            self.images = [image for image in self.images if _is_useful(image.annotations)]
        self.images.sort(key=lambda image: image.id)
        if not self.images:
            self._refuse("no image in it has an annotation that can be used")

    def _load(self) -> dict[str, list[Any]]:
        try:
            content = json.loads(
                read_regular(self.file, _MOST_BYTES), parse_constant=str
            )  # NaN becomes a str: no field accepts it
        except FileNotFoundError:
            self._refuse("there is no such file")
        except OSError as error:
            self._refuse(error.strerror or str(error))
        except ValueError as error:
            self._refuse(f"it is not JSON: {error}")
        except RecursionError:
            self._refuse("it is nested too deeply")
        except MemoryError:
            self._refuse("there is no memory for its content")
        for key in ("images", "annotations", "categories"):
            if not isinstance(content, dict) or not isinstance(content.get(key), list):
                self._refuse(f'it has no list "{key}"')
        return content

    def _refuse(self, why: str) -> NoReturn:
        refuse(DataError, f"COCO annotations cannot be read: {why}", found=[("file", self.file)])

    def _labels(self, categories: list[Any]) -> dict[int, int]:
        entries = [_Entry(self.file, "category", i, category) for i, category in enumerate(categories)]
        ids: set[int] = set()
        for entry in entries:
            if entry.integer("id") in ids:
                entry.refuse("id", 'has the "id" of another one')
            ids.add(entry.integer("id"))
        return {category: i for i, category in enumerate(sorted(ids), 1)}

    def _check_ids(self, images: list[Any]) -> None:
        first: dict[int, int] = {}
        for i, image in enumerate(self.images):
            if first.setdefault(image.id, i) != i:
                _Entry(self.file, "image", i, images[i]).refuse("id", f'has the "id" of image {first[image.id]}')

    def _image(self, entry: _Entry, by_image: Mapping[int, list[_Entry]]) -> CocoImage:
        id_, name = entry.integer("id"), entry.field("file_name")
        height, width = (entry.integer(side, 1, _LARGEST_SIDE) for side in ("height", "width"))
        if not isinstance(name, str) or not name or "\0" in name:
            entry.refuse("file_name", 'has a "file_name" that is not the name of a file')
        if leads_outside(name) and not self._may_leave:
            entry.refuse("file_name", f'has a "file_name" that leads outside the image folder; {_ALLOW}')
        annotations = by_image.get(id_, [])
        for annotation in annotations:
            self._check(annotation)
        return CocoImage(id_, os.path.join(self._folder, name), height, width, [a.content for a in annotations])

    def _check(self, entry: _Entry) -> None:
        rule = 'has a "bbox" that is not [x, y, width, height]'
        if len(entry.numbers("bbox", entry.field("bbox"), rule)) != 4:
            entry.refuse("bbox", rule)
        category = entry.integer("category_id")
        if category not in self.labels:
            entry.refuse("category_id", f"is of category {category}, which is not one of the {len(self.labels)} categories")
        polygons = entry.content.get("segmentation", [])
        if not isinstance(polygons, list):
            entry.refuse("segmentation", "is not outlined by polygons, although it is not a crowd")
        for polygon in polygons:
            entry.numbers("segmentation", polygon, "has a polygon that is not a list of numbers")
            if len(polygon) <= 6 or len(polygon) % 2:
                rule = f"has a polygon that must have an even number of coordinates, more than 6, and has {len(polygon)} numbers"
                entry.refuse("segmentation", rule)
        rule = 'has "keypoints" that are not a list of x, y and visibility'
        if len(entry.numbers("keypoints", entry.content.get("keypoints", []), rule)) % 3:
            entry.refuse("keypoints", rule)

    def __len__(self) -> int:
        return len(self.images)

    def load(self, i: int) -> CocoSample:
        """Reads image ``i``, with its instances. Pure, and may run in any thread. Raises DataError."""
        image = self.images[i]
        data = np.frombuffer(self._file_of(image), np.int8)
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

    def _file_of(self, image: CocoImage) -> bytes:
        try:
            why = "" if self._may_leave else why_outside(image.path, self._folder, "the image folder")
            if not why:
                return read_regular(image.path, self._max_image_bytes)
            hint = "" if why == TO_NOWHERE else _ALLOW
        except FileNotFoundError as error:
            why, hint = error.strerror or str(error), "check image_dir"
        except OSError as error:
            why, hint = error.strerror or str(error), ""
        rows = [("file", image.path), ("image", str(image.id)), ("listed in", self.file)]
        refuse(DataError, f"an image of the COCO annotations cannot be read: {why}", found=rows, hint=hint)


_ALLOW = "allow_outside_image_dir=True allows that"


def _is_useful(annotations: Sequence[Mapping[str, Any]]) -> bool:
    if not any(a["bbox"][2] > 1 and a["bbox"][3] > 1 for a in annotations):
        return False
    if "keypoints" not in annotations[0]:
        return True
    return sum(v > 0 for a in annotations for v in a.get("keypoints", [])[2::3]) >= _LEAST_KEYPOINTS


def _clipped(box: Sequence[float], width: int, height: int) -> tuple[float, float, float, float] | None:
    """Corners inside the image; None where nothing is left."""
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
      shards: number of instances.
      shuffle: shuffle the images before each epoch.
      random_seed: of the shuffling; the same for all instances.
      group_by_aspect_ratio: a batch only has images of equal height // width; others wait for a later batch.
      stride_partition: instances take images by turns; otherwise each takes a contiguous piece of every epoch.
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
        self._waiting: list[tuple[int, list[int]]] = []  # incomplete batches by group, in the order of their first images

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
        """The indices of the next batch's images, for ``annotations.load``. Reads no file."""
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
        """The next batch. Raises DataError where an image's file cannot be read; the position is unchanged then."""
        before = self.state()
        try:
            return [self.annotations.load(i) for i in self.next_batch()]
        except BaseException:
            self.restore(before)
            raise

    def state(self) -> dict[str, Any]:
        """The position before the next batch, JSON-able."""
        waiting = [[group, list(batch)] for group, batch in self._waiting]
        made = {"epoch": self._epoch, "at": self._at, "in_piece": self._in_piece, "seed": self._seed, "waiting": waiting}
        return made | {"images": len(self._order), "shard": [self._shard, self._shards]}

    def mark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the position before the next batch."""
        state = self.state()
        return lambda: state

    def restore(self, state: dict[str, Any]) -> None:
        """Continues exactly where ``state()`` was taken. Raises DataError for the state of other data or another instance."""
        expected = {"images": len(self._order), "shard": [self._shard, self._shards]}
        if not isinstance(state, dict) or any(state.get(key) != value for key, value in expected.items()):
            found = {key: state.get(key) for key in expected} if isinstance(state, dict) else state
            rows = [("expected", str(expected)), ("found", str(found))]
            refuse(DataError, "a COCO reader's saved position belongs to other data or another number of readers", found=rows,
                hint=WITHOUT_POSITIONS)  # fmt: skip
        try:
            last = len(self._order) - 1
            epoch = whole(state["epoch"], most=_MOST_REPLAYED // len(self._order) if self._shuffle else _MOST_REPLAYED)
            at, in_piece = whole(state["at"], most=last), whole(state["in_piece"])
            seed = whole(state["seed"], least=-(1 << 63))
            waiting = [(whole(group), [whole(i, most=last) for i in batch]) for group, batch in state["waiting"]]
            if not all(0 < len(batch) <= self.batch_size for _, batch in waiting):
                raise ValueError("it holds batches of another size")
        except (KeyError, TypeError, ValueError) as error:
            hint = f"the reader's settings as they were; {WITHOUT_POSITIONS}"
            refuse(DataError, f"a COCO reader's saved position cannot be used: {error!r}", hint=hint)
        if epoch != self._epoch or seed != self._seed:
            self._order, self._epoch, self._seed = list(range(len(self._order))), -1 if self._shuffle else epoch, seed
            while self._epoch < epoch:
                self._new_epoch()
        self._at, self._in_piece, self._waiting = at, in_piece, waiting
