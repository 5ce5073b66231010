"""Ops over the boxes, polygons and masks of images: tensor buffers with one element per image. They run on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._base import dtype as dtypes
from ..config import Resource
from ..data import detection
from ..errors import DataError, DtypeError, ShapeError
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail
from ._host import each, emit_host, host_op, want_buffer, want_dense, want_one_axis
from .image import codes, with_flip_code

Array = Any


def _want_elements(what: str, argument: str, value: Any) -> Blob:
    return want_one_axis(what, argument, want_buffer(what, argument, value, "flow.data.coco_reader"))


def _want_pairs(what: str, argument: str, value: Any, batch: Blob, kind: Any) -> Blob:
    blob = want_dense(what, argument, value)
    if blob.dtype != kind:
        fail(DtypeError, what, f"{argument} must be {kind.name}, got {blob.describe()}", (blob,))
    if blob.shape != (batch.shape[0], 2):
        fail(
            ShapeError,
            what,
            f"{argument} must be [{batch.shape[0]}, 2], one pair per image, got {blob.describe()}",
            (batch, blob),
        )
    return blob


def _of_width(array: Array, width: int, what: str) -> Array:
    if array.ndim != 2 or array.shape[1] != width:
        raise DataError(f"must be {what} (k, {width}), got {array.dtype}{list(array.shape)}")
    if array.dtype.kind != "f":  # a scale would be truncated, and a coordinate may not be in the dtype's range
        raise DataError(f"must be {what} of floats, got {array.dtype}{list(array.shape)}")
    return array


def _boxes(array: Array) -> Array:
    return _of_width(array, 4, "boxes")


def _points(array: Array) -> Array:
    return _of_width(array, 2, "points of polygons")


def _mirrored(
    function: Any, checked: Any, elements: Sequence[Array], sizes: Array, given: Sequence[Array], code: int | None
) -> Any:
    return each(
        lambda element, size, c: function(checked(element), int(size[0]), int(size[1]), c),
        elements, sizes, codes(len(elements), given, code),
    )  # fmt: skip


@host_op("object_bbox_flip", per_sample=True)
def _bbox_flip(boxes: Sequence[Array], sizes: Array, *given: Array, code: int | None) -> list[Array]:
    return _mirrored(detection.flip_boxes, _boxes, boxes, sizes, given, code)


@host_op("object_segmentation_polygon_flip", per_sample=True)
def _polygon_flip(polygons: Sequence[Array], sizes: Array, *given: Array, code: int | None) -> list[Array]:
    return _mirrored(detection.flip_polygons, _points, polygons, sizes, given, code)


def _emit_flip(op: Any, prefix: str, argument: str, elements: Any, image_size: Any, flip_code: Any, name: str | None) -> Blob:
    what = label(op.name, name)
    blob = _want_elements(what, argument, elements)
    sizes = _want_pairs(what, "image_size", image_size, blob, dtypes.int32)
    more, attrs = with_flip_code(what, flip_code, blob)
    outputs = [(blob.shape, dtypes.tensor_buffer)]
    return emit_host(op, blob, sizes, *more, outputs=outputs, name=name, prefix=prefix, **attrs)[0]


def object_bbox_flip(bbox: Blob, image_size: Blob, flip_code: int | Blob, name: str | None = None) -> Blob:
    """Boxes of mirrored images: x becomes width - x - 1, y height - y - 1, ends swapped.

    Args:
      bbox: tensor buffers (N,), each (k, 4): x1, y1, x2, y2.
      image_size: int32 (N, 2): width and height, like the new size that ``flow.image.Resize`` returns.
      flip_code: as in ``flow.image.flip``.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,).
    Raises: ArgumentError, DtypeError, ShapeError; DataError at the call whose elements are not boxes.
    Example: >>> boxes = flow.detection.object_bbox_flip(boxes, new_size, flip_code)
    """
    return _emit_flip(_bbox_flip, "ObjectBboxFlip", "bbox", bbox, image_size, flip_code, name)


def object_segmentation_polygon_flip(poly: Blob, image_size: Blob, flip_code: int | Blob, name: str | None = None) -> Blob:
    """Polygons of mirrored images: x becomes width - x, y height - y.

    Args:
      poly: tensor buffers (N,), each (points, 2): x, y.
      image_size, flip_code, name: as in ``flow.detection.object_bbox_flip``.
    Returns: tensor buffers (N,).
    Raises: as there.
    Example: >>> polygons = flow.detection.object_segmentation_polygon_flip(polygons, new_size, 1)
    """
    return _emit_flip(_polygon_flip, "ObjectSegmentationPolygonFlip", "poly", poly, image_size, flip_code, name)


@host_op("object_bbox_scale", per_sample=True)
def _bbox_scale(boxes: Sequence[Array], scale: Array) -> list[Array]:
    return each(lambda box, factor: detection.scale_boxes(_boxes(box), factor), boxes, scale)


@host_op("object_segmentation_polygon_scale", per_sample=True)
def _polygon_scale(polygons: Sequence[Array], scale: Array) -> list[Array]:
    return each(lambda points, factor: detection.scale_polygons(_points(points), factor), polygons, scale)


def _emit_scale(op: Any, prefix: str, argument: str, elements: Any, scale: Any, name: str | None) -> Blob:
    what = label(op.name, name)
    blob = _want_elements(what, argument, elements)
    factors = _want_pairs(what, "scale", scale, blob, dtypes.float32)
    return emit_host(op, blob, factors, outputs=[(blob.shape, dtypes.tensor_buffer)], name=name, prefix=prefix)[0]


def object_bbox_scale(bbox: Blob, scale: Blob, name: str | None = None) -> Blob:
    """Boxes of resized images: x times scale[0], y times scale[1].

    Args:
      bbox: tensor buffers (N,), each (k, 4): x1, y1, x2, y2.
      scale: float32 (N, 2), as ``flow.image.Resize`` returns it.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,).
    Raises: DtypeError, ShapeError; DataError at the call whose elements are not boxes.
    Example: >>> boxes = flow.detection.object_bbox_scale(boxes, scale)
    """
    return _emit_scale(_bbox_scale, "ObjectBboxScale", "bbox", bbox, scale, name)


def object_segmentation_polygon_scale(poly: Blob, scale: Blob, name: str | None = None) -> Blob:
    """Polygons of resized images: x times scale[0], y times scale[1].

    Args:
      poly: tensor buffers (N,), each (points, 2): x, y.
      scale, name: as in ``flow.detection.object_bbox_scale``.
    Returns: tensor buffers (N,).
    Raises: as there.
    Example: >>> polygons = flow.detection.object_segmentation_polygon_scale(polygons, scale)
    """
    return _emit_scale(_polygon_scale, "ObjectSegmentationPolygonScale", "poly", poly, scale, name)


@host_op("object_segmentation_polygon_to_mask", per_sample=True)
def _to_mask(polygons: Sequence[Array], index: Sequence[Array], sizes: Array) -> list[Array]:
    most = Resource.max_image_pixels

    def one(points: Array, numbers: Array, size: Array) -> Array:
        return detection.polygons_to_mask(points, numbers, int(size[0]), int(size[1]), max_pixels=most)

    return each(one, polygons, index, sizes)


def object_segmentation_polygon_to_mask(poly: Blob, poly_index: Blob, image_size: Blob, name: str | None = None) -> Blob:
    """Masks of the pixels that each instance covers; the polygons of one instance are filled together.

    Args:
      poly: tensor buffers (N,), each (points, 2): x, y.
      poly_index: tensor buffers (N,), each int32 (points, 3): point in polygon, polygon in instance, instance.
      image_size: int32 (N, 2): width and height.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,), each int8 (instances, height, width) of 0 and 1.
    Raises: DtypeError, ShapeError; DataError at the call whose polygons and index do not belong together.
    Example: >>> masks = flow.detection.object_segmentation_polygon_to_mask(polygons, index, new_size)
    """
    what = label("object_segmentation_polygon_to_mask", name)
    points, index = _want_elements(what, "poly", poly), _want_elements(what, "poly_index", poly_index)
    if index.shape != points.shape:
        fail(ShapeError, what, f"poly and poly_index must have one shape, got {points.shape} and {index.shape}", (points, index))
    sizes = _want_pairs(what, "image_size", image_size, points, dtypes.int32)
    return emit_host(
        _to_mask, points, index, sizes, outputs=[(points.shape, dtypes.tensor_buffer)], name=name,
        prefix="ObjectSegmentationPolygonToMask",
    )[0]  # fmt: skip
