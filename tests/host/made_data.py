"""Small data sets, made for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import oneflow as flow
from oneflow.core.record import record_pb2 as pb


def feature(value: Any) -> pb.Feature:
    """Bytes, or a list of floats or of ints."""
    if isinstance(value, bytes):
        return pb.Feature(bytes_list=pb.BytesList(value=[value]))
    array = np.atleast_1d(np.asarray(value))
    if array.dtype.kind == "f":
        return pb.Feature(float_list=pb.FloatList(value=array))
    if array.dtype == np.int64:
        return pb.Feature(int64_list=pb.Int64List(value=array))
    return pb.Feature(int32_list=pb.Int32List(value=array))


def write(folder: Path, parts: list[list[dict[str, Any]]], prefix: str = "part-") -> str:
    """Parts of records of features; the folder's name."""
    folder.mkdir(exist_ok=True, parents=True)
    for number, records in enumerate(parts):
        with flow.data.PartWriter(folder / f"{prefix}{number}") as writer:
            for record in records:
                writer.write(pb.OFRecord(feature={name: feature(value) for name, value in record.items()}))
    return str(folder)


def numbered(folder: Path, parts: int = 3, each: int = 8) -> str:
    """Records with one number, ``i``, counted through."""
    return write(folder, [[{"i": np.int32(part * each + k)} for k in range(each)] for part in range(parts)])


def photograph(i: int, height: int = 60, width: int = 80) -> np.ndarray:
    """A smooth image, BGR."""
    small = np.random.default_rng(i).integers(0, 256, (6, 8, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def encoded(image: np.ndarray, kind: str = ".jpg") -> bytes:
    return cv2.imencode(kind, image)[1].tobytes()


def image_parts(
    folder: Path, count: int = 24, parts: int = 3, size: Callable[[int], tuple[int, int]] = lambda i: (60 + i, 80)
) -> str:
    """JPEG photographs of different sizes, ``encoded``, with a ``label``."""
    records = [{"encoded": encoded(photograph(i, *size(i))), "label": np.int32(i)} for i in range(count)]
    each = count // parts
    return write(folder, [records[k * each : (k + 1) * each] for k in range(parts)])


def coco(folder: Path, count: int = 8) -> tuple[str, str]:
    """A COCO data set: images with a filled rectangle or two each. Returns (annotation file, image directory)."""
    images_dir = folder / "images"
    images_dir.mkdir(parents=True)
    images, annotations = [], []
    rng = np.random.default_rng(0)
    for i in range(count):
        height, width = (48, 64) if i % 2 else (64, 48)
        photo = np.full((height, width, 3), 32, np.uint8)
        for k in range(1 + i % 2):
            x, y, w, h = (int(rng.integers(low, high)) for low, high in ((0, 16), (0, 16), (12, 24), (12, 24)))
            category = 5 + 3 * k
            photo[y : y + h, x : x + w] = (0, 255 * k, 255)
            polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
            annotations.append({"id": len(annotations) + 1, "image_id": 100 + i, "category_id": category, "bbox": [x, y, w, h],
                                "area": w * h, "iscrowd": 0, "segmentation": [polygon]})  # fmt: skip
        cv2.imwrite(str(images_dir / f"{i}.png"), photo)
        images.append({"id": 100 + i, "file_name": f"{i}.png", "height": height, "width": width})
    categories = [{"id": 5, "name": "red"}, {"id": 8, "name": "yellow"}]
    path = folder / "annotations.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return str(path), str(images_dir)
