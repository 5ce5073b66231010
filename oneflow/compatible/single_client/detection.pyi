# Written by scripts/write_stubs.py: the names of oneflow.detection, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.detection import object_bbox_flip as object_bbox_flip
from oneflow.detection import object_bbox_scale as object_bbox_scale
from oneflow.detection import object_segmentation_polygon_flip as object_segmentation_polygon_flip
from oneflow.detection import object_segmentation_polygon_scale as object_segmentation_polygon_scale
from oneflow.detection import object_segmentation_polygon_to_mask as object_segmentation_polygon_to_mask
