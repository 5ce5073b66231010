"""Decoders: from records, or encoded pictures, to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from ..config import Resource
from ..data import decoders
from ..data.codecs import BlobConf, decode_blob
from ..data.crops import RandomWindows, coin_flips
from ..data.images import COLOR_SPACES
from ..data.onerec import decode_onerec
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
    want_sizes,
    want_str,
)
from ._names import DefaultName, given_name
from .dropout import want_seed
from .reading import ofrecord_loader, ofrecord_reader

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


def _shape(what: str, argument: str, value: Any) -> tuple[int, ...]:
    return want_sizes(what, argument, (value,) if isinstance(value, (int, np.integer)) else value)


@host_op("ofrecord_raw_decoder", samples=True)
def _raw(records: Records, *, feature: str, shape: tuple[int, ...], dtype: np.dtype, shorter: bool) -> Array:
    return decoders.decode_raw(records, feature, shape, dtype, dim1_varying_length=shorter)


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
      blob_name: the feature: a list of numbers, as many as ``shape`` has elements, or one bytes value, whose bytes are read as
        int8.
      shape: of a sample; () for one number.
      dtype: what the numbers are cast to: float32, float64, int8, int32, int64, uint8 or char.
      dim1_varying_length, auto_zero_padding: whether shorter lists are accepted; zeros follow them.
      name: name of the op; made unique when omitted.
    Returns: Blob of ``(N,) + shape``, without a gradient.
    Raises: DtypeError, ArgumentError; FeatureError at the call whose records lack it.
    Example: >>> labels = flow.data.OFRecordRawDecoder(records, "class/label", shape=(), dtype=flow.int32)
    """
    what = label("ofrecord_raw_decoder", name)
    records = _want_records(what, input_blob)
    kind, sizes = want_dtype(what, "dtype", dtype, NUMERIC), _shape(what, "shape", shape)
    shorter = [
        want_bool(what, "dim1_varying_length", dim1_varying_length),
        want_bool(what, "auto_zero_padding", auto_zero_padding),
    ]
    return emit_host(
        _raw, records, outputs=[((*records.shape, *sizes), kind)], name=name, prefix="OFRecordRawDecoder",
        feature=want_str(what, "blob_name", blob_name), shape=sizes, dtype=kind.numpy_dtype, shorter=any(shorter),
    )[0]  # fmt: skip


@host_op("ofrecord_bytes_decoder", samples=True)
def _bytes(records: Records, *, feature: str) -> list[Array]:
    return decoders.decode_bytes(records, feature)


def OFRecordBytesDecoder(input_blob: Blob, blob_name: str, name: str | None = None) -> Blob:
    """The bytes of one feature of the records, which has one bytes value.

    Args:
      input_blob: records (N,).
      blob_name: the feature.
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


@host_op("ofrecord_image_decoder", samples=True)
def _image(records: Records, *, feature: str, color_space: str) -> list[Array]:
    return decoders.decode_image(records, feature, color_space, max_pixels=Resource.max_image_pixels)


def OFRecordImageDecoder(input_blob: Blob, blob_name: str, color_space: str = "BGR", name: str | None = None) -> Blob:
    """The pictures of one feature of the records, decoded by OpenCV.

    Args:
      input_blob: records (N,).
      blob_name: the feature: one bytes value, a JPEG, PNG or other picture.
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
    """Windows whose random numbers were drawn already: those of a part of a batch."""

    def __init__(self, windows: dict[str, Any], rows: np.ndarray):
        self._windows = RandomWindows(0, **windows)
        self._rows = rows
        self.window = self._windows.window

    def draw(self, call: int, count: int) -> np.ndarray:
        return self._rows


def draw_windows(seed: int, call: int, count: int, *, windows: Windows, **_: Any) -> np.ndarray:
    """Random numbers of crop windows, a row a sample."""
    return RandomWindows(seed, **dict(windows)).draw(call, count)


def want_windows(what: str, attempts: Any, area: Any, ratio: Any) -> Windows:
    """The arguments of random crop windows; None stands for OneFlow's defaults."""
    bounds = {}
    for argument, value, default in (("random_area", area, AREA), ("random_aspect_ratio", ratio, ASPECT_RATIO)):
        low, high = want_floats(what, argument, default if value is None else value, (2,))
        if not 0 < low <= high:
            fail(ArgumentError, what, f"{argument} must be [least, most] with 0 < least <= most, got {value!r}")
        bounds[argument] = (low, high)
    return (("num_attempts", want_int(what, "num_attempts", 10 if attempts is None else attempts)), *bounds.items())


