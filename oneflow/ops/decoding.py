"""Decoders: from records, or from encoded images, to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import shown
from ..config import Resource
from ..data import decoders
from ..data.crops import RandomWindows
from ..data.images import COLOR_SPACES
from ..data.records import Records
from ..errors import ArgumentError, DtypeError
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail, want
from ._host import (
    each,
    emit_host,
    here,
    host_op,
    want_bool,
    want_buffer,
    want_dtype,
    want_floats,
    want_int,
    want_one_axis,
    want_shape,
    want_str,
)
from ._names import DefaultName, given_name
from .dropout import want_seed

Array = Any
Windows = tuple[tuple[str, Any], ...]
AREA, ASPECT_RATIO = (0.08, 1.0), (0.75, 1.333333)
NUMERIC = (
    dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.char,
)  # fmt: skip


def _want_records(what: str, value: Any) -> Blob:
    blob = want.blob(what, "input_blob", value)
    if blob.dtype != dtypes.record:
        fail(DtypeError, what, f"input_blob must be of records, got {blob.describe()}", (blob,),
             "make it with flow.data.ofrecord_reader")  # fmt: skip
    return here(what, blob)


@host_op("ofrecord_raw_decoder", per_sample=True)
def _raw(records: Records, *, feature: str, shape: tuple[int, ...], dtype: np.dtype, shorter: bool, longer: bool) -> Array:
    return decoders.decode_raw(records, feature, shape, dtype, dim1_varying_length=shorter, truncate=longer)


def OFRecordRawDecoder(
    input_blob: Blob,
    blob_name: str,
    shape: Sequence[int],
    dtype: dtype,
    dim1_varying_length: bool = False,
    auto_zero_padding: bool = False,
    name: str | None = None,
) -> Blob:
    """The numbers of one feature of the records.

    Args:
      input_blob: records (N,).
      blob_name: name of the feature: a list of numbers, as many as ``shape`` has elements, or one bytes value, whose bytes are
        read as int8.
      shape: of a sample; () for one number.
      dtype: of the result: float32, float64, int8, int32, int64, uint8 or char; numbers are cast to it.
      dim1_varying_length, auto_zero_padding: whether shorter lists are accepted; zeros follow them.
      name: name of the op; made unique when omitted.
    Returns: Blob of ``(N,) + shape``, without a gradient.
    Raises: DtypeError, ArgumentError; FeatureError at the call whose records lack it.
    Example: >>> labels = flow.data.OFRecordRawDecoder(records, "class/label", shape=(), dtype=flow.int32)
    """
    return raw_decoder(input_blob, blob_name, shape, dtype, name, {
        "dim1_varying_length": dim1_varying_length, "auto_zero_padding": auto_zero_padding,
    })  # fmt: skip


def raw_decoder(
    input_blob: Blob, blob_name: str, shape: Sequence[int], dtype: dtype, name: str | None, flags: dict[str, Any]
) -> Blob:
    """``OFRecordRawDecoder``; the flags are its own, or ``truncate``: longer lists are cut, and shorter ones accepted."""
    what = label("ofrecord_raw_decoder", name)
    records = _want_records(what, input_blob)
    kind, sizes = want_dtype(what, "dtype", dtype, NUMERIC), want_shape(what, "shape", shape)
    given = {flag: want_bool(what, flag, value) for flag, value in flags.items()}
    return emit_host(
        _raw, records, outputs=[((*records.shape, *sizes), kind)], name=name, prefix="OFRecordRawDecoder",
        feature=want_str(what, "blob_name", blob_name), shape=sizes, dtype=kind.numpy_dtype, 
        shorter=any(given.values()), longer=given.get("truncate", False),
    )[0]  # fmt: skip


@host_op("ofrecord_bytes_decoder", per_sample=True)
def _bytes(records: Records, *, feature: str) -> list[Array]:
    return decoders.decode_bytes(records, feature)


def OFRecordBytesDecoder(input_blob: Blob, blob_name: str, name: str | None = None) -> Blob:
    """The bytes of one feature of the records, which has one bytes value.

    Args:
      input_blob: records (N,).
      blob_name: name of the feature.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,), each uint8 (length,).
    Raises: DtypeError, ArgumentError; FeatureError at the call whose records lack it.
    Example: >>> encoded = flow.data.OFRecordBytesDecoder(records, "encoded")
    """
    what = label("ofrecord_bytes_decoder", name)
    records = _want_records(what, input_blob)
    return emit_host(
        _bytes, records, outputs=[(records.shape, dtypes.tensor_buffer)], name=name, prefix="OFRecordBytesDecoder",
        feature=want_str(what, "blob_name", blob_name),
    )[0]  # fmt: skip


@host_op("ofrecord_image_decoder", per_sample=True)
def _image(records: Records, *, feature: str, color_space: str) -> list[Array]:
    return decoders.decode_image(records, feature, color_space, max_pixels=Resource.max_image_pixels)


def OFRecordImageDecoder(input_blob: Blob, blob_name: str, color_space: str = "BGR", name: str | None = None) -> Blob:
    """The images of one feature of the records, decoded by OpenCV.

    Args:
      input_blob: records (N,).
      blob_name: name of the feature: one bytes value, a JPEG, PNG or other image.
      color_space: "BGR", "RGB" or "GRAY".
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,), each uint8 (H, W, 3), or (H, W, 1) for "GRAY".
    Raises: DtypeError, ArgumentError; FeatureError, ImageError at the call that meets them.
    Example: >>> images = flow.data.OFRecordImageDecoder(records, "encoded", color_space="RGB")
    """
    what = label("ofrecord_image_decoder", name)
    records = _want_records(what, input_blob)
    return emit_host(
        _image, records, outputs=[(records.shape, dtypes.tensor_buffer)], name=name, prefix="OFRecordImageDecoder",
        feature=want_str(what, "blob_name", blob_name), color_space=want.choice(what, "color_space", color_space, COLOR_SPACES),
    )[0]  # fmt: skip


class Drawn:
    """Random windows of a part of a batch, whose random numbers were drawn for the whole batch."""

    def __init__(self, windows: dict[str, Any], rows: np.ndarray):
        self._windows = RandomWindows(0, **windows)
        self._rows = rows
        self.window = self._windows.window

    def draw(self, call: int, count: int) -> np.ndarray:
        return self._rows


def draw_windows(seed: int, call: int, count: int, *, windows: Windows, **_: Any) -> np.ndarray:
    """Random numbers of crop windows, one row per sample."""
    return RandomWindows(seed, **dict(windows)).draw(call, count)


def want_windows(what: str, attempts: Any, area: Any, ratio: Any) -> Windows:
    """The arguments of random crop windows; None means OneFlow's default."""
    bounds = {}
    for argument, value, default in (("random_area", area, AREA), ("random_aspect_ratio", ratio, ASPECT_RATIO)):
        low, high = want_floats(what, argument, default if value is None else value, (2,))
        if not 0 < low <= high:
            fail(ArgumentError, what, f"{argument} must be [least, most] with 0 < least <= most, got {shown(value)}")
        bounds[argument] = (low, high)
    return (("num_attempts", want_int(what, "num_attempts", 10 if attempts is None else attempts)), *bounds.items())


