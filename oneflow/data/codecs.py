"""``decode_ofrecord``'s BlobConf, codecs and preprocessors. ``decode_blob`` applies one BlobConf to a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from .._base import check
from .._base.dtype import as_dtype
from .._base.dtype import dtype as Dtype
from .._base.extras import cv2
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, FeatureError, ImageError, ModeError
from . import images
from ._fault import fault
from .decoders import bytes_values, decode_bytes, decode_raw
from .records import Records

_LONGEST_SIDE = 32767  # of an image that OpenCV resizes, in pixels


class _Described:
    """The base of codecs and preprocessors, which OneFlow sends to its C++ readers as messages."""

    def to_proto(self, proto: Any = None) -> NoReturn:
        """Raises ModeError: there is no C++ reader to send a message to."""
        refuse(ModeError, f"{type(self).__name__}.to_proto makes a message for OneFlow's C++ readers, which do not exist here",
               hint="pass the object itself to flow.data.decode_ofrecord")  # fmt: skip


@dataclass(frozen=True)
class RawCodec(_Described):
    """A list of numbers, or raw bytes.

    Args:
      auto_zero_padding: shorter lists are accepted, and padded with zeros.
      truncate: longer lists are cut, too.
    Example: >>> flow.data.BlobConf("dense", (13,), flow.float32, flow.data.RawCodec())
    """

    auto_zero_padding: bool = False
    truncate: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class BytesListCodec(_Described):
    """Several strings of bytes, each in a slot of shape[1:] elements, padded with zeros. Dtype char or int8."""


@dataclass(frozen=True)
class ImagePreprocessor(_Described):
    """Swaps the channels of an image ("bgr2rgb"), or mirrors it with probability 1/2 ("mirror")."""

    preprocessor: str

    def __post_init__(self) -> None:
        if not isinstance(self.preprocessor, str) or self.preprocessor.lower() not in ("bgr2rgb", "mirror"):
            refuse(ArgumentError, f'ImagePreprocessor must be "bgr2rgb" or "mirror", got {shown(self.preprocessor)}')
        object.__setattr__(self, "preprocessor", self.preprocessor.lower())


@dataclass(frozen=True)
class ImageResizePreprocessor(_Described):
    """Resizes an image, bilinear. Args: width and height of the result, in pixels."""

    width: int
    height: int

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            _, problem = check.integer(getattr(self, name), low=1, high=_LONGEST_SIDE)
            if problem:
                refuse(ArgumentError, f"ImageResizePreprocessor's {name} {problem}")


@dataclass(frozen=True)
class ImageCodec(_Described):
    """One encoded image, decoded to BGR or gray, whichever it is, then preprocessed in order.

    Args:
      image_preprocessors: of ImageResizePreprocessor and ImagePreprocessor.
    Example: >>> flow.data.ImageCodec([flow.data.ImageResizePreprocessor(224, 224), flow.data.ImagePreprocessor("bgr2rgb")])
    """

    image_preprocessors: Sequence[ImageResizePreprocessor | ImagePreprocessor] | None = None

    def __post_init__(self) -> None:
        steps = _steps("image_preprocessors", self.image_preprocessors)
        for step in steps:
            if not isinstance(step, (ImageResizePreprocessor, ImagePreprocessor)):
                refuse(
                    ArgumentError, f"image_preprocessors takes ImageResizePreprocessor and ImagePreprocessor, got {shown(step)}"
                )
        object.__setattr__(self, "image_preprocessors", steps)

    @property
    def mirrors(self) -> bool:
        """Whether it needs random numbers."""
        return any(isinstance(s, ImagePreprocessor) and s.preprocessor == "mirror" for s in self.image_preprocessors or ())


@dataclass(frozen=True)
class NormByChannelPreprocessor(_Described):
    """(v - mean[c]) / std[c] on a decoded blob.

    Args:
      mean_values: one per channel.
      std_values: one per channel.
      data_format: of a sample: "channels_last", "channels_first", or "no_channel": one mean for all values.
    """

    mean_values: Sequence[float]
    std_values: Sequence[float] = (1.0, 1.0, 1.0)
    data_format: str = "channels_last"

    def __post_init__(self) -> None:
        if not isinstance(self.data_format, str) or self.data_format not in ("channels_last", "channels_first", "no_channel"):
            found = shown(self.data_format)
            refuse(ArgumentError, f'data_format must be "channels_last", "channels_first" or "no_channel", got {found}')
        for name in ("mean_values", "std_values"):
            values = getattr(self, name)
            if not isinstance(values, (list, tuple)) or any(check.number(v)[1] for v in values):
                refuse(ArgumentError, f"{name} must be a list or tuple of numbers, got {shown(values)}")
            object.__setattr__(self, name, tuple(map(float, values)))

    def check(self, shape: Sequence[int]) -> None:
        """Raises ArgumentError unless the numbers of means and stds are the number of channels of a sample of this shape."""
        if self.data_format == "no_channel":
            channels = 1
        elif len(shape) == 0:
            refuse(ArgumentError, f"NormByChannelPreprocessor with {self.data_format} needs samples with a channel axis")
        else:
            channels = shape[-1 if self.data_format == "channels_last" else 0]
        stds = channels if set(self.std_values) == {1.0} else len(self.std_values)  # the default is for three channels
        if len(self.mean_values) != channels or stds != channels:
            refuse(
                ArgumentError, f"{channels} channels need as many means and stds, got {len(self.mean_values)} and {stds}",
                found=[("shape", str(tuple(shape))), ("format", self.data_format)],
            )  # fmt: skip

    def apply(self, batch: np.ndarray) -> np.ndarray:
        """Normalizes a batch (N,) + shape. Returns its dtype."""
        kind = batch.dtype if batch.dtype.kind == "f" else np.float32
        stds = (1.0,) * len(self.mean_values) if set(self.std_values) == {1.0} else self.std_values
        mean, std = np.asarray(self.mean_values, kind), np.asarray(stds, kind)
        if self.data_format == "channels_first":
            mean, std = (a.reshape(-1, *(1,) * (batch.ndim - 2)) for a in (mean, std))
        return ((batch - mean) / std).astype(batch.dtype, copy=False)


@dataclass(frozen=True)
class BlobConf(_Described):
    """How one feature becomes a blob.

    Args:
      name: of the feature.
      shape: of one sample.
      dtype: of the blob.
      codec: RawCodec, ImageCodec or BytesListCodec.
      preprocessors: NormByChannelPreprocessors, applied in order to the decoded batch.
    Raises: ArgumentError.
    Example: >>> flow.data.BlobConf("label", (), flow.int32, flow.data.RawCodec())
    """

    name: str
    shape: Sequence[int]
    dtype: Dtype
    codec: RawCodec | ImageCodec | BytesListCodec
    preprocessors: Sequence[NormByChannelPreprocessor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            refuse(ArgumentError, f"BlobConf's name must be a str, got {shown(self.name)}")
        if not isinstance(self.shape, (list, tuple)) or not all(_is_size(n) for n in self.shape):
            refuse(
                ArgumentError,
                f"BlobConf's shape must be a list or tuple of ints > 0, without the batch axis, got {shown(self.shape)}",
            )
        try:
            as_dtype(self.dtype)
        except ArgumentError as error:
            refuse(ArgumentError, f"BlobConf's {error}")
        if not isinstance(self.codec, (RawCodec, ImageCodec, BytesListCodec)):
            refuse(ArgumentError, f"BlobConf's codec must be a RawCodec, ImageCodec or BytesListCodec, got {shown(self.codec)}")
        if isinstance(self.codec, ImageCodec) and len(self.shape) != 3:
            refuse(ArgumentError, f"an ImageCodec needs a shape of height, width and channels, got {tuple(self.shape)}")
        if isinstance(self.codec, BytesListCodec) and (self.dtype.name not in ("char", "int8") or not self.shape):
            refuse(ArgumentError, f"a BytesListCodec makes char or int8 in slots, got {self.dtype} {tuple(self.shape)}")
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "preprocessors", _steps("preprocessors", self.preprocessors))
        for step in self.preprocessors or ():
            if not isinstance(step, NormByChannelPreprocessor):
                hint = "it belongs to ImageCodec(image_preprocessors=[...])" if hasattr(step, "__dataclass_fields__") else ""
                refuse(ArgumentError, f"BlobConf's preprocessors are NormByChannelPreprocessors, got {shown(step)}", hint=hint)
            step.check(self.shape)


def _steps(argument: str, value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, (list, tuple)):
        refuse(ArgumentError, f"{argument} must be a list or tuple, got {shown(value)}")
    return tuple(value or ())


def _is_size(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) > 0


def decode_blob(
    records: Records,
    conf: BlobConf,
    mirror: np.ndarray | None = None,
    *,
    pool: Executor | None = None,
    max_pixels: int = images.MAX_PIXELS,
) -> np.ndarray:
    """Decodes one blob of a batch of N records.

    Args:
      records: the batch.
      conf: describes the blob.
      mirror: (N,), non-zero for images that an ImagePreprocessor("mirror") flips (see ``coin_flips``).
      pool: images are decoded in these threads; None: in the caller's.
      max_pixels: of the largest image that is decoded.
    Returns: (N,) + conf.shape, of conf.dtype.
    Raises: FeatureError, ImageError, RecordError.
    """
    if isinstance(conf.codec, RawCodec):
        wanted = conf.dtype.numpy_dtype
        raw = np.dtype(np.float32) if wanted.itemsize == 2 else wanted
        codec = conf.codec
        batch = decode_raw(
            records, conf.name, conf.shape, raw, auto_zero_padding=codec.auto_zero_padding, truncate=codec.truncate
        ).astype(wanted, copy=False)
    elif isinstance(conf.codec, BytesListCodec):
        batch = _decode_strings(records, conf)
    else:
        batch = _decode_images(records, conf, conf.codec, mirror, pool, max_pixels)
    for step in conf.preprocessors or ():
        batch = step.apply(batch)
    return batch


def _decode_strings(records: Records, conf: BlobConf) -> np.ndarray:
    slots, size = conf.shape[0], math.prod(conf.shape[1:])
    batch, found = np.zeros((len(records), slots, size), np.int8), records.find(conf.name)
    for i in range(len(records)):
        values = bytes_values(records, conf.name, found, i)
        longest = max(map(len, values), default=0)
        if len(values) > slots or longest > size:
            raise fault(
                FeatureError, "a record's bytes_list does not fit into the blob's slots", records.where(i), feature=conf.name,
                expected=f"{slots} values of {size} bytes at most", found=f"{len(values)} values, the longest of {longest} bytes",
            )  # fmt: skip
        for place, value in zip(batch[i], values, strict=False):
            place[: len(value)] = value.view(np.int8)
    return batch.reshape(len(records), *conf.shape)


def _decode_images(
    records: Records, conf: BlobConf, codec: ImageCodec, mirror: np.ndarray | None, pool: Executor | None, max_pixels: int
) -> np.ndarray:
    if codec.mirrors and mirror is None:
        refuse(ArgumentError, 'ImagePreprocessor("mirror") needs mirror=, which says which images to flip')
    encoded = decode_bytes(records, conf.name)
    batch = np.empty((len(records), *conf.shape), conf.dtype.numpy_dtype)

    def one(i: int) -> None:
        try:
            image = images.read(encoded[i], cv2.IMREAD_ANYCOLOR, max_pixels=max_pixels)
            for step in codec.image_preprocessors or ():
                if isinstance(step, ImageResizePreprocessor):
                    image = cv2.resize(image, (step.width, step.height), interpolation=cv2.INTER_LINEAR)
                elif step.preprocessor == "bgr2rgb":
                    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if image.ndim == 3 else image
                elif mirror is not None and mirror[i]:
                    image = cv2.flip(image, 1)
            batch[i] = _with_channels(image, conf.shape)
        except ImageError as error:
            raise fault(ImageError, str(error), records.where(i), feature=conf.name) from error

    for _ in pool.map(one, range(len(encoded))) if pool is not None else map(one, range(len(encoded))):
        pass
    return batch


def _with_channels(image: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    channels = 1 if image.ndim == 2 else image.shape[2]
    if image.shape[:2] != tuple(shape[:2]):
        raise ImageError(
            f"an image of {image.shape[0]} x {image.shape[1]} (height x width) does not have the blob's shape {tuple(shape)}\n"
            f"  try        resize it with ImageResizePreprocessor({shape[1]}, {shape[0]})"
        )
    if channels == 3 and shape[2] == 1:
        image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    elif channels == 1 and shape[2] == 3:
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    elif channels != shape[2]:
        raise ImageError(f"an image of {channels} channels cannot become one of {shape[2]}")
    return image.reshape(shape)
