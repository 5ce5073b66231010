"""``flow.data``: data sets, readers and decoders. The ops among them come with ``oneflow.ops``, when they are asked for."""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from ..ops.coco import coco_reader as coco_reader
    from ..ops.decoding import ImageDecoderRandomCropResize as ImageDecoderRandomCropResize
    from ..ops.decoding import OFRecordBytesDecoder as OFRecordBytesDecoder
    from ..ops.decoding import OFRecordImageDecoder as OFRecordImageDecoder
    from ..ops.decoding import OFRecordImageDecoderRandomCrop as OFRecordImageDecoderRandomCrop
    from ..ops.decoding import OFRecordRawDecoder as OFRecordRawDecoder
    from ..ops.decoding import image_decoder_random_crop_resize as image_decoder_random_crop_resize
    from ..ops.decoding import ofrecord_bytes_decoder as ofrecord_bytes_decoder
    from ..ops.decoding import ofrecord_image_decoder as ofrecord_image_decoder
    from ..ops.decoding import ofrecord_image_decoder_random_crop as ofrecord_image_decoder_random_crop
    from ..ops.decoding import ofrecord_raw_decoder as ofrecord_raw_decoder
    from ..ops.gpt import MegatronGPTMMapDataLoader as MegatronGPTMMapDataLoader
    from ..ops.gpt import megatron_gpt_mmap_data_loader as megatron_gpt_mmap_data_loader
    from ..ops.onerec import OneRecDecoder as OneRecDecoder
    from ..ops.onerec import onerec_decoder as onerec_decoder
    from ..ops.onerec import onerec_reader as onerec_reader
    from ..ops.reading import decode_ofrecord as decode_ofrecord
    from ..ops.reading import decode_random as decode_random
    from ..ops.reading import ofrecord_image_classification_reader as ofrecord_image_classification_reader
    from ..ops.reading import ofrecord_loader as ofrecord_loader
    from ..ops.reading import ofrecord_reader as ofrecord_reader
    from ..runtime.session import skipped_images as skipped_images
    from .codecs import BlobConf as BlobConf
    from .codecs import BytesListCodec as BytesListCodec
    from .codecs import ImageCodec as ImageCodec
    from .codecs import ImagePreprocessor as ImagePreprocessor
    from .codecs import ImageResizePreprocessor as ImageResizePreprocessor
    from .codecs import NormByChannelPreprocessor as NormByChannelPreprocessor
    from .codecs import RawCodec as RawCodec
    from .epoch import EpochArray as EpochArray
    from .loader import ArrayLoader as ArrayLoader
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
    from .transforms import Normalize as Normalize
    from .transforms import RandomCrop as RandomCrop
    from .transforms import RandomHorizontalFlip as RandomHorizontalFlip

_OPS = {
    "ops.reading": (
        "decode_ofrecord", "decode_random", "ofrecord_image_classification_reader", "ofrecord_loader", "ofrecord_reader",
    ),
    "ops.decoding": (
        "ImageDecoderRandomCropResize", "OFRecordBytesDecoder", "OFRecordImageDecoder", "OFRecordImageDecoderRandomCrop",
        "OFRecordRawDecoder", "image_decoder_random_crop_resize", "ofrecord_bytes_decoder", "ofrecord_image_decoder",
        "ofrecord_image_decoder_random_crop", "ofrecord_raw_decoder",
    ),
    "ops.coco": ("coco_reader",),
    "ops.onerec": ("OneRecDecoder", "onerec_decoder", "onerec_reader"),
    "ops.gpt": ("MegatronGPTMMapDataLoader", "megatron_gpt_mmap_data_loader"),
    "data.codecs": (
        "BlobConf", "BytesListCodec", "ImageCodec", "ImagePreprocessor", "ImageResizePreprocessor", "NormByChannelPreprocessor",
        "RawCodec",
    ),
    "data.epoch": ("EpochArray",),
    "data.mnist": ("load_mnist", "read_mnist"),
    "data.parts": ("PartWriter", "part_name", "part_paths", "read_part", "write_parts"),
    "data.records": ("Records",),
    "data.source": ("RecordSource",),
    "data.loader": ("ArrayLoader",),
    "data.transforms": ("Normalize", "RandomCrop", "RandomHorizontalFlip"),
    "runtime.session": ("skipped_images",),
}  # fmt: skip
_on_demand = {name: f"..{module}:{name}" for module, names in _OPS.items() for name in names}
_on_demand["mnist_batches"] = "..data.mnist:batches"

__all__ = [  # written out: type checkers take only such names for those of "import *"
    "BlobConf", "BytesListCodec", "EpochArray", "ImageCodec", "ImagePreprocessor", "ImageResizePreprocessor",
    "NormByChannelPreprocessor", "PartWriter", "RawCodec", "RecordSource", "Records", "load_mnist", "mnist_batches", "part_name",
    "part_paths", "read_mnist", "read_part", "write_parts",
]  # fmt: skip
__all__ += [name for name in _on_demand if name not in __all__]
