"""``ShapeProto``."""

from __future__ import annotations

from typing import Any

from .._schema import messages

_TABLE = {
    "ShapeProto": [("*int64", "dim", 1)],
}
_made = messages("common/shape.proto", _TABLE)

DESCRIPTOR: Any = _made["DESCRIPTOR"]
ShapeProto: Any = _made["ShapeProto"]
