"""``SavedModel`` and ``GraphDef``: what a saved model's directory begins with."""

from __future__ import annotations

from typing import Any

from .._schema import messages
from ..job import job_conf_pb2 as _job_conf  # noqa: F401 - its file comes first
from ..operator import op_conf_pb2 as _op_conf  # noqa: F401 - its file comes first

_TABLE = {
    "GraphDef": [
        ("*OperatorConf", "op_list", 1),
        ("{}JobSignatureDef", "signatures", 2),
        ("string", "default_signature_name", 3),
    ],
    "SavedModel": [
        ("!string", "name", 1),
        ("!int64", "version", 2),
        ("!string", "checkpoint_dir", 3),
        ("{}GraphDef", "graphs", 4),
        ("string", "default_graph_name", 5),
    ],
}
_op_conf.DESCRIPTOR  # noqa: B018 - made at first use
_made = messages("serving/saved_model.proto", _TABLE, imports=["operator/op_conf.proto", "job/job_conf.proto"])

DESCRIPTOR: Any = _made["DESCRIPTOR"]
GraphDef: Any = _made["GraphDef"]
SavedModel: Any = _made["SavedModel"]