@host_op("ofrecord_image_decoder_random_crop", samples=True, random=draw_windows)
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
    """The pictures of one feature of the records, each cut to a random window.

    Args:
      input_blob: records (N,).
      blob_name: the feature: one bytes value, a JPEG, PNG or other picture.
      color_space: "BGR", "RGB" or "GRAY".
      num_attempts: how often a window is drawn before one of full width or height is taken.
      seed: makes the windows reproducible whatever the session's seed.
      random_area: least and most part of the picture's area.
      random_aspect_ratio: least and most width / height.
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


@host_op("image_decoder_random_crop_resize", samples=True, random=draw_windows)
def _crop_resize(encoded: Sequence[Array], *, width: int, height: int, windows: Windows, most: int, draws: Any) -> Array:
    drawn: Any = Drawn(dict(windows), draws)
    max_pixels = Resource.max_image_pixels

    def one(data: Array, row: Array) -> Array:
        return decoders.image_decoder_random_crop_resize(data, drawn, row, width, height, most, max_pixels=max_pixels)

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
    """Encoded pictures, decoded, cut to a random window and resized.

    Args:
      input_blob: tensor buffers (N,) of bytes, as ``flow.data.OFRecordBytesDecoder`` gives them.
      target_width, target_height: of the result.
      num_attempts, random_area, random_aspect_ratio: of the windows; None for 10, [0.08, 1.0], [0.75, 1.333333].
      seed: makes the windows reproducible whatever the session's seed.
      num_workers, warmup_size: no effect: the host's threads do it (``flow.config.compute_thread_pool_size``).
      max_num_pixels: largest window; None for 67108864.
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


def ofrecord_image_classification_reader(
    ofrecord_dir: str,
    image_feature_name: str,
    label_feature_name: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    color_space: str = "BGR",
    decode_buffer_size_per_thread: int = 32,
    num_decode_threads_per_machine: int | None = None,
    name: str | None = None,
) -> tuple[Blob, Blob]:
    """The next pictures of a data set of OFRecord parts with their labels, at each call.

    Args:
      image_feature_name: the feature that holds an encoded picture.
      label_feature_name: the feature that holds one integer.
      color_space: "BGR" or "RGB".
      decode_buffer_size_per_thread: no effect (see ``flow.config.read_ahead_batches``).
      num_decode_threads_per_machine: no effect (see ``flow.config.compute_thread_pool_size``).
      ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, random_shuffle, shuffle_buffer_size,
        shuffle_after_epoch, name: as for ``flow.data.ofrecord_reader``.
    Returns: tensor buffers (batch_size,), each uint8 (H, W, 3); labels int32 (batch_size,).
    Raises: as ``flow.data.ofrecord_reader`` and ``flow.data.OFRecordImageDecoder``.
    Example: >>> images, labels = flow.data.ofrecord_image_classification_reader("./train", "encoded", "class/label", 32)
    """
    what = label("ofrecord_image_classification_reader", name)
    want.choice(what, "color_space", color_space, ("BGR", "RGB"))
    want_int(what, "decode_buffer_size_per_thread", decode_buffer_size_per_thread)
    if num_decode_threads_per_machine is not None:
        want_int(what, "num_decode_threads_per_machine", num_decode_threads_per_machine)
    records = ofrecord_reader(
        ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, random_shuffle, shuffle_buffer_size,
        shuffle_after_epoch, name=name,
    )  # fmt: skip
    images = OFRecordImageDecoder(records, image_feature_name, color_space)
    return images, OFRecordRawDecoder(records, label_feature_name, (), dtypes.int32)


# --- the older one, reader and decoders in one


def _draw_mirrors(seed: int, call: int, count: int, **_: Any) -> np.ndarray:
    return coin_flips(seed, call, count)


@host_op("decode_ofrecord", samples=True, random=_draw_mirrors)
def _decode(records: Records, *, conf: BlobConf, draws: Any) -> Array:
    return decode_blob(records, conf, draws, max_pixels=Resource.max_image_pixels)


