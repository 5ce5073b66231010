"""``flow.config.collective_boxing``: how OneFlow grouped its collectives. XLA does that itself."""

from __future__ import annotations

from typing import Any as _Any
from typing import TypeVar as _TypeVar

from ._options import REQUIRED as _REQUIRED
from ._settings import SettingsSetter as _SettingsSetter
from ._settings import setting as _setting

_T = _TypeVar("_T")
_WHY = "no effect: XLA schedules and fuses the collectives"


def _row(name: str, kind: type[_T], default: _Any, implied: _Any = _REQUIRED) -> _SettingsSetter[_T]:
    return _setting(f"collective_boxing.{name}", kind, default, _WHY, implied=implied)


enable_fusion = _row("enable_fusion", bool, True, implied=True)
num_callback_threads = _row("num_callback_threads", int, 4)
nccl_num_streams = _row("nccl_num_streams", int, 1)
nccl_fusion_threshold_mb = _row("nccl_fusion_threshold_mb", int, 16)
nccl_fusion_all_reduce = _row("nccl_fusion_all_reduce", bool, True)
nccl_fusion_all_reduce_use_buffer = _row("nccl_fusion_all_reduce_use_buffer", bool, False)
nccl_fusion_reduce_scatter = _row("nccl_fusion_reduce_scatter", bool, False)
nccl_fusion_all_gather = _row("nccl_fusion_all_gather", bool, False)
nccl_fusion_reduce = _row("nccl_fusion_reduce", bool, True)
nccl_fusion_broadcast = _row("nccl_fusion_broadcast", bool, True)
nccl_fusion_max_ops = _row("nccl_fusion_max_ops", int, 64)
nccl_enable_all_to_all = _row("nccl_enable_all_to_all", bool, False)
nccl_enable_mixed_fusion = _row("nccl_enable_mixed_fusion", bool, False)