@host_op("ofrecord_image_decoder_random_crop", per_sample=True, random=draw_windows)
def _image_crop(records: Records, *, feature: str, color_space: str, windows: Windows, draws: Any) -> list[Array]:
    drawn: Any = Drawn(dict(windows), draws)
    return decoders.decode_image_random_crop(records, feature, drawn, 0, color_space, max_pixels=Resource.max_image_pixels)


def OFRecordImageDecoderRandomCrop(
    input_blob: Blob,
    blob_name: str,
    color_space: str = "BGR",
    num_attempts: int = 10,
    seed: int | None = None,
    random_area: Sequence[float] = AREA,
    random_aspect_ratio: Sequence[float] = ASPECT_RATIO,
    name: str | None = DefaultName("OFRecordImageDecoderRandomCrop"),
) -> Blob:
    """The images of one feature of the records, each cut to a random window.

    Args:
      input_blob: records (N,).
      blob_name: name of the feature: one bytes value, a JPEG, PNG or other image.
      color_space: "BGR", "RGB" or "GRAY".
      num_attempts: how many windows are drawn before one of full width or height is taken.
      seed: makes the windows reproducible whatever the session's seed.
      random_area: smallest and largest share of the image's area.
      random_aspect_ratio: smallest and largest width / height.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,), each uint8 (h, w, 3), or (h, w, 1) for "GRAY".
    Raises: DtypeError, ArgumentError; FeatureError, ImageError at the call that meets them.
    Example: >>> images = flow.data.OFRecordImageDecoderRandomCrop(records, "encoded", color_space="RGB")
    """
    name = given_name(name)
    what = label("ofrecord_image_decoder_random_crop", name)
    records = _want_records(what, input_blob)
    return emit_host(
        _image_crop, records, outputs=[(records.shape, dtypes.tensor_buffer)], name=name,
        prefix="OFRecordImageDecoderRandomCrop", feature=want_str(what, "blob_name", blob_name),
        color_space=want.choice(what, "color_space", color_space, COLOR_SPACES),
        seed=want_seed(what, seed, name, needs_name=False),
        windows=want_windows(what, num_attempts, random_area, random_aspect_ratio),
    )[0]  # fmt: skip


