"""``flow.data``: data sets, readers and decoders. The ops among them come with ``oneflow.ops``, when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .codecs import BlobConf as BlobConf
from .codecs import BytesListCodec as BytesListCodec
from .codecs import ImageCodec as ImageCodec
from .codecs import ImagePreprocessor as ImagePreprocessor
from .codecs import ImageResizePreprocessor as ImageResizePreprocessor
from .codecs import NormByChannelPreprocessor as NormByChannelPreprocessor
from .codecs import RawCodec as RawCodec
from .epoch import EpochArray as EpochArray
from .mnist import batches as mnist_batches
from .mnist import load_mnist as load_mnist
from .mnist import read_mnist as read_mnist
from .parts import PartWriter as PartWriter
from .parts import part_name as part_name
from .parts import part_paths as part_paths
from .parts import read_part as read_part
from .parts import write_parts as write_parts
from .records import Records as Records
from .source import RecordSource as RecordSource

if TYPE_CHECKING:
    from ..ops.decoding import ImageDecoderRandomCropResize as ImageDecoderRandomCropResize
    from ..ops.decoding import OFRecordBytesDecoder as OFRecordBytesDecoder
    from ..ops.decoding import OFRecordImageDecoder as OFRecordImageDecoder
    from ..ops.decoding import OFRecordImageDecoderRandomCrop as OFRecordImageDecoderRandomCrop
    from ..ops.decoding import OFRecordRawDecoder as OFRecordRawDecoder
    from ..ops.decoding import OneRecDecoder as OneRecDecoder
    from ..ops.decoding import decode_ofrecord as decode_ofrecord
    from ..ops.decoding import image_decoder_random_crop_resize as image_decoder_random_crop_resize
    from ..ops.decoding import ofrecord_bytes_decoder as ofrecord_bytes_decoder
    from ..ops.decoding import ofrecord_image_classification_reader as ofrecord_image_classification_reader
    from ..ops.decoding import ofrecord_image_decoder as ofrecord_image_decoder
    from ..ops.decoding import ofrecord_image_decoder_random_crop as ofrecord_image_decoder_random_crop
    from ..ops.decoding import ofrecord_raw_decoder as ofrecord_raw_decoder
    from ..ops.decoding import onerec_decoder as onerec_decoder
    from ..ops.gpt import MegatronGPTMMapDataLoader as MegatronGPTMMapDataLoader
    from ..ops.gpt import megatron_gpt_mmap_data_loader as megatron_gpt_mmap_data_loader
    from ..ops.reading import coco_reader as coco_reader
    from ..ops.reading import decode_random as decode_random
    from ..ops.reading import ofrecord_loader as ofrecord_loader
    from ..ops.reading import ofrecord_reader as ofrecord_reader
    from ..ops.reading import onerec_reader as onerec_reader
    from ..runtime.session import skipped_images as skipped_images
    from .loader import ArrayLoader as ArrayLoader

_READERS = ("coco_reader", "decode_random", "ofrecord_loader", "ofrecord_reader", "onerec_reader")
_DECODERS = (
    "ImageDecoderRandomCropResize", "OFRecordBytesDecoder", "OFRecordImageDecoder", "OFRecordImageDecoderRandomCrop",
    "OFRecordRawDecoder", "OneRecDecoder", "decode_ofrecord", "image_decoder_random_crop_resize", "ofrecord_bytes_decoder",
    "ofrecord_image_classification_reader", "ofrecord_image_decoder", "ofrecord_image_decoder_random_crop",
    "ofrecord_raw_decoder", "onerec_decoder",
)  # fmt: skip
_TOKENS = ("MegatronGPTMMapDataLoader", "megatron_gpt_mmap_data_loader")
_LATER = {
    **dict.fromkeys(_READERS, "ops.reading"), **dict.fromkeys(_TOKENS, "ops.gpt"), **dict.fromkeys(_DECODERS, "ops.decoding"),
    "skipped_images": "runtime.session", "ArrayLoader": "data.loader",
}  # fmt: skip

__all__ = [
    "BlobConf", "BytesListCodec", "EpochArray", "ImageCodec", "ImagePreprocessor", "ImageResizePreprocessor",
    "NormByChannelPreprocessor", "PartWriter", "RawCodec", "RecordSource", "Records", "load_mnist", "mnist_batches", "part_name",
    "part_paths", "read_mnist", "read_part", "write_parts", *_LATER,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The ops, among others: they stand above this package, whose other modules they use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"..{_LATER[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(["__doc__", "__file__", "__name__", "__path__", *__all__])
