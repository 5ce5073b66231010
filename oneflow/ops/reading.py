"""Readers: ops that give the next batch of a data set at each call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import refuse
from .._variables.initializers import random_uniform_initializer
from ..data._fault import Where
from ..data.coco import CocoAnnotations, CocoSample, CocoSource
from ..data.onerec import OneRecSource
from ..data.parts import part_paths
from ..data.records import Records
from ..data.source import WITHOUT_POSITIONS, RecordSource
from ..errors import ArgumentError, DataError
from ..graph.graph import current
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail, want
from ._host import emit_host, host_op, want_bool, want_dtype, want_int, want_sizes


class Instances:
    """A reader of several instances, one a device: batches of theirs, joined in the order of the devices."""

    def __init__(self, sources: Sequence[Any], take: Callable[[Any, int], Any], join: Callable[[list[Any]], tuple[Any, ...]]):
        self._sources = sources
        self._take = take
        self._join = join

    def next(self) -> tuple[Any, ...]:
        return self._join([self._take(source, i) for i, source in enumerate(self._sources)])

    def mark(self) -> Callable[[], list[Any]]:
        marks = [source.mark() for source in self._sources]
        return lambda: [mark() for mark in marks]

    def restore(self, states: Any) -> None:
        if not isinstance(states, list) or len(states) != len(self._sources):
            found = len(states) if isinstance(states, list) else states
            refuse(
                DataError, f"a reader's saved position is of {found} devices, and it reads for {len(self._sources)}",
                hint=f"as many devices; {WITHOUT_POSITIONS}",
            )  # fmt: skip
        for source, state in zip(self._sources, states, strict=True):
            source.restore(state)

    def close(self) -> None:
        for source in self._sources:
            close = getattr(source, "close", None)
            if close is not None:
                close()


def instance_count() -> int:
    """How many instances a reader has here: one a device in the consistent view; in the mirrored view each is alone."""
    scope = current("a reader").scope
    return scope.placement.parallel_num if scope.view == "consistent" else 1


@contextmanager
def in_consistent_view() -> Iterator[None]:
    """Whatever the view here, one reader gives the batch of all devices."""
    graph = current("a reader")
    outer, graph.scope = graph.scope, graph.scope.replaced(view="consistent")
    try:
        yield
    finally:
        graph.scope = outer


def balanced(size: int, count: int, i: int) -> int:
    """How much of ``size`` falls to instance i of ``count``."""
    return size // count + (i < size % count)


def _joined_records(parts: list[Records]) -> tuple[Records]:
    return (parts[0] if len(parts) == 1 else Records.concat(parts),)


def _record_instances(
    seed: int, directory: str, parts: int, part_prefix: str, suffix_length: int, counts: tuple[int, ...], **options: Any
) -> Instances:  # fmt: skip
    paths = part_paths(directory, parts, part_prefix, suffix_length)
    shards = len(counts)
    sources = [RecordSource(paths, shard=i, shards=shards, seed=seed, **options) for i in range(shards)]
    return Instances(sources, lambda source, i: source.take(counts[i]), _joined_records)


@host_op("OFRecordReader", reader=True)
def _ofrecord_reader(seed: int, **attrs: Any) -> Instances:
    return _record_instances(seed, **attrs)


def _want_counts(what: str, batch_size: Any, *, divides: bool = True) -> tuple[int, ...]:
    """How many records each instance gives a call."""
    size, count = want_int(what, "batch_size", batch_size), instance_count()
    if divides and size % count:
        fail(ArgumentError, what, f"batch_size must be a multiple of the number of devices, {count}, got {size}")
    if size < count:
        fail(ArgumentError, what, f"batch_size must be at least the number of devices, {count}, got {size}")
    return tuple(balanced(size, count, i) for i in range(count))


def _want_directory(what: str, argument: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        fail(ArgumentError, what, f"{argument} must be a path, got {value!r}"[:300])
    return str(os.fspath(value))


def _want_parts(
    what: str, directory: Any, parts: Any, prefix: Any, suffix_length: Any, counts: tuple[int, ...]
) -> dict[str, Any]:
    number = want_int(what, "data_part_num", parts)
    if number < len(counts):
        fail(ArgumentError, what, f"data_part_num must be at least the number of devices, {len(counts)}, got {number}")
    if not isinstance(prefix, str):
        fail(ArgumentError, what, f"part_name_prefix must be a str, got {prefix!r}")
    return {
        "directory": _want_directory(what, "ofrecord_dir", directory),
        "parts": number,
        "part_prefix": prefix,
        "suffix_length": want_int(what, "part_name_suffix_length", suffix_length, least=-1),
        "counts": counts,
    }


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
) -> Blob:
    """The next records of a data set of OFRecord parts, at each call; endless.

    Without shuffling, parts in the order of their numbers and records in that of their file, cyclically; a batch may straddle
    the end. On n devices of a placement each reads its own share of the parts, batch_size / n records a call.

    Args:
      ofrecord_dir: directory of the part files.
      batch_size: records a call; a multiple of the number of devices.
      data_part_num: how many parts there are; at least the number of devices.
      part_name_prefix: what their names begin with; a number from 0 follows.
      part_name_suffix_length: digits of that number, padded with zeros; -1 for no padding.
      random_shuffle: records come at random from a buffer, whose places are filled again in order.
      shuffle_buffer_size: records in that buffer.
      shuffle_after_epoch: the order of the parts is shuffled at the end of each pass.
      name: name of the op; made unique when omitted. The session's seed and it seed the buffer's draws.
    Returns: Blob (batch_size,) of records, for the decoders (``flow.data.OFRecordRawDecoder`` and so on).
    Raises: ArgumentError; PartNotFoundError and RecordError at the call that needs what is missing or damaged.
    Example: >>> records = flow.data.ofrecord_reader("./ofrecords", batch_size=32, data_part_num=4, random_shuffle=True)
    """
    what = label("ofrecord_reader", name)
    counts = _want_counts(what, batch_size)
    parts = _want_parts(what, ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length, counts)
    return emit_host(
        _ofrecord_reader, outputs=[((sum(counts),), dtypes.record)], name=name, prefix="OFRecordReader", **parts,
        random_shuffle=want_bool(what, "random_shuffle", random_shuffle),
        buffer_size=want_int(what, "shuffle_buffer_size", shuffle_buffer_size),
        shuffle_after_epoch=want_bool(what, "shuffle_after_epoch", shuffle_after_epoch),
    )[0]  # fmt: skip


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
        counts = _want_counts(what, batch_size, divides=False)
        parts = _want_parts(what, ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length, counts)
        return emit_host(
            _ofrecord_reader, outputs=[((sum(counts),), dtypes.record)], name=name, prefix="OFRecordLoader", **parts,
            random_shuffle=want_bool(what, "shuffle", shuffle),
            buffer_size=want_int(what, "shuffle_buffer_size", shuffle_buffer_size), shuffle_after_epoch=False,
        )[0]  # fmt: skip


# --- COCO


@host_op("COCOReader", reader=True)
def _coco_reader(
    seed: int, *, annotation_file: str, image_dir: str, counts: tuple[int, ...], remove: bool, **options: Any
) -> Instances:  # fmt: skip
    annotations = CocoAnnotations(annotation_file, image_dir, remove)
    shards = len(counts)
    sources = [
        CocoSource(annotations, counts[i], shard=i, shards=shards, random_seed=seed, **options) for i in range(shards)
    ]  # fmt: skip
    return Instances(sources, lambda source, i: source.take(), _joined_samples)


class Pictures(list[np.ndarray]):
    """The bytes of pictures."""

    def __init__(self, samples: Sequence[CocoSample]):
        super().__init__(np.asarray(sample.image).view(np.int8) for sample in samples)
        self._paths = [sample.path for sample in samples]

    def where(self, i: int) -> Where:
        """The file that picture ``i`` is."""
        return Where(self._paths[i])


def _joined_samples(parts: list[list[Any]]) -> tuple[Any, ...]:
    samples = [sample for part in parts for sample in part]
    return (
        Pictures(samples),
        np.array([s.image_id for s in samples], np.int64),
        np.array([s.image_size for s in samples], np.int32).reshape(-1, 2),
        [s.boxes for s in samples],
        [s.labels for s in samples],
        [s.polygons for s in samples],
        [s.polygon_index for s in samples],
    )


def coco_reader(
    annotation_file: str,
    image_dir: str,
    batch_size: int,
    shuffle: bool = True,
    random_seed: int | None = None,
    group_by_aspect_ratio: bool = True,
    stride_partition: bool = True,
    name: str | None = None,
    remove_images_without_annotations: bool = True,
) -> tuple[Blob, ...]:
    """The next pictures of a COCO data set with their boxes, labels and polygons, at each call; endless.

    Args:
      annotation_file: JSON, as COCO publishes it.
      image_dir: where its ``file_name`` entries are.
      batch_size: pictures a call; a multiple of the number of devices.
      shuffle: the order is shuffled at the start and at the end of each pass.
      random_seed: of the shuffling; None draws on the session's seed.
      group_by_aspect_ratio: a batch holds only pictures with the same height // width.
      stride_partition: of n devices, each takes every n-th picture; else a contiguous share.
      name: name of the op; made unique when omitted.
      remove_images_without_annotations: leaves out pictures without a usable box.
    Returns: image (tensor buffers (N,), bytes of the file), image_id (int64 (N,)), image_size (int32 (N, 2), height and
      width), and the tensor buffers gt_bbox (float32 (k, 4): x1, y1, x2, y2), gt_label (int32 (k,), from 1), gt_segm (float32
      (points, 2)) and gt_segm_index (int32 (points, 3): point in polygon, polygon in instance, instance).
    Raises: ArgumentError; DataError at the call that needs what is missing or damaged.
    Example: >>> image, image_id, size, boxes, labels, polygons, index = flow.data.coco_reader("a.json", "./images", 2)
    """
    what = label("coco_reader", name)
    with in_consistent_view():
        counts = _want_counts(what, batch_size)
        n = sum(counts)
        if random_seed is not None and (isinstance(random_seed, bool) or not isinstance(random_seed, (int, np.integer))):
            fail(ArgumentError, what, f"random_seed must be an int or None, got {random_seed!r}")
        buffers = ((n,), dtypes.tensor_buffer)
        return emit_host(
            _coco_reader, outputs=[buffers, ((n,), dtypes.int64), ((n, 2), dtypes.int32), buffers, buffers, buffers, buffers],
            name=name, prefix="COCOReader", seed=None if random_seed is None else int(random_seed),
            annotation_file=_want_directory(what, "annotation_file", annotation_file),
            image_dir=_want_directory(what, "image_dir", image_dir), counts=counts, shuffle=want_bool(what, "shuffle", shuffle),
            group_by_aspect_ratio=want_bool(what, "group_by_aspect_ratio", group_by_aspect_ratio),
            stride_partition=want_bool(what, "stride_partition", stride_partition),
            remove=want_bool(what, "remove_images_without_annotations", remove_images_without_annotations),
        )  # fmt: skip


# --- OneRec


class Payloads(list[np.ndarray]):
    """The bytes of examples; ``records`` knows where each came from."""

    def __init__(self, records: Records):
        super().__init__(np.frombuffer(record, np.int8) for record in records)
        self.records = records
        self.where = records.where


@host_op("OneRecReader", reader=True)
def _onerec_reader(seed: int, *, files: tuple[str, ...], counts: tuple[int, ...], **options: Any) -> Instances:
    shards = len(counts)
    sources = [OneRecSource(files, shard=i, shards=shards, seed=seed, **options) for i in range(shards)]
    return Instances(sources, lambda source, i: source.take(counts[i]), _payloads)


def _payloads(parts: list[Records]) -> tuple[Payloads]:
    return (Payloads(*_joined_records(parts)),)


def onerec_reader(
    files: Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_mode: str = "instance",
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    verify_example: bool = True,
    name: str | None = None,
) -> Blob:
    """The next examples of OneRec files, at each call; endless.

    Args:
      files: their paths; at least as many as devices, which each read their share.
      batch_size: examples a call; a multiple of the number of devices.
      random_shuffle: examples come at random from a buffer.
      shuffle_mode: "instance", or "batch": the buffer holds whole batches.
      shuffle_buffer_size: of that buffer.
      shuffle_after_epoch: the list of files is shuffled before the first pass and after each.
      verify_example: checks that each example is well-formed.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (batch_size,) of bytes, for ``flow.data.OneRecDecoder``.
    Raises: ArgumentError; DataError at the call that needs what is missing or damaged.
    Example: >>> examples = flow.data.onerec_reader(["a.onerec", "b.onerec"], batch_size=16)
    """
    what = label("onerec_reader", name)
    if not isinstance(files, (list, tuple)) or not files:
        fail(ArgumentError, what, f"files must be a list or tuple of paths, got {files!r}"[:300])
    counts = _want_counts(what, batch_size)
    if len(files) < len(counts):
        fail(ArgumentError, what, f"there must be at least as many files as devices, {len(counts)}, got {len(files)}")
    return emit_host(
        _onerec_reader, outputs=[((sum(counts),), dtypes.tensor_buffer)], name=name, prefix="OneRecReader",
        files=tuple(_want_directory(what, f"files[{i}]", f) for i, f in enumerate(files)), counts=counts,
        random_shuffle=want_bool(what, "random_shuffle", random_shuffle),
        shuffle_mode=want.choice(what, "shuffle_mode", shuffle_mode, ("instance", "batch")),
        buffer_size=want_int(what, "shuffle_buffer_size", shuffle_buffer_size),
        shuffle_after_epoch=want_bool(what, "shuffle_after_epoch", shuffle_after_epoch),
        verify=want_bool(what, "verify_example", verify_example),
    )[0]  # fmt: skip


# --- a source of random numbers


class _Once:
    """The same array at every call."""

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
      initializer: how it is drawn; None means ``flow.random_uniform_initializer()``, [0, 1).
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
        fail(
            ArgumentError,
            what,
            f"initializer must be an initializer such as flow.random_uniform_initializer(), got {initializer!r}",
        )
    full = (sum(_want_counts(what, batch_size)), *sizes)
    return emit_host(
        _decode_random, outputs=[(full, kind)], name=name, prefix="DecodeRandom", shape=full, dtype=kind.numpy_dtype,
        initializer=initializer,
    )[0]  # fmt: skip
