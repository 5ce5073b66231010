# Written by scripts/write_stubs.py: the names of oneflow.distributed, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.distributed import get_local_rank as get_local_rank
from oneflow.distributed import get_rank as get_rank
from oneflow.distributed import get_world_size as get_world_size
from oneflow.distributed import is_multi_client as is_multi_client
