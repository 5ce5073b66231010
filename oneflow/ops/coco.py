"""``flow.data.coco_reader``: images of a COCO data set with their boxes, labels and polygons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from ..data._fault import Where
from ..data.coco import CocoAnnotations, CocoSample, CocoSource
from ..graph.node import Blob
from ._arrays import label
from ._host import emit_host, host_op, want_bool
from ._readers import Instances, in_consistent_view, max_record_bytes, want_counts, want_path, want_seed


@host_op("COCOReader", reader=True)
def _coco_reader(
    seed: int, *, annotation_file: str, image_dir: str, counts: tuple[int, ...], remove: bool, outside: bool, **options: Any
) -> Instances:  # fmt: skip
    annotations = CocoAnnotations(
        annotation_file, image_dir, remove, allow_outside_image_dir=outside, max_image_bytes=max_record_bytes()
    )
    shards = len(counts)
    sources = [
        CocoSource(annotations, counts[i], shard=i, shards=shards, random_seed=seed, **options) for i in range(shards)
    ]  # fmt: skip
    return Instances(sources, lambda source, i: source.take(), _joined)


class EncodedImages(list[np.ndarray]):
    """Encoded images, int8, which know their files: an error of a later op can name the file."""

    def __init__(self, samples: Sequence[CocoSample]):
        super().__init__(np.asarray(sample.image).view(np.int8) for sample in samples)
        self._paths = [sample.path for sample in samples]

    def where(self, i: int) -> Where:
        """The file of image ``i``."""
        return Where(self._paths[i])


def _joined(parts: list[list[CocoSample]]) -> tuple[Any, ...]:
    samples = [sample for part in parts for sample in part]
    return (
        EncodedImages(samples),
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
    allow_outside_image_dir: bool = False,
) -> tuple[Blob, ...]:
    """The next images of a COCO data set with their boxes, labels and polygons, at each call; endless.

    Args:
      annotation_file: JSON, as COCO publishes it.
      image_dir: directory of the images that its ``file_name`` entries name.
      batch_size: images per call; a multiple of the number of devices.
      shuffle: the order is shuffled at the start and at the end of each epoch.
      random_seed: of the shuffling; None draws on the session's seed.
      group_by_aspect_ratio: a batch holds only images with the same height // width.
      stride_partition: of n devices, each takes every n-th image; otherwise a contiguous share.
      name: name of the op; made unique when omitted.
      remove_images_without_annotations: leaves out images without a usable box.
      allow_outside_image_dir: ``file_name`` entries may lead outside ``image_dir``: absolute ones, "..", symbolic links.
    Returns: image (tensor buffers (N,), bytes of the file), image_id (int64 (N,)), image_size (int32 (N, 2), height and
      width), and the tensor buffers gt_bbox (float32 (k, 4): x1, y1, x2, y2), gt_label (int32 (k,), from 1), gt_segm (float32
      (points, 2)) and gt_segm_index (int32 (points, 3): point in polygon, polygon in instance, instance).
    Raises: ArgumentError; DataError at the call that needs what is missing or damaged.
    Example: >>> image, image_id, size, boxes, labels, polygons, index = flow.data.coco_reader("a.json", "./images", 2)
    """
    what = label("coco_reader", name)
    with in_consistent_view():
        counts = want_counts(what, batch_size)
        n = sum(counts)
        buffers = ((n,), dtypes.tensor_buffer)
        return emit_host(
            _coco_reader, outputs=[buffers, ((n,), dtypes.int64), ((n, 2), dtypes.int32), buffers, buffers, buffers, buffers],
            name=name, prefix="COCOReader", seed=want_seed(what, random_seed),
            annotation_file=want_path(what, "annotation_file", annotation_file),
            image_dir=want_path(what, "image_dir", image_dir), counts=counts, shuffle=want_bool(what, "shuffle", shuffle),
            group_by_aspect_ratio=want_bool(what, "group_by_aspect_ratio", group_by_aspect_ratio),
            stride_partition=want_bool(what, "stride_partition", stride_partition),
            remove=want_bool(what, "remove_images_without_annotations", remove_images_without_annotations),
            outside=want_bool(what, "allow_outside_image_dir", allow_outside_image_dir),
        )  # fmt: skip
