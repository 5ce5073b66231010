"""The activation markers that older model code passes for "none", "relu" and so on; and ``OperatorConf``."""

from __future__ import annotations

from typing import Any

kNone, kTanH, kSigmoid, kRelu = range(4)

_FIELDS = [
    ("string", "name", 1),
    ("string", "device_tag", 4),
    ("*string", "ctrl_in_op_name", 7),
    ("int64", "scope_symbol_id", 8),
]


def __getattr__(name: str) -> Any:
    if name in ("OperatorConf", "DESCRIPTOR"):
        from .._schema import messages

        globals().update(messages("operator/op_conf.proto", {"OperatorConf": _FIELDS}))
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
