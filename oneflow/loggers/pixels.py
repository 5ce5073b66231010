"""Images as loggers send them."""

from __future__ import annotations

import numpy as np

from .._base.refuse import refuse
from ..errors import ShapeError


def one_image(images: np.ndarray) -> np.ndarray:
    """An image or a batch of them, side by side, as uint8 (height, width, channels); floats are in [0, 1]."""
    if images.dtype != np.uint8:
        images = (np.clip(images, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    return _channels_last(images)


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    """One image (height, width, channels) of an image or a batch in any of the usual orders of axes."""
    if pixels.ndim == 4:
        return np.concatenate([_channels_last(image) for image in pixels], axis=1)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    elif pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4):  # a batch of gray ones
        return np.concatenate([_channels_last(image) for image in pixels], axis=1)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3:
        refuse(ShapeError, f"images must have 2, 3 or 4 axes, got shape {pixels.shape}")
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
