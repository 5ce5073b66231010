"""``JobSignatureDef``: inputs and outputs of a graph, by name."""

from __future__ import annotations

from typing import Any

from .._schema import messages
from ..operator import interface_blob_conf_pb2 as _interface_blob_conf  # noqa: F401 - its file comes first
from ..register import logical_blob_id_pb2 as _logical_blob_id  # noqa: F401 - its file comes first

_TABLE = {
    "JobInputDef": [("LogicalBlobId", "lbi", 1), ("InterfaceBlobConf", "blob_conf", 2)],
    "JobOutputDef": [("LogicalBlobId", "lbi", 1)],
    "JobSignatureDef": [
        ("{}JobInputDef", "inputs", 1),
        ("{}JobOutputDef", "outputs", 2),
        ("*string", "input_order", 1001),
        ("*string", "output_order", 1002),
    ],
}
_made = messages("job/job_conf.proto", _TABLE, imports=["register/logical_blob_id.proto", "operator/interface_blob_conf.proto"])

DESCRIPTOR: Any = _made["DESCRIPTOR"]
JobInputDef: Any = _made["JobInputDef"]
JobOutputDef: Any = _made["JobOutputDef"]
JobSignatureDef: Any = _made["JobSignatureDef"]
