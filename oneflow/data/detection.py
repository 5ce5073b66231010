"""Functions over the boxes and polygons of one image.

Boxes are floating (k, 4): x1, y1, x2, y2; points of polygons floating (points, 2): x, y; in pixels.
"""

from __future__ import annotations

import numpy as np

from .._base.extras import cv2
from ..errors import DataError
from ._image_headers import PLAIN_COST
from .images import MAX_PIXELS, flip_of


def flip_boxes(boxes: np.ndarray, width: int, height: int, flip_code: int) -> np.ndarray:
    """Flips boxes with their image: x becomes width - x - 1, ends swapped; y likewise. Codes as in ``images.flip``."""
    horizontal, vertical = flip_of(flip_code)
    flipped = boxes.copy()
    if horizontal:
        flipped[:, 0], flipped[:, 2] = width - boxes[:, 2] - 1, width - boxes[:, 0] - 1
    if vertical:
        flipped[:, 1], flipped[:, 3] = height - boxes[:, 3] - 1, height - boxes[:, 1] - 1
    return flipped


def scale_boxes(boxes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scales boxes: x * scale[0], y * scale[1]; ``scale`` is a result of ``images.scale_of``."""
    return boxes * np.tile(np.asarray(scale, boxes.dtype), 2)


def flip_polygons(points: np.ndarray, width: int, height: int, flip_code: int) -> np.ndarray:
    """Flips points with their image: x becomes width - x, y becomes height - y."""
    horizontal, vertical = flip_of(flip_code)
    flipped = points.copy()
    if horizontal:
        flipped[:, 0] = width - points[:, 0]
    if vertical:
        flipped[:, 1] = height - points[:, 1]
    return flipped


def scale_polygons(points: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scales points: x * scale[0], y * scale[1]."""
    return points * np.asarray(scale, points.dtype)


def polygons_to_mask(
    points: np.ndarray, index: np.ndarray, width: int, height: int, *, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """The mask of the pixels that each instance covers.

    Args:
      points: floating (points, 2); rounded half to even.
      index: integers (points, 3): number of the point in its polygon, of the polygon in its instance, of the instance.
      width: of the image.
      height: of the image.
      max_pixels: of the largest image that is decoded; all masks together may take as much memory as decoding it.
    Returns: int8 (instances, height, width) of 0 and 1; the polygons of one instance are filled together (even-odd).
    Raises: DataError where points and index do not belong together.
    """
    if points.ndim != 2 or points.shape[1] != 2 or index.shape != (len(points), 3):
        raise DataError(f"polygons need points (k, 2) and an index (k, 3), got {points.shape} and {index.shape}")
    if index.dtype.kind not in "iu":
        raise DataError(f"an index of polygons must hold integers, got {index.dtype}")
    if width < 0 or height < 0:
        raise DataError(f"an image cannot have the size {width} x {height}")
    if not len(points):
        return np.zeros((0, height, width), np.int8)
    order, polygon, instance = np.asarray(index, np.int64).T
    if order.min() < 0 or polygon.min() < 0 or instance.min() < 0 or instance[-1] >= len(points):
        raise DataError("an index of polygons holds a negative number, or instances that have no point")
    starts = np.flatnonzero(np.r_[True, (order[1:] == 0) | (np.diff(polygon) != 0) | (np.diff(instance) != 0)])
    rounded = np.rint(points)
    if not np.isfinite(rounded).all() or (abs(rounded) > 1 << 20).any():
        raise DataError("a polygon's point is not a number, or is far outside any image")
    whole = np.split(rounded.astype(np.int32), starts[1:])
    count = int(instance.max()) + 1
    if count > len(points):
        raise DataError("an index of polygons names more instances than there are points")
    most = PLAIN_COST * max_pixels
    if count * height * width > most:
        raise DataError(
            f"masks of {count} instances of {width} x {height} pixels are more than the limit of {most} bytes\n"
            f"  try        flow.config.max_image_pixels(n) raises the limit"
        )
    mask = np.zeros((count, height, width), np.uint8)
    outlines: dict[int, list[np.ndarray]] = {}
    for outline, owner in zip(whole, instance[starts].tolist(), strict=True):
        outlines.setdefault(owner, []).append(outline)
    for owner, mine in outlines.items():
        cv2.fillPoly(mask[owner], mine, 1)
    return mask.view(np.int8)
