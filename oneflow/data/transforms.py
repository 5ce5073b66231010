"""Random changes of images for ``ArrayLoader(transform=...)``: a batch at a time, with numbers of its own generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base import check
from .._base.refuse import refuse, shown
from .._base.terse_repr import terse_repr
from ..errors import ArgumentError, ShapeError


class ImageTransform:
    """Base of transforms that change the images of a batch: its first array, and leave the others alone.

    Args:
      data_format: ``"NCHW"`` or ``"NHWC"``; images of three axes are (batch, height, width).
      key: of the images, where a batch is a dictionary; None: its first entry.
    """

    def __init__(self, data_format: str = "NCHW", key: str | None = None):
        self.data_format = check.checked(self, "data_format", check.choice(data_format, ("NCHW", "NHWC")))
        self.key = check.checked(self, "key", check.name(key, optional=True))

    def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
        """The batch with other images."""
        if isinstance(batch, Mapping):
            key = next(iter(batch)) if self.key is None else self.key
            if key not in batch:
                found = [("it has", ", ".join(map(str, batch)))]
                refuse(ArgumentError, f"{type(self).__name__}: the batch has no entry {key!r}", found=found)
            return {**batch, key: self.changed(self._checked(batch[key]), rng)}
        if isinstance(batch, (tuple, list)):
            return (self.changed(self._checked(batch[0]), rng), *batch[1:])
        return self.changed(self._checked(batch), rng)

    def __repr__(self) -> str:
        return terse_repr(self)

    def changed(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The images that take the place of these; to be overridden."""
        raise NotImplementedError

    def _checked(self, images: Any) -> np.ndarray:
        array = np.asarray(images)
        if array.ndim not in (3, 4):
            refuse(ShapeError, f"{type(self).__name__} takes images of 3 or 4 axes, {self.data_format}, got shape {array.shape}")
        return array

    def _height_axis(self, images: np.ndarray) -> int:
        """The axis of the height; that of the width follows."""
        return 2 if images.ndim == 4 and self.data_format == "NCHW" else 1


