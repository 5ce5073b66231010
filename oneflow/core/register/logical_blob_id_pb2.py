"""``LogicalBlobId``: the two halves of a logical blob name."""

from __future__ import annotations

from typing import Any

from .._schema import messages

_TABLE = {
    "LogicalBlobId": [("string", "op_name", 1), ("string", "blob_name", 2)],
}
_made = messages("register/logical_blob_id.proto", _TABLE)

DESCRIPTOR: Any = _made["DESCRIPTOR"]
LogicalBlobId: Any = _made["LogicalBlobId"]
