"""``UserOpConf``: an op of the registry, with its attributes and the Blobs it is connected to."""

from __future__ import annotations

from typing import Any

from .._schema import messages
from ..framework import user_op_attr_pb2 as _user_op_attr  # noqa: F401 - its file comes first

_TABLE = {
    "UserOpConf": [
        ("string", "op_type_name", 1),
        ("{}UserOpConf.ListString", "input", 2),
        ("{}UserOpConf.ListString", "output", 3),
        ("{}AttrValue", "attr", 4),
        ("*string", "input_order", 5),
        ("*string", "output_order", 6),
    ],
    "UserOpConf.ListString": [("*string", "s", 1)],
}
_made = messages("framework/user_op_conf.proto", _TABLE, imports=["framework/user_op_attr.proto"])

DESCRIPTOR: Any = _made["DESCRIPTOR"]
UserOpConf: Any = _made["UserOpConf"]
