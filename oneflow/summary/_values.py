"""Summary messages of values, as TensorBoard reads them."""

from __future__ import annotations

import contextlib
import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from .._base.extras import need
from ._writer import proto


def metadata(plugin: str, content: bytes = b"") -> Any:
    """The metadata of a value, which tell TensorBoard's pages which values are theirs."""
    summary_metadata = proto("summary").SummaryMetadata
    return summary_metadata(plugin_data=summary_metadata.PluginData(plugin_name=plugin, content=content))


def scalar(tag: str, value: float) -> Any:
    """A number, rounded to float32."""
    summary = proto("summary").Summary
    return summary(value=[summary.Value(tag=tag, simple_value=value, metadata=metadata("scalars"))])


@lru_cache(maxsize=1)
def _limits() -> np.ndarray:
    """TensorFlow's limits of buckets: each is 1.1 times the one before, from 1e-12 to 1e20, on both sides of 0."""
    positive, at = [], 1e-12
    while at < 1e20:
        positive.append(at)
        at *= 1.1
    return np.array([-np.finfo(np.float64).max, *(-v for v in reversed(positive)), 0.0, *positive, np.finfo(np.float64).max])


def histogram(tag: str, values: np.ndarray) -> Any:
    """How the finite elements of an array are distributed."""
    wide = values.reshape(-1).astype(np.float64)
    wide = wide[np.isfinite(wide)]
    found = proto("summary").HistogramProto(num=wide.size)
    if wide.size:
        wide.sort()  # and looking up the limits among the values is several times faster than the reverse
        limits = _limits()
        below = np.searchsorted(wide, limits, side="left")  # how many there are below each limit
        below[-1] = wide.size
        counts = np.diff(below, prepend=0)
        used = np.flatnonzero(counts)
        first, last = max(used[0] - 1, 0), used[-1]  # an empty bucket in front says where the first one begins
        with np.errstate(over="ignore"):
            found.min, found.max, found.sum, found.sum_squares = wide[0], wide[-1], wide.sum(), np.dot(wide, wide)
        found.bucket_limit.extend(limits[first : last + 1].tolist())
        found.bucket.extend(counts[first : last + 1].tolist())
    summary = proto("summary").Summary
    return summary(value=[summary.Value(tag=tag, histo=found, metadata=metadata("histograms"))])


def images(tag: str, pixels: np.ndarray) -> Any:
    """Images (N, H, W, C) as PNG files; of several, each has its number behind the tag."""
    summary = proto("summary").Summary
    values = []
    for i, image in enumerate(pixels):
        file = io.BytesIO()
        Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "PNG")
        height, width, channels = image.shape
        encoded = summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=file.getvalue())
        name = tag if len(pixels) == 1 else f"{tag}{i}"
        values.append(summary.Value(tag=name, image=encoded, metadata=metadata("images")))
    return summary(value=values)


def message(data: bytes) -> Any:
    """A Summary message of its text, which ``str(message)`` gives, or of its own bytes. Raises ValueError for other bytes."""
    text_format = need("google.protobuf.text_format", "flow.summary")
    summary = proto("summary").Summary
    try:
        return text_format.Parse(data.decode("utf-8", "replace"), summary())
    except text_format.ParseError as error:
        with contextlib.suppress(need("google.protobuf.message", "flow.summary").DecodeError):
            if (found := summary.FromString(data)).value:  # by chance other bytes are fields that nobody knows
                return found
        raise ValueError(str(error)) from error
