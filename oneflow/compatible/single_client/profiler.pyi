# Written by scripts/write_stubs.py: the names of oneflow.profiler, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.profiler import nvtx_end as nvtx_end
from oneflow.profiler import nvtx_start as nvtx_start
from oneflow.profiler import range_pop as range_pop
from oneflow.profiler import range_push as range_push
