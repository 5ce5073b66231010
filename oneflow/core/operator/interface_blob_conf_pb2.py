"""``InterfaceBlobConf``: shape, dtype and layout of an input or output."""

from __future__ import annotations

from typing import Any

from .._schema import messages
from ..common import data_type_pb2 as _data_type  # noqa: F401 - its file comes first
from ..common import shape_pb2 as _shape  # noqa: F401 - its file comes first
from ..job import sbp_parallel_pb2 as _sbp_parallel  # noqa: F401 - its file comes first

_TABLE = {
    "InterfaceBlobConf": [
        ("ShapeProto", "shape", 1),
        ("@DataType", "data_type", 2),
        ("bool", "is_dynamic", 3),
        ("NdSbp", "nd_sbp", 4),
    ],
}
_data_type.DESCRIPTOR  # noqa: B018 - made at first use
_made = messages(
    "operator/interface_blob_conf.proto",
    _TABLE,
    imports=["common/shape.proto", "common/data_type.proto", "job/sbp_parallel.proto"],
)

DESCRIPTOR: Any = _made["DESCRIPTOR"]
InterfaceBlobConf: Any = _made["InterfaceBlobConf"]
