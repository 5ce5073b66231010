"""``data`` of 0.6."""

from __future__ import annotations

from .._imports import sharing as _sharing
from ._ops import OFRecordRawDecoder as OFRecordRawDecoder
from ._ops import RawCodec as RawCodec
from ._ops import coco_reader as coco_reader

ofrecord_raw_decoder = OFRecordRawDecoder

__getattr__, __dir__, _public_names = _sharing(__name__)