def decode_ofrecord(
    ofrecord_dir: str,
    blobs: Sequence[BlobConf],
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    shuffle: bool = False,
    buffer_size: int = 1024,
    name: str | None = None,
) -> tuple[Blob, ...]:
    """The next samples of a data set of OFRecord parts, decoded, at each call: the older way to read.

    Args:
      ofrecord_dir: directory of the part files.
      blobs: a ``flow.data.BlobConf`` for each result: feature, shape, dtype, codec, preprocessors.
      batch_size: samples a call.
      data_part_num, part_name_prefix, part_name_suffix_length: as for ``flow.data.ofrecord_reader``.
      shuffle: samples come at random from a buffer.
      buffer_size: samples in that buffer.
      name: name of the op; made unique when omitted.
    Returns: a tuple of Blobs of ``(batch_size,) + conf.shape``, one a BlobConf.
    Raises: ArgumentError; FeatureError, ImageError, PartNotFoundError at the call that meets them.
    Example:
      >>> conf = flow.data.BlobConf("label", shape=(1,), dtype=flow.int32, codec=flow.data.RawCodec())
      >>> (labels,) = flow.data.decode_ofrecord("./ofrecords", (conf,), batch_size=32, data_part_num=4)
    """
    what = label("decode_ofrecord", name)
    confs = list(blobs) if isinstance(blobs, (list, tuple)) else []
    if not confs or not all(isinstance(conf, BlobConf) for conf in confs):
        fail(ArgumentError, what, f"blobs must be a list or tuple of flow.data.BlobConf, got {blobs!r}"[:300])
    if isinstance(part_name_suffix_length, int) and 0 <= part_name_suffix_length < len(str(int(data_part_num) - 1)):
        fail(ArgumentError, what, f"part_name_suffix_length={part_name_suffix_length} is too short for {data_part_num} parts")
    records = ofrecord_loader(
        ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, shuffle, buffer_size, name=name
    )  # fmt: skip
    records = here(what, records)
    made: list[Blob] = []
    for conf in confs:
        kind = want_dtype(what, f"the dtype of {conf.name!r}", conf.dtype)
        shape = _shape(what, f"the shape of {conf.name!r}", conf.shape)
        made += emit_host(
            _decode, records, outputs=[((*records.shape, *shape), kind)], name=None, prefix="DecodeOFRecord", conf=conf, seed=None
        )  # fmt: skip
    return tuple(made)


@host_op("onerec_decoder")
def _onerec(
    payloads: Sequence[Array], *, key: str, shape: tuple[int, ...], dtype: np.dtype, dynamic: bool, **options: Any
) -> Array:  # fmt: skip
    return decode_onerec(getattr(payloads, "records", payloads), key, dtype, shape, is_dynamic=dynamic, **options)


def OneRecDecoder(
    input_blob: Blob,
    key: str,
    dtype: dtype,
    shape: Sequence[int],
    is_dynamic: bool = False,
    reshape: Sequence[int] | None = None,
    batch_padding: Sequence[int] | None = None,
    name: str | None = None,
) -> Blob:
    """The numbers of one feature of OneRec examples.

    Args:
      input_blob: tensor buffers (N,) of bytes, of ``flow.data.onerec_reader``.
      key: the feature.
      dtype: int8, int32, int64, float32 or float64.
      shape: of a sample.
      is_dynamic: whether sizes may be smaller than ``shape``.
      reshape: of the same rank; one entry may be -1.
      batch_padding: of the same rank, only the first entry may be non-zero: -1 pads to the batch's largest, k > 0 to k.
      name: name of the op; made unique when omitted.
    Returns: Blob of ``(N,) + shape``; its size varies where ``is_dynamic``.
    Raises: DtypeError, ArgumentError; DataError at the call whose examples do not fit.
    Example: >>> labels = flow.data.OneRecDecoder(examples, "label", flow.int32, shape=(1,))
    """
    what = label("onerec_decoder", name)
    blob = want_one_axis(what, "input_blob", want_buffer(what, "input_blob", input_blob, "flow.data.onerec_reader"))
    allowed = (dtypes.int8, dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)
    kind, sizes = want_dtype(what, "dtype", dtype, allowed), want_sizes(what, "shape", shape)
    if reshape is not None and (len(want_sizes(what, "reshape", reshape, least=-1)) != len(sizes) or list(reshape).count(-1) > 1):
        fail(ArgumentError, what, f"reshape must have {len(sizes)} entries, at most one of them -1, got {reshape!r}")
    if batch_padding is not None and (
        len(want_sizes(what, "batch_padding", batch_padding, least=-1)) != len(sizes) or any(batch_padding[1:])
    ):
        fail(ArgumentError, what, f"batch_padding must have {len(sizes)} entries, all but the first 0, got {batch_padding!r}")
    dynamic = want_bool(what, "is_dynamic", is_dynamic)
    return emit_host(
        _onerec, blob, outputs=[((*blob.shape, *sizes), kind)], name=name, prefix="OneRecDecoder", is_dynamic=dynamic,
        key=want_str(what, "key", key), shape=sizes, dtype=kind.numpy_dtype, dynamic=dynamic,
        reshape=None if reshape is None else tuple(map(int, reshape)),
        batch_padding=None if batch_padding is None else tuple(map(int, batch_padding)),
    )[0]  # fmt: skip


ofrecord_raw_decoder = OFRecordRawDecoder
ofrecord_bytes_decoder = OFRecordBytesDecoder
ofrecord_image_decoder = OFRecordImageDecoder
ofrecord_image_decoder_random_crop = OFRecordImageDecoderRandomCrop
ImageDecoderRandomCropResize = image_decoder_random_crop_resize
onerec_decoder = OneRecDecoder
