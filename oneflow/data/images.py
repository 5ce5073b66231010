"""Pictures, one at a time: arrays HWC (uint8 or float32, 1 or 3 channels) in, arrays out. Pixels are OpenCV's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def decode(data: bytes | np.ndarray, color_space: str = "BGR", dtype: type = np.uint8) -> np.ndarray:
    """An encoded picture as HWC. Raises ImageError."""
    raise NotImplementedError


def resize(image: np.ndarray, width: int, height: int, interpolation: str = "auto") -> np.ndarray:
    """(height, width, C), dtype of the input."""
    raise NotImplementedError


def kept_aspect_size(width: int, height: int, target: int, min_size: int, max_size: int, side: str) -> tuple[int, int]:
    """(new width, new height)."""
    raise NotImplementedError


def to_dtype(image: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """uint8 rounds and saturates."""
    raise NotImplementedError


def crop_mirror_normalize(
    image: np.ndarray, out: np.ndarray, *, mirror: bool, crop_pos_y: float, crop_pos_x: float, mean: Sequence[float],
    std: Sequence[float], layout: str,
) -> None:  # fmt: skip
    """Writes one sample, float32, into ``out`` (C, h, w) or (h, w, C)."""
    raise NotImplementedError


def flip(image: np.ndarray, flip_code: int) -> np.ndarray:
    """0 none, 1 horizontal, 16 vertical, 17 both."""
    raise NotImplementedError


def normalize(image: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """(v - mean) / std per channel; float32 and float64."""
    raise NotImplementedError


def batch_align(images: Sequence[np.ndarray], shape: Sequence[int], dtype: np.dtype, alignment: int) -> np.ndarray:
    """(N, H, W, C) with H and W the batch's maxima, rounded up."""
    raise NotImplementedError
