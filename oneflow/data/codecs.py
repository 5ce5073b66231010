"""``decode_ofrecord``'s BlobConf, codecs and preprocessors; ``decode_blob`` applies one to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._dtype import dtype as Dtype
from .records import Records


class RawCodec:
    def __init__(self, auto_zero_padding: bool = False) -> None: ...


class BytesListCodec:
    def __init__(self) -> None: ...


class ImagePreprocessor:
    def __init__(self, preprocessor: str) -> None: ...


class ImageResizePreprocessor:
    def __init__(self, width: int, height: int) -> None: ...


class ImageCodec:
    def __init__(self, image_preprocessors: Sequence[Any] | None = None) -> None: ...


class NormByChannelPreprocessor:
    def __init__(
        self, mean_values: Sequence[float], std_values: Sequence[float] = (1.0, 1.0, 1.0), data_format: str = "channels_last"
    ) -> None: ...


class BlobConf:
    def __init__(
        self, name: str, shape: Sequence[int], dtype: Dtype, codec: Any, preprocessors: Sequence[Any] | None = None
    ) -> None: ...


def decode_blob(records: Records, conf: BlobConf, mirror: np.ndarray | None = None) -> np.ndarray:
    """(N,) + conf.shape of conf.dtype; ``mirror`` (N,) says which pictures a "mirror" preprocessor flips."""
    raise NotImplementedError
