"""Readers of OFRecord part files, alone and with decoders: ops that return the next batch of a data set at each call.

Their part files are described by the same arguments, which ``_emit_reader`` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import shown
from .._variables.initializers import random_uniform_initializer
from ..config import Resource
from ..data.codecs import BlobConf, decode_blob
from ..data.crops import coin_flips
from ..data.parts import part_paths
from ..data.records import Records
from ..data.source import RecordSource
from ..errors import ArgumentError
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail, want
from ._host import emit_host, here, host_op, want_bool, want_dtype, want_int, want_shape, want_sizes
from ._readers import Instances, in_consistent_view, max_record_bytes, want_counts, want_path, want_seed
from .decoding import OFRecordImageDecoder, OFRecordRawDecoder


@host_op("OFRecordReader", reader=True)
def _ofrecord_reader(
    seed: int, directory: str, parts: int, part_prefix: str, suffix_length: int, counts: tuple[int, ...], **options: Any
) -> Instances:  # fmt: skip
    paths, shards, limit = part_paths(directory, parts, part_prefix, suffix_length), len(counts), max_record_bytes()
    sources = [RecordSource(paths, shard=i, shards=shards, seed=seed, max_record_bytes=limit, **options) for i in range(shards)]
    return Instances(sources, lambda source, i: source.take(counts[i]), lambda batches: (Records.concat(batches),))


def _emit_reader(
    what: str,
    prefix: str,
    name: str | None,
    counts: tuple[int, ...],
    parts: tuple[Any, Any, Any, Any],
    *,
    shuffle: tuple[str, Any],
    buffer_size: tuple[str, Any],
    shuffle_after_epoch: Any = False,
    seed: Any = None,
) -> Blob:
    """Adds a reader.

    Args:
      counts: records per call, of each instance.
      parts: ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length.
      shuffle, buffer_size: the user's names of these arguments, and their values.
    """
    directory, part_num, part_prefix, suffix_length = parts
    number = want_int(what, "data_part_num", part_num)
    if number < len(counts):
        fail(ArgumentError, what, f"data_part_num must be at least the number of devices, {len(counts)}, got {number}")
    if not isinstance(part_prefix, str):
        fail(ArgumentError, what, f"part_name_prefix must be a str, got {shown(part_prefix)}")
    return emit_host(
        _ofrecord_reader, outputs=[((sum(counts),), dtypes.record)], name=name, prefix=prefix, seed=want_seed(what, seed),
        directory=want_path(what, "ofrecord_dir", directory), parts=number, part_prefix=part_prefix,
        suffix_length=want_int(what, "part_name_suffix_length", suffix_length, least=-1), counts=counts,
        random_shuffle=want_bool(what, *shuffle), buffer_size=want_int(what, *buffer_size),
        shuffle_after_epoch=want_bool(what, "shuffle_after_epoch", shuffle_after_epoch),
    )[0]  # fmt: skip


def ofrecord_reader(
    ofrecord_dir: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
    *,
    random_seed: int | None = None,
) -> Blob:
    """The next records of a data set of OFRecord parts, at each call; endless.

    Without shuffling, parts come in the order of their numbers and records in the order of their file, cyclically; a batch may
    straddle the end. On n devices of a placement each reads its own share of the parts, batch_size / n records per call.

    Args:
      ofrecord_dir: directory of the part files.
      batch_size: records per call; a multiple of the number of devices.
      data_part_num: number of parts; at least the number of devices.
      part_name_prefix: the beginning of their names; a number from 0 follows.
      part_name_suffix_length: digits of that number, padded with zeros; -1 for no padding.
      random_shuffle: records are drawn at random from a buffer, whose places are filled again in order.
      shuffle_buffer_size: records in that buffer.
      shuffle_after_epoch: the order of the parts is shuffled at the end of each epoch.
      name: name of the op; made unique when omitted.
      random_seed: of the draws from the buffer; None takes the session's seed and the op's name.
    Returns: Blob (batch_size,) of records, for the decoders (``flow.data.OFRecordRawDecoder`` and so on).
    Raises: ArgumentError; PartNotFoundError and RecordError at the call that needs what is missing or damaged.
    Example: >>> records = flow.data.ofrecord_reader("./ofrecords", batch_size=32, data_part_num=4, random_shuffle=True)
    """
    what = label("ofrecord_reader", name)
    return _emit_reader(
        what, "OFRecordReader", name, want_counts(what, batch_size),
        (ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length),
        shuffle=("random_shuffle", random_shuffle), buffer_size=("shuffle_buffer_size", shuffle_buffer_size),
        shuffle_after_epoch=shuffle_after_epoch, seed=random_seed,
    )  # fmt: skip


def ofrecord_loader(
    ofrecord_dir: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    name: str | None = None,
) -> Blob:
    """The older spelling of ``flow.data.ofrecord_reader``; arguments, result and errors as there.

    Args:
      batch_size: need not be a multiple of the number of devices.
      shuffle: as ``random_shuffle`` there.
    Example: >>> records = flow.data.ofrecord_loader("./ofrecords", batch_size=32, data_part_num=4)
    """
    what = label("ofrecord_loader", name)
    with in_consistent_view():
        return _emit_reader(
            what, "OFRecordLoader", name, want_counts(what, batch_size, divides=False),
            (ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length),
            shuffle=("shuffle", shuffle), buffer_size=("shuffle_buffer_size", shuffle_buffer_size),
        )  # fmt: skip


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
    *,
    random_seed: int | None = None,
) -> tuple[Blob, Blob]:
    """The next images of a data set of OFRecord parts with their labels, at each call.

    Args:
      image_feature_name: the feature that holds an encoded image.
      label_feature_name: the feature that holds one integer.
      color_space: "BGR" or "RGB".
      decode_buffer_size_per_thread: no effect (see ``flow.config.read_ahead_batches``).
      num_decode_threads_per_machine: no effect (see ``flow.config.compute_thread_pool_size``).
      ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, random_shuffle, shuffle_buffer_size,
        shuffle_after_epoch, name, random_seed: as for ``flow.data.ofrecord_reader``.
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
        shuffle_after_epoch, name=name, random_seed=random_seed,
    )  # fmt: skip
    images = OFRecordImageDecoder(records, image_feature_name, color_space)
    return images, OFRecordRawDecoder(records, label_feature_name, (), dtypes.int32)


