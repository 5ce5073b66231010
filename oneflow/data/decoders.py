"""From records to arrays: pure functions of a batch. ``feature`` is the feature's name in the record."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from .crops import RandomWindows
from .records import Records


def decode_raw(
    records: Records,
    feature: str,
    shape: Sequence[int],
    dtype: np.dtype,
    *,
    dim1_varying_length: bool = False,
    auto_zero_padding: bool = False,
) -> np.ndarray:
    """(N,) + shape; numbers cast to dtype, raw bytes read as int8 first. Raises FeatureError."""
    raise NotImplementedError


def decode_bytes(records: Records, feature: str) -> list[np.ndarray]:
    """N arrays uint8 (L,), views."""
    raise NotImplementedError


def decode_image(
    records: Records, feature: str, color_space: str = "BGR", *, pool: Executor | None = None, corrupt: str = "raise"
) -> list[np.ndarray | None]:
    """N arrays uint8 (H, W, C). With corrupt="skip" a picture that cannot be decoded is None, else it raises ImageError."""
    raise NotImplementedError


def decode_image_random_crop(
    records: Records, feature: str, windows: RandomWindows, call: int, color_space: str = "BGR", *, pool: Executor | None = None,
    corrupt: str = "raise",
) -> list[np.ndarray | None]:  # fmt: skip
    """As decode_image, each cut to a random window; ``call`` is the number of this batch (the only state there is)."""
    raise NotImplementedError
