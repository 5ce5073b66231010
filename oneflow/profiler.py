"""``flow.profiler``: named ranges in profiles."""

from __future__ import annotations

from .ops.profiling import nvtx_end as nvtx_end
from .ops.profiling import nvtx_start as nvtx_start
from .ops.profiling import range_pop as range_pop
from .ops.profiling import range_push as range_push
