"""``AttrValue``: an attribute of a user op."""

from __future__ import annotations

from typing import Any

from .._schema import messages
from ..common import data_type_pb2 as _data_type  # noqa: F401 - its file comes first
from ..common import shape_pb2 as _shape  # noqa: F401 - its file comes first

_TABLE = {
    "AttrValue": [
        ("|int32", "at_int32", 1),
        ("|int64", "at_int64", 2),
        ("|bool", "at_bool", 3),
        ("|float", "at_float", 4),
        ("|double", "at_double", 5),
        ("|string", "at_string", 6),
        ("|ShapeProto", "at_shape", 7),
        ("|@DataType", "at_data_type", 8),
        ("|AttrValue.ListInt32", "at_list_int32", 9),
        ("|AttrValue.ListInt64", "at_list_int64", 10),
        ("|AttrValue.ListFloat", "at_list_float", 11),
        ("|AttrValue.ListDataType", "at_list_data_type", 12),
        ("|AttrValue.ListShape", "at_list_shape", 13),
        ("|AttrValue.ListString", "at_list_string", 14),
    ],
    "AttrValue.ListInt32": [("*int32", "val", 1)],
    "AttrValue.ListInt64": [("*int64", "val", 1)],
    "AttrValue.ListFloat": [("*float", "val", 1)],
    "AttrValue.ListDataType": [("*@DataType", "val", 1)],
    "AttrValue.ListShape": [("*ShapeProto", "val", 1)],
    "AttrValue.ListString": [("*string", "val", 1)],
}
_data_type.DESCRIPTOR  # noqa: B018 - made at first use
_made = messages("framework/user_op_attr.proto", _TABLE, oneof="value", imports=["common/shape.proto", "common/data_type.proto"])

DESCRIPTOR: Any = _made["DESCRIPTOR"]
AttrValue: Any = _made["AttrValue"]
