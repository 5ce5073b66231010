"""Small synthetic data sets for tests, benchmarks and examples. The same arguments make the same files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import numpy as np

from .._base.refuse import refuse
from ..errors import ArgumentError
from . import images
from .inputs import Arrays, make_record
from .mnist import read_mnist
from .pack import pack
from .parts import Path as PathLike
from .parts import write_parts

DENSE, SPARSE, WIDE = 13, 26, 2  # features of a click, as in the Criteo data
SPARSE_SIZE = 100_000  # ids of categories are smaller
_PHOTOGRAPHS = 16  # different images; more samples repeat them in other sizes
CLASSES = 10


def digits(directory: PathLike, count: int = 64, parts: int = 1, seed: int = 0) -> list[str]:
    """MNIST digits as PNG: "encoded", and "class/label" (int32). The first ``count`` of the training images."""
    mnist = read_mnist()
    if count > len(mnist.x_train):
        refuse(ArgumentError, f"there are {len(mnist.x_train)} digits, not {count}")
    arrays = {"encoded": mnist.x_train[:count], "class/label": mnist.y_train[:count].astype(np.int32)}
    return pack(Arrays(arrays, png=["encoded"]), directory, parts, overwrite=True, workers=1).paths


def photograph(seed: int, width: int = 500, height: int = 375) -> np.ndarray:
    """A synthetic image, uint8 BGR, that is about as hard to decode as a photograph: smooth colours, edges, some noise."""
    from .._base.extras import cv2

    rng = np.random.default_rng(seed)
    image = cv2.resize(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(25):
        center = tuple(int(v) for v in rng.integers(0, (width, height)))
        axes = tuple(int(v) for v in rng.integers(4, max(6, min(width, height) // 5), 2))
        color = tuple(int(v) for v in rng.integers(0, 256, 3))
        cv2.ellipse(image, center, axes, int(rng.integers(180)), 0, 360, color, -1, cv2.LINE_AA)
    coarse = cv2.resize(rng.normal(0, 12, (height // 2, width // 2, 3)).astype(np.float32), (width, height))
    return np.clip(image + coarse + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8)


def photographs(directory: PathLike, count: int = 64, parts: int = 1, seed: int = 0, *, scale: float = 1.0) -> list[str]:
    """Synthetic JPEG photographs of about 500 x 375 pixels: "encoded", and "class/label" (int32, below 10), seen in the colours.

    Args:
      scale: of the images' sides.
    """
    rng, made, records = np.random.default_rng(seed), {}, []
    for _ in range(count):
        label = int(rng.integers(CLASSES))
        key = (int(rng.integers(_PHOTOGRAPHS)), label)
        if key not in made:
            width, height = (int(scale * v) for v in (rng.integers(400, 600), rng.integers(300, 450)))
            image = photograph(seed * 1000 + key[0], max(width, 16), max(height, 16))
            tint = np.random.default_rng(label).uniform(0.35, 1.0, 3)  # by which a model can distinguish the classes
            made[key] = images.encode((image * tint).astype(np.uint8), ".jpg", 92)
        records.append(make_record({"encoded": ("bytes", [made[key]]), "class/label": ("int32", [label])}))
    return write_parts(directory, records, parts)


def clicks(directory: PathLike, count: int = 64, parts: int = 1, seed: int = 0, *, separate: bool = False) -> list[str]:
    """Click-through records: "labels", 13 "dense_fields", 2 "wide_sparse_fields", 26 "deep_sparse_fields".

    Dense fields are floats below 1, the others int32; wide ones are below 1000, deep ones below 100000. Whether there was a click
    depends on some of the fields, so that a model can learn it.

    Args:
      separate: each number becomes a feature (``separate_features``).
    """
    rng = np.random.default_rng(seed)
    dense = rng.random((count, DENSE)).astype(np.float32)
    sparse = (SPARSE_SIZE * rng.random((count, SPARSE)) ** 3).astype(np.int32)  # few ids are frequent, most are rare
    wide = sparse[:, :WIDE] % 1000
    score = 3 * (dense[:, 0] - dense[:, 1]) + np.where(sparse[:, 0] % 2 == 0, 1.0, -1.0)
    label = (rng.random(count) < 1 / (1 + np.exp(-2 * score))).astype(np.int32)
    if separate:
        columns = [label, *dense.T, *sparse.T]
        kinds = separate_features().items()
        records = [
            make_record({name: (kind, [column[i].item()]) for (name, kind), column in zip(kinds, columns, strict=True)})
            for i in range(count)
        ]
        return write_parts(directory, records, parts)
    records = [
        make_record(
            {
                "labels": ("int32", [label[i]]),
                "dense_fields": ("float", dense[i].tolist()),
                "wide_sparse_fields": ("int32", wide[i].tolist()),
                "deep_sparse_fields": ("int32", sparse[i].tolist()),
            }
        )
        for i in range(count)
    ]
    return write_parts(directory, records, parts)


def separate_features() -> dict[str, str]:
    """Names and kinds of ``clicks(separate=True)``: label, I1 to I13, C1 to C26."""
    dense = {f"I{i + 1}": "float" for i in range(DENSE)}
    return {"label": "int32", **dense, **{f"C{i + 1}": "int64" for i in range(SPARSE)}}


def coco(directory: PathLike, count: int = 16, parts: int = 1, seed: int = 0) -> list[str]:
    """A COCO data set: coloured ellipses in ``images/``, their boxes and polygons in ``instances.json``."""
    from .._base.extras import cv2

    rng, folder = np.random.default_rng(seed), os.fspath(directory)
    os.makedirs(os.path.join(folder, "images"), exist_ok=True)
    colors = [(220, 60, 60), (60, 200, 60), (60, 60, 220)]
    listed: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for i in range(count):
        width, height = ((96, 64), (64, 96), (80, 80))[int(rng.integers(3))]
        image = cv2.resize(rng.integers(0, 90, (4, 4, 3), dtype=np.uint8), (width, height))
        for _ in range(int(rng.integers(1, 4))):
            category, radius = int(rng.integers(3)), rng.uniform(6, 16, 2)
            center = rng.uniform(radius + 1, np.array([width, height]) - radius - 2)
            angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
            outline = center + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
            cv2.fillPoly(image, [np.rint(outline).astype(np.int32)], colors[category])
            low, high = outline.min(0), outline.max(0)
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": i + 1, "category_id": (1, 17, 44)[category], "iscrowd": 0,
                    "bbox": [round(float(v), 2) for v in (*low, *(high - low + 1))],
                    "area": round(float(np.pi * radius.prod()), 2),
                    "segmentation": [[round(float(v), 2) for v in outline.reshape(-1)]],
                }
            )  # fmt: skip
        name = f"{i + 1:012d}.jpg"
        with open(os.path.join(folder, "images", name), "wb") as file:
            file.write(images.encode(image, ".jpg", 95))
        listed.append({"id": i + 1, "file_name": name, "width": width, "height": height})
    categories = [{"id": k, "name": name} for k, name in ((1, "red"), (17, "green"), (44, "blue"))]
    path = os.path.join(folder, "instances.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"images": listed, "annotations": annotations, "categories": categories}, file)
    return [path]


KINDS: dict[str, Callable[..., list[str]]] = {"digits": digits, "photographs": photographs, "clicks": clicks, "coco": coco}
