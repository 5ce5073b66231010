# Written by scripts/write_stubs.py: the names of oneflow.data, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.data import ArrayLoader as ArrayLoader
from oneflow.data import BlobConf as BlobConf
from oneflow.data import BytesListCodec as BytesListCodec
from oneflow.data import EpochArray as EpochArray
from oneflow.data import ImageCodec as ImageCodec
from oneflow.data import ImageDecoderRandomCropResize as ImageDecoderRandomCropResize
from oneflow.data import ImagePreprocessor as ImagePreprocessor
from oneflow.data import ImageResizePreprocessor as ImageResizePreprocessor
from oneflow.data import MegatronGPTMMapDataLoader as MegatronGPTMMapDataLoader
from oneflow.data import NormByChannelPreprocessor as NormByChannelPreprocessor
from oneflow.data import Normalize as Normalize
from oneflow.data import OFRecordBytesDecoder as OFRecordBytesDecoder
from oneflow.data import OFRecordImageDecoder as OFRecordImageDecoder
from oneflow.data import OFRecordImageDecoderRandomCrop as OFRecordImageDecoderRandomCrop
from oneflow.compatible.single_client._ops import OFRecordRawDecoder as OFRecordRawDecoder
from oneflow.data import OneRecDecoder as OneRecDecoder
from oneflow.data import PartWriter as PartWriter
from oneflow.data import RandomCrop as RandomCrop
from oneflow.data import RandomHorizontalFlip as RandomHorizontalFlip
from oneflow.compatible.single_client._ops import RawCodec as RawCodec
from oneflow.data import RecordSource as RecordSource
from oneflow.data import Records as Records
from oneflow.compatible.single_client._ops import coco_reader as coco_reader
from oneflow.data import decode_ofrecord as decode_ofrecord
from oneflow.data import decode_random as decode_random
from oneflow.data import image_decoder_random_crop_resize as image_decoder_random_crop_resize
from oneflow.data import load_mnist as load_mnist
from oneflow.data import megatron_gpt_mmap_data_loader as megatron_gpt_mmap_data_loader
from oneflow.data import mnist_batches as mnist_batches
from oneflow.data import ofrecord_bytes_decoder as ofrecord_bytes_decoder
from oneflow.data import ofrecord_image_classification_reader as ofrecord_image_classification_reader
from oneflow.data import ofrecord_image_decoder as ofrecord_image_decoder
from oneflow.data import ofrecord_image_decoder_random_crop as ofrecord_image_decoder_random_crop
from oneflow.data import ofrecord_loader as ofrecord_loader
ofrecord_raw_decoder = OFRecordRawDecoder
from oneflow.data import ofrecord_reader as ofrecord_reader
from oneflow.data import onerec_decoder as onerec_decoder
from oneflow.data import onerec_reader as onerec_reader
from oneflow.data import part_name as part_name
from oneflow.data import part_paths as part_paths
from oneflow.data import read_mnist as read_mnist
from oneflow.data import read_part as read_part
from oneflow.data import skipped_images as skipped_images
from oneflow.data import write_parts as write_parts
