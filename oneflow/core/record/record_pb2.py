"""``OFRecord`` and its parts: what a part file holds. Same wire format and same names as OneFlow's module."""

from __future__ import annotations

from typing import Any

from .._schema import messages

_made = messages(
    "record/record.proto",
    {
        "BytesList": [("*bytes", "value", 1)],
        "FloatList": [("*pfloat", "value", 1)],
        "DoubleList": [("*pdouble", "value", 1)],
        "Int32List": [("*pint32", "value", 1)],
        "Int64List": [("*pint64", "value", 1)],
        "Feature": [
            ("|BytesList", "bytes_list", 1),
            ("|FloatList", "float_list", 2),
            ("|DoubleList", "double_list", 3),
            ("|Int32List", "int32_list", 4),
            ("|Int64List", "int64_list", 5),
        ],
        "OFRecord": [("{}Feature", "feature", 1)],
    },
)

DESCRIPTOR: Any = _made["DESCRIPTOR"]
BytesList: Any = _made["BytesList"]
FloatList: Any = _made["FloatList"]
DoubleList: Any = _made["DoubleList"]
Int32List: Any = _made["Int32List"]
Int64List: Any = _made["Int64List"]
Feature: Any = _made["Feature"]
OFRecord: Any = _made["OFRecord"]
