"""``flow.detection``: ops over the boxes and polygons of images."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from .ops.detection import object_bbox_flip as object_bbox_flip
    from .ops.detection import object_bbox_scale as object_bbox_scale
    from .ops.detection import object_segmentation_polygon_flip as object_segmentation_polygon_flip
    from .ops.detection import object_segmentation_polygon_scale as object_segmentation_polygon_scale
    from .ops.detection import object_segmentation_polygon_to_mask as object_segmentation_polygon_to_mask

_NAMES = (
    "object_bbox_flip",
    "object_bbox_scale",
    "object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale",
    "object_segmentation_polygon_to_mask",
)
_on_demand = {name: f".ops.detection:{name}" for name in _NAMES}
