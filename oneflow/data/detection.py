"""Boxes and polygons of one picture: boxes float32 (k, 4) as x1 y1 x2 y2, polygons float32 (points, 2)."""

from __future__ import annotations

import numpy as np


def flip_boxes(boxes: np.ndarray, width: int, height: int, flip_code: int) -> np.ndarray:
    raise NotImplementedError


def scale_boxes(boxes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    raise NotImplementedError


def flip_polygons(points: np.ndarray, width: int, height: int, flip_code: int) -> np.ndarray:
    raise NotImplementedError


def scale_polygons(points: np.ndarray, scale: np.ndarray) -> np.ndarray:
    raise NotImplementedError


def polygons_to_mask(points: np.ndarray, index: np.ndarray, width: int, height: int) -> np.ndarray:
    """int8 (instances, height, width); ``index`` int32 (points, 3): point in polygon, polygon in instance, instance."""
    raise NotImplementedError
