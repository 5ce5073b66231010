"""``SbpParallel`` and ``NdSbp``: how a tensor is laid out on its devices."""

from __future__ import annotations

from typing import Any

from .._schema import messages

_TABLE = {
    "SplitParallel": [("int64", "axis", 1)],
    "BroadcastParallel": [],
    "PartialSumParallel": [],
    "SbpParallel": [
        ("|SplitParallel", "split_parallel", 1),
        ("|BroadcastParallel", "broadcast_parallel", 2),
        ("|PartialSumParallel", "partial_sum_parallel", 3),
    ],
    "NdSbp": [("*SbpParallel", "sbp_parallel", 1)],
}
_made = messages("job/sbp_parallel.proto", _TABLE, oneof="parallel_type")

DESCRIPTOR: Any = _made["DESCRIPTOR"]
SplitParallel: Any = _made["SplitParallel"]
BroadcastParallel: Any = _made["BroadcastParallel"]
PartialSumParallel: Any = _made["PartialSumParallel"]
SbpParallel: Any = _made["SbpParallel"]
NdSbp: Any = _made["NdSbp"]