@host_op("image_decoder_random_crop_resize", per_sample=True, random=draw_windows)
def _crop_resize(encoded: Sequence[Array], *, width: int, height: int, windows: Windows, most: int, draws: Any) -> Array:
    drawn: Any = Drawn(dict(windows), draws)
    limits = {"max_pixels": Resource.max_image_pixels, "scaled": Resource.enable_scaled_jpeg_decoding}

    def one(data: Array, row: Array) -> Array:
        return decoders.image_decoder_random_crop_resize(data, drawn, row, width, height, most, **limits)

    return np.stack(each(one, encoded, draws))


def image_decoder_random_crop_resize(
    input_blob: Blob,
    target_width: int,
    target_height: int,
    num_attempts: int | None = None,
    seed: int | None = None,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    num_workers: int | None = None,
    warmup_size: int | None = None,
    max_num_pixels: int | None = None,
    name: str | None = None,
) -> Blob:
    """Encoded images, decoded, cut to a random window and resized.

    ``flow.config.enable_scaled_jpeg_decoding(True)`` decodes large JPEG images faster, to slightly other pixels.

    Args:
      input_blob: tensor buffers (N,) of bytes, as ``flow.data.OFRecordBytesDecoder`` makes them.
      target_width, target_height: of the result.
      num_attempts, random_area, random_aspect_ratio: of the windows; None for 10, [0.08, 1.0], [0.75, 1.333333].
      seed: makes the windows reproducible whatever the session's seed.
      num_workers, warmup_size: no effect; the threads of the host stage decode (``flow.config.compute_thread_pool_size``).
      max_num_pixels: of the largest window; None for 67108864.
      name: name of the op; made unique when omitted.
    Returns: Blob (N, target_height, target_width, 3), uint8, RGB.
    Raises: DtypeError, ArgumentError; ImageError at the call that meets it.
    Example: >>> images = flow.data.ImageDecoderRandomCropResize(encoded, 224, 224)
    """
    what = label("image_decoder_random_crop_resize", name)
    blob = want_one_axis(what, "input_blob", want_buffer(what, "input_blob", input_blob, "flow.data.OFRecordBytesDecoder"))
    for argument, value in (("num_workers", num_workers), ("warmup_size", warmup_size)):
        if value is not None:
            want_int(what, argument, value)
    width, height = want_int(what, "target_width", target_width), want_int(what, "target_height", target_height)
    return emit_host(
        _crop_resize, blob, outputs=[((*blob.shape, height, width, 3), dtypes.uint8)], name=name,
        prefix="ImageDecoderRandomCropResize", width=width, height=height,
        seed=want_seed(what, seed, name, needs_name=False),
        windows=want_windows(what, num_attempts, random_area, random_aspect_ratio),
        most=want_int(what, "max_num_pixels", 67108864 if max_num_pixels is None else max_num_pixels),
    )[0]  # fmt: skip


ofrecord_raw_decoder = OFRecordRawDecoder
ofrecord_bytes_decoder = OFRecordBytesDecoder
ofrecord_image_decoder = OFRecordImageDecoder
ofrecord_image_decoder_random_crop = OFRecordImageDecoderRandomCrop
ImageDecoderRandomCropResize = image_decoder_random_crop_resize
