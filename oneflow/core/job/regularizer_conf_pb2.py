"""``RegularizerConf``, which programs name in annotations."""

from __future__ import annotations

from typing import Any

_TABLE = {
    "L1L2RegularizerConf": [("float", "l1", 1), ("float", "l2", 2)],
    "RegularizerConf": [("|L1L2RegularizerConf", "l1_l2_conf", 1)],
}


def __getattr__(name: str) -> Any:
    if name in ("DESCRIPTOR", *_TABLE):
        from .._schema import messages

        globals().update(messages("job/regularizer_conf.proto", _TABLE, oneof="type"))
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