class RandomHorizontalFlip(ImageTransform):
    """Mirrors each image, left and right, with a probability.

    Args:
      p: the probability, in [0, 1].
      data_format, key: where the images and their axes are: ``"NCHW"`` or ``"NHWC"``; the key of the images in a dictionary.
    Raises:
      ArgumentError: an argument outside its range.
    Example:
      >>> images, labels = np.zeros((60, 3, 32, 32), np.float32), np.zeros(60, np.int32)
      >>> augment = [flow.data.RandomCrop(32, padding=4), flow.data.RandomHorizontalFlip()]
      >>> loader = flow.data.ArrayLoader((images, labels), 20, shuffle=True, transform=augment)
    """

    def __init__(self, p: float = 0.5, data_format: str = "NCHW", key: str | None = None):
        super().__init__(data_format, key)
        self.p = check.checked(self, "p", check.number(p, low=0, high=1))

    def changed(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The images, some of them mirrored."""
        chosen = rng.random(len(images)) < self.p
        made = images.copy()
        made[chosen] = np.flip(images[chosen], self._height_axis(images) + 1)
        return made


class RandomCrop(ImageTransform):
    """Cuts a piece out of each image at a random place; with padding, images of their own size are shifted.

    Args:
      size: of the piece: an int, or (height, width), >= 1.
      padding: pixels that are added on each side before, >= 0.
      fill: the value of these.
      data_format, key: where the images and their axes are: ``"NCHW"`` or ``"NHWC"``; the key of the images in a dictionary.
    Raises:
      ArgumentError: an argument outside its range; (by a batch) ``fill`` is not a value of its images' dtype.
      ShapeError: (by a batch) its images are smaller than the piece.
    Example: >>> flow.data.RandomCrop(32, padding=4)
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int = 0,
        fill: float = 0.0,
        data_format: str = "NCHW",
        key: str | None = None,
    ):
        super().__init__(data_format, key)
        pair = list(size) if isinstance(size, (tuple, list)) else [size, size]
        if len(pair) != 2:
            refuse(ArgumentError, f"RandomCrop: size must be an int or (height, width), got {shown(size)}")
        self.size = tuple(check.checked(self, "size", check.integer(n, low=1)) for n in pair)
        self.padding = check.checked(self, "padding", check.integer(padding, low=0))
        self.fill = check.checked(self, "fill", check.number(fill))

    def changed(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The pieces."""
        first, more = self._height_axis(images), self.padding
        if more:
            around = [(more, more) if axis in (first, first + 1) else (0, 0) for axis in range(images.ndim)]
            images = np.pad(images, around, constant_values=self._fill_of(images.dtype))
        room = [images.shape[first + i] - n for i, n in enumerate(self.size)]
        if min(room) < 0:
            height, width = images.shape[first], images.shape[first + 1]
            refuse(ShapeError, f"RandomCrop: images of {height} x {width} hold no piece of {self.size[0]} x {self.size[1]}",
                   hint="a smaller size, or padding=")  # fmt: skip
        down, right = (rng.integers(0, n + 1, len(images)) for n in room)
        windows = np.lib.stride_tricks.sliding_window_view(images, self.size, (first, first + 1))
        each = np.arange(len(images))
        if first == 1:  # (images, rows, columns, channels?, height, width)
            pieces = windows[each, down, right]
            return np.moveaxis(pieces, 1, -1).copy() if pieces.ndim == 4 else pieces
        return windows[each, :, down, right]

    def _fill_of(self, dtype: np.dtype) -> np.ndarray:
        """The fill as a value of the images' dtype."""
        is_whole = np.isfinite(self.fill) and self.fill == int(self.fill)
        if dtype.kind in "iu" and not (is_whole and np.iinfo(dtype).min <= self.fill <= np.iinfo(dtype).max):
            refuse(ArgumentError, f"RandomCrop: fill={self.fill:g} is not a value of {dtype} images")
        return np.asarray(self.fill).astype(dtype)


class Normalize(ImageTransform):
    """(images - mean) / std, per channel, as float32.

    Args:
      mean, std: a number, or one for each channel; std > 0. They are in the units of the images: 0 to 255 for uint8.
      data_format, key: where the images and their axes are: ``"NCHW"`` or ``"NHWC"``; the key of the images in a dictionary.
    Raises:
      ArgumentError: an argument outside its range.
      ShapeError: (by a batch) its images have another number of channels.
    Example: >>> flow.data.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4])
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], data_format: str = "NCHW", key: str | None = None
    ):
        super().__init__(data_format, key)
        self.mean, self.std = self._numbers("mean", mean), self._numbers("std", std)
        if not (self.std > 0).all() or (self.mean.size > 1 and self.std.size > 1 and self.mean.size != self.std.size):
            refuse(ArgumentError, f"Normalize: std must be numbers > 0, as many as mean, got {shown(std)}")

    def _numbers(self, argument: str, given: Any) -> np.ndarray:
        is_several = isinstance(given, (tuple, list)) or (isinstance(given, np.ndarray) and given.ndim == 1)
        each = list(given) if is_several else [given]
        numbers = [check.checked(self, argument, check.number(n, finite=True)) for n in each]
        if not numbers:
            refuse(ArgumentError, f"Normalize: {argument} must be a number or one for each channel, got {shown(given)}")
        return np.array(numbers, np.float32)

    def changed(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The images, normalized."""
        axis = 1 if self.data_format == "NCHW" else -1
        channels = images.shape[axis] if images.ndim == 4 else 1
        if any(numbers.size not in (1, channels) for numbers in (self.mean, self.std)):
            count = max(self.mean.size, self.std.size)
            refuse(ShapeError, f"Normalize was given {count} channels, and the images {images.shape} have {channels}")
        spread = (-1, 1, 1) if axis == 1 and images.ndim == 4 else (-1,)
        made: np.ndarray = (images.astype(np.float32) - self.mean.reshape(spread)) / self.std.reshape(spread)
        return made


class Composed:
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Any]):
        self._transforms = list(transforms)

    def __repr__(self) -> str:
        return f"Composed({self._transforms!r})"

    def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
        for transform in self._transforms:
            batch = transform(batch, rng)
        return batch
