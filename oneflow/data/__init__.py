"""``flow.data``: data sets and readers."""

from .codecs import (
    BlobConf,
    BytesListCodec,
    ImageCodec,
    ImagePreprocessor,
    ImageResizePreprocessor,
    NormByChannelPreprocessor,
    RawCodec,
)
from .epoch import EpochArray
from .mnist import batches as mnist_batches
from .mnist import load_mnist, read_mnist
from .parts import PartWriter, part_name, part_paths, read_part, write_parts
from .records import Records
from .source import RecordSource

__all__ = [
    "BlobConf",
    "BytesListCodec",
    "EpochArray",
    "ImageCodec",
    "ImagePreprocessor",
    "ImageResizePreprocessor",
    "NormByChannelPreprocessor",
    "PartWriter",
    "RawCodec",
    "RecordSource",
    "Records",
    "load_mnist",
    "mnist_batches",
    "part_name",
    "part_paths",
    "read_mnist",
    "read_part",
    "write_parts",
]
