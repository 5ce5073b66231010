"""``flow.detection``: ops over the boxes and polygons of images."""

from .ops.detection import object_bbox_flip as object_bbox_flip
from .ops.detection import object_bbox_scale as object_bbox_scale
from .ops.detection import object_segmentation_polygon_flip as object_segmentation_polygon_flip
from .ops.detection import object_segmentation_polygon_scale as object_segmentation_polygon_scale
from .ops.detection import object_segmentation_polygon_to_mask as object_segmentation_polygon_to_mask