# --- the older generation: reader and decoders in one


def _draw_mirrors(seed: int, call: int, count: int, **_: Any) -> np.ndarray:
    return coin_flips(seed, call, count)


@host_op("decode_ofrecord", per_sample=True, random=_draw_mirrors)
def _decode(records: Records, *, conf: BlobConf, draws: Any) -> np.ndarray:
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
      batch_size: samples per call.
      data_part_num, part_name_prefix, part_name_suffix_length: as for ``flow.data.ofrecord_reader``.
      shuffle: samples are drawn at random from a buffer.
      buffer_size: samples in that buffer.
      name: name of the op; made unique when omitted.
    Returns: a tuple of Blobs of ``(batch_size,) + conf.shape``, one per BlobConf.
    Raises: ArgumentError; FeatureError, ImageError, PartNotFoundError at the call that meets them.
    Example:
      >>> conf = flow.data.BlobConf("label", shape=(1,), dtype=flow.int32, codec=flow.data.RawCodec())
      >>> (labels,) = flow.data.decode_ofrecord("./ofrecords", (conf,), batch_size=32, data_part_num=4)
    """
    what = label("decode_ofrecord", name)
    confs = list(blobs) if isinstance(blobs, (list, tuple)) else []
    if not confs or not all(isinstance(conf, BlobConf) for conf in confs):
        fail(ArgumentError, what, f"blobs must be a list or tuple of flow.data.BlobConf, got {shown(blobs)}")
    if isinstance(part_name_suffix_length, int) and 0 <= part_name_suffix_length < len(str(int(data_part_num) - 1)):
        fail(ArgumentError, what, f"part_name_suffix_length={part_name_suffix_length} is too short for {data_part_num} parts")
    records = ofrecord_loader(
        ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, shuffle, buffer_size, name=name
    )  # fmt: skip
    records = here(what, records)
    made: list[Blob] = []
    for conf in confs:
        kind = want_dtype(what, f"the dtype of {conf.name!r}", conf.dtype)
        shape = want_shape(what, f"the shape of {conf.name!r}", conf.shape)
        made += emit_host(
            _decode, records, outputs=[((*records.shape, *shape), kind)], name=None, prefix="DecodeOFRecord", conf=conf, seed=None
        )  # fmt: skip
    return tuple(made)


# --- a source of random numbers


class _Once:
    """A reader whose batches are all the same array."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def next(self) -> tuple[np.ndarray]:
        return (self._array,)

    def mark(self) -> Callable[[], dict[str, Any]]:
        return dict

    def restore(self, state: Any) -> None:
        pass

    def close(self) -> None:
        pass


@host_op("decode_random", reader=True)
def _decode_random(seed: int, *, shape: tuple[int, ...], dtype: np.dtype, initializer: Any) -> _Once:
    return _Once(np.asarray(initializer.draw(shape, dtype, np.random.default_rng(seed)), dtype))


def decode_random(
    shape: Sequence[int],
    dtype: dtype,
    batch_size: int = 1,
    initializer: Any = None,
    tick: Blob | None = None,
    name: str | None = None,
) -> Blob:
    """One random batch, the same at every call: a data set for benchmarks.

    Args:
      shape: of a sample.
      dtype: of the batch.
      batch_size: a multiple of the number of devices.
      initializer: draws the values; None means ``flow.random_uniform_initializer()``, [0, 1).
      tick: a Blob, no effect.
      name: name of the op; made unique when omitted.
    Returns: Blob of ``(batch_size,) + shape``.
    Raises: ArgumentError, DtypeError.
    Example: >>> images = flow.data.decode_random((3, 224, 224), flow.float, batch_size=32)
    """
    what = label("decode_random", name)
    sizes, kind = want_sizes(what, "shape", shape), want_dtype(what, "dtype", dtype)
    if tick is not None:
        want.blob(what, "tick", tick)
    initializer = random_uniform_initializer() if initializer is None else initializer
    if not hasattr(initializer, "draw"):
        known = "an initializer such as flow.random_uniform_initializer()"
        fail(ArgumentError, what, f"initializer must be {known}, got {shown(initializer)}")
    full = (sum(want_counts(what, batch_size)), *sizes)
    return emit_host(
        _decode_random, outputs=[(full, kind)], name=name, prefix="DecodeRandom", shape=full, dtype=kind.numpy_dtype,
        initializer=initializer,
    )[0]  # fmt: skip
