"""TFRecord files of ``tf.train.Example`` as input of ``pack``."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from .._base.extras import need
from .._base.files import Path as PathLike
from .._base.files import open_regular
from .._base.refuse import refuse
from ..errors import DataError, RecordError
from . import crc32c
from ._fault import Where, fault
from ._packing import make_record, refuse_file, stamp
from .parts import MAX_RECORD_BYTES


class TfRecords:
    """TFRecord files of ``tf.train.Example``. Checksums are verified. Integers become int64 lists.

    Args:
      paths: of the files, in order.
    """

    identity: dict[str, Any]

    def __init__(self, paths: Sequence[PathLike]):
        self.paths = [os.fspath(p) for p in paths]
        spans = [_tfrecord_spans(i, path) for i, path in enumerate(self.paths)]
        self._spans = np.concatenate(spans) if spans else np.zeros((0, 4), np.int64)
        if not len(self._spans):
            refuse(DataError, "the TFRecord files hold no records", found=[("files", ", ".join(self.paths))])
        self.identity = {"kind": "tfrecord", "files": [stamp(p) for p in self.paths]}

    def __len__(self) -> int:
        return len(self._spans)

    def records(self, begin: int, end: int) -> Iterator[bytes]:
        """The examples from ``begin`` to ``end``, as serialised OFRecords."""
        example, file, current = _example(), None, -1
        try:
            for number, offset, length, record in self._spans[begin:end].tolist():
                if number != current:
                    if file is not None:
                        file.close()
                    file, current = _open_tfrecord(self.paths[number]), number
                assert file is not None
                file.seek(offset + 12)
                data, check = file.read(length), file.read(4)
                where = Where(self.paths[number], record, offset)
                if len(check) < 4 or struct.unpack("<I", check)[0] != crc32c.masked(crc32c.crc32c(data)):
                    raise fault(RecordError, "a TFRecord's checksum does not match its data: the file is damaged", where)
                yield _from_example(example, data, where)
        finally:
            if file is not None:
                file.close()


def _open_tfrecord(path: str) -> io.BufferedReader:
    try:
        return io.BufferedReader(open_regular(path))
    except FileNotFoundError:
        refuse(DataError, f"there is no file {path!r}")
    except OSError as error:
        refuse_file(path, error)


def _tfrecord_spans(number: int, path: str) -> np.ndarray:
    spans: list[tuple[int, int, int, int]] = []
    offset = 0
    with _open_tfrecord(path) as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            file.seek(offset)
            head = file.read(12)
            where = Where(path, len(spans), offset)
            if len(head) < 12:
                raise fault(RecordError, "a TFRecord file ends inside a record", where, found=f"{len(head)} bytes are left")
            length, check = struct.unpack("<QI", head)
            if check != crc32c.masked(crc32c.crc32c(head[:8])):
                rule, hint = "a TFRecord's length does not match its checksum", "is it compressed, or not a TFRecord file?"
                raise fault(RecordError, rule, where, hint=hint)
            if offset + 16 + length > size:
                raise fault(RecordError, "a TFRecord file ends inside a record", where, found=f"length {length}")
            if length > MAX_RECORD_BYTES:
                rule = f"a TFRecord is longer than the limit of {MAX_RECORD_BYTES} bytes"
                raise fault(RecordError, rule, where, found=f"length {length}")
            spans.append((number, offset, length, len(spans)))
            offset += 16 + length
    return np.array(spans, np.int64).reshape(-1, 4)


@cache
def _example() -> Any:
    """The message class ``tf.train.Example``, from a separate descriptor pool."""
    descriptor_pb2 = need("google.protobuf.descriptor_pb2", "reading TFRecords")
    pool = need("google.protobuf.descriptor_pool", "reading TFRecords").DescriptorPool()
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    lists = (("BytesList", field.TYPE_BYTES), ("FloatList", field.TYPE_FLOAT), ("Int64List", field.TYPE_INT64))
    for name, kind in lists:
        file.message_type.add(name=name).field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for i, (name, member) in enumerate(
        zip(("BytesList", "FloatList", "Int64List"), ("bytes_list", "float_list", "int64_list"), strict=True), 1
    ):
        optional = feature.field.add(name=member, number=i, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, oneof_index=0)
        optional.type_name = f".tensorflow.{name}"
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    value = {"label": field.LABEL_OPTIONAL, "type": field.TYPE_MESSAGE, "type_name": ".tensorflow.Feature"}
    entry.field.add(name="value", number=2, **value)
    many = {"label": field.LABEL_REPEATED, "type": field.TYPE_MESSAGE, "type_name": ".tensorflow.Features.FeatureEntry"}
    features.field.add(name="feature", number=1, **many)
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".tensorflow.Features"
    )
    pool.AddSerializedFile(file.SerializeToString())
    return need("google.protobuf.message_factory", "reading TFRecords").GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.Example")
    )


def _from_example(example: Any, data: bytes, where: Where) -> bytes:
    try:
        message = example.FromString(data)
    except Exception as error:  # noqa: BLE001 - the protobuf library's own, which differ by implementation
        raise fault(RecordError, "a TFRecord is not a tf.train.Example", where, found=str(error)) from error
    kinds = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
    values = {}
    for name, feature in message.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            values[name] = (kinds[kind], getattr(feature, kind).value)
    if not values:
        raise fault(RecordError, "a TFRecord's example has no features", where)
    return make_record(values)
